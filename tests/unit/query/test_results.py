"""Rows of queries are read back in both forms, repeats are dropped, and what is no row is counted."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime

import numpy as np
import pytest

from tsunagi.local import results as printing
from tsunagi.local.results import OutputError, print_query
from tsunagi.query.encoding import encode_rows
from tsunagi.query.relations import Rows, in_order
from tsunagi.query.results import QueryResults, json_lines
from tsunagi.query.values import Column, Kind, Spread, column
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.log import RESULTS
from tsunagi.runtime.messages import VERSION, ResultBlock
from tsunagi.runtime.results import ResultsReader, parse_block
from tsunagi.runtime.settings import Settings, make
from tsunagi.runtime.testing import MemoryLog

SLIDE_US = 500_000
DEFINITION = "CREATE QUERY q AS SELECT site, mean, at FROM readings"


def some_rows() -> Rows:
    mean = np.array([1.5, 2.5, 0.0, 4.0])
    width = np.array([0.0, 0.5, 0.0, np.inf])
    columns = {
        "site": column(Kind.TEXT, ["n", "s", "n", None]),
        "mean": Column(
            Kind.DOUBLE, mean, np.array([True, True, False, True]), (), Spread(mean - width, mean + width, width)
        ),
        "at": Column(Kind.TIMESTAMP, np.array([0, 1_000_000, 2_000_000, 3_000_000])),
    }
    return in_order(Rows(np.array([8, 8, 9, 9]), columns))


@pytest.fixture(params=["blocks", "json"])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Topic:
    """`results` with the rows of a query among other records, in one form."""

    def __init__(self, form: str) -> None:
        self.log = MemoryLog(ManualClock(), {RESULTS: 1})
        self.settings: Settings = make({"results": {"format": form}}, "test")
        self._form = form

    def write(self, value: bytes) -> None:
        for key, record in json_lines(parse_block(value)) if self._form == "json" else [(b"", value)]:
            self.log.append(RESULTS, 0, key, record)

    def fill(self) -> None:
        step = ResultBlock(version=VERSION, query="q", step=7, event_time_us=7 * SLIDE_US, definition=DEFINITION)
        self.write(step.SerializeToString())
        blocks = [block.value for block in encode_rows("q", some_rows(), ["site"], SLIDE_US)]
        for value in [*blocks, *blocks[1:]]:  # as after a restart of Spark
            self.write(value)
        self.log.append(RESULTS, 0, b"", b"\xff no record")
        self.write(next(encode_rows("other", some_rows(), [], SLIDE_US)).value)

    def read(self, *names: str) -> QueryResults:
        return QueryResults(self.log, self.settings, names)


@pytest.fixture
def topic(form: str) -> Topic:
    made = Topic(form)
    made.fill()
    return made


def test_rows_come_back_with_their_columns_once_each(topic: Topic) -> None:
    with topic.read("q") as results:
        blocks = list(results.blocks())
        rows = [row for block in blocks for row in block.rows]
    assert [block.definition for block in blocks if block.definition] == [DEFINITION]
    found = [(row.step, row.group, row["site"], row["mean"], row.quality) for row in rows]
    assert sorted(found, key=repr) == [
        (8, "n", "n", 1.5, "exact"),
        (8, "s", "s", 2.5, "bounded"),
        (9, "", None, 4.0, "unbounded"),
        (9, "n", "n", None, "exact"),
    ]
    bounded = next(row for row in rows if row.group == "s")
    assert bounded.ends == {"mean": (2.0, 3.0)}
    assert bounded.time == datetime(1970, 1, 1, 0, 0, 4, tzinfo=UTC)
    assert dict(bounded).keys() == {"site", "mean", "at"}
    assert next(row for row in rows if row.quality == "unbounded").ends == {"mean": (-np.inf, np.inf)}
    assert results.unreadable_count == 1
    assert results.duplicates == 3
    assert {row.query for row in topic.read().rows()} == {"q", "other"}


def test_a_reader_of_readings_passes_over_rows_of_queries(topic: Topic) -> None:
    with ResultsReader(topic.log, topic.settings) as results:
        assert list(results.blocks()) == []
        assert results.unreadable_count == 1


@pytest.mark.parametrize(
    "odd",
    [
        {"version": 99},
        {"step": "8"},
        {"row": [1]},
        {"low": 3},
        {"query": None},
        {"id": "0"},
        {"time_us": 10**30},
        {"step": -1},
    ],
)
def test_a_row_that_cannot_be_used_is_counted(odd: dict[str, object]) -> None:
    topic = Topic("json")
    good = {
        "version": 1,
        "query": "q",
        "group": "",
        "step": 8,
        "time_us": 1,
        "appended_us": 1,
        "id": 0,
        "row": {"x": 1},
    }
    for item in (good | odd, good):
        topic.log.append(RESULTS, 0, b"", json.dumps(item).encode())
    with topic.read() as results:
        assert [row["x"] for row in results.rows()] == [1]
        assert results.unreadable_count == 1


def test_printed_rows_have_the_columns_of_their_query(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printing, "tool_log", lambda *_: topic.log)

    def shown(form: str, *names: str) -> list[str]:
        output = io.StringIO()
        print_query(topic.settings, names, follow=False, form=form, from_now=False, output=output)
        return output.getvalue().splitlines()

    table = shown("table", "q")
    assert table[0].split() == ["time", "site", "mean", "at", "quality"]
    assert "2.5 [2, 3]" in "\n".join(table)
    assert shown("csv", "q")[0] == "time,site,mean,at,quality"
    lines = [json.loads(line) for line in shown("json", "q", "other")]
    assert {line["query"] for line in lines} == {"q", "other"}
    assert {key: lines[1]["row"][key] for key in ("site", "mean")} == {"site": "s", "mean": 2.5}
    with pytest.raises(OutputError, match="found 2 queries, expected one, or --format json"):
        shown("table", "q", "other")
