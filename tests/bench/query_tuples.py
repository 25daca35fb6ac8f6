"""Queries over tuples in one slot: what does a tuple cost, by kind of query, length of window and number of keys?

    python -m tests.bench.query_tuples --out out/query-tuples.json

Runs a slot alone, in this process: batches of one tuple each are parsed, processed, and what follows is encoded. One
JSON object comes out:

    us          CPU microseconds for a tuple, by query, median of `--rounds`
    spread_us   (least, greatest) of the rounds
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from tests.bench import outcome
from tests.bench.system import say
from tsunagi.query.form import TupleForm, to_columns
from tsunagi.query.values import Kind
from tsunagi.recovery.model import Model
from tsunagi.runtime.log import TUPLES, Record
from tsunagi.runtime.messages import VERSION, LogRecord, Ownership, SlotSettings, TupleBatch
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.parsing import parse
from tsunagi.slot.slot import Slot

STREAM = "CREATE STREAM trades (symbol TEXT KEY, price DOUBLE, volume BIGINT, body TEXT)"
FORM = TupleForm("symbol", {"price": Kind.DOUBLE, "volume": Kind.BIGINT, "body": Kind.TEXT})
VWAP = "SUM(price * volume) / SUM(volume) AS vwap"
TEXT_BYTES = 1024
MOST_FILLED = 60_000
"""Most tuples with which windows are filled before it is measured."""
READ = 128
"""Records that are there at once."""

CASES: dict[str, tuple[str, int]] = {
    "no query": ("", 24),
    "WHERE": ("SELECT symbol, price * 2 AS twice FROM trades WHERE volume > 50", 24),
    "text of 1 KB": ("SELECT symbol FROM trades WHERE body REGEXP 'quake (now|again)'", 24),
    **{
        f"VWAP [ROWS {length}]": (f"SELECT symbol, {VWAP} FROM trades [ROWS {length}] GROUP BY symbol", 24)
        for length in (10, 100, 1000)
    },
    "VWAP [ROWS 100], 5000 keys": (f"SELECT symbol, {VWAP} FROM trades [ROWS 100] GROUP BY symbol", 5000),
    "VWAP [RANGE UNBOUNDED]": (f"SELECT symbol, {VWAP} FROM trades [RANGE UNBOUNDED] GROUP BY symbol", 24),
    "VWAP [RANGE UNBOUNDED], 5000 keys": (f"SELECT symbol, {VWAP} FROM trades [RANGE UNBOUNDED] GROUP BY symbol", 5000),
}
"""(Query, number of keys)."""


def records(query: str, keys: int, count: int) -> list[Record]:
    """Return a slot's log."""
    statements = (STREAM, f"CREATE QUERY q AS {query}") if query else ()
    config = SlotConfig(
        slot=0,
        sensors=tuple(range(keys)),
        names=tuple(f"S{number}" for number in range(keys)),
        edges=("edge",) * keys,
        slide_us=1,
        max_ahead_us=10**15,
        max_skew_steps=0,
        max_gap_steps=1,
        operators=(),
        eps=1.0,
        delta=0.9,
        mode="tuples",
        statements=statements,
    )
    chance = random.Random(1)
    texts = [" ".join(chance.choices(("rain", "late", "quake", "now", "again"), k=TEXT_BYTES)) for _ in range(97)]
    messages = [
        LogRecord(version=VERSION, ownership=Ownership(epoch=1, node="n", generation=1)),
        LogRecord(version=VERSION, settings=SlotSettings(epoch=1, hash=config.hash, text=config.text())),
    ]
    for number in range(count):
        batch = TupleBatch(edge="edge", incarnation=1, step=number + 1, event_time_us=number + 1, count=b"\1\0\0\0")
        batch.sensor = np.array([chance.randrange(keys)], "<u4").tobytes()
        batch.value = np.array([1.0]).tobytes()
        if query:
            cells = {"price": chance.random() * 100, "volume": chance.randrange(1, 100)}
            text = {"body": texts[number % 97][:TEXT_BYTES]} if "body" in query else {}
            batch.column.extend(to_columns(cells | text, FORM))
        messages.append(LogRecord(version=VERSION, batch=batch))
    return [Record(TUPLES, 0, at, 0, b"edge", message.SerializeToString()) for at, message in enumerate(messages)]


def _no_model(sha256: str) -> Model:
    raise AssertionError(sha256)


def cost_us(log: Sequence[Record], filled: int) -> float:
    """Return CPU microseconds for a tuple, of those behind the first ones, with which windows are filled."""
    slot, at, began = Slot(0, _no_model), 0, 0.0
    while at < len(log):
        if at >= filled and not began:
            began, first = time.process_time(), at
        found, count = slot.apply_run((record, parse(record)) for record in islice(log, at, at + READ))
        at += count
        for output in found:
            output.encode(0, 1)
    return (time.process_time() - began) / (len(log) - first) * 1e6


def main() -> None:
    """Measure, and write the JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000, help="tuples that are measured [20000]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    median, spread = {}, {}
    for name, (query, keys) in CASES.items():
        length = int(query.split("[ROWS ")[1].split("]")[0]) if "[ROWS" in query else 1
        filled = min(length * keys, MOST_FILLED)
        log = records(query, keys, filled + options.count)
        rounds = [round(cost_us(log, filled + 2), 1) for _ in range(options.rounds)]
        median[name], spread[name] = statistics.median(rounds), (min(rounds), max(rounds))
        say(f"{name}: {median[name]} us {spread[name]}")
    outcome.write({"bench": "query_tuples", "count": options.count, "us": median, "spread_us": spread}, options.out)


if __name__ == "__main__":
    main()
