"""Groups, values and texts that are in no window any more are forgotten: states do not grow with all that ever came."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tsunagi.query import grouping
from tsunagi.query.planning import make_program
from tsunagi.query.relations import Rows
from tsunagi.query.running import Queries
from tsunagi.query.snapshots import pack, unpack
from tsunagi.query.values import Column, Kind, column, texts

STREAM = "CREATE STREAM s (lot TEXT, price DOUBLE, note TEXT);"
QUERY = """
CREATE QUERY q AS SELECT lot, COUNT(*) AS n, SUM(price) AS total, COUNT(DISTINCT note) AS notes, MAX(note) AS top,
  LAST(note) AS last, FIRST(note) FILTER (WHERE price > 2) AS first, APPROX_QUANTILE(price, 0.5) AS middle
  FROM s [RANGE 6 SECONDS SLIDE 2 SECONDS] GROUP BY lot
"""
STEPS, EACH = 180, 20


def rows_of(low: int, high: int) -> Rows:
    """Return events of the steps low < step <= high: lots come and go, and one is there for ever."""
    chance = random.Random(low)
    step = np.repeat(np.arange(low + 1, high + 1), EACH)
    lots = [f"lot-{at // 5}-{chance.randrange(8)}" if chance.random() < 0.9 else "ever" for at in step.tolist()]
    prices = [None if chance.random() < 0.1 else chance.randrange(20) / 4 for _ in lots]
    notes = [f"note-{at}-{chance.randrange(6)}" if chance.random() < 0.9 else None for at in step.tolist()]
    columns = {
        "time": Column(Kind.TIMESTAMP, step * 1_000_000),
        "lot": texts(lots),
        "price": column(Kind.DOUBLE, prices),
        "note": texts(notes),
    }
    return Rows(step.astype(np.int64), columns)


def answers(*, restarts: bool) -> tuple[list[tuple[Any, ...]], list[int]]:
    """Return the rows, and the sizes of the state."""
    program = make_program([("test", STREAM + QUERY)], 1_000_000)
    queries, sizes = Queries(program), list[int]()
    found: list[tuple[Any, ...]] = []
    for low in range(0, STEPS, 3):
        rows = queries.advance({"s": rows_of(low, low + 3)}, low, low + 3)["q"]
        assert not queries.faults
        found += zip(rows.step.tolist(), *(item.to_list() for item in rows.columns.values()), strict=True)
        data = pack(queries.runs["q"].dump())
        sizes.append(len(data))
        if restarts and low % 9 == 0:
            queries = Queries(program)
            queries.runs["q"].load(unpack(data))
    return found, sizes


@pytest.mark.parametrize("cells", [32_768, 20])
def test_what_is_gone_is_forgotten_and_no_row_changes(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tsunagi.query.windows._CELLS", cells)  # with few, panes are put away
    monkeypatch.setattr(grouping, "_FEW", 10**9)
    plain, grown = answers(restarts=False)
    assert grown[-1] > 3 * grown[10]
    monkeypatch.setattr(grouping, "_FEW", 40)
    for restarts in (False, True):
        found, sizes = answers(restarts=restarts)
        assert found == plain
        assert max(sizes[30:]) < 1.2 * max(sizes[10:30]), "it does not grow"
    assert max(sizes) < 0.3 * grown[-1]
