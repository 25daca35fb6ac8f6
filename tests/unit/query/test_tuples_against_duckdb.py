"""Generated queries over tuples give what DuckDB gives for each tuple's key, however tuples are cut into calls."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from functools import cache

import duckdb
import numpy as np
import pytest

from tests.unit.query.oracle import bag, rounded
from tsunagi.query.definitions import definitions_of
from tsunagi.query.errors import QueryError
from tsunagi.query.tuple_plans import check_tuples
from tsunagi.query.tuple_runs import TupleQueries
from tsunagi.query.values import Column, Kind, column, texts

COUNT = 200
"""Queries in `make test`; `python -m tests.unit.query.many --tuples --count 2000` runs more."""
EACH = 50
TUPLES = 120
STREAM = "CREATE STREAM trades (symbol TEXT KEY, side TEXT, price DOUBLE, volume BIGINT, open BOOLEAN, paid TIMESTAMP);"
NAMES = ("a", "b", "c", "d")
SECOND = 1_000_000

Trade = tuple[int, int, int, str | None, float | None, int | None, bool | None, int | None]
"""(instant, time, symbol, side, price, volume, open, paid)."""


def trades(seed: int) -> list[Trade]:
    """Return tuples in the order of a log: some of several keys at one instant, some times out of order, some NULLs."""
    chance = random.Random(seed)
    found: list[Trade] = []
    now, instant = 1_700_000_000 * SECOND, -1
    for _ in range(TUPLES):
        now += chance.choice((0, 1, 1, 2)) * SECOND
        instant += 1
        for symbol in sorted(chance.sample(range(len(NAMES)), chance.choice((1, 1, 1, 3)))):
            time = now - chance.choice((0, 0, 0, 3)) * SECOND
            side = chance.choice(("buy", "sell", None))
            price = None if chance.random() < 0.1 else chance.randint(-20, 40) / 4
            volume = None if chance.random() < 0.1 else chance.randint(0, 9)
            opened, paid = chance.choice((True, False, None)), chance.choice((None, now, now - SECOND))
            found.append((instant, time, symbol, side, price, volume, opened, paid))
    return found


@cache
def world(number: int) -> tuple[list[Trade], duckdb.DuckDBPyConnection]:
    """Return tuples, and a database with them."""
    rows = trades(number)
    database = duckdb.connect()
    database.execute("SET ieee_floating_point_ops = false")
    database.execute("SET error_on_division_by_zero = false")
    database.execute("SET threads = 1")
    database.execute(
        "CREATE TABLE trades (i BIGINT, moment BIGINT, symbol TEXT, side TEXT, price DOUBLE, volume BIGINT, "
        "open BOOLEAN, paid BIGINT, rn BIGINT, newest BIGINT)"
    )
    seen: Counter[int] = Counter()
    newest: dict[int, int] = defaultdict(int)
    for i, at, symbol, *rest in rows:
        seen[symbol] += 1
        newest[symbol] = max(newest[symbol], at)
        row = (i, at, NAMES[symbol], *rest, seen[symbol], newest[symbol])
        database.execute("INSERT INTO trades VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    return rows, database


WHERE = ("", "price > 2", "side = 'buy'", "volume % 2 = 0 OR open", "NOT open", "paid IS NULL")
MEASURES = (
    "COUNT(*)",
    "COUNT(price)",
    "SUM(volume)",
    "SUM(price)",
    "SUM(price * volume) / SUM(volume)",
    "AVG(price)",
    "MIN(price)",
    "MAX(volume)",
    "STDDEV(price)",
    "COUNT(DISTINCT side)",
    "MAX(side)",
    "SUM(volume) FILTER (WHERE side = 'sell')",
)
OF_VALUES = ("COUNT(DISTINCT side)", "MAX(side)")
"""Measures that need to keep each value: not over all rows so far."""
PLAIN = ("price", "volume + 1", "side", "UPPER(side)", "price * volume", "CASE WHEN open THEN 1 ELSE 0 END", "open")


def draw(seed: int) -> tuple[str, str, bool]:
    """Return (a query in CQL, the same in SQL, whether it is ISTREAM)."""
    chance = random.Random(seed)
    kind = chance.choice(("now", "rows", "rows", "slid", "range", "unbounded"))
    length, slide = chance.randint(1, 7), 1
    window, inside, at = "", "b.i = a.i", "TRUE"
    if kind in ("rows", "slid"):
        slide = chance.randint(2, 4) if kind == "slid" else 1
        length = max(length, slide)
        window = f" [ROWS {length}{f' SLIDE {slide}' if slide > 1 else ''}]"
        inside, at = f"b.rn <= a.rn AND b.rn > a.rn - {length}", f"a.rn % {slide} = 0"
    elif kind == "range":
        window, inside = f" [RANGE {length} SECONDS]", f"b.rn <= a.rn AND b.moment > a.newest - {length * SECOND}"
    elif kind == "unbounded":
        window, inside = " [RANGE UNBOUNDED]", "b.rn <= a.rn"
    where = chance.choice(WHERE)
    clause = f" WHERE {where}" if where else ""
    kept = f" AND ({_of(where)})" if where else ""
    pairs = f"FROM trades a JOIN trades b ON b.symbol = a.symbol AND {inside} AND {at}{kept}"
    if chance.random() < 0.3 and kind != "unbounded":
        columns = chance.sample(PLAIN, chance.randint(1, 3))
        distinct = chance.choice(("", "DISTINCT "))
        shown = ", ".join(f"{text} AS c{place}" for place, text in enumerate(columns))
        cql = f"SELECT {distinct}symbol, {shown} FROM trades{window}{clause}"
        sql = f"SELECT {distinct}a.i, b.symbol, {', '.join(map(_of, columns))} {pairs}"
    else:
        measures = chance.sample([item for item in MEASURES if kind != "unbounded" or item not in OF_VALUES], 2)
        groups = chance.choice(("symbol", "symbol", "symbol, side"))
        having = chance.choice(("", "", " HAVING COUNT(*) > 1"))
        shown = ", ".join(f"{text} AS m{place}" for place, text in enumerate(measures))
        cql = f"SELECT {groups}, {shown} FROM trades{window}{clause} GROUP BY {groups}{having}"
        # Over all rows so far, only the groups that a tuple has reached are told.
        reached = " HAVING MAX(b.rn) = a.rn" if kind == "unbounded" else ""
        both = reached or having
        both += " AND COUNT(*) > 1" if reached and having else ""
        group = ", ".join(_of(name) for name in groups.split(", "))
        sql = f"SELECT a.i, {group}, {', '.join(map(_of, measures))} {pairs} GROUP BY a.i, a.rn, {group}{both}"
    stream = kind not in ("slid", "unbounded") and chance.random() < 0.3
    return f"CREATE QUERY q AS {f'ISTREAM ({cql})' if stream else cql}", sql, stream


def _of(text: str) -> str:
    """Return an expression of SQL in which the columns are those of `b`."""
    for name in ("symbol", "side", "price", "volume", "open", "paid"):
        text = text.replace(name, f"b.{name}")
    return text


def _changes(rows: list[tuple[object, ...]], tuples: list[Trade]) -> list[tuple[object, ...]]:
    """Return the rows that are new against the key's tuple before."""
    by: dict[tuple[object, object], list[tuple[object, ...]]] = defaultdict(list)
    for row in rows:
        # The database rounds sums of the same values in another order otherwise.
        by[row[0], row[1]].append(tuple(rounded(value) for value in row[2:]))
    before: dict[str, Counter[tuple[object, ...]]] = defaultdict(Counter)
    found: list[tuple[object, ...]] = []
    for instant, _, symbol, *_ in tuples:
        name = NAMES[symbol]
        now = Counter(by[instant, name])
        found += [(instant, name, *row) for row in (now - before[name]).elements()]
        before[name] = now
    return found


def complaint(seed: int) -> str:
    """Run one generated query; return "" if it gives what the database gives, else both."""
    tuples, database = world(seed % 5)
    cql, sql, stream = draw(seed)
    expected = database.execute(sql).fetchall()
    if stream:
        expected = _changes(expected, tuples)
    queries = TupleQueries(check_tuples(definitions_of(STREAM + cql, "q")))
    chance, low, last = random.Random(seed), 0, tuples[-1][0] + 1
    found: list[tuple[object, ...]] = []
    while low < last:
        high = min(last, low + chance.choice((1, 2, 5, 30, last)))
        if chance.random() < 0.3:  # another worker goes on
            context = queries.context()
            queries = TupleQueries(check_tuples(definitions_of(STREAM + cql, "q")))
            queries.restore(context)
        part = [row for row in tuples if low <= row[0] < high]
        columns = {
            "time": Column(Kind.TIMESTAMP, np.array([row[1] for row in part])),
            "symbol": Column(Kind.TEXT, np.array([row[2] for row in part]), None, NAMES),
            "side": texts([row[3] for row in part]),
            "price": column(Kind.DOUBLE, [row[4] for row in part]),
            "volume": column(Kind.BIGINT, [row[5] for row in part]),
            "open": column(Kind.BOOLEAN, [row[6] for row in part]),
            "paid": column(Kind.TIMESTAMP, [row[7] for row in part]),
        }
        rows = queries.follow(columns, np.array([row[0] for row in part]))[0]["q"]
        found += zip(rows.step.tolist(), *(item.to_list() for item in rows.columns.values()), strict=True)
        low = high
    if [row[0] for row in found] != sorted(row[0] for row in found):  # type: ignore[type-var]
        return f"seed {seed}: {cql}\nout of order"
    missing, surplus = bag(expected) - bag(found), bag(found) - bag(expected)
    if not missing and not surplus:
        return ""
    return f"seed {seed}: {cql}\n{sql}\nmissing {list(missing.items())[:5]}\nsurplus {list(surplus.items())[:5]}"


@pytest.mark.parametrize("first", range(0, COUNT, EACH))
def test_generated_queries_give_what_the_database_gives(first: int) -> None:
    complaints = [text for seed in range(first, first + EACH) if (text := complaint(seed))]
    assert not complaints, complaints[0]


REFUSED = {
    "CREATE QUERY q AS SELECT COUNT(*) AS n FROM trades [ROWS 5]": "expected symbol in GROUP BY",
    "CREATE QUERY q AS SELECT side, COUNT(*) AS n FROM trades [ROWS 5] GROUP BY side": "expected symbol in GROUP BY",
    "CREATE QUERY q AS SELECT a.symbol FROM trades a, trades b WHERE a.side = b.side": "in each join",
    "CREATE QUERY q AS SELECT symbol FROM trades [PARTITION BY side ROWS 3]": "PARTITION BY",
    "CREATE QUERY q AS DSTREAM (SELECT symbol FROM trades [ROWS 3])": "DSTREAM: found over tuples, expected ISTREAM",
    "CREATE QUERY q AS SELECT symbol, COUNT(*) AS n FROM trades [RANGE 9 SECONDS SLIDE 3 SECONDS] GROUP BY symbol": (
        "expected no SLIDE"
    ),
    "CREATE STREAM other (k TEXT KEY)": "found the streams trades, other, expected one",
    "CREATE QUERY q AS SELECT sensor, value FROM readings": "stream or query readings is unknown",
    "CREATE QUERY q AS SELECT symbol, COUNT(DISTINCT side) AS n FROM trades [RANGE UNBOUNDED] GROUP BY symbol": (
        "would keep every value for ever"
    ),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_slots_cannot_run_is_refused_with_the_reason(text: str) -> None:
    with pytest.raises(QueryError) as error:
        check_tuples(definitions_of(STREAM + text, "q"))
    assert REFUSED[text] in str(error.value)


def test_a_join_of_a_tuple_with_what_was_before() -> None:
    statements = STREAM + (
        "CREATE VIEW usual AS SELECT symbol, AVG(price) AS mean FROM trades [ROWS 3] GROUP BY symbol;"
        "CREATE QUERY q AS SELECT t.symbol, t.price, u.mean FROM trades t, usual u WHERE t.symbol = u.symbol AND "
        "t.price > u.mean"
    )
    tuples, database = world(1)
    queries = TupleQueries(check_tuples(definitions_of(statements, "q")))
    columns = {
        "time": Column(Kind.TIMESTAMP, np.array([row[1] for row in tuples])),
        "symbol": Column(Kind.TEXT, np.array([row[2] for row in tuples]), None, NAMES),
        "price": column(Kind.DOUBLE, [row[4] for row in tuples]),
    }
    columns |= {name: texts([None] * len(tuples)) for name in ("side", "open", "paid", "volume")}
    rows = queries.follow(columns, np.array([row[0] for row in tuples]))[0]["q"]
    found = list(zip(rows.step.tolist(), *(item.to_list() for item in rows.columns.values()), strict=True))
    sql = (
        "SELECT i, symbol, price, mean FROM (SELECT *, AVG(price) OVER (PARTITION BY symbol ORDER BY rn ROWS BETWEEN 2 "
        "PRECEDING AND CURRENT ROW) AS mean FROM trades) WHERE price > mean"
    )
    assert bag(found) == bag(database.execute(sql).fetchall())
    assert found
