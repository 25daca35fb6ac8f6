from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from services.runtime.columns import floats, octets, sensors
from services.runtime.log import LATE
from services.runtime.messages import Late, ResultBlock
from services.runtime.sensors import read_sensors
from services.runtime.settings import Query, Settings, Slots, Steps
from spark.decode import Arrived
from tests.spark.world import FIRST_STEP, World, expected_blocks, write_table
from tests.unit.spark.small_job import SmallJob, layout_of

STEPS = 25


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    table = tmp_path_factory.mktemp("table") / "sensors.csv"
    write_table(table, sensors=14, groups=4)
    return Settings(sensors=table, slots=Slots(count=3), query=Query(range_s=7.0), steps=Steps(slide=1))


def make_world(settings: Settings, seed: int = 1, *, apart: bool = False) -> tuple[World, dict[int, list[Arrived]]]:
    """Make a world; `apart`: each group in a slot of its own, so that groups stand at different steps."""
    world = World(settings, read_sensors(settings.sensors), seed=seed)
    if apart:
        world.slot_of = np.arange(len(world.table), dtype=np.uint32) % 4 % settings.slots.count
    records: dict[int, list[Arrived]] = {slot: [] for slot in range(settings.slots.count)}
    for step in range(FIRST_STEP, FIRST_STEP + STEPS):
        for slot, run in records.items():
            key, value = world.record(slot, step, missing=0.3)
            run.append(Arrived(slot, len(run), key, value))
    return world, records


def cells(value: bytes) -> list[tuple[float, ...]]:
    block = ResultBlock.FromString(value)
    columns = (
        sensors(block.sensor),
        floats(block.mean),
        floats(block.sd),
        octets(block.quality),
        floats(block.bound),
        sensors(block.q1),
        sensors(block.q2),
        floats(block.q3),
    )
    return [tuple(row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def check(world: World, job: SmallJob, last_step: int) -> None:
    expected = expected_blocks(world, last_step)
    found = {(b.group, b.step): cells(value) for _, _, value in job.sent for b in [ResultBlock.FromString(value)]}
    assert len(found) == len(job.sent), "a name was sent twice"
    assert found == expected
    steps_of: dict[str, int] = {}
    for core, _, value in job.sent:
        block = ResultBlock.FromString(value)
        assert block.step > steps_of.get(block.group, -1), "out of order"
        steps_of[block.group] = block.step
        assert job.layout.core_of[job.layout.groups.index(block.group)] == core
        slots = [
            slot for slot in range(job.layout.slots) if job.layout.held[job.layout.groups.index(block.group), slot]
        ]
        assert block.appended_us == max(world.appended_us[slot, block.step] for slot in slots)


@hypothesis_settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32), most=st.integers(1, 12), apart=st.booleans())
def test_any_cut_into_batches_sends_the_same_bytes(settings: Settings, seed: int, most: int, apart: bool) -> None:
    choice = random.Random(seed)
    world, records = make_world(settings, apart=apart)
    job = SmallJob(settings, layout_of(world))
    whole = SmallJob(settings, layout_of(world))
    whole.run([record for slot in records for record in records[slot]])
    place = dict.fromkeys(records, 0)
    while any(place[slot] < STEPS for slot in records):
        batch = []
        for slot in choice.sample(sorted(records), choice.randint(1, len(records))):
            count = choice.randint(0, most)
            batch += records[slot][place[slot] : place[slot] + count]
            place[slot] = min(STEPS, place[slot] + count)
        job.run(batch)
    check(world, job, FIRST_STEP + STEPS)
    assert sorted(job.sent) == sorted(whole.sent)
    for state in job.states.values():
        assert len(state.rows) == 0


def test_a_step_waits_for_every_slot_that_holds_the_group(settings: Settings) -> None:
    world, records = make_world(settings)
    job = SmallJob(settings, layout_of(world))
    assert job.run(records[0][:5] + records[1][:5]) == []
    assert sum(len(state.rows) for state in job.states.values()) > 0
    sent = job.run(records[2][:2])
    assert {key.rsplit(b"/", 1)[1] for key in sent} == {str(FIRST_STEP + n).encode() for n in range(2)}
    check(world, job, FIRST_STEP + 1)


def test_repeats_within_and_across_batches_are_dropped(settings: Settings) -> None:
    world, records = make_world(settings)
    job = SmallJob(settings, layout_of(world))
    offsets = dict.fromkeys(records, 0)

    def again(slot: int, first: int, last: int) -> list[Arrived]:
        taken = []
        for record in records[slot][first:last]:
            taken.append(record._replace(offset=offsets[slot]))
            offsets[slot] += 1
        return taken

    for first in range(0, STEPS, 5):
        batch = []
        for slot in records:
            batch += again(slot, max(0, first - 3), first + 5) + again(slot, first + 2, first + 5)
        job.run(batch)
    check(world, job, FIRST_STEP + STEPS)
    assert job.counters.repeats == 3 * (5 * 3 + 4 * 3)
    assert job.sidelined == []


def test_a_slot_left_behind_holds_nobody_and_its_late_rows_are_kept(settings: Settings) -> None:
    world, records = make_world(settings)
    job = SmallJob(settings, layout_of(world))
    job.run(records[0][:10] + records[1][:10] + records[2][:4])
    before = len(job.sent)
    job.run(records[0][10:12] + records[1][10:12], overdue=[2])
    assert len(job.sent) == before + 4 * 8, "steps 5..12 of each group, without slot 2"
    job.run(records[0][12:15] + records[1][12:15] + records[2][4:12])
    assert job.counters.late_records == 8
    assert {record.topic for record in job.sidelined} == {LATE}
    late = [Late.FromString(record.value) for record in job.sidelined]
    assert {message.reason for message in late} == {"frontier"}
    wanted = [
        row for row in world.rows if world.slot_of[row.sensor] == 2 and FIRST_STEP + 4 <= row.step < FIRST_STEP + 12
    ]
    kept = {(int(n), m.recovered.step) for m in late for n in sensors(m.recovered.sensor)}
    assert kept == {(row.sensor, row.step) for row in wanted}
    assert len(job.sent) == before + 4 * 8, "it counts again: steps 13.. wait for it"
    job.run(records[2][12:15])
    assert len(job.sent) == before + 4 * 11


def test_when_all_slots_of_a_group_are_left_behind_it_goes_as_far_as_any_came(settings: Settings) -> None:
    world, records = make_world(settings)
    job = SmallJob(settings, layout_of(world))
    job.run(records[0][:6] + records[1][:3], overdue=[])
    job.run([], overdue=[0, 1, 2])
    assert {key.rsplit(b"/", 1)[1] for _, key, _ in job.sent} == {str(FIRST_STEP + n).encode() for n in range(6)}


def test_expired_files_are_forgotten(settings: Settings) -> None:
    world, records = make_world(settings)
    job = SmallJob(settings, layout_of(world))
    for number in range(STEPS):
        job.run([records[slot][number] for slot in records])
    for state in job.states.values():
        assert len(state.minute.batch) <= 8
        assert int(state.minute.left.sum()) == int(state.count.sum())
        assert len(state.minute.dropped) <= 6
    check(world, job, FIRST_STEP + STEPS)
