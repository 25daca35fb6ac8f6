"""Queries over a stream of several columns in the slots of a whole system, while workers and an edge are killed."""

from __future__ import annotations

import itertools
import signal
from collections import defaultdict, deque
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.stream import Inputs
from tests.e2e.system import PATIENCE_S, SLOTS, Rig
from tsunagi.broker.broker import Broker
from tsunagi.local.queries import add_queries, drop_query, list_queries
from tsunagi.query.outputs import QueryOutputs
from tsunagi.query.results import QueryRow
from tsunagi.replay.slots import replay_slots
from tsunagi.runtime.columns import sensors
from tsunagi.runtime.messages import LogRecord
from tsunagi.runtime.sensors import read_sensors
from tsunagi.system.topics import read_partition

ROWS = 6000
SYMBOLS = [f"S{number}" for number in range(12)]
STATEMENTS = """
CREATE STREAM trades (symbol TEXT KEY, price DOUBLE, volume BIGINT, note TEXT);
CREATE QUERY vwap AS SELECT symbol, SUM(price * volume) / SUM(volume) AS vwap FROM trades [ROWS 20] GROUP BY symbol;
CREATE QUERY quakes AS SELECT symbol, note FROM trades WHERE note REGEXP 'quake (now|again)';
CREATE QUERY total AS SELECT symbol, COUNT(*) AS n, SUM(volume) AS pieces FROM trades [RANGE UNBOUNDED] GROUP BY symbol
"""
ADDED = (
    "CREATE QUERY record AS ISTREAM (SELECT symbol, MAX(price) AS top FROM trades [RANGE 5 SECONDS] GROUP BY symbol)"
)
FILLED = STATEMENTS.strip().splitlines()[-1].replace("total", "ever")
SUMS = ("total", "ever")


def write_trades(directory: Path, model: Path) -> Inputs:
    """Write trades, one row each, a fiftieth of a second apart."""
    chance = np.random.default_rng(5)
    lines = ["symbol,price,volume,note"]
    for _ in range(ROWS):
        symbol, price, volume = chance.choice(SYMBOLS), chance.integers(100, 999) / 10, chance.integers(1, 50)
        note = chance.choice(["quake now", "quake again", "rain", "", "a station in Tokyo"])
        lines.append(f"{symbol},{price},{'' if chance.random() < 0.1 else volume},{note}")
    data, table = directory / "trades.csv", directory / "symbols.csv"
    data.write_text("\n".join(lines) + "\n", encoding="utf-8")
    rows = [f"{symbol},edge-{number % 3 + 1}" for number, symbol in enumerate(SYMBOLS)]
    table.write_text("\n".join(["sensor,edge", *rows]) + "\n", encoding="utf-8")
    return Inputs(data=data, sensors=table, model=model, table=read_sensors(table))


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory, broker: Broker, inputs: Inputs) -> Iterator[Rig]:
    directory = tmp_path_factory.mktemp("trades")
    statements = directory / "trades.sql"
    statements.write_text(STATEMENTS, encoding="utf-8")
    changes: dict[str, dict[str, Any]] = {
        "query": {"mode": "tuples", "files": [str(statements)], "at_edge": True},
        "steps": {"interval_s": 0.02},
        "source": {"when_behind": "send"},
    }
    trades = write_trades(directory, inputs.model)
    found = Rig(directory, trades, servers=broker.servers, prefix="trades.", changes=changes)
    try:
        found.system.make_topics()
        found.system.wait_ready(found.system.start_workers(), PATIENCE_S)
        found.listen()
        for edge in trades.table.edges:
            found.start_edge(edge)
        yield found
    finally:
        found.close()


def test_no_row_over_tuples_is_lost_or_doubled_whoever_dies(rig: Rig) -> None:
    def more(name: str, rows: int) -> None:
        before = len(rows_of(rig, name))
        rig.wait(lambda: len(rows_of(rig, name)) >= before + rows, f"{rows} more rows of {name}")

    more("vwap", 200)
    rig.wait_protected()
    kill = rig.kill_owner(0)
    rig.wait_owner(0, kill.epoch)
    more("vwap", 200)
    add_queries(rig.settings, [ADDED], lambda _line: None)
    more("record", 20)
    rig.wait_protected()
    rig.signal(rig.fleet.standby_ready(1), signal.SIGKILL)
    edge = rig.inputs.table.edges[0]
    rig.kill_edge(edge)
    rig.edge_back(edge)
    more("record", 20)
    rig.wait_protected()
    rig.signal(rig.watches[1].owner, signal.SIGKILL)
    more("record", 20)
    assert states(rig)["record"] == "runs"
    drop_query(rig.settings, "record", lambda _line: None)
    rig.wait_protected()
    add_queries(rig.settings, [FILLED], lambda _line: None, begin="1h")
    kill = rig.kill_owner(0)  # while the query is being filled
    rig.wait_owner(0, kill.epoch)
    more("vwap", 300)
    rig.wait(lambda: states(rig)["ever"] == "runs", "the query ever to have all of the past")
    more("ever", 50)

    found = {name: rows_of(rig, name) for name in ("vwap", "quakes", "record", *SUMS)}
    tuples = tuples_of(rig)  # read behind the rows, so that it has all that they follow from
    wanted_of: dict[str, list[Any]] = {"vwap": list(vwap(tuples)), "quakes": list(quakes(tuples))}
    for name, wanted in (wanted_of | {name: list(total(tuples)) for name in SUMS}).items():
        rows = [tuple(row.values()) for row in found[name]]
        by_symbol = {symbol: [row for row in rows if row[0] == symbol] for symbol in SYMBOLS}
        for symbol in SYMBOLS:
            count = len(by_symbol[symbol])
            assert by_symbol[symbol] == [row for row in wanted if row[0] == symbol][:count], f"{name}, {symbol}"
    assert len(found["vwap"]) > 900
    assert len(found["ever"]) > 900
    for symbol in SYMBOLS:
        tops = [row["top"] for row in found["record"] if row["symbol"] == symbol]
        assert all(before != after for before, after in itertools.pairwise(tops))
    said: list[str] = []
    assert replay_slots(rig.settings, (), said.append) == 0, "\n".join(said)


def states(rig: Rig) -> dict[str, str]:
    """Return the state of each query, as `tsunagi query list` says it."""
    return {item["query"]: item["state"] for item in list_queries(rig.settings)}


def rows_of(rig: Rig, name: str) -> list[QueryRow]:
    """Return the rows of a query, without repeats."""
    with QueryOutputs(rig.log, rig.settings, (name,)) as found:
        rows = [row for block in found.blocks() for row in block.rows]
        assert found.unreadable_count == 0
        return rows


def tuples_of(rig: Rig) -> list[tuple[str, float, int | None, str | None]]:
    """Return the tuples that the slots' logs hold, those of each slot in their order, without what edges repeated."""
    found = []
    for slot in range(SLOTS):
        last: dict[str, int] = {}
        for record in read_partition(rig.log, "tuples", slot):
            message = LogRecord.FromString(record.value or b"")
            if message.WhichOneof("body") != "batch":
                continue
            batch = message.batch
            if batch.step <= last.get(batch.edge, -1):
                continue
            last[batch.edge] = batch.step
            (sensor,) = sensors(batch.sensor).tolist()
            price, volume, note = batch.column
            found.append(
                (
                    rig.inputs.table.sensors[sensor].name,
                    float(np.frombuffer(price.value, "<f8")[0]),
                    None if volume.valid == b"\0" else int(np.frombuffer(volume.value, "<i8")[0]),
                    None if note.valid == b"\0" else note.text[0],
                )
            )
    return found


Trades = list[tuple[str, float, int | None, str | None]]


def vwap(tuples: Trades) -> list[tuple[str, float | None]]:
    """Return what the query of this name gives: the exact sums, divided once."""
    last: dict[str, deque[tuple[float, int | None]]] = defaultdict(lambda: deque(maxlen=20))
    found: list[tuple[str, float | None]] = []
    for symbol, price, volume, _ in tuples:
        last[symbol].append((price, volume))
        known = [(paid, pieces) for paid, pieces in last[symbol] if pieces is not None]
        pieces = sum(pieces for _, pieces in known)
        money = float(sum((Fraction(paid * pieces) for paid, pieces in known), Fraction(0)))
        found.append((symbol, money / pieces if known else None))
    return found


def quakes(tuples: Trades) -> list[tuple[str, str]]:
    """Return what the query of this name gives."""
    return [(symbol, note) for symbol, _, _, note in tuples if note in ("quake now", "quake again")]


def total(tuples: Trades) -> list[tuple[str, int, int | None]]:
    """Return what the query of this name gives."""
    seen: dict[str, list[int | None]] = defaultdict(list)
    found: list[tuple[str, int, int | None]] = []
    for symbol, _, volume, _ in tuples:
        seen[symbol].append(volume)
        known = [pieces for pieces in seen[symbol] if pieces is not None]
        found.append((symbol, len(seen[symbol]), sum(known) if known else None))
    return found
