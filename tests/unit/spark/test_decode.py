from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from tests.spark.world import FIRST_STEP, GENERATION, World, write_table
from tests.unit.spark.small_job import layout_of
from tsunagi.runtime.columns import pack_floats, pack_sensors
from tsunagi.runtime.log import DEAD_LETTERS
from tsunagi.runtime.messages import DeadLetter, Recovered
from tsunagi.runtime.names import Name, pack_key
from tsunagi.runtime.settings import Settings, SlotsSettings
from tsunagi_spark.blocks import from_arrow, to_arrow
from tsunagi_spark.decode import Arrived, SlotDecoder
from tsunagi_spark.frontier import SlotMark
from tsunagi_spark.layout import Ints

NOBODY: Ints = np.zeros(0, dtype=np.int64)


@pytest.fixture
def world(tmp_path: Path) -> World:
    table = write_table(tmp_path / "sensors.csv", sensors=8, groups=2)
    return World(Settings(sensors=tmp_path / "sensors.csv", slots=SlotsSettings(count=2)), table)


@pytest.fixture
def decoder(world: World) -> SlotDecoder:
    return SlotDecoder(0, SlotMark(), layout_of(world), NOBODY, world.settings.steps.slide_us)


def letters(decoder: SlotDecoder) -> list[tuple[str, int, str]]:
    assert {record.topic for record in decoder.sidelined} <= {DEAD_LETTERS}
    found = [DeadLetter.FromString(record.value) for record in decoder.sidelined]
    assert len({record.key for record in decoder.sidelined}) == len(found)
    return [(letter.reason, letter.offset, letter.detail) for letter in found]


def changed(value: bytes, **fields: object) -> bytes:
    message = Recovered.FromString(value)
    for name, content in fields.items():
        setattr(message, name, content)
    return message.SerializeToString()


def test_columns_come_out_as_they_went_in(world: World, decoder: SlotDecoder) -> None:
    for number in range(4):
        decoder.add(Arrived(0, number, *world.record(0, FIRST_STEP + number)))
    blocks = from_arrow(to_arrow(decoder.blocks()))
    assert [block.core for block in blocks] == [0, 1]
    assert all(block.steps.tolist() == [FIRST_STEP + n for n in range(4)] for block in blocks)
    found = sorted(
        (int(step), int(sensor), float(mean), float(sd), int(quality), float(bound))
        for block in blocks
        for sensor, step, mean, sd, quality, bound in zip(*block.rows.columns().values(), strict=True)
    )
    expected = sorted((row.step, row.sensor, row.mean, row.sd, row.quality, row.bound) for row in world.rows)
    assert found == expected
    assert blocks[0].mark == decoder.mark
    assert decoder.mark.read_to == 4
    assert decoder.mark.step == FIRST_STEP + 3


def test_what_was_kept_says_how_long_gateway_and_batch_took(world: World, decoder: SlotDecoder) -> None:
    input_us = (time.time_ns() // 1000) - 3_000_000
    for number in range(3):
        key, value = world.record(0, FIRST_STEP + number)
        output_us = input_us + 200_000 * (number + 1)
        decoder.add(Arrived(0, number, key, changed(value, appended_us=input_us), output_us))
    decoder.add(Arrived(0, 3, key, value, output_us))  # a repeat
    counters = from_arrow(to_arrow(decoder.blocks()))[0].counters
    assert (counters.placed, counters.gateway_us) == (3, 1_200_000)
    assert counters.waited_us == pytest.approx(3 * 3_000_000 - 1_200_000, abs=3 * 500_000)


def test_a_record_without_rows_moves_the_slot_on(world: World, decoder: SlotDecoder) -> None:
    decoder.add(Arrived(0, 0, *world.record(0, FIRST_STEP, missing=1.0)))
    assert decoder.mark.step == FIRST_STEP
    assert [len(block.rows) for block in from_arrow(to_arrow(decoder.blocks()))] == [0, 0]


@pytest.mark.parametrize(
    ("fields", "reason", "detail"),
    [
        ({"version": 2}, "version", "found version 2, expected at most 1"),
        ({"version": 0}, "unreadable", "no version"),
        ({"mean": b"1234567"}, "damaged", "mean: found a length of 7, expected"),
        ({"sensor": pack_sensors([2, 0, 1, 1])}, "unreadable", "column"),
        ({"event_time_us": 5}, "unreadable", "found event time 5 us"),
        ({"generation": 4}, "unreadable", "the name in the value"),
        ({"slot": 1}, "unreadable", "the name in the value"),
    ],
)
def test_a_bad_record_goes_to_dead_letters_and_the_next_one_is_read(
    world: World, decoder: SlotDecoder, fields: dict[str, object], reason: str, detail: str
) -> None:
    key, value = world.record(0, FIRST_STEP, missing=0)
    decoder.add(Arrived(0, 7, key, changed(value, **fields)))
    assert [(r, o) for r, o, _ in letters(decoder)] == [(reason, 7)]
    assert detail in letters(decoder)[0][2]
    assert decoder.mark.step < FIRST_STEP
    decoder.add(Arrived(0, 8, key, value))  # the right one under the same name
    assert decoder.mark.step == FIRST_STEP
    assert decoder.counters.dead_records == 1


@pytest.mark.parametrize("value", [None, b"\xff\xff\xff", b"no protobuf"])
def test_bytes_that_are_no_record(decoder: SlotDecoder, value: bytes | None) -> None:
    decoder.add(Arrived(0, 3, pack_key(GENERATION, 0, Name(1, 0)), value))
    assert letters(decoder)[0][:2] == ("unreadable", 3)


@pytest.mark.parametrize("key", [None, b"", b"edge-1", b"x" * 25])
def test_a_key_that_is_no_name(world: World, decoder: SlotDecoder, key: bytes | None) -> None:
    decoder.add(Arrived(0, 3, key, world.record(0, FIRST_STEP)[1]))
    assert letters(decoder)[0][:2] == ("unreadable", 3)
    assert "output name" in letters(decoder)[0][2]


def test_another_slots_record(world: World, decoder: SlotDecoder) -> None:
    decoder.add(Arrived(0, 3, *world.record(1, FIRST_STEP)))
    assert letters(decoder)[0][:2] == ("foreign-slot", 3)


@pytest.mark.parametrize(("sensor", "reason"), [(99, "unknown-sensor"), (3, "foreign-slot")])
def test_rows_of_sensors_that_are_not_the_slots_are_left_out(
    world: World, decoder: SlotDecoder, sensor: int, reason: str
) -> None:
    key, value = world.record(0, FIRST_STEP, missing=0)
    mine = np.flatnonzero(world.slot_of == 0).tolist()
    assert sensor not in mine
    ids = sorted([*mine[1:], sensor])
    decoder.add(Arrived(0, 0, key, changed(value, sensor=pack_sensors(ids))))
    assert letters(decoder)[0][:2] == (reason, 0)
    rows = sum(len(block.rows) for block in decoder.blocks())
    assert rows == len(mine) - 1
    assert decoder.mark.step == FIRST_STEP


def test_a_step_that_was_passed(world: World, decoder: SlotDecoder) -> None:
    decoder.add(Arrived(0, 0, *world.record(0, FIRST_STEP + 5)))
    decoder.add(Arrived(0, 1, *world.record(0, FIRST_STEP + 5)))
    assert letters(decoder)[0][:2] == ("out-of-order", 1)


def test_a_new_log_starts_afresh_and_the_old_one_is_repeats(world: World, decoder: SlotDecoder) -> None:
    old_key, old_value = world.record(0, FIRST_STEP)
    decoder.add(Arrived(0, 0, old_key, old_value))
    _, value = world.record(0, FIRST_STEP + 1)
    value = changed(value, generation=9, offset=0, index=0)
    decoder.add(Arrived(0, 1, pack_key(9, 0, Name(0, 0)), value))
    assert (decoder.mark.generation, decoder.mark.last_offset, decoder.mark.past) == (9, 0, (GENERATION,))
    decoder.add(Arrived(0, 2, *world.record(0, FIRST_STEP + 2)))  # a zombie of the old log
    assert decoder.counters.repeats == 1
    assert decoder.sidelined == []


def test_nan_values_pass(world: World, decoder: SlotDecoder) -> None:
    key, value = world.record(0, FIRST_STEP, missing=0)
    count = len(Recovered.FromString(value).quality)
    decoder.add(Arrived(0, 0, key, changed(value, mean=pack_floats([np.nan] * count))))
    assert sum(len(block.rows) for block in decoder.blocks()) == count
