"""The door: each field of each record has a range, and nobody parses a record anywhere else."""

from __future__ import annotations

import ast
import math
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor

from tsunagi.runtime.columns import pack_floats, pack_sensors
from tsunagi.runtime.door import UnusableError, decode
from tsunagi.runtime.messages import (
    Ack,
    Array,
    Arrays,
    Calibrated,
    Context,
    Heartbeat,
    LogRecord,
    Ownership,
    Plan,
    Recovered,
    ResultBlock,
    SlotBeat,
    StandbyTarget,
    TupleBatch,
    Window,
    Workers,
    tsunagi_pb2,
)
from tsunagi.runtime.ranges import ALIKE, INT64_MAX, MAX_TIME_US, NOT_YET, RANGES, AnyValue, Digest
from tsunagi.runtime.ranges_check import fault

ROOT = Path(__file__).parents[3]
MESSAGES: dict[str, Descriptor] = dict(tsunagi_pb2.DESCRIPTOR.message_types_by_name)
PARSERS = {"FromString", "ParseFromString", "MergeFromString"}


def test_every_field_of_every_message_has_a_row() -> None:
    assert {name: set(kind.fields_by_name) for name, kind in MESSAGES.items()} == {
        name: set(rows) for name, rows in RANGES.items()
    }
    for name, groups in ALIKE.items():
        assert all(field in RANGES[name] for group in groups for field in group)


def test_an_empty_message_is_within_its_ranges() -> None:
    assert not any(fault(getattr(tsunagi_pb2, name)()) for name in MESSAGES)


@pytest.mark.parametrize("name", ["LogRecord", "Ack", "Plan"])
def test_of_a_record_with_a_body_the_body_alone_has_ranges(name: str) -> None:
    assert set(RANGES[name].values()) == {AnyValue()}


def test_nobody_else_parses_records() -> None:
    found = set()
    for path in [*ROOT.glob("services/**/*.py"), *ROOT.glob("spark/**/*.py")]:
        tree = ast.parse(path.read_text())
        if any(isinstance(node, ast.Attribute) and node.attr in PARSERS for node in ast.walk(tree)):
            found.add(str(path.relative_to(ROOT)))
    # What devices send is no record: `sparkplug.py` reads their payloads.
    assert found == {"services/tsunagi/runtime/door.py", "services/tsunagi/edge/sparkplug.py"}


BATCH = TupleBatch(edge="e", step=5, event_time_us=5, sensor=pack_sensors([1, 2]), value=pack_floats([1.0, math.nan]))


@pytest.mark.parametrize(
    "fields",
    [
        {"step": INT64_MAX},
        {"step": MAX_TIME_US + 1},
        {"step": -1},
        {"event_time_us": -(1 << 62)},
        {"event_time_us": MAX_TIME_US + 1},
        {"incarnation": 1 << 63},
        {"offset": INT64_MAX},
        {"edge": "e" * 1025},
        {"value": pack_floats([1.0])},
        {"value": pack_floats([1.0, 2.0])[:-1]},
        {"sensor": pack_sensors([1, 2])[:-1]},
        {"helper": pack_sensors([1])},
        {"helper_value": b"x"},
    ],
)
def test_a_batch_out_of_range_is_refused_by_name(fields: dict[str, Any]) -> None:
    record = LogRecord(version=1, batch=BATCH)
    assert decode(LogRecord, record.SerializeToString()) == record
    for name, value in fields.items():
        setattr(record.batch, name, value)
    with pytest.raises(UnusableError, match=r"^batch\.") as caught:
        decode(LogRecord, record.SerializeToString())
    assert caught.value.reason == "damaged"


@pytest.mark.parametrize("count", [3, 256, 400])
@pytest.mark.parametrize("odd", [math.inf, -math.inf, 1e101, -1e200])
def test_one_factor_is_found_wherever_it_stands(count: int, odd: float) -> None:
    for place in (0, count // 2, count - 1):
        for other in (1.0, math.nan, 1e100):
            values = [other] * count
            assert not fault(Calibrated(factor=pack_floats(values)))
            values[place] = odd
            assert fault(Calibrated(factor=pack_floats(values)))


def test_an_odd_reading_does_not_take_its_edges_others_with_it() -> None:
    assert not fault(TupleBatch(sensor=pack_sensors([1, 2]), value=pack_floats([math.inf, 1.0])))


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (LogRecord(ownership=Ownership(epoch=1 << 63)), "ownership.epoch"),
        (Recovered(sensor=pack_sensors([1]), mean=pack_floats([1.0])), "quality"),
        (ResultBlock(window=Window(length_us=-1)), "window.length_us"),
        (Heartbeat(slots=[SlotBeat(), SlotBeat(record_us=math.nan)]), "slots.record_us"),
        (Heartbeat(metrics_port=65_536), "metrics_port"),
        (Plan(target=StandbyTarget(max_bandwidth=math.nan)), "target.max_bandwidth"),
        (Plan(workers=Workers(count={"small": 1_000_000})), "workers.count"),
        (Plan(workers=Workers(count={"s" * 1025: 1})), "workers.count"),
        (Context(quarantined=[1, -2]), "quarantined"),
        (Context(open=[TupleBatch(), TupleBatch(step=-1)]), "open.step"),
        (Context(cursor=NOT_YET + 1), "cursor"),
        (Arrays(array={"a": Array(dtype="x" * 65)}), "array.dtype"),
    ],
)
def test_the_field_is_named(message: Any, field: str) -> None:
    assert fault(message).startswith(f"{field}: found ")


DIGESTS = [(name, field) for name, rows in RANGES.items() for field, rule in rows.items() if isinstance(rule, Digest)]


@pytest.mark.parametrize(("name", "field"), DIGESTS)
def test_a_hash_may_become_a_file_s_name(name: str, field: str) -> None:
    def of(value: str) -> str:
        return fault(getattr(tsunagi_pb2, name)(**{field: value}))

    assert not of("")
    assert not of("09af" * 16)
    for value in ("\0", "09af" * 15, "09af" * 16 + "0", "../a" * 16, "09AF" * 16, "0" * 63 + "\n", "é" * 64):
        assert of(value).startswith(f"{field}: found "), value


def test_what_a_model_is_known_by_is_a_hash() -> None:
    assert {("ModelChange", "sha256"), ("ModelChange", "refit_of"), ("Context", "model_sha256")} < set(DIGESTS)


def test_what_stands_for_no_step_passes() -> None:
    assert not fault(Context(cursor=NOT_YET, punctuated=NOT_YET))
    assert not fault(Plan(target=StandbyTarget(max_bandwidth=math.inf)))


@pytest.mark.parametrize(
    ("value", "reason"),
    [(b"\xff\xff", "unreadable"), (b"\x08\x02", "version"), (None, "unreadable"), (b"\x08\x01", "unreadable")],
)
@pytest.mark.parametrize("kind", [LogRecord, Plan, Ack])
def test_what_is_no_message(kind: Any, value: bytes | None, reason: str) -> None:
    with pytest.raises(UnusableError) as caught:
        decode(kind, value)
    assert caught.value.reason == reason
