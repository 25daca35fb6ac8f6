"""The statements in force: those of files and of `plan`, in numbered versions, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tsunagi.query.errors import QueryError
from tsunagi.runtime.columns import pack_sensors
from tsunagi.runtime.messages import Placement, QueryChange
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import make
from tsunagi_spark.layout import Layout, make_layout
from tsunagi_spark.programs import Programs, filled, runs_direct
from tsunagi_spark.state import KEPT, Store

COUNT = "CREATE QUERY n AS SELECT COUNT(*) AS n FROM readings"


def layout_of(*sites: str) -> Layout:
    rows = tuple(Sensor(n, f"s{n}", "e1", f"g{n}", attributes=(site,)) for n, site in enumerate(sites))
    placement = Placement(serial=1, slots=1, slot=pack_sensors([0] * len(rows)))
    return make_layout(SensorTable(rows, ("site",)), placement, 2, "none")


LAYOUT = layout_of("north", "south")


class Place:
    """A checkpoint, and files of queries."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.store = Store(directory)
        self.store.prepare(2)

    def programs(self, *texts: str) -> Programs:
        files = []
        for number, text in enumerate(texts):
            files.append(self._directory / f"{number}.sql")
            files[-1].write_text(text, encoding="utf-8")
        tables = {"query": {"files": files, "aggregates": [{"name": "five", "range_s": 5.0}]}}
        tables["steps"] = {"interval_s": 1.0, "window": 1, "slide": 1}
        return Programs(make(tables, "test"), self.store)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def added(**texts: str) -> dict[str, QueryChange]:
    return {name: QueryChange(name=name, text=text) for name, text in texts.items()}


def names(programs: Programs, serial: int) -> list[str]:
    found = programs.load(serial)
    return [] if found is None else [item.name for item in found.definitions]


def test_there_is_no_version_until_there_is_a_statement(place: Place) -> None:
    programs = place.programs()
    assert programs.newest(0, {}, LAYOUT) == 0
    assert programs.load(0) is None
    assert programs.newest(0, added(n=COUNT), LAYOUT) == 1
    assert programs.newest(1, added(n=COUNT), LAYOUT) == 1
    assert programs.newest(1, {}, LAYOUT) == 2, "what was dropped has to be ended"
    assert names(programs, 1) == ["n"]
    assert names(programs, 2) == []


def test_a_version_is_the_same_for_another_driver(place: Place) -> None:
    serial = place.programs(COUNT).newest(0, added(m=COUNT.replace("n AS", "m AS", 1)), LAYOUT)
    other = place.programs(COUNT)
    assert names(other, serial) == ["n", "m"]
    assert other.newest(serial, added(m=COUNT.replace("n AS", "m AS", 1)), LAYOUT) == serial


def test_a_statement_of_a_file_counts_more_than_one_of_plan(place: Place) -> None:
    programs = place.programs(COUNT)
    serial = programs.newest(0, added(n=COUNT.replace("COUNT(*)", "AVG(value)")), LAYOUT)
    found = programs.load(serial)
    assert found is not None
    assert [item.text for item in found.definitions] == [COUNT]


def test_what_cannot_be_understood_is_refused_and_harms_no_other(place: Place) -> None:
    programs = place.programs(COUNT)
    texts = {
        "bad": "CREATE QUERY bad AS SELECT valu FROM readings",
        "odd": "CREATE NONSENSE",
        "reader": "CREATE QUERY reader AS SELECT b.x FROM bad b",
        "five": "CREATE QUERY five AS SELECT sensor FROM readings",
        "good": "CREATE QUERY good AS SELECT site, n.n FROM readings, n",
    }
    serial = programs.newest(0, added(**texts), LAYOUT)
    assert names(programs, serial) == ["n", "good"]
    assert programs.refused.keys() == {"bad", "odd", "reader", "five"}
    assert "did you mean value?" in programs.refused["bad"]
    assert "window aggregate" in programs.refused["five"]


def test_an_error_in_a_file_ends_the_driver_before_it_begins(place: Place) -> None:
    with pytest.raises(QueryError, match=r"0\.sql, line 1, column 16"):
        place.programs("CREATE QUERY q SELECT sensor FROM readings")
    with pytest.raises(QueryError, match="column sit is unknown"):
        place.programs("CREATE QUERY q AS SELECT sit FROM readings").check(LAYOUT.table)


def test_an_attribute_of_another_kind_makes_a_new_version(place: Place) -> None:
    programs = place.programs(COUNT)
    serial = programs.newest(0, {}, layout_of("1", "2"))
    assert programs.newest(serial, {}, layout_of("1", "2", "3")) == serial
    assert programs.newest(serial, {}, layout_of("1", "2", "north")) == serial + 1


def test_a_query_whose_column_goes_is_refused_until_the_column_is_back(place: Place) -> None:
    programs = place.programs(COUNT.replace("n AS SELECT", "file AS SELECT site,") + " GROUP BY site")
    given = added(n=COUNT, bysite="CREATE QUERY bysite AS SELECT site, COUNT(*) AS n FROM readings GROUP BY site")
    serial = programs.newest(0, given, LAYOUT)
    assert names(programs, serial) == ["file", "bysite", "n"]
    without = replace(LAYOUT, attributes=(), cells=())
    serial = programs.newest(serial, given, without)
    assert names(programs, serial) == ["n"]
    assert all("column site is unknown" in programs.refused[name] for name in ("file", "bysite"))
    serial = programs.newest(serial, given, LAYOUT)
    assert names(programs, serial) == ["file", "bysite", "n"]
    assert not programs.refused


def test_groups_stay_where_they_are_and_old_versions_are_removed(place: Place) -> None:
    programs, serial, layout = place.programs(), 0, layout_of("a", "b", "c")
    for number in range(KEPT + 3):
        serial = programs.newest(serial, added(n=COUNT + f" WHERE value > {number}"), layout)
    found = programs.load(serial)
    assert found is not None
    assert found.places == tuple(layout.holds.argmax(axis=1).tolist())
    left = sorted(path.name for path in (place.store.root / "programs").iterdir())
    assert left == [str(number) for number in range(serial - KEPT + 1, serial + 1)]


def test_a_query_that_is_filled_runs_alone_and_another_text_or_begin_makes_other_rows(place: Place) -> None:
    programs = place.programs()
    by_group = "CREATE QUERY n AS SELECT group, COUNT(*) AS n FROM readings GROUP BY group ORDER WITHIN group"
    first = programs.load(serial := programs.newest(0, added(m=by_group.replace("n AS", "m AS", 1)), LAYOUT))
    assert first is not None
    assert first.split == {"m"}
    found = []
    other = by_group.replace("COUNT(*)", "SUM(value)")
    for from_us, text in ((1_500_000, by_group), (2_500_000, by_group), (1_500_000, other)):
        change = added(n=text)
        change["n"].from_us = from_us
        item = programs.load(serial := programs.newest(serial, change, LAYOUT))
        assert item is not None
        found.append(item)
        assert (item.split, item.whole) == (frozenset(), frozenset())
        assert not runs_direct(item, item, LAYOUT)
    last = programs.load(programs.newest(serial, {}, LAYOUT))
    assert [item.fills for item in found] == [{"n": 2}, {"n": 3}, {"n": 2}], (
        "the first step that is not before the time"
    )
    assert len({item.runs["n"] for item in found}) == 3
    assert filled(last, found[-1]) == ("n",)
    assert filled(last, last) == ()
