"""A query over tuples whose state grows too large is stopped, at the same tuple however these are cut into calls."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tests.unit.query.tuple_parts import follow_in_parts
from tsunagi.query import tuple_runs
from tsunagi.query.definitions import definitions_of
from tsunagi.query.snapshots import pack
from tsunagi.query.tuple_plans import check_tuples
from tsunagi.query.tuple_runs import TupleQueries
from tsunagi.query.values import Column, Kind

NAMES = ("a", "b", "c")
TUPLES = 900
GROWS = """
CREATE STREAM trades (symbol TEXT KEY, price DOUBLE, note TEXT);
CREATE QUERY prices AS SELECT symbol, price, COUNT(*) AS n FROM trades [RANGE UNBOUNDED] GROUP BY symbol, price;
CREATE QUERY hour AS SELECT symbol, COUNT(*) AS n, COUNT(DISTINCT note) AS notes FROM trades [RANGE 1 HOUR]
  GROUP BY symbol;
CREATE QUERY readers AS SELECT symbol, SUM(n) AS n FROM prices GROUP BY symbol;
CREATE QUERY few AS SELECT symbol, AVG(price) AS mean FROM trades [ROWS 3] GROUP BY symbol
"""
PROGRAM = check_tuples(definitions_of(GROWS, "test"))
LIMIT = 16_000


def follow(chance: random.Random) -> tuple[dict[str, list[tuple[Any, ...]]], dict[str, str], int]:
    """Return the rows of each query, why queries have stopped, and the size of the state at the end."""
    draw = random.Random(7)
    price = np.array([draw.randrange(10_000) / 4 for _ in range(TUPLES)])
    symbol = np.array([draw.randrange(3) for _ in range(TUPLES)])
    notes = tuple(f"note {number} {'x' * 20}" for number in range(TUPLES))

    def part(low: int, high: int) -> dict[str, Column]:
        return {
            "time": Column(Kind.TIMESTAMP, np.arange(low, high) * 1_000_000),
            "symbol": Column(Kind.TEXT, symbol[low:high], None, NAMES),
            "price": Column(Kind.DOUBLE, price[low:high]),
            "note": Column(Kind.TEXT, np.arange(high - low), None, notes[low:high]),
        }

    found, queries = follow_in_parts(lambda: TupleQueries(PROGRAM, LIMIT), part, TUPLES, chance, (1, 7, 100, 400))
    return found, queries.faults, len(queries.context())


def test_what_grows_is_stopped_at_the_same_tuple_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuple_runs, "_MEASURED", 64)
    once = follow(random.Random(1))
    rows, faults, _ = once
    assert faults.keys() == {"prices", "hour", "readers"}
    assert "its state has grown to 0.0 MB in a slot" in faults["prices"]
    assert faults["readers"] == "it reads prices, which has stopped"
    ends = {name: some[-1][0] for name, some in rows.items()}
    assert ends["few"] == TUPLES - 1
    assert 64 < ends["readers"] == ends["prices"] < TUPLES - 100
    assert ends["prices"] != ends["hour"]
    for seed in range(2, 12):
        assert follow(random.Random(seed)) == once


def test_a_query_that_stays_stays_stopped_and_one_that_is_replaced_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuple_runs, "_MEASURED", 1)
    stopped = TupleQueries(PROGRAM, 1)
    columns = {
        "time": Column(Kind.TIMESTAMP, np.zeros(3, dtype=np.int64)),
        "symbol": Column(Kind.TEXT, np.zeros(3, dtype=np.int64), None, NAMES),
        "price": Column(Kind.DOUBLE, np.zeros(3)),
        "note": Column(Kind.TEXT, np.zeros(3, dtype=np.int64), None, ("",)),
    }
    stopped.follow(columns, np.arange(3))
    assert stopped.faults.keys() == {"prices", "hour", "readers", "few"}
    changed = check_tuples(definitions_of(GROWS.replace("[ROWS 3]", "[ROWS 4]"), "test"))
    after = TupleQueries(changed, 1 << 40)
    after.take_over(stopped)
    assert after.faults.keys() == {"prices", "hour", "readers"}
    rows, _ = after.follow(columns, np.arange(3))
    assert [len(rows[name]) for name in ("prices", "few")] == [0, 3]


class Whole(random.Random):
    """Chooses the largest cuts, and no restart."""

    def random(self) -> float:
        return 1.0

    def choice(self, seq: Any) -> Any:
        return seq[-1]


def test_measuring_costs_little_however_large_a_state_is(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []
    plain = pack

    def counted(tree: Any) -> bytes:
        measured.append(len(data := plain(tree)))
        return data

    monkeypatch.setattr(tuple_runs, "_MEASURED", 8)
    monkeypatch.setattr(tuple_runs, "_BYTES_A_RECORD", 100)
    monkeypatch.setattr(tuple_runs, "pack", counted)
    monkeypatch.setattr("tests.unit.query.test_tuple_limits.LIMIT", 1 << 40)
    follow(Whole())
    assert 0 < sum(measured) < 3 * 100 * TUPLES
