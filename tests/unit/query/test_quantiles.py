"""APPROX_QUANTILE, and MIN, MAX, FIRST, LAST of texts, against sorted values: NULL, estimates, cuts and restarts."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.query.oracle import CATALOG, Fleet
from tsunagi.query.definitions import definitions_of
from tsunagi.query.errors import QueryError
from tsunagi.query.planning import make_program
from tsunagi.query.quantiles import ERROR, buckets, choose, middles
from tsunagi.query.relations import Rows
from tsunagi.query.running import Queries
from tsunagi.query.snapshots import pack, unpack
from tsunagi.query.tuple_plans import check_tuples
from tsunagi.query.values import Column, Kind, Spread

STEP_US = 1_000_000


def answers(text: str, fleet: Fleet, seed: int | None = None) -> list[tuple[Any, ...]]:
    """Return (step, columns) of the query q, from one call or, with a seed, from many calls and restarts."""
    program = make_program([("test", text)], STEP_US, CATALOG)
    queries, chance, at = Queries(program), random.Random(seed), 0
    found: list[tuple[Any, ...]] = []
    while at < fleet.last:
        upto = fleet.last if seed is None else min(fleet.last, at + chance.randint(1, 9))
        rows = queries.advance({"readings": fleet.stream(at, upto)}, at, upto)["q"].only_taken()
        assert not queries.faults
        columns = [column.to_list() for column in rows.columns.values()]
        found += zip(rows.step.tolist(), *columns, strict=True)
        at = upto
        if seed is not None and chance.random() < 0.4:
            kept = {name: pack(run.dump()) for name, run in queries.runs.items()}
            queries = Queries(program)
            for name, data in kept.items():
                queries.runs[name].load(unpack(data))
    return found


def exactly(values: list[float], share: float) -> float | None:
    ordered = sorted(values)
    return ordered[max(1, math.ceil(share * len(ordered))) - 1] if ordered else None


def near(found: object, wanted: float | None) -> bool:
    if wanted is None or not isinstance(found, float):
        return found is wanted
    return abs(found - wanted) <= ERROR * abs(wanted) + 1e-300


@pytest.mark.parametrize("share", [0, 0.5, 0.9, 1.0])
def test_over_windows_that_slide_it_is_near_what_sorting_says(share: float) -> None:
    fleet = Fleet(3, 9, 60)
    text = (
        f"CREATE QUERY q AS SELECT site, APPROX_QUANTILE(value, {share}) AS x, COUNT(DISTINCT value) AS n, "
        f"APPROX_QUANTILE(value, {share}) FILTER (WHERE role = 'in') AS y, APPROX_QUANTILE(count, 0.5) AS z "
        "FROM readings [RANGE 7 SECONDS SLIDE 2 SECONDS] GROUP BY site"
    )
    whole = answers(text, fleet)
    assert len(whole) > 50
    for step, site, x, n, y, z in whole:
        rows = [row for row in fleet.rows if step - 7 < row[0] <= step and fleet.site[row[1]] == site]
        values = [row[2] for row in rows if row[2] is not None]
        assert near(x, exactly(values, share))
        assert n == len(set(values))
        inside = [row[2] for row in rows if row[2] is not None and fleet.role[row[1]] == "in"]
        assert near(y, exactly(inside, share))
        assert near(z, exactly([float(row[3]) for row in rows if row[3] is not None], 0.5))
    for seed in range(3):
        assert answers(text, fleet, seed) == whole


def test_over_last_rows_and_relations_it_is_the_same() -> None:
    fleet = Fleet(5, 6, 40)
    found = answers("CREATE QUERY q AS SELECT APPROX_QUANTILE(value, 0.75) AS x FROM readings [ROWS 4]", fleet, 1)
    assert len(found) == fleet.last
    for step, x in found:
        last: dict[int, list[float | None]] = defaultdict(list)
        for row in fleet.rows:
            if row[0] <= step:
                last[row[1]].append(row[2])
        assert near(x, exactly([value for values in last.values() for value in values[-4:] if value is not None], 0.75))
    view = "CREATE VIEW v AS SELECT sensor, AVG(value) AS mean FROM readings [RANGE 5 SECONDS] GROUP BY sensor"
    found = answers(
        f"{view}; CREATE QUERY q AS SELECT APPROX_QUANTILE(mean, 0.5) AS x, MIN(mean), MAX(mean) FROM v", fleet
    )
    assert len(found) == fleet.last
    assert all(low - abs(low) * ERROR <= x <= high + abs(high) * ERROR for _, x, low, high in found)


def test_of_an_estimate_nothing_is_known() -> None:
    select = "SELECT sensor, APPROX_QUANTILE(value, 0.5) AS x FROM readings [RANGE 2 SECONDS] GROUP BY sensor"
    text = f"CREATE QUERY q AS {select}"
    queries = Queries(make_program([("test", text)], STEP_US, CATALOG))
    rows = Fleet(1, 4, 6).stream(0, 6)
    value = rows.columns["value"]
    width = np.where(np.arange(len(rows)) == 0, 1.0, 0.0)
    spread = Spread(value.values - width, value.values + width, width)
    column = Column(Kind.DOUBLE, value.values, value.valid, (), spread)
    found = queries.advance({"readings": Rows(rows.step, {**rows.columns, "value": column})}, 0, 6)["q"]
    assert found.columns["x"].spread is not None
    open_ = np.isinf(found.columns["x"].spread.low)
    sensors = found.columns["sensor"].to_list()
    first = (int(rows.step[0]), rows.columns["sensor"].to_list()[0])
    wanted = [
        (step - first[0] in (0, 1)) and name == first[1]
        for step, name in zip(found.step.tolist(), sensors, strict=True)
    ]
    assert open_.tolist() == wanted


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        ("APPROX_QUANTILE(value)", "found 1 arguments, expected two"),
        ("APPROX_QUANTILE(value, 1.5)", "found 1.5, expected a number from 0 to 1"),
        ("APPROX_QUANTILE(value, value)", "found value, expected a number from 0 to 1"),
        ("APPROX_QUANTILE(sensor, 0.5)", "found TEXT, expected a number"),
        ("APPROX_QUANTILE(DISTINCT value, 0.5)", "expected"),
        ("SUM(value, 0.5)", "found 2 arguments, expected one"),
    ],
)
def test_what_is_wrong_is_said(select: str, expected: str) -> None:
    with pytest.raises(QueryError, match=expected.replace("(", r"\(")):
        make_program([("test", f"CREATE QUERY q AS SELECT {select} AS x FROM readings [ROWS 2]")], STEP_US, CATALOG)


def test_of_texts_the_least_and_the_greatest_the_first_and_the_last() -> None:
    fleet = Fleet(7, 9, 50)
    select = (
        "SELECT site, MIN(role) AS least, MAX(role) AS most, FIRST(sensor) AS first, LAST(role) AS last, "
        "LAST(role) FILTER (WHERE value > 2) AS high, MAX(site) AS top"
    )
    texts = {
        "sliding": f"CREATE QUERY q AS {select} FROM readings [RANGE 6 SECONDS SLIDE 3 SECONDS] GROUP BY site",
        "rows": f"CREATE QUERY q AS {select} FROM readings [ROWS 2] GROUP BY site",
        "running": "CREATE QUERY q AS SELECT site, FIRST(sensor) AS first, LAST(role) AS last "
        "FROM readings [RANGE UNBOUNDED] GROUP BY site",
    }
    for name, text in texts.items():
        whole = answers(text, fleet)
        assert len(whole) > 40
        for seed in range(2):
            assert answers(text, fleet, seed) == whole
        for step, site, *found in whole:
            came = [row for row in fleet.rows if row[0] <= step and fleet.site[row[1]] == site]
            if name == "sliding":
                came = [row for row in came if row[0] > step - 6]
            if name == "rows":
                last = {sensor: [row for row in came if row[1] == sensor][-2:] for sensor in range(len(fleet.names))}
                came = [row for row in came if row in last[row[1]]]
            roles = [fleet.role[row[1]] for row in came]
            ends = [fleet.names[came[0][1]], roles[-1]]
            if name == "running":
                assert found == ends
                continue
            high = [fleet.role[row[1]] for row in came if row[2] is not None and row[2] > 2]
            assert found == [min(roles), max(roles), *ends, high[-1] if high else None, site]


def test_of_all_that_has_ever_come_it_is_refused() -> None:
    text = "CREATE QUERY q AS SELECT {} AS x FROM {} [RANGE UNBOUNDED] GROUP BY sensor {}"
    for select, having in (
        ("APPROX_QUANTILE(value, 0.5)", ""),
        ("COUNT(*)", "HAVING APPROX_QUANTILE(value, 0.5) > 1"),
        ("MAX(sensor)", ""),
    ):
        with pytest.raises(QueryError, match=r"over \[RANGE UNBOUNDED\]: expected"):
            make_program([("test", text.format(select, "readings", having))], STEP_US, CATALOG)
        with pytest.raises(QueryError, match=r"over \[RANGE UNBOUNDED\]: expected"):
            check_tuples(definitions_of(text.format(select, "readings", having), "test"))


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=30))
def test_buckets_rise_with_their_values_and_their_middles_are_near(values: list[float]) -> None:
    given_ = np.array(sorted(values))
    found = buckets(given_)
    assert (np.diff(found) >= 0).all()
    middle = middles(found.astype(np.int64))
    for value, near_it in zip(given_.tolist(), middle.tolist(), strict=True):
        if math.isinf(value):
            assert near_it == value
        elif abs(value) >= 2.3e-308:
            assert abs(near_it - value) <= ERROR * abs(value) * (1 + 1e-12)
        else:
            assert abs(near_it) <= 2.4e-308


def test_counts_of_several_instants_at_once() -> None:
    group, rank = np.array([1, 0, 1]), np.array([9, 7, 3])
    counts = np.array([[1, 0, 0], [1, 2, 3], [0, 0, 0]])
    found = choose(group, rank, counts, 3, 0.5)
    np.testing.assert_array_equal(found, [[-1, 0, -1], [1, 2, -1], [-1, -1, -1]])


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_without_pairs_nothing_is_chosen(shape: tuple[int, ...]) -> None:
    nothing = np.zeros(0, dtype=np.int64)
    found = choose(nothing, nothing, np.zeros(shape, dtype=np.int64), 2, 0.5)
    assert found.shape == (*shape[:-1], 2)
    assert (found == -1).all()
