"""Texts and quantiles in aggregates over tuples: what a slot answers, however tuples are cut and whoever goes on."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tests.unit.query.test_quantiles import exactly, near
from tests.unit.query.tuple_parts import follow_in_parts
from tsunagi.query.definitions import definitions_of
from tsunagi.query.tuple_plans import check_tuples
from tsunagi.query.tuple_runs import TupleQueries
from tsunagi.query.values import Column, Kind, column, texts

TEXT = """
CREATE STREAM trades (symbol TEXT KEY, price DOUBLE, note TEXT);
CREATE QUERY rows AS SELECT symbol, FIRST(note) AS first, LAST(note) AS last, MIN(note) AS least, MAX(note) AS most,
  APPROX_QUANTILE(price, 0.5) AS middle FROM trades [ROWS 4] GROUP BY symbol;
CREATE QUERY range AS SELECT symbol, LAST(note) AS last, MAX(note) AS most, APPROX_QUANTILE(price, 0.9) AS high
  FROM trades [RANGE 5 SECONDS] GROUP BY symbol;
CREATE QUERY all AS SELECT symbol, FIRST(note) AS first, LAST(note) FILTER (WHERE price > 50) AS high
  FROM trades [RANGE UNBOUNDED] GROUP BY symbol
"""
PROGRAM = check_tuples(definitions_of(TEXT, "test"))
NAMES, TUPLES = ("a", "b", "c"), 300


def tuples() -> list[tuple[int, int, float | None, str | None]]:
    draw = random.Random(3)
    return [
        (
            number,
            draw.randrange(3),
            draw.choice((None, *range(100))),
            draw.choice((None, *(f"n{other}" for other in range(40)))),
        )
        for number in range(TUPLES)
    ]


def follow(chance: random.Random) -> tuple[dict[str, list[tuple[Any, ...]]], bytes]:
    """Return the rows of each query, and the state at the end."""
    given = tuples()

    def part(low: int, high: int) -> dict[str, Column]:
        some = given[low:high]
        return {
            "time": Column(Kind.TIMESTAMP, np.array([row[0] for row in some]) * 1_000_000),
            "symbol": Column(Kind.TEXT, np.array([row[1] for row in some]), None, NAMES),
            "price": column(Kind.DOUBLE, [row[2] for row in some]),
            "note": texts([row[3] for row in some]),
        }

    found, queries = follow_in_parts(lambda: TupleQueries(PROGRAM), part, TUPLES, chance, (1, 7, 100))
    return found, queries.context()


@pytest.mark.parametrize("seed", range(3))
def test_texts_and_quantiles_over_tuples(seed: int) -> None:
    found, state = follow(random.Random(seed))
    again, same = follow(random.Random(seed + 100))
    assert found == again
    assert state == same, "replicas keep the same bytes, however records are cut into runs"
    given = tuples()
    for name, rows in found.items():
        assert len(rows) == TUPLES
        for number, symbol, *values in rows:
            own = [row for row in given[: number + 1] if NAMES[row[1]] == symbol]
            if name == "rows":
                own = own[-4:]
            if name == "range":
                own = [row for row in own if row[0] > number - 5]
            notes = [row[3] for row in own if row[3] is not None]
            prices = [row[2] for row in own if row[2] is not None]
            ends = (notes[0], notes[-1]) if notes else (None, None)
            least, most = (min(notes), max(notes)) if notes else (None, None)
            if name == "rows":
                assert values[:4] == [*ends, least, most]
                assert near(values[4], exactly(prices, 0.5))
            elif name == "range":
                assert values[:2] == [ends[1], most]
                assert near(values[2], exactly(prices, 0.9))
            else:
                high = [row[3] for row in own if row[3] is not None and row[2] is not None and row[2] > 50]
                assert values == [ends[0], high[-1] if high else None]
