"""A CSV of readings: header = sensor names, one row a reading time, an empty cell = no reading.

The first column may be ``time``: ISO 8601 with a zone, or seconds since the epoch. The file is read line by line
(`tsunagi.runtime.csv_text`); every error names file, line, column, what was found and what was expected.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

import numpy as np

from tsunagi.edge.own_sensors import edges_by_name
from tsunagi.edge.source import FilePosition, SourceError
from tsunagi.edge.window import Places
from tsunagi.query.form import Cells
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.csv_text import CsvError, Dialect, Header, passed_over, read_header, split_line
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import TableSettings
from tsunagi.runtime.tables.cells import AS_WRITTEN, NumberReader, TimeReader


class CsvRow(NamedTuple):
    """One row as it stands in the file.

    Attributes:
        place: where the row begins in the file.
        time_us: event time from the `time` column, in microseconds; None where the file has no such column.
        places: intp[m], the sensors with a reading in this row, each by its place among the wanted sensors.
        values: float64[m], their readings.
        strangers: (column, cell) of each cell that is not empty and whose column is not in the sensors table.
        cells: the columns of a tuple (`tsunagi.edge.csv_tuples`); None = the row has readings.
        missing: how many cells of wanted sensors say in words that there is no value (`[source.table] missing`).
        estimated: how many rows of a file of results were not measured.
    """

    place: FilePosition
    time_us: int | None
    places: Places
    values: Floats
    strangers: list[tuple[str, str]]
    cells: Cells | None = None
    missing: int = 0
    estimated: int = 0


class RowFile(Protocol):
    """A file whose rows are read in the order of time: `CsvFile`, or `tsunagi.edge.table_file.TableFile`.

    Attributes:
        has_time: whether rows have times.
        header_sha256: identifies the columns.
        first: where the first row begins.
        place: where the next row begins.
    """

    path: Path
    has_time: bool
    header_sha256: str
    first: FilePosition

    @property
    def place(self) -> FilePosition: ...

    def seek(self, place: FilePosition) -> None:
        """Go on at a place that `place` had earlier."""

    def skip(self, rows: int) -> None:
        """Pass over rows of the file, or over all that are left."""

    def next_row(self) -> CsvRow | None:
        """Read the next row; return None after the last one.

        Raises:
            SourceError: the row cannot be used; the message names file, line and column, found and expected.
        """

    def change(self, table: SensorTable, wanted: tuple[Sensor, ...]) -> list[Sensor]:
        """Read other sensors from the next `seek` on; return those that should have a column and have none."""

    def close(self) -> None:
        """Close the file."""


@dataclass(frozen=True, slots=True)
class CsvSummary:
    """What `check_csv` found in a file.

    Attributes:
        columns: how many sensors of the table have a column.
        readings: how many cells of these columns have a value.
        first_time, last_time: event times of the first and the last row; None where the file has no `time` column.
        unknown: names of the columns that the sensors table does not have.
    """

    rows: int
    columns: int
    readings: int
    first_time: datetime | None
    last_time: datetime | None
    unknown: tuple[str, ...]


class CsvFile:
    """A CSV opened for reading in order.

    Args:
        path: the file.
        table: the sensors table.
        wanted: the sensors to read.
        repeat: the first row follows the last one again, and row numbers and event times go on.
        lacking: whether sensors may lack a column, as devices do that send events alone.
        written: how the file is read.

    Raises:
        SourceError: the file cannot be opened, or its header cannot be used.
    """

    def __init__(
        self,
        path: Path,
        table: SensorTable,
        wanted: tuple[Sensor, ...],
        *,
        repeat: bool = False,
        lacking: bool = False,
        written: TableSettings = AS_WRITTEN,
    ) -> None:
        self.path = path
        self._written = written
        self._lacking = lacking
        self._repeat = repeat
        try:
            self._file: BinaryIO = path.open("rb")
        except FileNotFoundError:
            raise SourceError(f"{path}: no such file") from None
        except OSError as error:
            raise SourceError(f"{path}: cannot be read: {error.strerror}") from None
        try:
            self._read_header(table, wanted)
        except CsvError as error:
            self._file.close()
            raise SourceError(str(error)) from None
        except BaseException:
            self._file.close()
            raise

    def _read_header(self, table: SensorTable, wanted: tuple[Sensor, ...]) -> None:
        written = self._written
        header = read_header(self._file, self.path, Dialect(written.separator, written.decimal), written.time)
        self._separator = header.dialect.separator
        self._numbers = NumberReader(written, header.dialect)
        self._times = TimeReader(written, header.names[0])
        self.header_sha256 = hashlib.sha256(header.text.encode()).hexdigest()
        self._header = header.names
        self.has_time = header.timed
        seen = {name: place for place, name in enumerate(header.names)}
        self._sensor_columns = header.sensors
        self._find_columns(header, seen, table, wanted)
        self._place = self.first = FilePosition(0, header.line, header.offset)
        self._last_us: int | None = None
        self._lap_rows, self._lap_us = 1, 0
        if self._repeat and self.has_time:
            self._lap_rows, self._lap_us = self._measure()

    def _find_columns(
        self, header: Header, seen: Mapping[str, int], table: SensorTable, wanted: tuple[Sensor, ...]
    ) -> None:
        """Note which columns are read.

        Args:
            seen: the place of each column by its name.

        Raises:
            SourceError: the header lacks a column.
        """
        where = f"{self.path}, line {header.line - 1}"
        if not edges_by_name(table).keys() & seen.keys():
            raise SourceError(
                f"{where}: no column is in the sensors table (found {some(self._header)}, expected "
                f"{some(sensor.name for sensor in wanted)})"
            )
        missing = self._choose_columns(table, wanted)
        if missing and not self._lacking:
            raise SourceError(
                f"{where}: the sensors table contradicts the data: no column for "
                f"{some(sensor.name for sensor in missing)} (edge {missing[0].edge!r}), found {some(self._header)}"
            )

    def _choose_columns(self, table: SensorTable, wanted: tuple[Sensor, ...]) -> list[Sensor]:
        """Note which columns are read; return the sensors that have none."""
        seen = {name: place for place, name in enumerate(self._header)}
        columns = [seen.get(sensor.name, seen.get(sensor.key)) for sensor in wanted]
        self._columns = [column for column in columns if column is not None]
        self._all: Places = np.array(
            [place for place, column in enumerate(columns) if column is not None], dtype=np.intp
        )
        known = edges_by_name(table)
        self._strangers = [(seen[name], name) for name in self._sensor_columns if name not in known]
        return [sensor for sensor, column in zip(wanted, columns, strict=True) if column is None]

    def change(self, table: SensorTable, wanted: tuple[Sensor, ...]) -> list[Sensor]:
        """Read other sensors from the next `seek` on; return those that should have a column and have none."""
        missing = self._choose_columns(table, wanted)
        return [] if self._lacking else missing

    @property
    def unknown(self) -> tuple[str, ...]:
        """Names of the columns that the sensors table does not have."""
        return tuple(name for _, name in self._strangers)

    @property
    def place(self) -> FilePosition:
        """Where the next row begins."""
        return self._place

    def seek(self, place: FilePosition) -> None:
        """Go on at a place that the property `place` had returned earlier."""
        self._file.seek(place.offset)
        self._place = place
        self._last_us = None

    def next_row(self) -> CsvRow | None:
        """Read the next row; return None after the last one.

        Raises:
            SourceError: the row cannot be read: a cell is no number, a field is missing, or time runs backwards.
        """
        found = self._next_line()
        return None if found is None else self._parse(*found)

    def skip(self, rows: int) -> None:
        """Pass over so many rows without parsing them, or over all that are left."""
        for _ in range(rows):
            if not self.skip_row():
                return

    def skip_row(self) -> bool:
        """Pass over the next row without parsing it; return False after the last one."""
        return self._next_line() is not None

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _next_line(self) -> tuple[FilePosition, bytes] | None:
        found = self._line()
        if found is None and self._repeat and self._place.row > 0:
            self._file.seek(self.first.offset)
            self._place = FilePosition(self._place.row, self.first.line, self.first.offset)
            found = self._line()
        return found

    def _measure(self) -> tuple[int, int]:
        """Return how many rows the file has, and the event time from its first row to that row's repetition."""
        rows, first_us, before_us, last_us = 0, 0, 0, 0
        while (found := self._line()) is not None:
            place, raw = found
            before_us, last_us = last_us, self._time(self._cells(raw, place.line)[0], place.line)
            first_us = first_us if rows else last_us
            rows += 1
        self.seek(self.first)
        # The first row is repeated as long after the last row as the last row came after the one before it.
        return max(rows, 1), last_us - first_us + (last_us - before_us if rows > 1 else 0)

    def _line(self) -> tuple[FilePosition, bytes] | None:
        while raw := self._file.readline():
            place = self._place
            none = passed_over(raw)
            self._place = FilePosition(place.row + (not none), place.line + 1, place.offset + len(raw))
            if not none:
                return place, raw
        return None

    def _parse(self, place: FilePosition, raw: bytes) -> CsvRow:
        cells = self._cells_of_row(raw, place)
        time_us = self._time(cells[0], place.line, place.row) if self.has_time else None
        texts = [cells[column] for column in self._columns]
        strangers = [(name, cells[column]) for column, name in self._strangers if cells[column].strip()]
        plain = self._numbers.plain(texts)
        if plain is not None:
            return CsvRow(place, time_us, self._all, plain, strangers)
        there = [number for number, cell in enumerate(texts) if cell.strip()]
        values = [self._number(texts[number], place.line, self._columns[number]) for number in there]
        found = [(number, value) for number, value in zip(there, values, strict=True) if value is not None]
        present = [number for number, _ in found]
        return CsvRow(
            place,
            time_us,
            self._all[present],
            np.array([value for _, value in found], dtype=np.float64),
            strangers,
            missing=len(there) - len(found),
        )

    def _cells_of_row(self, raw: bytes, place: FilePosition) -> list[str]:
        cells = self._cells(raw, place.line)
        if len(cells) != len(self._header):
            raise SourceError(
                f"{self.path}, line {place.line}: found {len(cells)} fields, expected {len(self._header)} "
                "as in the header"
            )
        return cells

    def _number(self, cell: str, line: int, column: int) -> float | None:
        try:
            return self._numbers.read(cell, f"{self.path}, line {line}", self._header[column])
        except CsvError as error:
            raise SourceError(str(error)) from None

    def _time(self, cell: str, line: int, row: int = 0) -> int:
        where = f"{self.path}, line {line}, column {self._header[0]!r}"
        try:
            time_us = self._times.read(cell, f"{self.path}, line {line}") + row // self._lap_rows * self._lap_us
        except CsvError as error:
            raise SourceError(str(error)) from None
        if self._last_us is not None and time_us < self._last_us:
            before = datetime.fromtimestamp(self._last_us / 1e6, UTC).isoformat()
            raise SourceError(f"{where}: time runs backwards: found {cell.strip()!r}, expected {before} or later")
        self._last_us = time_us
        return time_us

    def _cells(self, raw: bytes, line: int) -> list[str]:
        try:
            return split_line(raw, f"{self.path}, line {line}", self._separator)
        except CsvError as error:
            raise SourceError(str(error)) from None


def check_csv(path: Path, table: SensorTable) -> CsvSummary:
    """Read a whole CSV against the whole sensors table, so that errors show before any service starts.

    Raises:
        SourceError: the file, its header or one of its rows cannot be used.
    """
    file = CsvFile(path, table, table.sensors)
    rows = readings = 0
    first_us: int | None = None
    last_us: int | None = None
    try:
        while (row := file.next_row()) is not None:
            rows += 1
            readings += len(row.values)
            first_us = row.time_us if first_us is None else first_us
            last_us = row.time_us
    finally:
        file.close()
    if rows == 0:
        raise SourceError(f"{path}: no rows below the header")
    first, last = (None if time is None else datetime.fromtimestamp(time / 1e6, UTC) for time in (first_us, last_us))
    return CsvSummary(rows, len(table), readings, first, last, file.unknown)


def some(names: Iterable[str]) -> str:
    """Return the first five names as a text, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - 5} more" if len(listed) > 5 else ""
    return ", ".join(repr(name) for name in listed[:5]) + more
