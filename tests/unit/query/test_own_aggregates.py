"""Aggregates of one's own: CREATE AGGREGATE."""

from __future__ import annotations

import itertools
import math
import statistics

import numpy as np
import numpy.typing as npt
import pytest

from tests.unit.query.oracle import CATALOG, Fleet
from tsunagi.query.definitions import check, definitions_of
from tsunagi.query.errors import QueryError
from tsunagi.query.planning import make_program
from tsunagi.query.relations import Rows
from tsunagi.query.running import Queries
from tsunagi.query.tuple_plans import check_tuples
from tsunagi.query.tuple_runs import TupleQueries
from tsunagi.query.values import Column, Kind, Spread

CREATE = "CREATE AGGREGATE middle AS 'tests.unit.query.test_own_aggregates:middle';"


def middle(values: npt.NDArray[np.float64]) -> float:
    """Return the median; NaN of fewer than two values."""
    return float(np.median(values)) if len(values) > 1 else math.nan


def readings(**columns: Column) -> Rows:
    """Return readings of one step; the columns that are not given mean nothing."""
    rows = len(columns["value"])
    rest = {
        name: Column(kind, np.zeros(rows, kind.dtype), None, ("",) if kind is Kind.TEXT else ())
        for name, kind in CATALOG.streams["readings"].columns.items()
    }
    return Rows(np.ones(rows, dtype=np.int64), {**rest, **columns})


def expected(fleet: Fleet, last: int, count: int) -> list[tuple[int, str, float | None]]:
    found: list[tuple[int, str, float | None]] = []
    for step in range(1, last + 1):
        for sensor, name in enumerate(fleet.names):
            rows = [row[2] for row in fleet.rows if row[1] == sensor and row[0] <= step][-count:]
            values = [value for value in rows if value is not None]
            if rows:
                found.append((step, name, statistics.median(values) if len(values) > 1 else None))
    return found


def test_it_gets_the_values_of_each_group_in_their_order() -> None:
    fleet = Fleet(3, sensors=4, last=20)
    text = CREATE + "CREATE QUERY q AS SELECT sensor, MIDDLE(value) AS m FROM readings [ROWS 5] GROUP BY sensor"
    for cuts in ((0, 20), (0, 1, 7, 20)):
        queries = Queries(make_program([("q", text)], 1_000_000, CATALOG))
        found: list[tuple[object, ...]] = []
        for low, high in itertools.pairwise(cuts):
            rows = queries.advance({"readings": fleet.stream(low, high)}, low, high)["q"]
            found += zip(rows.step.tolist(), *(item.to_list() for item in rows.columns.values()), strict=True)
        assert found == expected(fleet, 20, 5)


def test_filter_and_a_built_in_one_beside_it() -> None:
    text = CREATE + (
        "CREATE QUERY q AS SELECT sensor, middle(value) FILTER (WHERE value > 1) AS m, COUNT(*) AS n "
        "FROM readings [NOW] GROUP BY sensor"
    )
    stream = readings(
        sensor=Column(Kind.TEXT, np.array([0, 0, 0, 1]), None, ("a", "b")),
        value=Column(Kind.DOUBLE, np.array([1.0, 2.0, 4.0, 5.0])),
    )
    rows = Queries(make_program([("q", text)], 1, CATALOG)).advance({"readings": stream}, 0, 1)["q"]
    assert [item.to_list() for item in rows.columns.values()] == [["a", "b"], [3.0, None], [3, 1]]


def test_nothing_is_known_of_it_where_a_value_is_an_estimate() -> None:
    text = CREATE + "CREATE QUERY q AS SELECT sensor, MIDDLE(value) AS m FROM readings [NOW] GROUP BY sensor"
    low, high = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 2.5, 3.0, 4.0])
    stream = readings(
        sensor=Column(Kind.TEXT, np.array([0, 0, 1, 1]), None, ("a", "b")),
        value=Column(Kind.DOUBLE, low, None, (), Spread(low, high, high - low)),
    )
    found = Queries(make_program([("q", text)], 1, CATALOG)).advance({"readings": stream}, 0, 1)["q"].columns["m"]
    assert found.spread is not None
    assert found.to_list() == [1.5, 3.5]
    assert list(zip(found.spread.low, found.spread.high, strict=True)) == [(-np.inf, np.inf), (3.5, 3.5)]


def test_over_tuples_of_a_time() -> None:
    text = (
        CREATE + "CREATE QUERY q AS SELECT sensor, MIDDLE(value) AS m FROM readings [RANGE 2 SECONDS] GROUP BY sensor"
    )
    queries = TupleQueries(check_tuples(definitions_of(text, "q")))
    columns = {
        "time": Column(Kind.TIMESTAMP, np.array([0, 1, 2, 3, 9]) * 1_000_000),
        "sensor": Column(Kind.TEXT, np.zeros(5, dtype=np.int64), None, ("a",)),
        "value": Column(Kind.DOUBLE, np.array([1.0, 5.0, 2.0, 8.0, 9.0])),
    }
    rows = queries.follow(columns, np.arange(5))[0]["q"]
    assert rows.columns["m"].to_list() == [None, 3.0, 3.5, 5.0, None]


REFUSED: dict[str, str] = {
    CREATE + "CREATE QUERY q AS SELECT sensor, MIDDLE(value) AS m FROM readings [RANGE 9 SECONDS] GROUP BY sensor": (
        "found an aggregate of one's own over [RANGE ...], expected [ROWS n] or [NOW]"
    ),
    CREATE + "CREATE QUERY q AS SELECT MIDDLE(sensor) AS m FROM readings": "MIDDLE: found TEXT, expected numbers",
    CREATE + "CREATE QUERY q AS SELECT MIDDLE(value, 1) AS m FROM readings": "found 2 arguments, expected one",
    CREATE + "CREATE QUERY q AS SELECT MIDDLE(*) AS m FROM readings": "found *, expected a column",
    CREATE + "CREATE QUERY q AS SELECT MIDLE(value) AS m FROM readings": "did you mean MIDDLE?",
    CREATE + "CREATE QUERY q AS SELECT value FROM readings WHERE MIDDLE(value) > 1": "cannot stand in WHERE",
    "CREATE AGGREGATE avg AS 'statistics:mean'": "aggregate avg exists already",
    "CREATE AGGREGATE x AS 'statistics:none'": "module 'statistics' has no attribute 'none'",
    "CREATE AGGREGATE x AS 'statistics'": "found 'statistics', expected 'module:function'",
    "CREATE AGREGATE x AS 'a:b'": "expected STREAM, QUERY, VIEW, FUNCTION or AGGREGATE",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_is_refused_with_the_reason(text: str) -> None:
    with pytest.raises(QueryError) as error:
        check(definitions_of(text, "q"), 1_000_000, {})
    assert REFUSED[text] in str(error.value)


def test_over_all_tuples_it_is_refused() -> None:
    text = (
        CREATE + "CREATE QUERY q AS SELECT sensor, MIDDLE(value) AS m FROM readings [RANGE UNBOUNDED] GROUP BY sensor"
    )
    with pytest.raises(QueryError, match=r"an aggregate of one's own over .RANGE UNBOUNDED. would keep every value"):
        check_tuples(definitions_of(text, "q"))


def test_one_that_fails_stops_its_query_alone() -> None:
    text = (
        "CREATE AGGREGATE bad AS 'statistics:geometric_mean'; CREATE QUERY one AS SELECT BAD(value) AS m FROM readings;"
        "CREATE QUERY two AS SELECT COUNT(*) AS n FROM readings"
    )
    queries = Queries(make_program([("q", text)], 1, CATALOG))
    found = queries.advance({"readings": readings(value=Column(Kind.DOUBLE, np.array([-1.0])))}, 0, 1)
    assert list(found) == ["two"]
    assert "StatisticsError" in queries.faults["one"]
