"""Readings as a table gives them: some at a time, in the order of the file."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tsunagi.runtime.columns import Floats
from tsunagi.runtime.naming import sensor_fault
from tsunagi.runtime.tables.layout import TableError

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

MOST_SENSORS = 1_000_000
"""Most names of sensors in a table. A table with more has another column where that of sensors is looked for."""
MEASURED = ("exact", "readings")
"""Quality and query of a row of results that is a reading. All other rows are estimates, or of queries."""


class TablePlace(NamedTuple):
    """Where a row begins in a file.

    Attributes:
        row: number of the row, from 0, without the header.
        line: of a CSV, number of the line, from 1.
        offset: of a CSV, bytes from the beginning of the file.
    """

    row: int = 0
    line: int = 0
    offset: int = 0


class ReadingBlock(NamedTuple):
    """Some readings that follow each other in a table.

    Attributes:
        rows: int64[m], the row of each, from 0.
        lines, offsets: int64[m], its line and its first byte in a CSV; zeros in a Parquet file.
        times_us: int64[m], in microseconds since 1970. In a table without times, row i has the time i seconds.
        sensors: int64[m], the number of each sensor in `SensorNames`.
        values: float64[m]; NaN where there is no number, because the table says so.
        missing: bool[m], whether the row says that there is no value.
        estimated: bool[m], whether the row is a result that was not measured.
    """

    rows: Ints
    lines: Ints
    offsets: Ints
    times_us: Ints
    sensors: Ints
    values: Floats
    missing: Flags
    estimated: Flags

    def chosen(self, which: Flags) -> ReadingBlock:
        """Return some of the readings."""
        return self._replace(**{name: column[which] for name, column in self._asdict().items()})


class SensorNames:
    """The sensors of a table, numbered as they come.

    Attributes:
        names: their names, by number.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._number_of: dict[str, int] = {}

    def find(self, written: str) -> int | None:
        """Return the number of a sensor as it is written in the table; None if it has not come yet."""
        return self._number_of.get(written)

    def number(self, written: str, where: str, column: str) -> int:
        """Return the number of a sensor; a new one gets the next.

        Raises:
            TableError: no sensor can have that name; the message begins with `where`.
        """
        found = self._number_of.get(written)
        if found is not None:
            return found
        name = written.strip()
        if name != written:
            found = self.number(name, where, column)
        else:
            if not name:
                raise TableError(f"{where}, column {column!r}: found nothing, expected a sensor's name")
            if fault := sensor_fault(name):
                raise TableError(f"{where}, column {column!r}: {fault}")
            if len(self.names) >= MOST_SENSORS:
                raise TableError(f"{where}, column {column!r}: found more than {MOST_SENSORS:,} names of sensors")
            found = len(self.names)
            self.names.append(name)
        self._number_of[written] = found
        return found
