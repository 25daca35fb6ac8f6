from __future__ import annotations

import hashlib
import math
from pathlib import Path

import numpy as np
import pytest

from tsunagi.runtime.cells import Cells
from tsunagi.runtime.sensors import LEAST_EDGES, PER_EDGE, Sensor, SensorsError, SensorTable, place, read_sensors


def table(tmp_path: Path, text: str, encoding: str = "utf-8") -> Path:
    path = tmp_path / "sensors.csv"
    path.write_bytes(text.encode(encoding))
    return path


def test_all_columns_are_read(tmp_path: Path) -> None:
    header = "sensor,edge,group,unit,interval_s,max_age_s,threshold,min,max,rate\n"
    sensors = read_sensors(table(tmp_path, header + "s1, e1 ,g1,km/h,2,30,50.5,0,120,0.5\ns2,e2,,,,,,,,\n"))
    first, second = sensors.sensors
    assert (first.id, first.name, first.edge, first.group, first.unit) == (0, "s1", "e1", "g1", "km/h")
    assert (first.interval_s, first.max_age_s, first.threshold) == (2.0, 30.0, 50.5)
    assert (first.minimum, first.maximum, first.rate) == (0.0, 120.0, 0.5)
    assert second.id == 1
    assert second.group == ""
    assert math.isnan(second.max_age_s)


def test_two_columns_are_enough_in_any_order_and_with_a_byte_order_mark(tmp_path: Path) -> None:
    sensors = read_sensors(table(tmp_path, "edge,sensor\r\ne2,b\r\n\r\ne1,a\r\n", "utf-8-sig"))
    assert [(sensor.id, sensor.name, sensor.edge) for sensor in sensors.sensors] == [(0, "b", "e2"), (1, "a", "e1")]
    assert sensors.edges == ("e1", "e2")
    assert [sensor.name for sensor in sensors.of_edge("e2")] == ["b"]
    assert sensors.ids(["a", "unknown"]) == {"a": 1}
    assert len(sensors) == 2


def test_further_columns_are_attributes(tmp_path: Path) -> None:
    path = tmp_path / "sensors.csv"
    path.write_text("sensor,site,edge,line\na,north,e1,1\nb,,e2,2\n")
    table = read_sensors(path)
    assert table.attributes == ("site", "line")
    assert [sensor.attributes for sensor in table.sensors] == [("north", "1"), ("", "2")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty; expected a header"),
        ("sensor,edge\n", "no sensors below the header"),
        ("sensor,group\na,g\n", "line 1: column 'edge' is missing (found sensor,group)"),
        ("sensor,edge,treshold\na,e,3\n", "line 1: unknown column 'treshold'; did you mean threshold?"),
        ("sensor,edge,value\na,e,3\n", "line 1: column 'value': expected"),
        ("sensor,edge,heat flow\na,e,3\n", "line 1: column 'heat flow': expected"),
        ("sensor,edge,unit,unit\na,e,m,m\n", "line 1: a column stands twice"),
        ("sensor,edge\na,e\nb\n", "line 3: found 1 fields, expected 2"),
        ("sensor,edge\na,\n", "line 2: edge is empty"),
        ("sensor,edge\na,e\nb,e\na,f\n", "line 4: sensor 'a' stands already in line 2"),
        ("sensor,edge,threshold\na,e,high\n", "line 2: threshold: found 'high', expected a number"),
        ("sensor,edge,threshold\na,e,inf\n", "line 2: threshold: found 'inf'"),
        ("sensor,edge,max_age_s\na,e,0\n", "line 2: max_age_s: found '0', expected a finite number above zero"),
        ("sensor,edge\na,hall/A\n", "line 2: edge: found 'hall/A', expected letters"),
        ("sensor,edge\na,e\nb,gw-1\n", "line 3: edge: found 'gw-1', expected a name other than gw-N"),
        ("sensor,edge\na,spark\n", "line 2: edge: found 'spark', expected a name that no service"),
        ("sensor,edge\nTime,e\n", "line 2: sensor: found 'Time', which a file of readings has for"),
        ('sensor,edge\n"a\nb",e\n', "line 2: sensor: found 'a\\nb', expected a name without line breaks"),
        ("sensor,edge,group\na,e,g\x07\n", "line 2: group: found 'g\\x07', expected a name without"),
        (f"sensor,edge\n{'a' * 201},e\n", "line 2: sensor: found a name of 201 characters, expected at most 200"),
        ("sensor,edge,min,max\na,e,2,1\n", "line 2: min = 2.0 is greater than max = 1.0"),
    ],
)
def test_bad_table_is_refused_with_file_line_found_and_expected(tmp_path: Path, text: str, said: str) -> None:
    path = table(tmp_path, text)
    with pytest.raises(SensorsError) as caught:
        read_sensors(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


def test_file_that_is_missing_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SensorsError, match="no such sensors table"):
        read_sensors(tmp_path / "none.csv")
    with pytest.raises(SensorsError, match="line 2: found byte 0xe4 at 1, expected UTF-8"):
        read_sensors(table(tmp_path, "sensor,edge\nä,e\n", "latin-1"))


def test_digest_stays_when_the_table_grows_at_its_end(tmp_path: Path) -> None:
    short = read_sensors(table(tmp_path, "sensor,edge\na,e\nb,f\n"))
    grown = read_sensors(table(tmp_path, "sensor,edge\na,e\nb,f\nc,e\n"))
    moved = read_sensors(table(tmp_path, "sensor,edge\nb,f\na,e\n"))
    assert grown.digest(2) == short.digest()
    assert grown.digest() != short.digest()
    assert moved.digest() != short.digest()


def test_a_sensor_may_move_to_another_edge_but_not_change_its_name(tmp_path: Path) -> None:
    before = read_sensors(table(tmp_path, "sensor,edge\na,e\nb,f\n"))
    moved = read_sensors(table(tmp_path, "sensor,edge\na,f\nb,f\n"))
    moved.check_placed(2, before.digest())
    with_edges = hashlib.sha256(b"a\x1fe\x1eb\x1ff\x1e").hexdigest()
    before.check_placed(2, with_edges)  # of an earlier release
    for other in ("sensor,edge\nx,e\nb,f\n", "sensor,edge\na,e\n"):
        with pytest.raises(SensorsError, match="other names"):
            read_sensors(table(tmp_path, other)).check_placed(2, before.digest())


def test_every_slot_gets_sensors_of_every_edge(tmp_path: Path) -> None:
    rows = "".join(f"s{number},e{number % 3}\n" for number in range(24))
    placed = place(read_sensors(table(tmp_path, "sensor,edge\n" + rows)), 4)
    assert placed.dtype == np.uint32
    for edge in range(3):
        assert np.bincount(placed[edge::3], minlength=4).tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("edges", "slots", "per_edge", "each"),
    [(4, 2, 4, 2), (6, 10, 4, 10), (20, 5, 4, 4), (100, 10, 4, 4), (100, 10, 1, 1), (100, 64, 4, 6), (200, 64, 4, 4)],
)
def test_an_edge_stands_in_few_slots_and_each_slot_has_edges_enough(
    tmp_path: Path, edges: int, slots: int, per_edge: int, each: int
) -> None:
    rows = "".join(f"s{number},e{number // 12}\n" for number in range(12 * edges))
    placed = place(read_sensors(table(tmp_path, "sensor,edge\n" + rows)), slots, per_edge).reshape(edges, 12)
    assert {len(set(of_edge)) for of_edge in placed.tolist()} == {each}, "records a step of an edge"
    of_slot = [{edge for edge in range(edges) if slot in placed[edge]} for slot in range(slots)]
    assert min(map(len, of_slot)) >= min(edges, LEAST_EDGES)
    sizes = np.bincount(placed.ravel(), minlength=slots)
    assert sizes.max() <= 1.2 * sizes.min() + 1
    if per_edge > 1:
        assert all(set(placed[edge]) & set(placed[edge + 1]) for edge in range(edges - 1)), "neighbours share slots"


def test_placement_spreads_remainders_and_keeps_places_when_the_table_grows(tmp_path: Path) -> None:
    rows = "".join(f"s{number},e{number}\n" for number in range(6))
    small = place(read_sensors(table(tmp_path, "sensor,edge\n" + rows)), 3)
    assert np.bincount(small).tolist() == [2, 2, 2]
    grown = place(read_sensors(table(tmp_path, "sensor,edge\n" + rows + "new,e0\n")), 3)
    assert grown[:6].tolist() == small.tolist()


@pytest.mark.parametrize(("slots", "cells"), [(100, 1), (100, 3), (400, 11)])
def test_an_edges_slots_are_of_one_cell(slots: int, cells: int) -> None:
    edges = 4 * slots
    fleet = SensorTable(tuple(Sensor(i, f"s{i}", f"e{i // 6}") for i in range(6 * edges)))
    placed = place(fleet, slots, cells=cells).reshape(edges, 6)
    of = Cells(cells).of
    assert all(len({of(int(slot)) for slot in row}) == 1 for row in placed)
    assert all(len(set(row.tolist())) == PER_EDGE for row in placed)
    counts = np.bincount(placed.ravel(), minlength=slots)
    assert counts.min() > 0
    if cells == 1:
        assert (placed.ravel() == place(fleet, slots)).all()
