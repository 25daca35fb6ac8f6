"""[source] fields: the readings in the messages of devices, and what cannot be used of them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tsunagi.edge.decode import Decoder, Reading, ReadingFault
from tsunagi.edge.fields import FieldsDecoder
from tsunagi.edge.inbox import Message
from tsunagi.edge.source import SourceError
from tsunagi.edge.topic_pattern import TopicLevels
from tsunagi.query.form import TupleForm
from tsunagi.query.values import Kind
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import SourceSettings
from tsunagi.runtime.time_form import BadTimeError, TimeForm

NAMES = ("boiler.temperature", "boiler.pressure", "pump.state", "tank", "cpu.idle", "room humidity", "Halle Süd.t")
TABLE = SensorTable((*(Sensor(n, name, "hall") for n, name in enumerate(NAMES)), Sensor(7, "far.t", "yard")))
NOON_US = int(datetime(2024, 5, 6, 12, tzinfo=UTC).timestamp()) * 1_000_000
NOON_S = NOON_US // 1_000_000
ARRIVED_US = NOON_US + 77


def readings(payload: object, topic: str = "", *entries: dict[str, Any], **more: Any) -> list[Reading | ReadingFault]:
    source = SourceSettings.model_validate({"kind": "mqtt", "fields": entries})
    decoder = FieldsDecoder(Decoder(TABLE, TABLE.of_edge("hall"), source, key_first=True), source)
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return list(decoder.readings(Message(data, "here", ARRIVED_US, topic=topic, **more)))


def values(found: list[Reading | ReadingFault]) -> dict[str, float]:
    """Return the values by sensor; all must be of noon."""
    assert all(isinstance(item, Reading) and item.time_us == NOON_US for item in found), found
    return {NAMES[item.place]: item.value for item in found if isinstance(item, Reading)}


def faults(found: list[Reading | ReadingFault]) -> list[tuple[str, str]]:
    return [(item.reason, item.sensor) for item in found if isinstance(item, ReadingFault)]


# ---- shapes of messages


def test_a_device_sends_several_values_in_one_message() -> None:
    found = readings(
        {"temperature": 81.5, "pressure": 2, "ts": NOON_S * 1000, "firmware": "1.2"},
        "plant/hall-1/boiler",
        {
            "topic": "plant/+/{device}",
            "values": ["temperature", "pressure", "flow"],
            "sensor": "{device}.{field}",
            "time": "ts",
            "time_unit": "ms",
        },
    )
    assert values(found) == {"boiler.temperature": 81.5, "boiler.pressure": 2.0}


def test_telegraf_sends_one_metric_or_several() -> None:
    entry = {
        "each": "metrics",
        "values": {"idle": "fields.usage_idle"},
        "sensor": "{name}.{field}",
        "time": "timestamp",
    }
    metric = {"fields": {"usage_idle": 98.5}, "name": "cpu", "tags": {"host": "a"}, "timestamp": NOON_S}
    assert values(readings({"metrics": [metric]}, "", entry)) == {"cpu.idle": 98.5}
    assert values(readings(metric, "", entry | {"each": ""})) == {"cpu.idle": 98.5}


def test_every_number_below_a_path_is_named_by_its_place_there() -> None:
    metric = {"fields": {"idle": 98.5, "model": "x", "sub": {"t": 1}}, "tags": {"nr": 3}, "timestamp": NOON_S}
    entry = {"values": ["fields.*"], "sensor": "cpu.{field}", "time": "timestamp"}
    assert values(readings(metric | {"fields": {"idle": 98.5, "model": "x"}}, "", entry)) == {"cpu.idle": 98.5}
    assert faults(readings(metric, "", entry)) == [("unknown-sensor", "cpu.sub.t")]
    nothing = readings({"fields": 3, "timestamp": NOON_S}, "", entry | {"values": ["tags.*"]})
    assert faults(nothing) == [("no-field", "")]
    with pytest.raises(ValidationError, match="is one name for several values"):
        readings({}, "", entry | {"sensor": "tank"})


def test_zigbee2mqtt_and_home_assistant() -> None:
    state = {"state": "ON", "linkquality": 120, "last_seen": "2024-05-06T14:00:00+02:00"}
    entry = {
        "topic": "zigbee2mqtt/{name}",
        "values": ["state"],
        "sensor": "{name}.{field}",
        "time": "last_seen",
        "words": {"ON": 1, "OFF": 0},
    }
    assert values(readings(state, "zigbee2mqtt/pump", entry)) == {"pump.state": 1.0}
    plain = {
        "topic": "homeassistant/sensor/{name}/state",
        "values": ["@"],
        "sensor": "{name}",
        "time": "",
        "words": {"off": 0},
        "missing": ["unavailable"],
    }
    topic = "homeassistant/sensor/tank/state"
    assert readings(b"12.5", topic, entry, plain) == [Reading(3, ARRIVED_US, 12.5, arrival=True)]
    assert readings(b"off", topic, entry, plain) == [Reading(3, ARRIVED_US, 0.0, arrival=True)]
    assert faults(readings(b"unavailable", topic, plain)) == [("missing", "tank")]
    assert faults(readings(b"12.5", topic, plain, stored=True)) == [("no-time", "tank")]
    assert faults(readings(b"broken", topic, plain)) == [("not-a-number", "tank")]


def test_a_list_whose_items_share_a_time_and_a_name() -> None:
    message = {
        "t": "2024-05-06T12:00:00Z",
        "id": "boiler",
        "data": [{"k": "temperature", "v": 1}, {"k": "pressure", "v": 2}],
    }
    entry = {"each": "data", "values": ["v"], "sensor": "{id}.{k}", "time": "t"}
    assert values(readings(message, "", entry)) == {"boiler.temperature": 1.0, "boiler.pressure": 2.0}
    by_name = {"t": NOON_S, "data": {"a": {"k": "temperature", "v": 3}, "b": {"k": "pressure", "v": 4}}}
    entry |= {"sensor": "boiler.{k}"}
    assert values(readings(by_name, "", entry)) == {"boiler.temperature": 3.0, "boiler.pressure": 4.0}


def test_every_number_wherever_it_stands() -> None:
    message = {"boiler": {"temperature": 70, "pressure": True}, "time": NOON_S, "note": "7"}
    assert values(readings(message, "", {})) == {"boiler.temperature": 70.0, "boiler.pressure": 1.0}


def test_a_record_key_names_the_sensor() -> None:
    entry = {"values": ["v"], "sensor": "{key}", "time": "t"}
    assert values(readings({"v": 4, "t": NOON_S}, "", entry, sensor="tank")) == {"tank": 4.0}


def test_several_entries_may_find_something_in_one_message() -> None:
    message = {"temperature": "21,5", "hum": 40, "time": NOON_S}
    warm = {"values": ["temperature"], "sensor": "boiler.{field}", "decimal": ",", "scale": 2, "offset": 1}
    wet = {"values": {"room humidity": "hum"}}
    assert values(readings(message, "any/topic", warm, wet)) == {"boiler.temperature": 44.0, "room humidity": 40.0}


@pytest.mark.parametrize(
    ("given", "value"),
    [(3, 3.0), ("3.5", 3.5), (" -1e3 ", -1000.0), (True, 1.0), (False, 0.0), (2**63, 2.0**63), ("closed", 7.0)],
)
def test_what_is_a_value(given: object, value: float) -> None:
    entry = {"values": ["v"], "sensor": "tank", "words": {"closed": 7}}
    assert values(readings({"v": given, "time": NOON_S}, "", entry)) == {"tank": value}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("1_0", "not-a-number"),
        ("1,5", "not-a-number"),
        ("", "not-a-number"),
        ("nan", "not-a-number"),
        (float("inf"), "not-a-number"),
        (10**400, "not-a-number"),
        ({"v": 1}, "not-a-number"),
        (-999, "missing"),
        ("NA", "missing"),
        (None, "no-field"),
    ],
)
def test_what_is_none_is_said(given: object, reason: str) -> None:
    entry = {"values": ["v"], "sensor": "tank", "missing": ["NA", -999]}
    ((found, sensor),) = faults(readings({"v": given, "time": NOON_S}, "", entry))
    assert (found, sensor) == (reason, "" if reason == "no-field" else "tank")


@pytest.mark.parametrize("given", ["1.234,5", "1.5"])
def test_with_a_decimal_comma_a_point_is_no_decimal_sign(given: str) -> None:
    found = readings({"v": given, "time": 1}, "", {"values": ["v"], "sensor": "tank", "decimal": ","})
    assert faults(found) == [("not-a-number", "tank")]


def test_what_else_cannot_be_used_is_said() -> None:
    entry = {"topic": "plant/{device}", "values": ["t", "u"], "sensor": "{device}.{field}"}
    found = readings({"t": 1, "u": 2, "time": NOON_S}, "plant/far", entry)
    assert faults(found) == [("foreign-sensor", "far.t"), ("unknown-sensor", "far.u")]
    assert faults(readings({"t": 1}, "plant/far/x", entry)) == [("no-field", "")]
    assert faults(readings({"x": 1}, "plant/far", entry)) == [("no-field", "")]
    tank = {"values": ["v"], "sensor": "tank"}
    assert faults(readings({"v": 1}, "", tank)) == [("no-time", "tank")]
    assert faults(readings({"v": 1, "time": "noon"}, "", tank)) == [("bad-time", "tank")]
    assert faults(readings({"v": 1}, "", tank | {"sensor": "{id}"})) == [("no-sensor", "")]
    assert faults(readings({"v": 1, "id": ["a"]}, "", tank | {"sensor": "{id}"})) == [("no-sensor", "")]
    for payload in (b"", b"\xff", b"{", b"[1", b"[" * 100_000):
        assert faults(readings(payload, "", tank)) == [("unreadable", "")]
    assert values(readings(b"\xef\xbb\xbf" + json.dumps({"v": 5, "time": NOON_S}).encode(), "", tank)) == {"tank": 5.0}
    assert readings(b"1", "", tank, fault=("too-long", "long")) == [ReadingFault("too-long", "", "long")]


def test_events_go_their_own_way() -> None:
    source = SourceSettings.model_validate({"kind": "mqtt", "fields": [{}]})
    streams = {"doors": TupleForm("", {"open": Kind.BOOLEAN})}
    decoder = FieldsDecoder(Decoder(TABLE, TABLE.of_edge("hall"), source, key_first=True, streams=streams), source)
    body = {"stream": "doors", "open": True, "time": "2024-05-06T12:00:00Z"}
    (found,) = decoder.readings(Message(json.dumps(body).encode(), "here", ARRIVED_US))
    assert isinstance(found, Reading)
    assert (found.stream, found.cells) == ("doors", {"open": True})


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
        max_leaves=12,
    )
    | st.binary(max_size=20)
)
def test_whatever_comes_is_read_or_said(message: object) -> None:
    entries = [
        {},
        {"each": "data", "values": ["v", "abs(v)"], "sensor": "{id}{field}"},
        {"values": ["@"], "sensor": "tank"},
    ]
    for entry in entries:
        assert readings(message, "", entry)


# ---- times


@pytest.mark.parametrize(
    ("unit", "given", "time_us"),
    [
        ("ns", NOON_US * 1000 + 999, NOON_US),
        ("ns", str(NOON_US * 1000), NOON_US),
        ("us", NOON_US, NOON_US),
        ("ms", f"{NOON_US / 1000:.3f}", NOON_US),
        ("s", NOON_S + 0.25, NOON_US + 250_000),
        ("s", "2024-05-06 14:00:00+02:00", NOON_US),
    ],
)
def test_times_in_the_usual_forms(unit: str, given: object, time_us: int) -> None:
    assert TimeForm(unit, number_texts=True).read(given) == time_us


def test_times_of_a_form_of_ones_own_in_a_zone() -> None:
    berlin = TimeForm("s", "%d.%m.%Y %H:%M:%S", "Europe/Berlin", number_texts=True)
    assert berlin.read("06.05.2024 14:00:00") == NOON_US
    assert TimeForm("s", zone="Europe/Berlin").read("2024-05-06T14:00:00") == NOON_US
    assert TimeForm("s", zone="Europe/Berlin").read("2024-05-06T12:00:00Z") == NOON_US
    for text, often in (("27.10.2024 02:30:00", "twice"), ("31.03.2024 02:30:00", "never")):
        with pytest.raises(BadTimeError, match=f"Europe/Berlin show {often}"):
            berlin.read(text)
    bad: tuple[object, ...] = ("2024-05-06T12:00:00", "", True, None, [], float("nan"), 1e300, 10**30)
    for item in bad:
        with pytest.raises(BadTimeError):
            TimeForm("s", number_texts=True).read(item)


# ---- topics and settings


@pytest.mark.parametrize(
    ("pattern", "topic", "names"),
    [
        ("plant/{area}/{device}", "plant/a/b", {"area": "a", "device": "b"}),
        ("plant/{area}/{device}", "plant/a/b/c", None),
        ("plant/+/{device}/#", "plant/a/b/c/d", {"device": "b"}),
        ("plant/+/{device}/#", "plant/a/b", {"device": "b"}),
        ("plant/+/{device}/#", "plant/a", None),
        ("{edge}/x", "hall/x", {}),
        ("{edge}/x", "yard/x", None),
        ("#", "any/thing", {}),
    ],
)
def test_the_levels_of_topics(pattern: str, topic: str, names: dict[str, str] | None) -> None:
    assert TopicLevels(pattern, "hall", "here").match(topic) == names


@pytest.mark.parametrize("pattern", ["a/{b", "a/x{b}", "a/b+", "#/a", "{a b}", "a/{}"])
def test_patterns_that_are_none(pattern: str) -> None:
    with pytest.raises(SourceError, match="here: found"):
        TopicLevels(pattern, "hall", "here")


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"values": ["a..b"]}, "found 'a..b', expected a path \\(JMESPath\\) such as tags.host"),
        ({"values": []}, "found none, expected paths of values"),
        ({"values": [""]}, "found an empty path"),
        ({"time": "a["}, "found 'a\\[', expected a path"),
        ({"time_zone": "Europe/Nowhere"}, "found 'Europe/Nowhere', expected a time zone"),
        ({"sensor": "{device"}, "sensor = '{device'"),
        ({"sensor": "{}"}, "expected a name, as {field}"),
        ({"sensor": "tank"}, "one name for several values: expected {field}"),
        ({"values": ["a", "b"], "sensor": "tank"}, "one name for several values"),
        ({"scale": float("nan")}, "scale"),
        ({"word": {}}, "word"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(entry: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        SourceSettings.model_validate({"fields": [entry]})
