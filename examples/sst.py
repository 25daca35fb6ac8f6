"""Change scores by singular spectrum transformation (SST; Ide and Inoue, SDM 2005), one task a sensor.

At each tuple two trajectory matrices are made of the sensor's last values, one of the past and one of the present. The
score is 1 - the largest cosine between the present's main direction and the space of the past's `rank` main ones: 0 =
the series goes on as it was, 1 = it is another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from examples.files import generate, write
from tsunagi import Frame, Operator, OperatorError, Quality, SlotConfig, pack_arrays, unpack_arrays

SENSORS = 12
_LARGE = 1e100


def score(series: npt.NDArray[np.float64], window: int, columns: int, rank: int) -> float:
    """Return the score of a series, 0 to 1: its first window + columns - 1 values against its last ones."""
    count = window + columns - 1
    places = np.arange(columns)[:, None] + np.arange(window)
    past, present = series[:count][places].T, series[-count:][places].T
    before = np.linalg.svd(past, full_matrices=False)[0][:, :rank]
    now = np.linalg.svd(present, full_matrices=False)[0][:, 0]
    return float(np.clip(1.0 - np.linalg.norm(before.T @ now), 0.0, 1.0))


class Sst(Operator):
    """Scores each sensor's last values, once there are enough.

    Args:
        window: length of a subsequence, the rows of a trajectory matrix.
        columns: how many subsequences it has.
        lag: how far the present lies behind the past.
        rank: main directions of the past.
    """

    def __init__(
        self, config: SlotConfig, *, window: int = 20, columns: int = 20, lag: int = 20, rank: int = 3
    ) -> None:
        if min(window, columns, lag, rank) < 1 or rank > min(window, columns):
            raise OperatorError(
                f"sst: found window {window}, columns {columns}, lag {lag}, rank {rank}; expected 1 or more each, "
                "and no rank above window or columns"
            )
        self._shape = window, columns, rank
        self._length = window + columns - 1 + lag
        self._sensors = config.sensors
        self._place = {sensor: place for place, sensor in enumerate(config.sensors)}
        self._last = np.zeros((len(config.sensors), self._length))
        self._seen = np.zeros(len(config.sensors), dtype=np.int64)

    def process(self, frame: Frame) -> Sequence[Frame]:
        scores = np.array([self._take(*row) for row in zip(frame.sensor.tolist(), frame.mean.tolist(), strict=True)])
        rows = np.flatnonzero(~np.isnan(scores)) if len(scores) else np.zeros(0, dtype=np.intp)
        if not len(rows):
            return ()
        zeros = np.zeros(len(rows))
        exact = np.full(len(rows), Quality.EXACT, dtype=np.uint8)
        return (frame.keep(rows).replace(mean=scores[rows], sd=zeros, quality=exact, bound=zeros),)

    def _take(self, sensor: int, value: float) -> float:
        if not abs(value) < _LARGE:  # nor NaN: squares of it would not be finite
            return float("nan")
        place = self._place[sensor]
        series = self._last[place]
        series[:-1] = series[1:]
        series[-1] = value
        self._seen[place] = min(self._seen[place] + 1, self._length)
        return score(series, *self._shape) if self._seen[place] == self._length else float("nan")

    def context(self) -> bytes:
        return pack_arrays({"seen": self._seen, "last": self._last})

    def restore(self, context: bytes) -> None:
        arrays = unpack_arrays(context)
        self._seen = arrays["seen"].astype(np.int64)
        self._last = arrays["last"].astype(np.float64)


def make(out: Path, rows: int, chance: np.random.Generator) -> None:
    """Write waves whose period changes now and then, and a configuration."""
    names = [f"wave-{number:02d}" for number in range(SENSORS)]
    phase = np.zeros((rows, SENSORS))
    period = chance.uniform(8, 20, SENSORS)
    for row in range(1, rows):
        changes = chance.random(SENSORS) < 0.004
        period = np.where(changes, chance.uniform(8, 20, SENSORS), period)
        phase[row] = phase[row - 1] + 2 * np.pi / period
    write(out, names, np.sin(phase) + 0.1 * chance.standard_normal(phase.shape), {"use": "examples.sst:Sst"})


if __name__ == "__main__":
    generate(__doc__ or "", make)
