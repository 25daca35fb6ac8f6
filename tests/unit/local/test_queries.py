"""`tsunagi query`: what a user may ask for, and what is said to what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tsunagi.local import queries
from tsunagi.local.queries import QueryAskError
from tsunagi.query.errors import QueryError
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.log import PLAN
from tsunagi.runtime.messages import VERSION, Plan, QueryChange
from tsunagi.runtime.settings import Settings, make
from tsunagi.runtime.testing import MemoryLog

FILE = "CREATE VIEW n AS SELECT sensor, COUNT(*) AS n FROM readings [RANGE 1 MINUTE] GROUP BY sensor"
ADDED = "CREATE QUERY high AS SELECT n.sensor FROM n WHERE n.n > 5"


AGGREGATES = [{"name": "five", "range_s": 300}]


class Place:
    """Settings with a file of queries, and a log with a plan."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (directory / "sensors.csv").write_text("sensor,edge,site\na,e1,north\nb,e1,\n", encoding="utf-8")
        self.file = directory / "plant.sql"
        self.file.write_text(f"-- a comment\n{FILE};\n", encoding="utf-8")
        tables = {"sensors": directory / "sensors.csv", "query": {"files": [self.file], "aggregates": AGGREGATES}}
        tables["steps"] = {"interval_s": 1.0, "window": 1, "slide": 1}
        self.settings: Settings = make(tables, "test")
        self.log = MemoryLog(ManualClock(), {PLAN: 1, "heartbeats": 1, "acks": 1})
        self.said: list[str] = []
        monkeypatch.setattr(queries, "tool_log", lambda _settings, _name: self.log)
        monkeypatch.setattr(queries, "write_plan", self.write)
        monkeypatch.setattr(queries, "_LISTEN_S", 0.0)

    def write(self, _settings: Settings, records: dict[str, Plan]) -> None:
        for key, plan in records.items():
            plan.serial = len(self.log.records(PLAN, 0)) + 1
            self.log.append(PLAN, 0, key.encode(), plan.SerializeToString())

    def add(self, *given: str) -> None:
        queries.add_queries(self.settings, given, self.said.append)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


def test_queries_come_go_and_are_listed(place: Place) -> None:
    place.add(ADDED)
    place.add(ADDED.replace("> 5", "> 6"))
    assert place.said == ["high: added", "high: replaced"]
    listed = queries.list_queries(place.settings)
    assert [(item["query"], item["source"], item["state"]) for item in listed] == [
        ("high", "plan", "waits for Spark"),
        ("n", str(place.file), "waits for Spark"),
    ]
    assert "> 6" in listed[0]["text"]
    queries.drop_query(place.settings, "high", place.said.append)
    assert [item["query"] for item in queries.list_queries(place.settings)] == ["n"]


def test_what_others_read_is_not_dropped(place: Place) -> None:
    place.add("CREATE VIEW v AS SELECT sensor FROM readings", "CREATE QUERY q AS SELECT v.sensor FROM v")
    with pytest.raises(QueryAskError, match="query v: q would have nothing to read"):
        queries.drop_query(place.settings, "v", place.said.append)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("CREATE QUERY q AS SELECT sensr FROM readings", r"command line, line 1, column 26: .* did you mean sensor\?"),
        ("CREATE QUERY n AS SELECT sensor FROM readings", r"n stands in .*plant.sql; change it there"),
        ("CREATE STREAM s (k TEXT KEY, x DOUBLE)", "edges read it at their start"),
        ("CREATE QUERY readings AS SELECT sensor FROM readings", "readings is the name of the stream"),
        ("nowhere.sql", "nowhere.sql: cannot be read"),
        ('CREATE QUERY "a/b" AS SELECT sensor FROM readings', "name 'a/b': expected letters, digits and _"),
        (f"CREATE QUERY q AS SELECT '{'x' * 70_000}' AS x FROM readings", "expected at most 65536"),
        ("CREATE QUERY five AS SELECT sensor FROM readings", "five is the name of a window aggregate"),
        ("SELECT sensor FROM readings", "found 'SELECT', expected CREATE"),
    ],
)
def test_what_cannot_be_added_is_refused_and_changes_nothing(place: Place, given: str, message: str) -> None:
    with pytest.raises((QueryError, QueryAskError), match=message):
        place.add(given)
    assert place.log.records(PLAN, 0) == []


def test_an_error_in_a_file_names_its_line(place: Place) -> None:
    place.file.write_text(f"-- a comment\n{FILE};\n\nCREATE QUERY q AS SELECT n.m FROM n;\n", encoding="utf-8")
    with pytest.raises(QueryError, match=r"plant.sql, line 4, column 2\d: "):
        queries.check_files(place.settings)
    (place.file.parent / "more.sql").write_text(FILE, encoding="utf-8")
    twice = {"query": place.settings.query.model_copy(update={"files": (place.file, place.file.parent / "more.sql")})}
    place.file.write_text(FILE, encoding="utf-8")
    with pytest.raises(QueryError, match=r"more.sql, line 1, column 1: n \(in .*plant.sql\) exists already"):
        queries.check_files(place.settings.model_copy(update=twice))


def test_check_and_explain_say_what_a_query_is(place: Place) -> None:
    queries.check_queries(place.settings, [ADDED], place.said.append)
    assert place.said == ["high: sensor TEXT"]
    place.said.clear()
    place.add(ADDED)
    queries.explain_queries(place.settings, ["high"], place.said.append)
    text = "\n".join(place.said)
    assert "query high" in text
    assert "n: the relation of a query" in text
    assert "on one query core" in text
    assert "speed-up    1: all rows on one core" in text
    with pytest.raises(QueryAskError, match="query hihg: found none of this name among high, n"):
        queries.explain_queries(place.settings, ["hihg"], place.said.append)


@pytest.mark.parametrize(("mode", "said"), [("steps", "1.5 of 2 query cores"), ("tuples", "2.0 of 2 slots")])
def test_explain_predicts_what_cores_give(mode: str, said: str, tmp_path: Path) -> None:
    table = tmp_path / "sensors.csv"
    groups = ["left", "left", "left", "left", "right", "right"]
    rows = [f"s{number},e{number % 2},{group}" for number, group in enumerate(groups)]
    table.write_text("\n".join(["sensor,edge,group", *rows]) + "\n", encoding="utf-8")
    settings = Settings(sensors=table, query={"mode": mode}, slots={"count": 2}, spark={"cores": 2})
    lines: list[str] = []
    text = (
        "CREATE QUERY q AS SELECT sensor, MAX(value) AS top FROM readings [ROWS 3] GROUP BY sensor ORDER WITHIN sensor"
    )
    queries.explain_queries(settings, [text], lines.append)
    assert any(said in line for line in lines), lines


def test_a_statement_on_plan_that_cannot_be_read_is_listed_all_the_same(place: Place) -> None:
    change = QueryChange(name="odd", text="CREATE NONSENSE", by="somebody")
    place.write(place.settings, {"query/odd": Plan(version=VERSION, query=change)})
    assert [item["query"] for item in queries.list_queries(place.settings)] == ["odd", "n"]
