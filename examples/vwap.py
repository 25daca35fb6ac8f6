"""Volume-weighted average price (VWAP) of each symbol over its last trades.

A tuple is a trade, and its value holds price and volume: price in ticks x 2^24 + volume, exact in a float64 up to 2^29
ticks and 2^24 - 1 pieces. A symbol is a sensor, so all its trades are in one slot, in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from examples.files import generate, write
from tsunagi import Frame, Operator, OperatorError, Quality, SlotConfig, pack_arrays, unpack_arrays

VOLUMES = 1 << 24
TICKS = 1 << 29
TICK = 0.01
SYMBOLS = 24

Trades = npt.NDArray[np.float64]


def pack_trade(ticks: int, volume: int) -> float:
    """Return a trade as one number.

    Raises:
        ValueError: price or volume is out of range.
    """
    if not (0 < ticks < TICKS and 0 < volume < VOLUMES):
        raise ValueError(f"trade: found {ticks} ticks and {volume} pieces, expected 1 to {TICKS - 1}, {VOLUMES - 1}")
    return float(ticks * VOLUMES + volume)


def unpack_trade(value: float) -> tuple[int, int] | None:
    """Return (ticks, volume); None = the number is no trade."""
    if not 0 < value < TICKS * VOLUMES or value != int(value):
        return None
    ticks, volume = divmod(int(value), VOLUMES)
    return (ticks, volume) if ticks and volume else None


class Vwap(Operator):
    """Gives, at each trade, the VWAP of the symbol's last `window` trades, once it has had so many."""

    def __init__(self, config: SlotConfig, *, window: int = 100) -> None:
        if window < 1:
            raise OperatorError(f"vwap: window: found {window}, expected 1 or more")
        self._sensors = config.sensors
        self._trades: dict[int, deque[tuple[int, int]]] = {sensor: deque(maxlen=window) for sensor in config.sensors}
        self._window = window

    def process(self, frame: Frame) -> Sequence[Frame]:
        prices = np.array([self._take(*row) for row in zip(frame.sensor.tolist(), frame.mean.tolist(), strict=True)])
        rows = np.flatnonzero(~np.isnan(prices)) if len(prices) else np.zeros(0, dtype=np.intp)
        if not len(rows):
            return ()
        zeros = np.zeros(len(rows))
        exact = np.full(len(rows), Quality.EXACT, dtype=np.uint8)
        return (frame.keep(rows).replace(mean=prices[rows], sd=zeros, quality=exact, bound=zeros),)

    def _take(self, sensor: int, value: float) -> float:
        trade = unpack_trade(value)
        trades = self._trades[sensor]
        if trade is None:
            return float("nan")
        trades.append(trade)
        if len(trades) < self._window:
            return float("nan")
        # In whole numbers, so that the sum does not hang on the order in which it was built up.
        return TICK * sum(ticks * volume for ticks, volume in trades) / sum(volume for _, volume in trades)

    def context(self) -> bytes:
        counts = np.array([len(self._trades[sensor]) for sensor in self._sensors], dtype=np.int64)
        packed = [pack_trade(*trade) for sensor in self._sensors for trade in self._trades[sensor]]
        return pack_arrays({"counts": counts, "trades": np.array(packed, dtype=np.float64)})

    def restore(self, context: bytes) -> None:
        arrays = unpack_arrays(context)
        values = iter(arrays["trades"].tolist())
        for sensor, count in zip(self._sensors, arrays["counts"].tolist(), strict=True):
            trades = (unpack_trade(next(values)) for _ in range(int(count)))
            self._trades[sensor].clear()
            self._trades[sensor].extend(trade for trade in trades if trade is not None)


def make(out: Path, rows: int, chance: np.random.Generator) -> None:
    """Write random walks of prices with drawn volumes, and a configuration."""
    names = [f"sym-{number:02d}" for number in range(SYMBOLS)]
    steps = chance.integers(-3, 4, size=(rows, SYMBOLS))
    ticks = np.maximum(100, chance.integers(5_000, 50_000, size=SYMBOLS) + np.cumsum(steps, axis=0))
    volumes = 100 * chance.integers(1, 50, size=(rows, SYMBOLS))
    trades: Trades = (ticks * VOLUMES + volumes).astype(np.float64)
    write(out, names, trades, {"use": "examples.vwap:Vwap", "window": 100})


if __name__ == "__main__":
    generate(__doc__ or "", make)
