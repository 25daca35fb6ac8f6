"""Generated queries give what DuckDB gives for the same relation at every instant, however steps are cut into calls."""

from __future__ import annotations

import random
from functools import cache

import duckdb
import pytest

from tests.unit.query.generator import Generator
from tests.unit.query.oracle import CATALOG, Fleet, bag
from tsunagi.query.planning import make_program
from tsunagi.query.running import Queries
from tsunagi.query.snapshots import pack, unpack

COUNT = 300
"""Queries in `make test`; `python -m tests.unit.query.many --count 2000` runs more."""
EACH = 50
LAST = 30
"""Steps."""


@cache
def world(number: int) -> tuple[Fleet, duckdb.DuckDBPyConnection]:
    """Return one of several fleets, and a database with its readings."""
    fleet = Fleet(number, sensors=6, last=LAST)
    return fleet, fleet.database()


def complaint(seed: int) -> str:
    """Run one generated query; return "" if it gives what the database gives, else both."""
    fleet, database = world(seed % 7)
    draw = Generator(seed, LAST).draw()
    expected = database.execute(draw.sql).fetchall()
    chance = random.Random(seed)
    queries, low = Queries(make_program([("q", draw.cql)], 1_000_000, CATALOG)), 0
    found: list[tuple[object, ...]] = []
    while low < LAST:
        high = min(LAST, low + chance.choice((1, 1, 2, 3, 5, 11, LAST)))
        if chance.random() < 0.3:  # a process that dies between two steps, and another one that goes on
            later = Queries(queries.program)
            for name, run in queries.runs.items():
                later.runs[name].load(unpack(pack(run.dump())))
            queries = later
        rows = queries.advance({"readings": fleet.stream(low, high)}, low, high)["q"]
        found += zip(rows.step.tolist(), *(column.to_list() for column in rows.columns.values()), strict=True)
        low = high
    missing, surplus = bag(expected) - bag(found), bag(found) - bag(expected)
    if not missing and not surplus:
        return ""
    return (
        f"seed {seed}: {draw.cql}\n{draw.sql}\nmissing {list(missing.items())[:5]}\nsurplus {list(surplus.items())[:5]}"
    )


@pytest.mark.parametrize("first", range(0, COUNT, EACH))
def test_generated_queries_give_what_the_database_gives(first: int) -> None:
    complaints = [text for seed in range(first, first + EACH) if (text := complaint(seed))]
    assert not complaints, complaints[0]
