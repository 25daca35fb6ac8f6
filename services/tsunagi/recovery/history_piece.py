"""A stretch of a history's rows that can be read alone, and rows as they are read."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tsunagi.runtime.columns import Floats

BATCH_CELLS = 2_000_000
"""Readings that are handed out at a time."""


class Piece(NamedTuple):
    """Neighbouring rows of one file.

    Attributes:
        begin, end: bytes of a CSV; of a Parquet file, row groups; end exclusive.
        first: event time of its first row, microseconds; without times, its number.
        rows: how many of them count; None = all.
    """

    path: Path
    begin: int
    end: int
    first: int
    rows: int | None = None


class Rows(NamedTuple):
    """Some rows.

    Attributes:
        times: int64[rows]: microseconds since the epoch, or row numbers.
        values: float64[rows, n]; NaN = no reading.
        where: the first of them, for messages.
        next_line: the line after the last of them; None = not known.
    """

    times: npt.NDArray[np.int64]
    values: Floats
    where: str
    next_line: int | None = None


def batch_rows(sensors: int) -> int:
    """Return how many rows are handed out at a time."""
    return max(1, BATCH_CELLS // max(1, sensors))
