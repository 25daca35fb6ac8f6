"""`tsunagi query`: what a user may ask for, and what is said to what cannot be."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from tsunagi.local import queries
from tsunagi.local.queries import QueryAskError
from tsunagi.local.results import print_queries
from tsunagi.query.errors import QueryError
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.log import PLAN
from tsunagi.runtime.messages import VERSION, Heartbeat, Plan, QueryBeat, QueryChange, SlotBeat, SparkBeat
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

    def add(self, *given: str, begin: str = "") -> None:
        queries.add_queries(self.settings, given, self.said.append, begin)


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


@pytest.mark.parametrize(
    ("begin", "from_us"),
    [
        ("90s", 910),
        ("1.5m", 910),
        ("5d", 0),
        ("400", 400),
        ("1970-01-01T00:06:40Z", 400),
        ("1970-01-01T02:06:40+02:00", 400),
    ],
)
def test_a_query_is_filled_from_a_moment_or_a_length_of_time_before_the_newest_result(
    place: Place, monkeypatch: pytest.MonkeyPatch, begin: str, from_us: int
) -> None:
    monkeypatch.setattr(queries, "_spark_beat", lambda _: SparkBeat(newest=1000))
    place.add(ADDED, "CREATE VIEW v AS SELECT sensor FROM readings", begin=begin)
    plans = [Plan.FromString(record.value or b"").query for record in place.log.records(PLAN, 0)]
    assert {plan.name: plan.from_us for plan in plans} == {"high": max(1, from_us * 1_000_000), "v": 0}
    assert [
        line.startswith(said)
        for line, said in zip(place.said, ("high: added, filled from 1970-", "v: added"), strict=True)
    ]


@pytest.mark.parametrize(
    ("begin", "given", "message"),
    [
        ("24", ADDED, None),
        ("24 hours", ADDED, r"--from: found '24 hours' .*, expected a length of time such as 90s"),
        ("2026-11-27", ADDED, "has no zone"),
        ("1e9", ADDED, None),  # what is known of the newest result may be old
        ("4e9", ADDED, "--from: found 4e9, expected a moment that has come"),
        ("0", ADDED, "expected a moment that has come"),
        ("24h", "CREATE VIEW v AS SELECT sensor FROM readings", "a view is filled with the queries that read it"),
    ],
)
def test_what_cannot_be_filled_is_refused(
    place: Place, monkeypatch: pytest.MonkeyPatch, begin: str, given: str, message: str | None
) -> None:
    monkeypatch.setattr(queries, "_spark_beat", lambda _: SparkBeat(newest=1000))
    if message is None:
        return place.add(given, begin=begin)
    with pytest.raises(QueryAskError, match=message):
        place.add(given, begin=begin)
    assert place.log.records(PLAN, 0) == []
    return None


def test_the_list_says_how_far_a_query_is_filled(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.add(ADDED)
    beat = SparkBeat(query=[QueryBeat(name="high", since=10, filled_to=20), QueryBeat(name="n", since=10)])
    monkeypatch.setattr(queries, "_spark_beat", lambda _: beat)
    listed = queries.list_queries(place.settings)
    assert [(item["query"], item["state"], item["filled_to_us"]) for item in listed] == [
        ("high", "is filled", 20_000_000),
        ("n", "runs", None),
    ]
    console = Console(width=200, file=io.StringIO())
    print_queries(listed, console)
    assert "is filled, up to 01-01 00:00:20" in cast(io.StringIO, console.file).getvalue()


class Owners:
    """A fleet of two slots."""

    caught_up = True

    def __init__(self, *queries: list[QueryBeat]) -> None:
        self.beats = {
            f"gw-{slot}": Heartbeat(slots=[SlotBeat(slot=slot, role="primary", step=1_000_000 * slot, query=said)])
            for slot, said in enumerate(queries)
        }

    def fresh(self) -> dict[str, Heartbeat]:
        return self.beats

    def update(self, _timeout_s: float) -> None:
        pass

    def close(self) -> None:
        pass


def over_tuples(place: Place, monkeypatch: pytest.MonkeyPatch, *said: list[QueryBeat], **query: Any) -> None:
    monkeypatch.setattr(queries, "Fleet", lambda _log: Owners(*said))
    monkeypatch.setattr(queries, "_LISTEN_S", 5.0)
    place.settings = make({"sensors": place.settings.sensors, "query": {"mode": "tuples", **query}}, "test")


def test_over_tuples_the_list_says_in_which_slot_a_query_has_stopped(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    over_tuples(place, monkeypatch, [], [QueryBeat(name="high", fault="too large")])
    place.add(
        "CREATE QUERY high AS SELECT sensor FROM readings WHERE value > 5",
        "CREATE QUERY q AS SELECT sensor FROM readings",
    )
    listed = queries.list_queries(place.settings)
    assert [(item["query"], item["state"], item["fault"]) for item in listed] == [
        ("high", "stopped", "slot 1: too large"),
        ("q", "runs", ""),
    ]


def test_over_tuples_the_list_says_how_far_the_slot_is_that_is_furthest_behind(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    over_tuples(place, monkeypatch, [], [])
    place.add("CREATE QUERY q AS SELECT sensor FROM readings", begin="0.4s")
    assert place.said == ["q: added, filled from 1970-01-01T00:00:00Z on"]
    from_us = Plan.FromString(place.log.records(PLAN, 0)[-1].value or b"").query.from_us
    assert from_us == 600_000
    one, other = QueryBeat(name="q", since=from_us, filled_to=20_000_000), QueryBeat(name="q", since=from_us)
    for said, state, filled_to_us in (
        (([one], [other]), "is filled", 20_000_000),
        (([one], [QueryBeat(name="q", since=from_us, filled_to=-1)]), "is filled", None),
        (([other], [other]), "runs", None),
        (([other], []), "waits for workers", None),
        (([other], [QueryBeat(name="q", since=5)]), "waits for workers", None),
        (([], []), "waits for workers", None),
    ):
        over_tuples(place, monkeypatch, *said)
        (listed,) = queries.list_queries(place.settings)
        assert (listed["state"], listed["filled_to_us"]) == (state, filled_to_us)


def test_nothing_is_filled_behind_operators(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    over_tuples(place, monkeypatch, [], [], operators=[{"use": "select"}, {"use": "project", "sensors": ["a"]}])
    with pytest.raises(QueryAskError, match=r"--from: found \[query\] operators = select, project, which the past"):
        place.add("CREATE QUERY q AS SELECT sensor FROM readings", begin="24h")
    assert place.log.records(PLAN, 0) == []


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


def test_explain_says_where_rows_are_added_up(tmp_path: Path) -> None:
    table = tmp_path / "sensors.csv"
    table.write_text("sensor,edge,site\na,e1,x\nb,e2,x\nc,e2,y\n", encoding="utf-8")
    settings = Settings(sensors=table, spark={"cores": 2})
    said: list[str] = []
    queries.explain_queries(
        settings, ["CREATE QUERY q AS SELECT site, AVG(value) AS mean FROM readings [NOW] GROUP BY site"], said.append
    )
    text = "\n".join(said)
    assert "which gets sums: the P-SORT cores add up the rows of each step by its groups" in text
    assert "at most 2: 2 P-SORT cores add up rows, one core their sums" in text


@pytest.mark.parametrize("mode", ["steps", "tuples"])
def test_what_is_no_query_is_listed_as_what_it_is(place: Place, mode: str) -> None:
    text = "CREATE STREAM s (k TEXT KEY); CREATE FUNCTION f AS 'math:sin'; CREATE QUERY n AS SELECT k FROM s"
    place.file.write_text(text, encoding="utf-8")
    place.settings = place.settings.model_copy(update={"query": place.settings.query.model_copy(update={"mode": mode})})
    change = QueryChange(name="odd", text="CREATE NONSENSE", by="somebody")
    place.write(place.settings, {"query/odd": Plan(version=VERSION, query=change)})
    found = {item["query"]: item["state"] for item in queries.list_queries(place.settings)}
    waits = "waits for workers" if mode == "tuples" else "waits for Spark"
    assert found == {"odd": waits, "s": "a stream", "f": "a function", "n": waits}


def test_a_statement_on_plan_that_cannot_be_read_is_listed_all_the_same(place: Place) -> None:
    change = QueryChange(name="odd", text="CREATE NONSENSE", by="somebody")
    place.write(place.settings, {"query/odd": Plan(version=VERSION, query=change)})
    assert [item["query"] for item in queries.list_queries(place.settings)] == ["odd", "n"]
