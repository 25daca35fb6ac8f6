from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.spark.world import FIRST_STEP, World, expected_blocks, write_table
from tests.unit.spark.small_job import SmallJob, layout_of
from tsunagi.runtime.columns import floats, octets, sensors
from tsunagi.runtime.log import LATE
from tsunagi.runtime.messages import Late, ResultBlock
from tsunagi.runtime.sensors import SensorTable, read_sensors
from tsunagi.runtime.settings import QuerySettings, Settings, SlotsSettings, StepsSettings
from tsunagi_spark.blocks import RecoveredRows
from tsunagi_spark.decode import Arrived
from tsunagi_spark.layout import Order, reassigned
from tsunagi_spark.merge import order_rows, starts
from tsunagi_spark.state import KEPT
from tsunagi_spark.windows import Spec

STEPS = 25


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    table = tmp_path_factory.mktemp("table") / "sensors.csv"
    write_table(table, sensors=14, groups=4)
    return Settings(
        sensors=table, slots=SlotsSettings(count=3), query=QuerySettings(range_s=7.0), steps=StepsSettings(slide=1)
    )


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
    sent = [(partition, value) for partition, key, value in job.sent if key.startswith(b"readings/")]
    found = {(b.group, b.step): cells(value) for _, value in sent for b in [ResultBlock.FromString(value)]}
    assert len(found) == len(sent), "a name was sent twice"
    assert found == expected
    steps_of: dict[str, int] = {}
    for partition, value in sent:
        block = ResultBlock.FromString(value)
        assert block.step > steps_of.get(block.group, -1), "out of order"
        steps_of[block.group] = block.step
        assert job.layout.home[job.layout.groups.index(block.group)] == partition
        slots = [
            slot for slot in range(job.layout.slots) if job.layout.held[job.layout.groups.index(block.group), slot]
        ]
        assert block.appended_us == max(world.appended_us[slot, block.step] for slot in slots)


@pytest.mark.slow
@hypothesis_settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32), most=st.integers(1, 12), apart=st.booleans())
def test_any_cut_into_batches_sends_the_same_bytes(settings: Settings, seed: int, most: int, apart: bool) -> None:
    choice = random.Random(seed)
    world, records = make_world(settings, apart=apart)
    job = SmallJob(settings, layout_of(world))
    whole = SmallJob(settings, layout_of(world))
    whole.run([record for slot in records for record in records[slot]])
    for batch in in_batches(records, choice, most):
        job.run(batch)
    check(world, job, FIRST_STEP + STEPS)
    assert sorted(job.sent) == sorted(whole.sent)
    for state in job.states.values():
        assert len(state.rows) == 0


SPECS = (Spec("tumbling", 5, 5, by_group=True), Spec("sliding", 6, 4, by_group=False))
ORDERS: list[Order] = ["basic", "optimised", "full"]


def in_batches(records: dict[int, list[Arrived]], choice: random.Random, most: int) -> Iterator[list[Arrived]]:
    place = dict.fromkeys(records, 0)
    while any(place[slot] < STEPS for slot in records):
        batch = []
        for slot in choice.sample(sorted(records), choice.randint(1, len(records))):
            count = choice.randint(0, most)
            batch += records[slot][place[slot] : place[slot] + count]
            place[slot] = min(STEPS, place[slot] + count)
        yield batch


@pytest.mark.slow
@hypothesis_settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32), most=st.integers(1, 12), apart=st.booleans(), order=st.sampled_from(ORDERS))
def test_sensors_that_change_cores_at_any_batch_change_no_byte(
    settings: Settings, seed: int, most: int, apart: bool, order: Order
) -> None:
    choice = random.Random(seed)
    world, records = make_world(settings, apart=apart)
    whole = SmallJob(settings, layout_of(world, cores=3), specs=SPECS)
    whole.run([record for slot in records for record in records[slot]])
    job = SmallJob(settings, layout_of(world, cores=3, order=order), specs=SPECS)
    for batch in in_batches(records, choice, most):
        if choice.random() < 0.5:
            cores = np.array([choice.randrange(3) for _ in range(len(job.layout))])
            if order == "basic":
                cores = cores[job.layout.group_of]
            job.layout = reassigned(job.layout, cores, order)
        job.run(batch)
    if order == "full":
        places = [
            (b.step, whole.layout.groups.index(b.group))
            for _, k, v in job.sent
            if k.startswith(b"readings/")
            for b in [ResultBlock.FromString(v)]
        ]
        assert places == sorted(places), "one stream in the order of time"
        assert {partition for partition, *_ in job.sent} == {0}
    else:
        check(world, job, FIRST_STEP + STEPS)
    assert sorted(item[1:] for item in job.sent) == sorted(item[1:] for item in whole.sent)
    assert (job.merged_rows > 0) == (order != "basic") or order == "optimised"
    counts = [state.count for state in whole.states.values()]
    assert np.array_equal(np.sum([state.count for state in job.states.values()], axis=0), np.sum(counts, axis=0))
    for core, state in job.states.items():
        assert len(state.rows) == 0
        assert not state.count[job.layout.sensor_core != core].any()
        assert int(state.minute.left.sum()) == int(state.count.sum())


def test_a_group_cut_over_cores_is_merged_and_no_other(settings: Settings) -> None:
    world, records = make_world(settings)
    table = SensorTable(
        tuple(replace(sensor, group="big" if sensor.id < 10 else f"g{sensor.id}") for sensor in world.table.sensors)
    )
    world.table = table
    layout = layout_of(world, cores=4, order="optimised")
    assert layout.cut.tolist() == [name == "big" for name in layout.groups]
    job = SmallJob(settings, layout)
    job.run([record for slot in records for record in records[slot]])
    check(world, job, FIRST_STEP + STEPS)
    assert job.merged_rows == sum(row.sensor < 10 for row in world.rows)


@pytest.mark.slow
def test_without_order_a_group_comes_in_named_parts(settings: Settings) -> None:
    world, records = make_world(settings)
    job = SmallJob(settings, layout_of(world, cores=3, order="none"))
    for number in range(STEPS):
        job.run([records[slot][number] for slot in records])
    assert len({key for _, key, _ in job.sent}) == len(job.sent)
    rows: dict[tuple[str, int], list[tuple[float, ...]]] = {}
    for partition, key, value in job.sent:
        block = ResultBlock.FromString(value)
        assert (block.part, block.parts) == (partition + 1, 3)
        assert key.endswith(f"/{block.step}/{block.part}of3".encode())
        rows.setdefault((block.group, block.step), []).extend(cells(value))
    expected = expected_blocks(world, FIRST_STEP + STEPS)
    assert {name: sorted(found) for name, found in rows.items()} == expected
    assert job.merged_rows == 0


def test_rates_are_measured_where_the_sensor_is(settings: Settings) -> None:
    world, records = make_world(settings)
    job = SmallJob(settings, layout_of(world, order="optimised"))
    for number in range(STEPS):
        job.run([records[slot][number] for slot in records])
        job.layout = reassigned(job.layout, 1 - job.layout.sensor_core, "optimised")
    rate = np.sum([state.rate for state in job.states.values()], axis=0)
    for sensor in range(len(job.layout)):
        weights = [0.5 ** ((FIRST_STEP + STEPS - 1 - row.step) / 9) for row in world.rows if row.sensor == sensor]
        assert rate[sensor] == pytest.approx(sum(weights), rel=1e-6)


def test_rates_of_a_core_whose_sensors_fall_silent_are_forgotten(settings: Settings) -> None:
    world = World(settings, read_sensors(settings.sensors))
    job = SmallJob(settings, layout_of(world))
    silent = set(np.flatnonzero(job.layout.sensor_core == 1).tolist())
    slots = range(settings.slots.count)
    for step in range(FIRST_STEP, FIRST_STEP + 90):
        gone = silent if step >= FIRST_STEP + 45 else set()
        job.run([Arrived(slot, step - FIRST_STEP, *world.record(slot, step, silent=gone), 0) for slot in slots])
    assert job.states[1].rate.max() < 0.04 * job.states[0].rate.max()


@pytest.mark.parametrize("order", ["basic", "full"])
def test_what_a_removed_sensor_has_sent_is_counted_to_its_end_and_its_group_goes_on(
    settings: Settings, order: Order
) -> None:
    """The expected rows know nothing of the removal: the sensors are silent from a step on."""
    world = World(settings, read_sensors(settings.sensors), seed=5)
    layout = layout_of(world, order=order)
    gone = {1, *np.flatnonzero(layout.group_of == 2).tolist()}  # one sensor of a group, and a whole group
    job = SmallJob(settings, layout)
    for number in range(STEPS):
        if number == STEPS // 2 - 1:  # the table comes before the last rows do
            edges = tuple("" if sensor in gone else edge for sensor, edge in enumerate(layout.edges))
            job.layout = replace(layout, serial=2, edges=edges, before=layout.edges)
        silent = gone if number >= STEPS // 2 else ()
        step = FIRST_STEP + number
        job.run([Arrived(slot, number, *world.record(slot, step, silent=silent)) for slot in range(3)])
    check(world, job, FIRST_STEP + STEPS - 1)
    assert not job.sidelined
    assert set(job.delivered().values()) == {FIRST_STEP + STEPS - 1}
    assert sum(len(rows.step) for rows in job.minute.values()) <= len(world.rows)


def test_a_step_waits_for_every_slot_that_holds_the_group(settings: Settings) -> None:
    world, records = make_world(settings)
    job = SmallJob(settings, layout_of(world))
    assert job.run(records[0][:5] + records[1][:5]) == []
    assert sum(len(state.rows) for state in job.states.values()) > 0
    sent = job.run(records[2][:2])
    assert {key.rsplit(b"/", 1)[1] for key in sent} == {str(FIRST_STEP + n).encode() for n in range(2)}
    check(world, job, FIRST_STEP + 1)


def test_a_group_that_is_ahead_of_another_of_its_slot_is_sent_no_step_twice(settings: Settings) -> None:
    """On one core: the slot's steps that the other still needs are kept, and the first has passed them."""
    world = World(settings, read_sensors(settings.sensors), seed=1)
    group = np.arange(len(world.table)) % 4
    world.slot_of = np.where(group == 0, 0, np.where(group == 2, np.arange(len(group)) // 4 % 2, 2)).astype(np.uint32)
    records = {
        slot: [Arrived(slot, number, *world.record(slot, FIRST_STEP + number, missing=0.3)) for number in range(STEPS)]
        for slot in range(3)
    }
    job = SmallJob(settings, layout_of(world))
    job.run(records[0][:6] + records[1][:3] + records[2][:6])
    job.run(records[0][6:7])
    job.run(records[1][3:7] + records[2][6:7])
    check(world, job, FIRST_STEP + 6)


def test_rows_of_a_block_that_is_not_there_are_named(settings: Settings) -> None:
    world, _ = make_world(settings)
    layout = layout_of(world)
    first, second = (int(np.flatnonzero(layout.group_of == group)[0]) for group in (0, 1))
    one = np.zeros(1)
    rows = RecoveredRows(
        np.array([first], dtype=np.uint32), np.array([FIRST_STEP]), one, one, one.astype(np.uint8), one
    )
    begin, step = np.zeros(1, dtype=np.int64), np.array([FIRST_STEP])
    assert starts(rows, begin, layout, layout.group_of[[first]], step).tolist() == [0, 1]
    for group, at in ((layout.group_of[[second]], step), (layout.group_of[[first]], step + 1)):
        with pytest.raises(ValueError, match=f"group {layout.groups[0]}, step {FIRST_STEP}: found rows"):
            starts(rows, begin, layout, group, at)


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


def test_rows_whose_steps_are_far_apart_are_ordered_like_others(settings: Settings) -> None:
    world, _ = make_world(settings)
    layout = layout_of(world)
    step = np.array([1 << 60, 7, 0, 7, 7], dtype=np.int64)
    sensor = np.array([3, 9, 13, 2, 0], dtype=np.uint32)
    none = np.zeros(5)
    order = order_rows(RecoveredRows(sensor, step, none, none, none.astype(np.uint8), none), layout).tolist()
    wanted = sorted(range(5), key=lambda row: (step[row], layout.group_of[sensor[row]], sensor[row]))
    assert order == wanted


def test_expired_files_are_forgotten(settings: Settings) -> None:
    world, records = make_world(settings)
    job = SmallJob(settings, layout_of(world))
    emptied: dict[tuple[int, int], int] = {}
    for number in range(STEPS):
        job.run([records[slot][number] for slot in records])
        files = {
            (core, file): batch for core, state in job.states.items() for file, batch in state.minute.dropped.tolist()
        }
        emptied |= files
        # Spark may run the last batches again: until then their files are known, and stay.
        assert files == {key: batch for key, batch in emptied.items() if batch >= job.batch - 1 - KEPT}
    assert len(emptied) > len(files) > 0
    for state in job.states.values():
        assert len(state.minute.batch) <= 8
        assert int(state.minute.left.sum()) == int(state.count.sum())
        assert len(state.minute.dropped) <= 6
    check(world, job, FIRST_STEP + STEPS)


def test_without_readings_nothing_is_counted_and_counts_begin_anew_when_they_are_wanted_again(
    settings: Settings,
) -> None:
    world, records = make_world(settings)
    changing = SmallJob(settings, layout_of(world))
    late = SmallJob(settings, layout_of(world))
    for batch in range(STEPS):
        arrived = [run[batch] for run in records.values()]
        changing.counts = not 8 <= batch < 16
        changing.run(arrived)
        if batch == 15:
            for state in changing.states.values():
                assert not state.count.any()
                assert not len(state.minute.batch)
                assert len(state.minute.dropped) <= 8, "the files of the minute are to be deleted"
        if batch >= 16:
            late.run(arrived)
    first = FIRST_STEP + 16
    found = [
        {key: value for _, key, value in job.sent if ResultBlock.FromString(value).step >= first}
        for job in (changing, late)
    ]
    assert found[0] == found[1]
