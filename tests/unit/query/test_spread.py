"""Results of estimates state between which ends the truth lies: drawn truths never fall outside."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.query.oracle import CATALOG
from tsunagi.query.planning import make_program
from tsunagi.query.relations import Rows
from tsunagi.query.running import Queries
from tsunagi.query.values import Column, Kind, Spread

SENSORS, STEPS, DRAWS = 6, 12, 1000
BOUND = 1.5


class Estimates:
    """Readings of which some are estimates, and truths within their bounds."""

    def __init__(self, seed: int) -> None:
        self.chance = np.random.default_rng(seed)
        self.step = np.repeat(np.arange(1, STEPS + 1), SENSORS)
        self.sensor = np.tile(np.arange(SENSORS), STEPS)
        self.value = self.chance.normal(3, 4, len(self.step)).round(2)
        self.estimated = self.chance.random(len(self.step)) < 0.4
        self.bound = np.where(self.estimated, BOUND, 0.0)

    def rows(self, value: np.ndarray, *, spread: bool) -> dict[str, Rows]:
        """Return the stream of readings with these values."""
        names = tuple(f"s{number}" for number in range(SENSORS))
        said = Spread(value - self.bound, value + self.bound, self.bound / 2) if spread else None
        nothing = Column(Kind.TEXT, np.zeros(len(value), np.int64), None, ("",))
        columns = dict.fromkeys(("edge", "group", "unit", "quality", "site"), nothing)
        columns |= {name: Column(Kind.DOUBLE, np.full(len(value), 2.0)) for name in ("threshold", "sd", "bound")}
        columns["time"] = Column(Kind.TIMESTAMP, self.step * 1_000_000)
        columns["count"] = Column(Kind.BIGINT, self.sensor)
        columns["role"] = Column(Kind.TEXT, self.sensor % 2, None, ("in", "out"))
        columns["sensor"] = Column(Kind.TEXT, self.sensor, None, names)
        columns["value"] = Column(Kind.DOUBLE, value, None, (), said)
        return {"readings": Rows(self.step, columns)}

    def truth(self) -> np.ndarray:
        """Return values within the bounds, often at their ends."""
        part = self.chance.choice((-1.0, 1.0, 0.3, -0.6, 0.0), len(self.step))
        return np.asarray(self.value + part * self.bound)


def answers(text: str, rows: dict[str, Rows]) -> Rows:
    """Return what a query gives for all steps."""
    queries = Queries(make_program([("q", f"CREATE QUERY q AS {text}")], 1_000_000, CATALOG))
    return queries.advance(rows, 0, STEPS)["q"].only_taken()


QUERIES = [
    "SELECT sensor, 2 * value - value / 4 + 1 AS x FROM readings",
    "SELECT sensor, value * value AS x FROM readings",
    "SELECT sensor, value / (value + 40) AS x FROM readings",
    "SELECT sensor, ABS(value) AS x, SQRT(value * value + 1) AS y, POWER(value, 2) AS z FROM readings",
    "SELECT sensor, GREATEST(value, 2) AS x, LEAST(value, threshold) AS y, ROUND(value) AS z FROM readings",
    "SELECT sensor, CASE WHEN value > threshold THEN value ELSE -value END AS x FROM readings",
    "SELECT sensor, COUNT(*) FILTER (WHERE value > threshold) AS x FROM readings [RANGE 4 SECONDS] GROUP BY sensor",
    """SELECT role, SUM(value) AS x, AVG(value) AS y, MIN(value) AS z, MAX(value) AS w
    FROM readings [RANGE 3 SECONDS] GROUP BY role""",
    """SELECT role, SUM(value) FILTER (WHERE value > 3) AS x, MIN(value) FILTER (WHERE value > -9) AS y,
    MAX(value) FILTER (WHERE value < 20) AS z FROM readings [RANGE 5 SECONDS] GROUP BY role""",
    """SELECT COUNT(*) AS x, SUM(value) AS y FROM readings [RANGE 2 SECONDS SLIDE 2 SECONDS]
    WHERE value > 1 OR value < -2""",
    "SELECT a.sensor, a.value - b.value AS x FROM readings a, readings b WHERE a.count = b.count",
    "SELECT a.role, AVG(a.value + b.value) AS x FROM readings a JOIN readings b ON a.role = b.role GROUP BY a.role",
    "SELECT role, STDDEV(value) AS x, LAST(value) AS y FROM readings [RANGE 3 SECONDS] GROUP BY role",
]


@pytest.mark.parametrize("text", QUERIES)
def test_a_truth_within_the_bounds_of_the_inputs_never_leaves_the_ends_of_the_results(text: str) -> None:
    estimates = Estimates(1)
    stated = answers(text, estimates.rows(estimates.value, spread=True))
    keys = [name for name, column in stated.columns.items() if column.kind is Kind.TEXT]
    narrow = 0
    for _ in range(DRAWS // len(QUERIES) + 1):
        true = answers(text, estimates.rows(estimates.truth(), spread=False))
        places = {key: place for place, key in enumerate(_keys(true, keys))}
        pairs = [(place, places[key]) for place, key in enumerate(_keys(stated, keys)) if key in places]
        here, there = (np.array(part) for part in zip(*pairs, strict=True))
        for name, column in stated.columns.items():
            if column.kind is Kind.TEXT:
                continue
            other = true.columns[name]
            both = column.present()[here] & other.present()[there]
            low, high = column.ends()
            value = other.values.astype(np.float64)[there][both]
            slack = 1e-9 * (1 + np.abs(value))
            assert (low[here][both] <= value + slack).all(), name
            assert (value <= high[here][both] + slack).all(), name
            narrow += int(np.isfinite(high[here][both]).sum())
    assert narrow, "all ends are infinite: such a statement is worth nothing"


def _keys(rows: Rows, names: list[str]) -> list[tuple[object, ...]]:
    return list(zip(rows.step.tolist(), *(rows.columns[name].texts() for name in names), strict=True))


def test_what_cancels_has_no_spread() -> None:
    estimates = Estimates(2)
    found = answers(
        "SELECT sensor, value - value AS x, 3 * value - 2 * value AS y FROM readings",
        estimates.rows(estimates.value, spread=True),
    )
    assert found.columns["x"].spread is None
    spread = found.columns["y"].spread
    assert spread is not None
    np.testing.assert_allclose(spread.high - spread.low, 2 * estimates.bound)
    np.testing.assert_allclose(spread.sd, estimates.bound / 2)


def test_a_comparison_on_an_estimate_gives_the_certain_and_the_possible_count() -> None:
    estimates = Estimates(3)
    found = answers(
        "SELECT COUNT(*) AS n FROM readings WHERE value > threshold", estimates.rows(estimates.value, spread=True)
    )
    low, high = found.columns["n"].ends()
    value, bound = estimates.value.reshape(STEPS, SENSORS), estimates.bound.reshape(STEPS, SENSORS)
    assert found.columns["n"].values.tolist() == (value > 2).sum(axis=1).tolist()
    assert low.tolist() == (value - bound > 2).sum(axis=1).tolist()
    assert high.tolist() == (value + bound > 2).sum(axis=1).tolist()


def test_measured_values_have_no_spread_and_the_standard_deviation_of_a_sum_is_that_of_its_terms() -> None:
    estimates = Estimates(4)
    text = "SELECT role, SUM(value) AS x, AVG(value) AS y FROM readings GROUP BY role"
    found = answers(text, estimates.rows(estimates.value, spread=True))
    sd = estimates.bound.reshape(STEPS, SENSORS) / 2
    expected = np.stack((sd[:, ::2].sum(axis=1), sd[:, 1::2].sum(axis=1)), axis=1).ravel()
    spread = found.columns["x"].spread
    assert spread is not None
    np.testing.assert_allclose(spread.sd, expected)
    exact = answers(text, estimates.rows(estimates.value, spread=False))
    assert all(column.spread is None for column in exact.columns.values())
