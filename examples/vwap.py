"""Trades for queries/vwap.sql: the volume-weighted average price of each symbol over its last 100 trades."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from examples.files import generate, write_tuples

TICK = 0.01
SYMBOLS = 24


def make(out: Path, rows: int, chance: np.random.Generator) -> None:
    """Write random walks of prices with drawn volumes, and a configuration."""
    names = [f"sym-{number:02d}" for number in range(SYMBOLS)]
    ticks = chance.integers(5_000, 50_000, size=SYMBOLS)
    trades = []
    for symbol in chance.integers(0, SYMBOLS, size=rows):
        ticks[symbol] = max(100, ticks[symbol] + chance.integers(-3, 4))
        trades.append((names[symbol], round(ticks[symbol] * TICK, 2), 100 * chance.integers(1, 50)))
    write_tuples(out, "vwap.sql", names, ("symbol", "price", "volume"), trades, interval_s=0.005)


if __name__ == "__main__":
    generate(__doc__ or "", make, "vwap")
