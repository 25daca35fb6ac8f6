"""Odd payloads, each with what becomes of it: the right value, or a counted reason that says what was found."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest

from tests.unit.edge import worlds
from tsunagi.runtime.messages import sparkplug_b_pb2 as pb
from tsunagi.runtime.sensors import Sensor, SensorTable

NOW = datetime(2023, 10, 29, 1, tzinfo=UTC)
"""At this moment clocks in Berlin show 2:00 for the second time, since summer time has just ended."""
NOW_S = round(NOW.timestamp())
NAME = "Kessel Süd/温度 🌡"
TABLE = SensorTable((Sensor(0, "s0", "a"), Sensor(1, NAME, "a"), Sensor(2, "s9", "b")))


class Odd(NamedTuple):
    """A payload, how it is read, and what must become of it.

    Attributes:
        source: as `[source]`.
        values: (sensor, value) of the readings that are taken; all are of the moment `NOW`.
        faults: (reason, a part of the detail) of each reading that is counted.
        more: further attributes of the message.
        times: how often it comes.
    """

    what: str
    payload: bytes | str
    source: Mapping[str, Any]
    values: Sequence[tuple[str, float]] = ()
    faults: Sequence[tuple[str, str]] = ()
    more: Mapping[str, Any] = {}
    times: int = 1


def own(value: str, sensor: str = '"s0"', time: str = str(NOW_S)) -> str:
    """Return a message of Tsunagi's own form."""
    return f'{{"sensor": {sensor}, "time": {time}, "value": {value}}}'


OWN: dict[str, Any] = {"time_unit": "s"}
T: dict[str, Any] = {"values": ["t"], "sensor": "s0", "time": "at"}


def by(**entry: Any) -> dict[str, Any]:
    """Return [source] with a table of fields, which finds a value at `t` and its time at `at`."""
    return {"fields": [T | entry]}


def at(value: str, time: str = str(NOW_S)) -> str:
    return f'{{"t": {value}, "at": {time}}}'


BERLIN = by(time_format="%d.%m.%Y %H:%M", time_zone="Europe/Berlin")
LINES = {
    "format": "line-protocol",
    "fields": [{"values": ["fields.v"], "sensor": "{measurement}", "time_unit": "s"}],
}
METRICS = {
    "kind": "mqtt",
    "format": "sparkplug",
    "fields": [{"each": "metrics", "values": ["value"], "sensor": "{name}", "time": "timestamp", "time_unit": "ms"}],
}


def metric(value: float) -> bytes:
    found = pb.Payload.Metric(name="s0", datatype=pb.Double, double_value=value)
    return pb.Payload(timestamp=NOW_S * 1000, metrics=[found]).SerializeToString()


DATA = {"topic": "spBv1.0/g/DDATA/n/d"}
BIG, SMALL = 2**63 - 1, -(2**63)

ODD = [
    # ---- Tsunagi's own form
    Odd("byte order mark", b"\xef\xbb\xbf" + own("1.5").encode(), OWN, [("s0", 1.5)]),
    Odd("byte order mark before a plain number", b"\xef\xbb\xbf7", OWN, [("s0", 7.0)], more={"sensor": "s0"}),
    Odd("unicode name", own("1", json.dumps(NAME, ensure_ascii=False)), OWN, [(NAME, 1.0)]),
    Odd("escaped unicode name", own("1", json.dumps(NAME)), OWN, [(NAME, 1.0)]),
    Odd("greatest int64", own(str(BIG)), OWN, [("s0", float(BIG))]),
    Odd("least int64", own(str(SMALL)), OWN, [("s0", float(SMALL))]),
    Odd("1e308", own("1e308"), OWN, [("s0", 1e308)]),
    Odd("1e309", own("1e309"), OWN, faults=[("not-a-number", "value: found inf, expected a finite number")]),
    Odd("integer of 400 digits", own("9" * 400), OWN, faults=[("not-a-number", "value: found 999")]),
    Odd("NaN", own("NaN"), OWN, faults=[("not-a-number", "value: found nan")]),
    Odd("-Infinity", own("-Infinity"), OWN, faults=[("not-a-number", "value: found -inf")]),
    Odd("text NaN", own('"NaN"'), OWN, faults=[("not-a-number", "value: found 'NaN'")]),
    Odd("NA", own('"NA"'), OWN, faults=[("not-a-number", "value: found 'NA'")]),
    Odd("null", own("null"), OWN, faults=[("not-a-number", "value: found None")]),
    Odd("true", own("true"), OWN, faults=[("not-a-number", "value: found True")]),
    Odd("array", own("[1, 2]"), OWN, faults=[("not-a-number", "value: found [1, 2]")]),
    Odd("very long text", own(json.dumps("x" * 60_000)), OWN, faults=[("not-a-number", "value: found 'xxx")]),
    Odd("number as a name", own("1", "5"), OWN, faults=[("no-sensor", "sensor: found 5, expected a sensor's name")]),
    Odd(
        "time without a zone",
        own("1", time='"2023-10-29T01:00:00"'),
        OWN,
        faults=[("bad-time", "ISO 8601 with a zone")],
    ),
    Odd("time in milliseconds", own("1", time=f"{NOW_S}000"), OWN, faults=[("bad-time", "expected ISO 8601")]),
    Odd("time of 400 digits", own("1", time="9" * 400), OWN, faults=[("bad-time", "time: found 999")]),
    Odd("empty message", b"", OWN, faults=[("unreadable", "found ''")]),
    Odd("blanks", b" \r\n", OWN, faults=[("unreadable", "found ''")]),
    Odd("truncated", own("1.5")[:-4], OWN, faults=[("unreadable", "which is not JSON (JSONDecodeError")]),
    Odd("two objects", own("1") * 2, OWN, faults=[("unreadable", "which is not JSON (JSONDecodeError: Extra data")]),
    Odd("UTF-16", own("1").encode("utf-16"), OWN, faults=[("unreadable", "found byte 0xff at 1, which is not UTF-8")]),
    Odd("list", f"[{own('1')}]", OWN, faults=[("unreadable", "expected a JSON object or a number")]),
    Odd("100,000 brackets", '{"a":' + "[" * 60_000, OWN, faults=[("unreadable", "which is not JSON (RecursionError")]),
    Odd("digits with _", b"1_000", OWN, faults=[("unreadable", "found '1_000'")]),
    Odd(
        "retained plain number",
        b"5",
        OWN,
        faults=[("no-time", "retained by the broker")],
        more={"sensor": "s0", "stored": True},
    ),
    Odd("retained, with its time", own("5"), OWN, [("s0", 5.0)], more={"stored": True}),
    Odd("repeated", own("5"), OWN, [("s0", 5.0)], [("repeated", "delivered again")], {"repeated": True}, times=2),
    Odd("twice, not marked", own("5"), OWN, [("s0", 5.0)] * 2, times=2),
    # ---- [source] fields
    Odd("NA that is missing", at('"NA"'), by(missing=["NA"]), faults=[("missing", "t: found 'NA'")]),
    Odd("-999 that is missing", at("-999"), by(missing=[-999]), faults=[("missing", "t: found -999")]),
    Odd("-999.0 that is missing", at("-999.0"), by(missing=[-999]), faults=[("missing", "t: found -999.0")]),
    Odd("text -999 that is missing", at('"-999"'), by(missing=[-999]), faults=[("missing", "t: found '-999'")]),
    Odd("-999 that is none", at("-999"), by(), [("s0", -999.0)]),
    Odd("decimal comma", at('"21,5"'), by(decimal=","), [("s0", 21.5)]),
    Odd("decimal comma not said", at('"21,5"'), by(), faults=[("not-a-number", "t: found '21,5'")]),
    Odd("decimal comma and points", at('"1.234,5"'), by(decimal=","), faults=[("not-a-number", "t: found '1.234,5'")]),
    Odd("text Infinity", at('"Infinity"'), by(), faults=[("not-a-number", "t: found 'Infinity'")]),
    Odd("scaled past all numbers", at("1e308"), by(scale=100), faults=[("not-a-number", "t: found 1e+308")]),
    Odd(
        "nested null", '{"t": {"a": null}, "at": 1}', by(values=["t.a"]), faults=[("no-field", "no entry of [source]")]
    ),
    Odd("null in the way", '{"t": null, "at": 1}', by(values=["t.a.b"]), faults=[("no-field", "no entry of [source]")]),
    Odd("array of nulls", at("[null, 3]"), by(), [("s0", 3.0)], [("not-a-number", "t[0]: found None")]),
    Odd("array of the wrong type", at('[1, "x"]'), by(), [("s0", 1.0)], [("not-a-number", "t[1]: found 'x'")]),
    Odd("object for a number", at('{"a": 1}'), by(), faults=[("not-a-number", "t: found {'a': 1}")]),
    Odd("number for a list", '{"items": 5}', by(each="items"), faults=[("no-field", "no entry of [source]")]),
    Odd(
        "two zones",
        '[{"t": 1, "at": "2023-10-29T02:00:00+01:00"}, {"t": 2, "at": "2023-10-29T03:00+02:00"}]',
        by(each="@"),
        [("s0", 1.0), ("s0", 2.0)],
    ),
    Odd("an hour shown twice", at("1", '"29.10.2023 02:00"'), BERLIN, faults=[("bad-time", "show twice")]),
    Odd("an hour never shown", at("1", '"26.03.2023 02:30"'), BERLIN, faults=[("bad-time", "show never")]),
    Odd(
        "that hour with its offset",
        at("1", '"2023-10-29T02:00:00+01:00"'),
        by(time_zone="Europe/Berlin"),
        [("s0", 1.0)],
    ),
    # ---- line protocol
    Odd("BOM before a line", b"\xef\xbb\xbf" + f"s0 v=1.5 {NOW_S}".encode(), LINES, [("s0", 1.5)]),
    Odd("unicode measurement", NAME.replace(" ", "\\ ") + f" v=1i {NOW_S}", LINES, [(NAME, 1.0)]),
    Odd("int64 in a line", f"s0 v={SMALL}i {NOW_S}", LINES, [("s0", float(SMALL))]),
    Odd("int64 + 1 in a line", f"s0 v={BIG + 1}i {NOW_S}", LINES, faults=[("unreadable", "line 1: found 's0 v=")]),
    Odd("NaN in a line", f"s0 v=NaN {NOW_S}", LINES, faults=[("unreadable", "line 1: found 's0 v=NaN")]),
    Odd("truncated line", f"s0 v=1 {NOW_S}\ns0 v=", LINES, [("s0", 1.0)], [("unreadable", "line 2: found 's0 v='")]),
    Odd("no line", b"", LINES, faults=[("unreadable", "found no line, expected line protocol")]),
    # ---- Sparkplug B
    Odd("NaN in a metric", metric(math.nan), METRICS, faults=[("not-a-number", "value: found nan")], more=DATA),
    Odd("truncated metrics", metric(1)[:-3], METRICS, faults=[("unreadable", "payload of Sparkplug B")], more=DATA),
    Odd("no metrics", b"", METRICS, faults=[("no-field", "no entry of [source] fields")], more=DATA),
]


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd.what)
def test_an_odd_payload_gives_the_right_value_or_is_counted_with_a_reason(
    odd: Odd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worlds, "TABLE", TABLE)
    monkeypatch.setattr(worlds, "START_US", NOW_S * 1_000_000)
    rig = worlds.Rig(**{"kind": "mqtt"} | dict(odd.source))
    payload = odd.payload if isinstance(odd.payload, bytes) else odd.payload.encode()
    for _ in range(odd.times):
        rig.feed.raw(payload, NOW_S * 1_000_000, **odd.more)
    rows = rig.turn()
    assert [(TABLE.of_edge("a")[row.places[0]].name, float(row.values[0])) for row in rows] == list(odd.values)
    assert {row.time_us for row in rows} <= {NOW_S * 1_000_000}
    counted = rig.source.unusable()
    assert [item.reason for item in counted] == [reason for reason, _ in odd.faults]
    for item, (_, detail) in zip(counted, odd.faults, strict=True):
        assert detail in item.detail
        assert len(item.detail) < 400
        assert item.count == 1
