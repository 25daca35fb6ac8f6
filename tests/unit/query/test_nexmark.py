"""NEXMark's queries give what a database gives, however the events are cut into calls and whoever goes on."""

from __future__ import annotations

import random
from typing import Any

import duckdb
import pytest

from tests.bench.nexmark.events import BEGIN_US, KINDS, STEP_US, Events, database_of, generate
from tests.bench.nexmark.queries import CQL, STREAMS, sql_of
from tsunagi.query.planning import Program, make_program
from tsunagi.query.running import Queries
from tsunagi.query.snapshots import pack, unpack

SECONDS = 47
FIRST = BEGIN_US // STEP_US
LAST = FIRST + SECONDS * 1000
SQL = sql_of(1000)


@pytest.fixture(scope="module")
def events() -> dict[str, Events]:
    return generate(20_000, SECONDS, seed=1)


@pytest.fixture(scope="module")
def database(events: dict[str, Events]) -> duckdb.DuckDBPyConnection:
    return database_of(events, STEP_US)


def answers(program: Program, name: str, events: dict[str, Events], chance: random.Random) -> list[tuple[Any, ...]]:
    queries, low = Queries(program), FIRST
    found: list[tuple[Any, ...]] = []
    while low < LAST:
        high = min(LAST, low + chance.choice((1, 700, 5000, 30_000)))
        streams = {stream: some.rows(KINDS[stream], low, high) for stream, some in events.items()}
        rows = queries.advance(streams, low, high)[name]
        assert not queries.faults, queries.faults
        found += zip(rows.step.tolist(), *(column.to_list() for column in rows.columns.values()), strict=True)
        low = high
        if chance.random() < 0.3:
            states = {run: pack(state.dump()) for run, state in queries.runs.items()}
            queries = Queries(program)
            for run, state in states.items():
                queries.runs[run].load(unpack(state))
    return found


@pytest.mark.parametrize("name", CQL)
def test_a_query_of_nexmark_gives_what_a_database_gives(
    name: str, events: dict[str, Events], database: duckdb.DuckDBPyConnection
) -> None:
    program = make_program([("nexmark", f"{STREAMS};{CQL[name]}")], STEP_US)
    given = {key: value for key, value in {"first": FIRST, "last": LAST}.items() if f"${key}" in SQL[name]}
    wanted = sorted(database.execute(SQL[name], given).fetchall())
    found = sorted(answers(program, name, events, random.Random(name)))
    assert len(wanted) > 3
    assert found == wanted
