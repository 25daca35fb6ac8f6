"""Reads the cells of a CSV of readings: numbers, times, and what says that there is no value."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tsunagi.runtime.columns import Floats
from tsunagi.runtime.csv_text import PLAIN, CsvError, Dialect, read_number, read_time
from tsunagi.runtime.settings import TableSettings
from tsunagi.runtime.time_form import BadTimeError, TimeForm

AS_WRITTEN = TableSettings(separator=",", decimal=".", missing=())
"""The settings of files that must be written as Tsunagi writes them: commas, decimal points, empty cells."""


class Missing:
    """What says in a table that there is no value.

    Attributes:
        numbers: float64[k], the numbers that say so.
    """

    def __init__(self, form: TableSettings) -> None:
        self._texts = {str(mark).strip() for mark in form.missing}
        numbers = [_number_of(mark) for mark in form.missing]
        self.numbers: Floats = np.array([number for number in numbers if number is not None], dtype=np.float64)

    def has(self, text: str) -> bool:
        """Return whether a cell, without spaces around it, says that there is no value."""
        return not text or text in self._texts


def _number_of(mark: str | float) -> float | None:
    try:
        return float(mark)
    except ValueError:
        return None


class TimeReader:
    """Reads the times of a table.

    Args:
        form: unit, format and zone.
        name: the column of times, for messages.
    """

    def __init__(self, form: TableSettings, name: str) -> None:
        self._name = name
        self._form: TimeForm | None = None
        if form.time_unit != "s" or form.time_format or form.time_zone:
            self._form = TimeForm(form.time_unit, form.time_format, form.time_zone, number_texts=True)

    def read(self, cell: str, where: str) -> int:
        """Return the time in a cell, in microseconds since 1970.

        Raises:
            CsvError: the cell has no time; the message begins with `where`.
        """
        if self._form is None:
            return read_time(cell, where, self._name)
        try:
            if "_" in cell:
                raise BadTimeError(f"found {cell.strip()!r}, expected a time")  # noqa: TRY301 - the same message
            return self._form.read(cell)
        except BadTimeError as error:
            raise CsvError(f"{where}, column {self._name!r}: {error}") from None


class NumberReader:
    """Reads the numbers of a CSV.

    Args:
        form: what says that there is no value.
        dialect: the decimal sign.
    """

    def __init__(self, form: TableSettings, dialect: Dialect = PLAIN) -> None:
        self._decimal = dialect.decimal
        self._missing = Missing(form)

    def plain(self, cells: Sequence[str]) -> Floats | None:
        """Return the numbers in cells, float64[n], if every cell has one; None if `read` must look at each."""
        if self._decimal == ",":
            if any("." in cell for cell in cells):
                return None
            cells = [cell.replace(",", ".") for cell in cells]
        try:
            values = np.fromiter(map(float, cells), np.float64, len(cells))
        except ValueError:
            return None  # an empty cell, or text
        if "_" in "".join(cells):  # float() accepts "_" between digits; a CSV does not
            return None
        marks = self._missing.numbers
        return None if len(marks) and np.isin(values, marks).any() else values

    def read(self, cell: str, where: str, name: str) -> float | None:
        """Return the number in a cell; None if the cell says that there is no value.

        Raises:
            CsvError: the cell has neither; the message begins with `where` and names the column.
        """
        text = cell.strip()
        if self._missing.has(text):
            return None
        value = read_number(cell, where, name, self._decimal)
        return None if value in self._missing.numbers else value
