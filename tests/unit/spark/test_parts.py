from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from services.runtime.columns import Floats
from spark.blocks import Rows
from spark.layout import Layout
from spark.merge import Ordered
from spark.parts import dump_part, load_part, merge_parts
from spark.queries import Counted


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


def part_of(layout: Layout, cells: list[tuple[int, int]]) -> Ordered:
    """Make a part of (step, sensor) rows, in the order of (step, group, sensor)."""
    cells = sorted(cells, key=lambda cell: (cell[0], layout.group_of[cell[1]], cell[1]))
    step = np.array([step for step, _ in cells], dtype=np.int64)
    sensor = np.array([sensor for _, sensor in cells], dtype=np.uint32)
    pairs = sorted({(int(s), int(layout.group_of[n])) for s, n in cells})
    group = np.array([g for _, g in pairs], dtype=np.int64)
    starts = [sum((s, layout.group_of[n]) < pair for s, n in cells) for pair in pairs]
    value: Floats = (step * 100.0 + sensor).astype(np.float64)
    rows = Rows(sensor, step, value, value / 3, (sensor % 4).astype(np.uint8), value / 7)
    q1, q2 = 10 + sensor.astype(np.int64), 3 + sensor.astype(np.int64) % 5
    counted = Counted(q1, q2, q2 / q1)
    steps = np.array([s for s, _ in pairs], dtype=np.int64)
    return Ordered(group, steps, steps * 7, np.array([*starts, len(cells)]), rows, counted)


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
    empty = part.take(np.zeros(len(part), dtype=np.bool_))
    assert same(moved(empty), empty)


@pytest.mark.parametrize("group_of", [[0, 0, 1, 1, 2], [1, 0, 1, 2, 0]])
def test_parts_come_together_in_the_order_of_step_group_and_sensor(group_of: list[int]) -> None:
    layout = layout_of(group_of)
    cells = [(step, sensor) for step in range(-3, 40) for sensor in range(5) if (step * 7 + sensor) % 3]
    parts = [part_of(layout, [cell for cell in cells if cell[1] % 2 == core]) for core in range(2)]
    assert same(merge_parts(map(moved, parts), layout), part_of(layout, cells))
    swapped = replace(layout, cores=3)
    assert same(merge_parts(map(moved, parts[::-1]), swapped), part_of(layout, cells))
