"""Batches read as columns are those that are parsed one by one, whatever stands among them."""

from __future__ import annotations

import random

import pytest

from tests.unit.slot.small_slot import EDGES, FIRST, SENSORS, Writer, batch
from tsunagi.runtime.log import Record
from tsunagi.runtime.messages import VERSION, LogRecord
from tsunagi.runtime.ranges import MAX_TIME_US
from tsunagi.slot import parsing
from tsunagi.slot.parsing import Parsed, alone, parse, parse_run
from tsunagi.slot.plain import PlainBatches

RUN = 40


def both(records: list[Record]) -> tuple[list[Parsed], list[int]]:
    """What each record is parsed to in a run, and how long the columns are in which records were read."""
    found: list[Parsed] = []
    together = []
    for count, parsed in parse_run(records):
        part = records[len(found) : len(found) + count]
        found += [alone(record, parsed) for record in part]
        if isinstance(parsed[0], PlainBatches):
            together.append(count)
    return found, together


def without_hash(parsed: Parsed) -> Parsed:
    message, reason, kind = parsed
    if message is not None:
        message.ClearField("mac")
    return message, reason, kind


def hold(records: list[Record]) -> list[int]:
    """Compare a run with its records one by one; return how long the columns are."""
    found, together = both(records)
    assert [without_hash(parsed) for parsed in found] == [without_hash(parse(record)) for record in records]
    return together


def run_of(edge: str = "e1", count: int = RUN, values: dict[int, float] | None = None) -> list[Record]:
    writer = Writer()
    for number in range(count):
        writer.batch(edge, FIRST + number, values)
    return writer.records


@pytest.mark.parametrize("edge", EDGES)
def test_batches_that_differ_in_numbers_alone_are_read_together(edge: str) -> None:
    assert hold(run_of(edge)) == [RUN]


def test_few_batches_are_read_one_by_one() -> None:
    assert hold(run_of(count=parsing.LEAST - 1)) == []


def test_batches_without_counts_are_read_together() -> None:
    writer = Writer()
    for number in range(RUN):
        item = batch("e1", FIRST + number)
        item.ClearField("count")
        writer.add(batch=item)
    assert hold(writer.records) == [RUN]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("edge", "e2"),
        ("incarnation", 2),
        ("step", MAX_TIME_US + 1),
        ("event_time_us", MAX_TIME_US + 1),
        ("sensor", b"\x01\x00\x00\x00\x02"),
        ("value", b"12345678"),
        ("count", b"1234"),
        ("offset", 9),
        ("helper", b"\x01\x00\x00\x00"),
        ("step", 1),
        ("step", 0),
    ],
)
def test_a_batch_that_is_otherwise_different_ends_the_columns(field: str, value: object) -> None:
    writer = Writer()
    for number in range(RUN):
        item = batch("e1", FIRST + number)
        if number == RUN // 2:
            setattr(item, field, value)
        writer.add(batch=item)
    assert max(hold(writer.records)) <= RUN // 2


@pytest.mark.parametrize("steps", [(1 << 49, MAX_TIME_US), (MAX_TIME_US - 3, MAX_TIME_US + 3)])
def test_numbers_beyond_their_range_are_found_among_others_of_the_same_length(steps: tuple[int, int]) -> None:
    writer, draw = Writer(), random.Random(1)
    for _ in range(RUN):
        item = batch("e1", FIRST)
        item.step = draw.randint(*steps)
        writer.add(batch=item)
    hold(writer.records)


def test_edges_in_turn_are_read_one_by_one() -> None:
    writer = Writer()
    for number in range(2 * RUN):
        record = writer.batch(EDGES[::2][number % 2], FIRST + number)
        record.key = EDGES[::2][number % 2].encode()
    assert hold(writer.records) == []


def test_what_is_no_batch_or_nothing_at_all_stands_between() -> None:
    writer = Writer()
    for number in range(4 * RUN):
        if number % RUN == RUN - 1:
            [writer.quarantine(1), writer.raw(None), writer.raw(b""), writer.raw(b"\xff")]
        writer.batch("e1", FIRST + number)
    assert len(hold(writer.records)) == 4


def test_other_signers_and_gaps_end_the_columns() -> None:
    records = run_of(count=2 * RUN)
    records[20].signer = "edge/e1"
    assert hold(records) == [20, 2 * RUN - 20 - parsing.LEAST]
    records = run_of()
    del records[20]
    assert hold(records) == [20, RUN - 21]


def test_one_signed_by_another_edge_is_forged_wherever_it_stands() -> None:
    records = run_of()
    for record in records:
        record.signer = "edge/e1"
        record.value = (record.value or b"") + b"\xa2\x06\x10" + random.Random(record.offset).randbytes(16)
    records[30].signer = "edge/e2"
    assert hold(records) == [30]
    assert both(records)[0][30][1] == "forged"


@pytest.mark.parametrize("seed", range(30))
def test_records_with_any_byte_changed_are_read_as_they_are_one_by_one(seed: int) -> None:
    draw = random.Random(seed)
    records = run_of("e1", 60, {sensor: draw.gauss(0, 1) for sensor in SENSORS["e1"]})
    for record in draw.sample(records, 3):
        value = bytearray(record.value or b"")
        value[draw.randrange(len(value))] = draw.randrange(256)
        record.value = bytes(value)
    hold(records)


def test_a_record_of_a_later_release_is_refused_among_others() -> None:
    writer = Writer()
    for number in range(RUN):
        version = VERSION + (number == RUN // 2)
        writer.raw(LogRecord(version=version, batch=batch("e1", FIRST + number)).SerializeToString())
    assert hold(writer.records) == [RUN // 2, RUN // 2 - 1]
