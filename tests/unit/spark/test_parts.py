from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tsunagi.runtime.columns import Floats
from tsunagi_spark.blocks import Counters, RecoveredRows, SlotBlock
from tsunagi_spark.frontier import SlotMark
from tsunagi_spark.layout import Layout
from tsunagi_spark.merge import CoreTask, Ordered, advance, grown
from tsunagi_spark.parts import dump_part, load_part, merge_parts
from tsunagi_spark.queries import QueryAnswers


def layout_of(group_of: list[int]) -> Layout:
    count = len(group_of)
    return Layout(
        serial=1,
        placement=1,
        cores=2,
        slots=1,
        names=tuple(f"s{n}" for n in range(count)),
        edges=("e",) * count,
        units=("",) * count,
        threshold=np.zeros(count),
        group_of=np.array(group_of, dtype=np.int64),
        slot_of=np.zeros(count, dtype=np.uint32),
        groups=tuple(f"g{n}" for n in range(max(group_of) + 1)),
        order="full",
        sensor_core=np.arange(count, dtype=np.int64) % 2,
        home=np.zeros(max(group_of) + 1, dtype=np.int64),
    )


def part_of(layout: Layout, cells: list[tuple[int, int]], blocks: frozenset[tuple[int, int]] = frozenset()) -> Ordered:
    """Make a part of (step, sensor) rows, in the order of (step, group, sensor), with `blocks` that may have none."""
    cells = sorted(cells, key=lambda cell: (cell[0], layout.group_of[cell[1]], cell[1]))
    step = np.array([step for step, _ in cells], dtype=np.int64)
    sensor = np.array([sensor for _, sensor in cells], dtype=np.uint32)
    pairs = sorted(blocks | blocks_of(layout, cells))
    group = np.array([g for _, g in pairs], dtype=np.int64)
    starts = [sum((s, layout.group_of[n]) < pair for s, n in cells) for pair in pairs]
    value: Floats = (step * 100.0 + sensor).astype(np.float64)
    rows = RecoveredRows(sensor, step, value, value / 3, (sensor % 4).astype(np.uint8), value / 7)
    q1, q2 = 10 + sensor.astype(np.int64), 3 + sensor.astype(np.int64) % 5
    counted = QueryAnswers(q1, q2, q2 / q1)
    steps = np.array([s for s, _ in pairs], dtype=np.int64)
    return Ordered(group, steps, steps * 7, np.array([*starts, len(cells)]), rows, counted)


def blocks_of(layout: Layout, cells: list[tuple[int, int]]) -> frozenset[tuple[int, int]]:
    """Return the (step, group) that rows are of."""
    return frozenset((int(step), int(layout.group_of[sensor])) for step, sensor in cells)


def same(one: Ordered, other: Ordered) -> bool:
    columns = [
        [getattr(item, name) for name in ("group", "step", "appended_us", "start")]
        + list(item.rows.columns().values())
        + list(item.counted)
        for item in (one, other)
    ]
    return all(np.array_equal(a, b) for a, b in zip(*columns, strict=True))


def moved(part: Ordered) -> Ordered:
    """Return what the merge core gets of a part."""
    return load_part(dump_part(part))


def test_a_part_is_read_as_it_was_written() -> None:
    layout = layout_of([0, 0, 1])
    part = part_of(layout, [(1, 0), (1, 2), (2, 1)])
    found = moved(part)
    assert same(replace(found, counted=part.counted), part)
    assert np.array_equal(found.counted.q1, part.counted.q1)
    assert np.array_equal(found.counted.q2, part.counted.q2)
    assert all(column.flags.aligned for column in (*found.rows.columns().values(), *found.counted, found.start))
    assert same(load_part(memoryview(dump_part(part))), found)
    empty, every = part.apart(layout.cut)
    assert same(every, part)
    assert len(empty) == 0
    assert same(moved(empty), empty)


@pytest.mark.parametrize("group_of", [[0, 0, 1, 1, 2], [1, 0, 1, 2, 0]])
def test_parts_come_together_in_the_order_of_step_group_and_sensor(group_of: list[int]) -> None:
    layout = layout_of(group_of)
    cells = [(step, sensor) for step in range(-3, 40) for sensor in range(5) if (step * 7 + sensor) % 3]
    every = blocks_of(layout, cells)
    shares = [[cell for cell in cells if cell[1] % 2 == core] for core in range(2)]
    parts = [
        part_of(layout, share, frozenset(block for block in every if layout.listing[block[1]] == core))
        for core, share in enumerate(shares)
    ]
    assert same(merge_parts(map(moved, parts), layout), part_of(layout, cells))
    swapped = replace(layout, cores=3)
    assert same(merge_parts(map(moved, parts[::-1]), swapped), part_of(layout, cells))


def test_parts_without_a_block_of_theirs_are_refused() -> None:
    layout = layout_of([0, 0])
    parts = [part_of(layout, [(1, 0)]), part_of(layout, [(2, 1)])]
    with pytest.raises(ValueError, match="group g0, step 2: found rows, expected a block for them"):
        merge_parts(map(moved, parts), layout)


def test_of_a_cut_group_one_core_hands_on_every_block_and_the_others_theirs() -> None:
    layout = layout_of([0, 0])  # a sensor a core
    steps = np.arange(1, 11, dtype=np.int64)

    def ordered(core: int, with_rows: list[int]) -> Ordered:
        step = np.array(with_rows, dtype=np.int64)
        value = step.astype(np.float64)
        rows = RecoveredRows(np.full(len(step), core, np.uint32), step, value, value, step.astype(np.uint8), value)
        block = SlotBlock(core, 0, SlotMark(1, 10, 0, 10, 1, 10), Counters(), steps, steps * 7, rows)
        task = CoreTask(0, core, layout, {}, frozenset(), 1_000_000, 60)
        return advance(grown(None, layout), task, [block], lambda *_: pytest.fail("there is nothing to read")).ordered

    parts = [ordered(0, [3]), ordered(1, [2, 5])]
    assert [part.step.tolist() for part in parts] == [steps.tolist(), [2, 5]]
    merged = merge_parts(map(moved, parts), layout)
    assert merged.step.tolist() == steps.tolist()
    assert merged.appended_us.tolist() == (steps * 7).tolist()
    assert np.diff(merged.start).tolist() == [0, 1, 1, 0, 1, 0, 0, 0, 0, 0]
