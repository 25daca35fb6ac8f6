"""The law of the frontier, batch by batch: what lags is not lost, what is silent holds nobody for long."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.spark.world import FIRST_STEP, World, write_table
from tests.unit.spark.small_job import SmallJob, layout_of
from tsunagi.runtime.columns import sensors
from tsunagi.runtime.log import LATE
from tsunagi.runtime.messages import Late, ResultBlock
from tsunagi.runtime.sensors import read_sensors
from tsunagi.runtime.settings import QuerySettings, Settings, SlotsSettings, StepsSettings
from tsunagi_spark.decode import Arrived
from tsunagi_spark.frontier import NEVER, SlotMark, Waiting
from tsunagi_spark.windows import Spec

LAG = 200
"""Steps of 2 s: a slot that is 400 s behind."""


class Place:
    """Two slots that share every group, and the decision of the driver before each batch, a second apart."""

    def __init__(self, directory: Path, wait_s: float = 30.0) -> None:
        write_table(directory / "sensors.csv", sensors=8, groups=2)
        self.settings = Settings(
            sensors=directory / "sensors.csv",
            slots=SlotsSettings(count=2),
            query=QuerySettings(range_s=8.0),
            steps=StepsSettings(slide=2),
        )
        self.world = World(self.settings, read_sensors(self.settings.sensors), seed=2)
        self.job = SmallJob(self.settings, layout_of(self.world), specs=(Spec("w", 5, 5, by_group=True),))
        self.waiting = Waiting(wait_s, cap_s=wait_s / 3)
        self.written = [0, 0]

    def give(self, slot: int, step: int, *, missing: float = 0.1) -> Arrived:
        offset = self.written[slot]
        self.written[slot] += 1
        return Arrived(slot, offset, *self.world.record(slot, FIRST_STEP + step, missing=missing))

    def batch(self, records: list[Arrived], seconds: float = 1.0) -> list[bytes]:
        steps = {slot: self.job.marks.get(slot, SlotMark()).step for slot in range(2)}
        overdue = self.waiting.elapse(seconds, steps)
        keys = self.job.run(records, overdue)
        for slot in range(2):
            if self.job.marks.get(slot, SlotMark()).step != steps[slot]:
                self.waiting.delivered(slot)
        return keys

    def rows(self) -> set[tuple[int, int]]:
        blocks = [ResultBlock.FromString(value) for _, key, value in self.job.sent if key.startswith(b"readings")]
        return {(sensor, block.step) for block in blocks for sensor in sensors(block.sensor).tolist()}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.slow
def test_rows_of_a_slot_that_lags_400_s_behind_are_not_lost(place: Place) -> None:
    for step in range(LAG):
        place.batch([place.give(0, step)] + ([place.give(1, 0)] if step == 0 else []), seconds=0.1)
    carried = 0
    for step in range(LAG, 2 * LAG):
        place.batch([place.give(0, step), place.give(1, step - LAG + 1)], seconds=2.0)
        carried = max(carried, sum(len(state.rows) for state in place.job.states.values()))
    for step in range(LAG + 1, 2 * LAG):
        place.batch([place.give(1, step)])
    assert place.job.sidelined == []
    assert place.rows() == {(row.sensor, row.step) for row in place.world.rows}
    per_step = len(np.flatnonzero(place.world.slot_of == 0))
    assert carried <= per_step * (LAG + 1), "no more is carried than the slot is behind"


@pytest.mark.parametrize("ever", [False, True])
def test_a_slot_without_owner_holds_the_others_no_longer_than_the_wait(place: Place, ever: bool) -> None:
    place.batch([place.give(0, 0)] + ([place.give(1, 0)] if ever else []))
    seconds, waited, step = 0.5, 0.0, 0
    while True:
        step += 1
        keys = place.batch([place.give(0, step)], seconds)
        if any(str(FIRST_STEP + step).encode() in key for key in keys):
            break
        waited += seconds
        assert waited <= 31
    assert waited >= 29
    for more in range(1, 5):
        assert place.batch([place.give(0, step + more)], seconds), "and not again at every step"


def test_rows_that_come_too_late_are_counted_exactly_and_kept(place: Place) -> None:
    place.batch([place.give(0, 0), place.give(1, 0)])
    for step in range(1, 61):
        place.batch([place.give(0, step)])
    delivered = min(place.job.delivered().values()) - FIRST_STEP
    place.batch([place.give(1, step) for step in range(1, 64)] + [place.give(0, step) for step in range(61, 64)])
    late = [Late.FromString(record.value) for record in place.job.sidelined]
    assert {record.topic for record in place.job.sidelined} == {LATE}
    kept = {(n, message.recovered.step) for message in late for n in sensors(message.recovered.sensor).tolist()}
    too_late = {
        (row.sensor, row.step)
        for row in place.world.rows
        if place.world.slot_of[row.sensor] == 1 and 1 <= row.step - FIRST_STEP <= delivered
    }
    assert kept == too_late
    assert place.job.counters.late_rows == len(too_late) == sum(len(message.recovered.quality) for message in late)
    assert place.rows() | kept == {(row.sensor, row.step) for row in place.world.rows}
    assert not place.rows() & kept


def test_the_last_window_of_a_source_that_falls_silent_waits_for_the_slots_alone(place: Place) -> None:
    end = -(-(FIRST_STEP + 7) // 5) * 5
    for step in range(8):
        place.batch([place.give(0, step), place.give(1, step)])
    keys: list[bytes] = []
    for step in range(8, end - FIRST_STEP + 1):
        assert not [key for key in keys if key.startswith(b"w/")]
        keys = place.batch([place.give(0, step, missing=1.0), place.give(1, step, missing=1.0)])
    assert [key for key in keys if key.startswith(b"w/")] == [
        f"w/{group}/{end}".encode() for group in place.job.layout.groups
    ], "in the very batch in which both slots have given the window's end"
    assert {sensor for sensor, step in place.rows() if step > FIRST_STEP + 7} == set()


def test_beyond_the_limit_of_rows_that_wait_a_slot_is_left_behind_even_while_it_gives(place: Place) -> None:
    for step in range(5):
        place.job.run([place.give(0, step)])
    place.job.run([place.give(1, 0), place.give(0, 5)], dropped=[1])
    assert sum(len(state.rows) for state in place.job.states.values()) == 0
    assert set(place.job.delivered().values()) == {FIRST_STEP + 5}
    place.job.run([place.give(1, 1)])
    assert place.job.counters.late_rows == sum(
        place.world.slot_of[row.sensor] == 1 and row.step == FIRST_STEP + 1 for row in place.world.rows
    )
    assert max(place.job.marks[1].step, NEVER) == FIRST_STEP + 1
