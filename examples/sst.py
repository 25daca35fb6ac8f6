"""Waves for queries/sst.sql, and the aggregate of that query: change scores by singular spectrum transformation (SST).

At each reading two trajectory matrices are made of the sensor's last values, of the past and of the present. The
score is 1 - the largest cosine between the present's main direction and the space of the past's `RANK` main ones: 0 =
the series goes on as it was, 1 = it is another one (Ide and Inoue, SDM 2005).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from examples.files import generate, write

SENSORS = 12
WINDOW, COLUMNS, LAG, RANK = 20, 20, 20, 3
LENGTH = WINDOW + COLUMNS - 1 + LAG
"""Values that a score is made of."""
_LARGE = 1e100


def score(series: npt.NDArray[np.float64], window: int, columns: int, rank: int) -> float:
    """Return the score of a series, 0 to 1: its first window + columns - 1 values against its last ones."""
    count = window + columns - 1
    places = np.arange(columns)[:, None] + np.arange(window)
    past, present = series[:count][places].T, series[-count:][places].T
    before = np.linalg.svd(past, full_matrices=False)[0][:, :rank]
    now = np.linalg.svd(present, full_matrices=False)[0][:, 0]
    return float(np.clip(1.0 - np.linalg.norm(before.T @ now), 0.0, 1.0))


def change(values: npt.NDArray[np.float64]) -> float:
    """Return the score of a sensor's last values; NaN if these are too few, or too large to be squared."""
    if len(values) < LENGTH or not (np.abs(values) < _LARGE).all():
        return float("nan")
    return score(values[-LENGTH:], WINDOW, COLUMNS, RANK)


def make(out: Path, rows: int, chance: np.random.Generator) -> None:
    """Write waves whose period changes now and then, and a configuration."""
    names = [f"wave-{number:02d}" for number in range(SENSORS)]
    phase = np.zeros((rows, SENSORS))
    period = chance.uniform(8, 20, SENSORS)
    for row in range(1, rows):
        changes = chance.random(SENSORS) < 0.004
        period = np.where(changes, chance.uniform(8, 20, SENSORS), period)
        phase[row] = phase[row - 1] + 2 * np.pi / period
    write(out, "sst.sql", names, np.sin(phase) + 0.1 * chance.standard_normal(phase.shape))


if __name__ == "__main__":
    generate(__doc__ or "", make, "changes")
