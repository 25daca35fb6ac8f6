from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tsunagi.runtime.columns import pack_sensors
from tsunagi.runtime.fleet_change import fleet_change
from tsunagi.runtime.messages import Placement
from tsunagi.runtime.moving import AGREED, DONE, HELD
from tsunagi.runtime.sensors import Sensor, SensorTable, read_sensors
from tsunagi_spark.layout import Layout, LayoutError, make_layout, rate_of, same

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


def moved(table: SensorTable, phase: str, serial: int = 2) -> Placement:
    """Return a placement by which the first sensor moves from slot 0 to 2."""
    found = placement_of(table, [2, 1, 1], serial, slots=3)
    found.before, found.from_us, found.move = pack_sensors([0, 1, 1]), 5000, phase
    return found


def test_a_sensor_that_moves_is_taken_from_both_slots(table: SensorTable, layout: Layout) -> None:
    held = make_layout(table, moved(table, HELD), 2, "ungrouped", layout)
    assert held.held.tolist() == [[True, False, False], [False, True, False], [False, True, False]]
    for phase in (AGREED, DONE):
        after = Layout.load(make_layout(table, moved(table, phase), 2, "ungrouped", layout).dump())
        assert not same(after, held)
        assert after.held.tolist() == [[True, False, True], [False, True, False], [False, True, False]]
        places = np.array([0, 1, 2], dtype=np.uint32)
        assert [after.of_slot(places, slot).tolist() for slot in range(3)] == [
            [True, False, False],
            [False, True, True],
            [True, False, False],
        ]
        assert np.array_equal(after.sensor_core, layout.sensor_core)
        assert np.array_equal(after.home, layout.home)


@pytest.mark.parametrize(
    ("lines", "slot", "cores", "slots", "word"),
    [
        (LINES, [0, 1], 2, 2, "expected at least the 3 of before"),
        (LINES, [1, 1, 1], 2, 2, "'a' has moved to another slot"),
        (LINES, [0, 1, 1], 3, 2, "cores: found 3"),
        (LINES, [0, 0, 0], 2, 1, "found 1 slots, expected 2 or more"),
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


def test_a_renamed_sensor_stays_what_it_is_and_another_name_is_another_sensor(tmp_path: Path, layout: Layout) -> None:
    table = table_of(tmp_path, ["sensor,edge,group,threshold,was", "alpha,e1,g,1,a", "b,e1,,,", "c,e2,h,2,"])
    after = make_layout(table, placement_of(table, [0, 1, 1]), 2, "ungrouped", layout)
    assert after.names == ("alpha", "b", "c")
    back = Layout.load(after.dump())
    assert same(back, after)
    assert [sensor.key for sensor in back.table.sensors] == ["a", "b", "c"]
    other = table_of(tmp_path, ["sensor,edge,group", "alpha,e1,g", "b,e1,", "c,e2,h"])
    with pytest.raises(LayoutError, match="sensor 0 is 'alpha', expected 'a'"):
        make_layout(other, placement_of(other, [0, 1, 1]), 2, "ungrouped", after)


def test_a_layout_that_an_earlier_release_has_written_knows_its_sensors_by_their_names(
    tmp_path: Path, layout: Layout
) -> None:
    fields = json.loads(layout.dump())
    del fields["keys"], fields["before"]
    earlier = Layout.load(json.dumps(fields).encode())
    assert same(earlier, layout)
    table = table_of(tmp_path, ["sensor,edge,group,threshold,was", "alpha,e1,g,1,a", "b,e1,,,", "c,e2,h,2,"])
    assert make_layout(table, placement_of(table, [0, 1, 1]), 2, "ungrouped", earlier).names[0] == "alpha"


def test_a_removed_sensor_keeps_its_place_but_no_share_of_the_work() -> None:
    rows = [Sensor(number, f"s{number}", "e1", "g") for number in range(5)]
    rows[0] = replace(rows[0], edge="", before="e1", rate=1e6)
    table = SensorTable(tuple(rows))
    assert rate_of(rows[0]) < 1e-3
    made = make_layout(table, placement_of(table, [0] * 5), 2, "ungrouped", order="full")
    assert (made.edges[0], made.before[0]) == ("", "e1")
    assert np.bincount(made.sensor_core[1:]).tolist() == [2, 2]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_a_user_does_to_the_table_ids_groups_slots_and_homes_stay(seed: int) -> None:
    draw = random.Random(seed)
    wanted = {f"s{number}": Sensor(0, f"s{number}", "e1", f"g{number % 3}") for number in range(6)}
    table = SensorTable(tuple(replace(sensor, id=number) for number, sensor in enumerate(wanted.values())))
    slots = [draw.randrange(3) for _ in table.sensors]
    placement = placement_of(table, slots, slots=3)
    layout = make_layout(table, placement, 2, "none", order=draw.choice(("none", "basic", "optimised", "full")))
    for turn in range(30):
        name = draw.choice(list(wanted))
        match draw.choice(("add", "remove", "return", "rename", "move", "attribute")):
            case "add":
                wanted[f"n{turn}"] = Sensor(0, f"n{turn}", "e2", f"g{draw.randrange(5)}")
            case "remove" if len(wanted) > 1:
                del wanted[name]
            case "return" if gone := [sensor for sensor in table.sensors if sensor.removed]:
                wanted[gone[0].name] = replace(gone[0], edge="e3", before="")
            case "rename":
                wanted[f"r{turn}"] = replace(wanted[name], name=f"r{turn}", was=wanted.pop(name).key)
            case "move":
                wanted[name] = replace(wanted[name], edge=f"e{draw.randrange(4)}")
        columns = ("site",) if draw.random() < 0.5 else ()
        cells = [replace(item, attributes=tuple(draw.choice("ab") for _ in columns)) for item in wanted.values()]
        draw.shuffle(cells)
        after_table = fleet_change(
            table, SensorTable(tuple(replace(item, id=number) for number, item in enumerate(cells)), columns)
        ).table
        if draw.random() < 0.7:  # the scaler has placed the new ones
            slots += [draw.randrange(3) for _ in range(len(after_table) - len(slots))]
            placement = placement_of(after_table, slots, serial=turn, slots=3)
        after = Layout.load(make_layout(after_table, placement, 2, "none", layout).dump())
        assert [sensor.key for sensor in after.table.sensors[: len(layout)]] == [
            sensor.key for sensor in layout.table.sensors
        ]
        assert [sensor.removed for sensor in after.table.sensors] == [
            sensor.removed for sensor in after_table.sensors[: len(slots)]
        ]
        assert after.table.attributes == columns
        for column in ("group_of", "slot_of", "sensor_core"):
            assert np.array_equal(getattr(after, column)[: len(layout)], getattr(layout, column)) or (
                column == "sensor_core" and layout.order == "none"
            )
        assert np.array_equal(after.home[: len(layout.home)], layout.home)
        assert after.groups[: len(layout.groups)] == layout.groups
        table, layout = after_table, after
