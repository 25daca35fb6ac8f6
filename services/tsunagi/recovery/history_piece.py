"""A part of a history's rows that can be read alone, and the rows as they are read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tsunagi.recovery.errors import ModelError
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.csv_text import CsvError
from tsunagi.runtime.tables.layout import TableError

BATCH_CELLS = 2_000_000
"""Number of readings that are returned at a time, which bounds the memory that reading takes."""


class HistoryPiece(NamedTuple):
    """Neighbouring rows of one file.

    Attributes:
        begin, end: bytes of a CSV, or row groups of a Parquet file; end is exclusive.
        first: event time of its first row, in microseconds; its number if rows have no times.
        rows: how many of its rows count; None means all.
    """

    path: Path
    begin: int
    end: int
    first: int
    rows: int | None = None


class HistoryRows(NamedTuple):
    """Some rows of a piece.

    Attributes:
        times: int64[rows]: microseconds since 1970, or numbers of rows.
        values: float64[rows, n]; NaN means no reading.
        where: place of the first row, for messages.
        next_line: number of the line after the last row; None if it is not known.
    """

    times: npt.NDArray[np.int64]
    values: Floats
    where: str
    next_line: int | None = None


def batch_rows(sensors: int) -> int:
    """Return the number of rows that are returned at a time."""
    return max(1, BATCH_CELLS // max(1, sensors))


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """Raise what is wrong with a table as ModelError, which is what whoever fits a model expects."""
    try:
        yield
    except (CsvError, TableError) as error:
        raise ModelError(str(error)) from None
