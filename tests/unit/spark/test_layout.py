from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tsunagi.runtime.columns import pack_sensors
from tsunagi.runtime.messages import Placement
from tsunagi.runtime.sensors import SensorTable, read_sensors
from tsunagi_spark.layout import Layout, LayoutError, make_layout, same

LINES = ["sensor,edge,group,threshold", "a,e1,g,1", "b,e1,,", "c,e2,h,2"]


def table_of(tmp_path: Path, lines: list[str]) -> SensorTable:
    path = tmp_path / "sensors.csv"
    path.write_text("\n".join(lines) + "\n")
    return read_sensors(path)


def placement_of(table: SensorTable, slot: list[int], serial: int = 1, slots: int = 2) -> Placement:
    return Placement(serial=serial, slots=slots, slot=pack_sensors(slot), table_sha256=table.digest(len(slot)))


@pytest.fixture
def table(tmp_path: Path) -> SensorTable:
    return table_of(tmp_path, LINES)


@pytest.fixture
def layout(table: SensorTable) -> Layout:
    return make_layout(table, placement_of(table, [0, 1, 1]), 2, "ungrouped")


def test_groups_cores_and_slots(layout: Layout) -> None:
    assert layout.groups == ("g", "ungrouped", "h")
    assert layout.held.tolist() == [[True, False], [False, True], [False, True]]
    assert sorted(layout.sensor_core.tolist()) in ([0, 0, 1], [0, 1, 1])
    assert layout.home.tolist() == [0, 1, 0]
    assert not layout.cut.any()
    back = Layout.load(layout.dump())
    assert same(back, layout)
    assert back.dump() == layout.dump()


def test_it_only_grows(tmp_path: Path, layout: Layout) -> None:
    grown = table_of(tmp_path, [*LINES, "d,e2,i,", "e,e2,g,"])
    after = make_layout(grown, placement_of(grown, [0, 1, 1, 0, 1], serial=2), 2, "ungrouped", layout)
    assert after.serial == 2
    assert after.groups == ("g", "ungrouped", "h", "i")
    assert after.sensor_core[:3].tolist() == layout.sensor_core.tolist()
    assert after.sensor_core[4] == layout.sensor_core[0], "a group that is whole stays whole"
    assert after.home.tolist() == [0, 1, 0, 1]
    assert after.held[0].tolist() == [True, True]
    assert not same(after, layout)


def test_sensors_that_are_not_placed_yet_are_left_out(tmp_path: Path, layout: Layout) -> None:
    grown = table_of(tmp_path, [*LINES, "d,e2,i,"])
    after = make_layout(grown, placement_of(grown, [0, 1, 1]), 2, "ungrouped", layout)
    assert same(after, layout)


@pytest.mark.parametrize(
    ("lines", "slot", "cores", "slots", "word"),
    [
        (LINES, [0, 1], 2, 2, "expected at least the 3 of before"),
        (LINES, [1, 1, 1], 2, 2, "'a' has moved to another slot"),
        (LINES, [0, 1, 1], 3, 2, "cores: found 3"),
        (LINES, [0, 1, 1], 2, 3, "found 3 slots, expected 2"),
        ([LINES[0], "a,e1,h,1", *LINES[2:]], [0, 1, 1], 2, 2, "group of 'a' has changed from 'g'"),
        ([LINES[0], "x,e1,g,1", *LINES[2:]], [0, 1, 1], 2, 2, "sensor 0 is 'x', expected 'a'"),
    ],
)
def test_other_changes_are_refused(tmp_path: Path, layout: Layout, lines, slot, cores, slots, word) -> None:
    table = table_of(tmp_path, lines)
    with pytest.raises(LayoutError, match=word):
        make_layout(table, placement_of(table, slot, slots=slots), cores, "ungrouped", layout)


def test_a_table_that_is_not_the_placements_is_refused(tmp_path: Path, table: SensorTable) -> None:
    placement = placement_of(table, [0, 1, 1])
    other = table_of(tmp_path, [LINES[0], "z,e1,g,1", *LINES[2:]])
    with pytest.raises(LayoutError, match="not the sensors that the placement was made from"):
        make_layout(other, placement, 2, "ungrouped")
    shorter = table_of(tmp_path, LINES[:3])
    with pytest.raises(LayoutError, match="found 2 sensors, expected at least the 3"):
        make_layout(shorter, placement, 2, "ungrouped")
    with pytest.raises(LayoutError, match="found slot 5"):
        make_layout(table, placement_of(table, [0, 1, 5]), 2, "ungrouped")
    with pytest.raises(LayoutError, match="no sensor is placed"):
        make_layout(table, placement_of(table, []), 2, "ungrouped")


def test_thresholds_and_units_may_change(tmp_path: Path, layout: Layout) -> None:
    table = table_of(tmp_path, [LINES[0], "a,e1,g,5", *LINES[2:]])
    after = make_layout(table, placement_of(table, [0, 1, 1]), 2, "ungrouped", layout)
    assert not same(after, layout)
    assert np.array_equal(after.threshold, [5, np.nan, 2], equal_nan=True)
