"""Outputs kept as columns are those that are made one by one: names, rows and bytes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tests.unit.slot.small_slot import FIRST, SLOT, Writer, load, make_config, owned, play
from tsunagi.runtime.columns import pack_floats, pack_sensors
from tsunagi.runtime.door import decode
from tsunagi.runtime.log import Record
from tsunagi.runtime.messages import Recovered, TupleBatch
from tsunagi.runtime.names import Name, unpack_key
from tsunagi.runtime.output_runs import outputs_of
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.frames import measured_run
from tsunagi.slot.outputs import Output
from tsunagi.slot.packed import PackedColumns
from tsunagi.slot.parsing import ParsedMany, parse_run
from tsunagi.slot.plain_outputs import RUN, PlainOutputs, plain_outputs
from tsunagi.slot.slot import Slot

GENERATION = 77
SUM: dict[str, Any] = {"use": "aggregate", "function": "sum", "window": 5, "slide": 1}


def made_of(numbers: list[list[int]], rows: int = 1) -> PlainOutputs:
    """Outputs with these offsets, steps, event times and append times."""
    count = len(numbers[0])
    origin = np.repeat(np.arange(count), rows)
    values = np.random.default_rng(1).normal(size=count * rows)
    times = np.zeros(count * rows, dtype=np.int64)
    run = measured_run(1, 1, np.arange(count * rows, dtype=np.uint32), values, times, origin)
    made = plain_outputs(np.array(numbers), PackedColumns(run), origin, 3)
    assert made is not None
    return made


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("begin", [0, 1, 100, 16_300, 1 << 40])
@pytest.mark.parametrize("count", [1, 2, 150, RUN, RUN + 1, 3 * RUN])
def test_their_records_hold_what_each_output_would_have_in_its_own(begin: int, rows: int, count: int) -> None:
    numbers = [[first + place for place in range(count)] for first in (begin, 7, 1 << 50, 1 << 51)]
    outputs = made_of(numbers, rows)
    pairs = outputs.encode(SLOT, GENERATION)
    assert len(pairs) == -(-count // RUN)
    found = []
    for key, value in pairs:
        messages = outputs_of(decode(Recovered, value))
        found += [message.SerializeToString() for message in messages]
        assert unpack_key(key) == (GENERATION, SLOT, Name(messages[-1].offset, 0))
    assert found == [output.encode(SLOT, GENERATION)[1] for output in outputs]
    assert (outputs.first, outputs.last) == (outputs[0].name, outputs[-1].name)


def test_they_are_a_sequence() -> None:
    outputs = made_of([[4, 5, 9], [1, 2, 3], [1, 2, 3], [1, 2, 3]])
    every = list(outputs)
    assert [output.name for output in every] == [Name(4, 0), Name(5, 0), Name(9, 0)]
    assert (outputs[1:], outputs[::-1], list(reversed(outputs))) == (every[1:], every[::-1], every[::-1])
    assert (len(outputs), outputs[-1], outputs[2]) == (3, every[2], every[2])
    with pytest.raises(IndexError):
        outputs[3]


def test_unequal_numbers_of_rows_and_estimates_are_no_columns() -> None:
    run = measured_run(1, 1, np.arange(3, dtype=np.uint32), np.ones(3), np.ones(3, np.int64), np.array([0, 0, 1]))
    numbers = np.ones((4, 2), dtype=np.int64)
    assert plain_outputs(numbers, PackedColumns(run), run.origin, 1) is None
    even = run.keep(np.array([0, 2]))
    assert plain_outputs(numbers, PackedColumns(even), even.origin, 1) is not None
    assert plain_outputs(numbers, PackedColumns(even.replace(sd=np.ones(2))), even.origin, 1) is None


def log_of(seed: int, config: SlotConfig, rows: int) -> list[Record]:
    """A log of batches of one edge, some of which are repeats, too late, or of strangers."""
    draw, writer = random.Random(seed), owned(config)
    for number in range(400):
        sensors = sorted(draw.sample([0, 2], rows))
        step = FIRST + number - (50 if draw.random() < 0.01 else 0)
        values = [draw.gauss(0, 1) if draw.random() < 0.99 else float("nan") for _ in sensors]
        item = TupleBatch(edge="e1", incarnation=1, step=step, event_time_us=step)
        item.sensor, item.value = pack_sensors(sensors), pack_floats(values)
        if draw.random() < 0.005:
            item.sensor = pack_sensors([3] * rows)
        writer.add(batch=item)
    return writer.records


def play_columns(slot: Slot, records: list[Record], seed: int) -> tuple[list[Output], int]:
    """Apply records read in runs; return the outputs, and how many of them came as columns."""
    draw = random.Random(seed)
    made: list[Output] = []
    plain = place = 0
    items: list[tuple[Record, ParsedMany]] = []
    while place < len(records) or items:
        part = records[place : place + draw.randint(1, 100)]
        place += len(part)
        items += _items(part)
        while items:
            outputs, count = slot.apply_run(items[: draw.randint(1, 80)])
            plain += len(outputs) if isinstance(outputs, PlainOutputs) else 0
            made += outputs
            items = items[count:]
    return made, plain


def _items(records: list[Record]) -> list[tuple[Record, ParsedMany]]:
    found: list[tuple[Record, ParsedMany]] = []
    for count, parsed in parse_run(records):
        found += [(record, parsed) for record in records[len(found) : len(found) + count]]
    return found


@pytest.mark.parametrize("operators", [(), (SUM,), ({"use": "select", "at_least": 0.0},), (SUM | {"slide": 3},)])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_slot_makes_the_same_of_columns_as_of_records(operators: tuple[dict[str, Any], ...], rows: int) -> None:
    config = make_config(*operators, mode="tuples", slide_us=1, max_ahead_us=1 << 40)
    for seed in range(4):
        records = log_of(seed, config, rows)
        one, many = Slot(SLOT, load), Slot(SLOT, load)
        expected = play(one, records)
        outputs, plain = play_columns(many, records, seed)
        found = [(output.topic, output.name, output.encode(SLOT, GENERATION)[1]) for output in outputs]
        assert found == expected
        assert plain > 30 or (rows == 2 and operators)
        assert many.context() == one.context()


def test_a_quarantined_batch_is_left_out_of_the_columns() -> None:
    config = make_config(mode="tuples", slide_us=1, max_ahead_us=1 << 40)
    records = log_of(9, config, 1)
    one, many = Slot(SLOT, load), Slot(SLOT, load)
    for slot in (one, many):
        slot.register.quarantined.add(records[100].offset)
    expected = play(one, records)
    outputs, _ = play_columns(many, records, 1)
    assert [(output.topic, output.name) for output in outputs] == [item[:2] for item in expected]


def test_an_empty_log_has_nothing_together() -> None:
    assert list(parse_run(Writer().records)) == []
