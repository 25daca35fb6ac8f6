"""What a changed sensors table means for the table in force, and that this one is read back as it was written."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from tsunagi.runtime import sensors
from tsunagi.runtime.fleet_change import FleetChange, fleet_change
from tsunagi.runtime.fleet_table import pack_table, unpack_table
from tsunagi.runtime.messages import FleetTable
from tsunagi.runtime.sensors import SensorsError, SensorTable, read_sensors

BEFORE = """sensor,edge,group,unit,threshold,min,site
a,one,north,C,20,-40,Kyoto
b,one,north,C,,,Kyoto
c,two,south,bar,,,"Nara, east"
"""


def table(tmp_path: Path, text: str) -> SensorTable:
    path = tmp_path / "sensors.csv"
    path.write_text(text, encoding="utf-8")
    return read_sensors(path)


def change(tmp_path: Path, text: str, before: str | SensorTable = BEFORE) -> FleetChange:
    earlier = table(tmp_path, before) if isinstance(before, str) else before
    return fleet_change(earlier, table(tmp_path, text))


def rows(found: SensorTable) -> list[tuple[str, str, str, str]]:
    return [(sensor.name, sensor.edge, sensor.was, sensor.before) for sensor in found.sensors]


def test_an_equal_table_changes_nothing(tmp_path: Path) -> None:
    found = change(tmp_path, BEFORE)
    assert not found
    assert found.lines() == []
    reordered = "\n".join([BEFORE.splitlines()[0], *reversed(BEFORE.splitlines()[1:])])
    assert not change(tmp_path, reordered), "rows may stand in any order"


def test_rows_keep_their_places_whatever_the_order_of_the_file(tmp_path: Path) -> None:
    found = change(tmp_path, "edge,sensor,group,was\nthree,d,,\ntwo,a,north,\ntwo,gamma,south,c\n")
    assert rows(found.table) == [
        ("a", "two", "", "one"),
        ("b", "", "", "one"),
        ("gamma", "two", "c", ""),
        ("d", "three", "", ""),
    ]
    assert found.added == ("d",)
    assert found.removed == ("b",)
    assert found.renamed == (("c", "gamma"),)
    assert found.moved == (("a", "one", "two"),)
    assert found.new_edges == ("three",)
    assert found.idle_edges == ("one",)
    assert found.edited[:2] == (("a", "unit", "C", ""), ("a", "threshold", "20", ""))
    assert "~ gamma: site is empty instead of Nara, east" in found.lines()


def test_what_is_in_force_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = change(
        tmp_path, "edge,sensor,group,was,max\nthree,d,,,1e-300\ntwo,a,north,,\ntwo,gamma,south,c,0.1\n"
    ).table
    again = unpack_table(pack_table(found, by="test", from_us=7))
    assert repr(again) == repr(found)  # NaN is not equal to itself
    assert again.digest(3) == table(tmp_path, BEFORE).digest(3), "placements of before still fit"


def test_a_removed_sensor_comes_back_in_its_row_and_under_its_name(tmp_path: Path) -> None:
    without = change(tmp_path, "sensor,edge,group\na,one,north\nc,two,south\n").table
    assert [sensor.name for sensor in without.present] == ["a", "c"]
    assert without.edges == ("one", "two")
    assert [sensor.name for sensor in without.of_edge("one")] == ["a"]
    assert without.ids(["a", "b"]) == {"a": 0}
    back = change(tmp_path, "sensor,edge,group\nb,two,north\na,one,north\nc,two,south\n", without)
    assert back.added == ("b",)
    assert rows(back.table)[1] == ("b", "two", "", "one")


def test_a_sensor_is_known_by_its_first_name_over_several_renamings(tmp_path: Path) -> None:
    once = change(tmp_path, "sensor,edge,group,was\nx,one,north,a\nb,one,north,\nc,two,south,\n").table
    twice = change(tmp_path, "sensor,edge,group,was\ny,one,north,x\nb,one,north,\nc,two,south,\n", once).table
    assert rows(twice)[0] == ("y", "one", "a", "")
    assert twice.ids(["a", "x", "y"]) == {"a": 0, "y": 0}
    kept = "sensor,edge,group,was\ny,one,north,x\nb,one,north,\nc,two,south,\n"
    assert not change(tmp_path, kept, twice), "the user's file goes on to say what the sensor was called before"
    back = change(tmp_path, "sensor,edge,group\na,one,north\nb,one,north\nc,two,south\n", twice)
    assert back.renamed == (("y", "a"),)
    assert rows(back.table)[0] == ("a", "one", "", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sensor,edge,group\na,one,south\n", "sensor 'a': found group 'south', expected 'north'"),
        ("sensor,edge,group,was\nx,one,north,z\n", "sensor 'x': was: found 'z', expected a name that it had before"),
        ("sensor,edge,group,was\nb,one,north,a\n", "a name that belongs to another sensor"),
        ("sensor,edge,group,was\nx,one,north,a\na,one,north,\n", "sensor 'a' stands already in line 2"),
    ],
)
def test_impossible_changes_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SensorsError, match="sensor") as caught:
        change(tmp_path, text)
    assert message in str(caught.value)


def test_records_that_hold_no_table_are_refused() -> None:
    for data in (b"", b"no zlib", pack_table(SensorTable(()), by="").csv):
        with pytest.raises(SensorsError, match="in `plan`"):
            unpack_table(FleetTable(csv=data))


def test_a_table_of_twenty_thousand_sensors_is_one_record(tmp_path: Path) -> None:
    rows = [
        f"plant-{number // 100}/line-{number}/temperature,edge-{number // 100},g{number // 50}"
        for number in range(20_000)
    ]
    big = table(tmp_path, "sensor,edge,group\n" + "\n".join(rows) + "\n")
    record = pack_table(big, by="test")
    assert len(record.csv) < 300_000
    assert np.array_equal([sensor.id for sensor in unpack_table(record).sensors], np.arange(20_000))


def test_a_changed_table_reads_like_one_that_was_never_seen(tmp_path: Path) -> None:
    """Rows that stay are taken over from the table before, the others are parsed; what comes out must not differ."""
    header = ["sensor,edge,group,unit,was,interval_s,max_age_s,threshold,min,max,rate,before,site"]
    rows = [f"s{number},edge-{number % 3},g,C,,,,{number},nan,,,,here" for number in range(40)]
    chance = random.Random(7)
    for _ in range(200):
        at, kind = chance.randrange(len(rows)), chance.randrange(7)
        if kind == 0:
            rows.append(f"n{chance.randrange(10**6)},edge-1,g,,,,,,,,,,")
        elif kind == 1:
            rows = rows[:at] or rows
        elif kind == 2:
            rows[at] = rows[at].replace("edge-", "edge-1")
        elif kind == 3:
            rows.insert(at, f"n{chance.randrange(10**6)},,g,,,,,,,,,edge-2,gone")
        elif kind == 4:
            rows[at] = rows[chance.randrange(len(rows))]  # perhaps a name that stands twice
        elif kind == 5:
            rows[at] = rows[at].replace("C,", "C,,")  # a field too many
        else:
            header = [header[0].replace("site", chance.choice(["site", "hall"]))]
        text = "\n".join(header + rows).encode()
        seen = _read(text)
        sensors._newest = None
        assert repr(_read(text)) == repr(seen)
        assert seen == _read(text), "tables are compared to find out whether anything has changed"
        if isinstance(seen, str):
            rows = [row for place, row in enumerate(rows) if row.count(",") == 12 and row not in rows[:place]]
            rows = list({row.split(",")[0]: row for row in rows}.values())


def _read(text: bytes) -> SensorTable | str:
    try:
        return sensors.read_in_force(text, Path("plan"))
    except SensorsError as error:
        return str(error)
