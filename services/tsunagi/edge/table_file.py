"""A long CSV, or a Parquet file, whose readings are handed out in the order of time: one row for each event time.

A long file has a row a reading, and rows of one time stand together. Rows of other edges' sensors are passed over. The
rows must be in the order of time, since a replay hands them out as time passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tsunagi.edge.csv_file import CsvRow, some
from tsunagi.edge.own_sensors import edges_by_name, places_by_name
from tsunagi.edge.source import FilePosition, SourceError
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.tables.block import ReadingBlock, TablePlace
from tsunagi.runtime.tables.csv_table import CsvTable
from tsunagi.runtime.tables.layout import TableError
from tsunagi.runtime.tables.parquet_table import ParquetTable

_MOST = 4096
"""Most readings that are handed out as one row. More of one time, as of sensors that nobody knows, make several."""
_FOREIGN, _STRANGER = -1, -2
"""Codes of sensors: of another edge, and of none in the sensors table. An own sensor has its place."""


class _Item(NamedTuple):
    """A reading that concerns this edge; `sensor` is its number in the file, `code` as above."""

    place: TablePlace
    time_us: int
    sensor: int
    code: int
    value: float
    missing: bool
    estimated: bool


class TableFile:
    """A `tsunagi.edge.csv_file.RowFile` of a long CSV, or of a Parquet file.

    Args:
        file: the opened file.
        table: the sensors table.
        wanted: the sensors to read.
        repeat: the first row follows the last one again, and row numbers and event times go on.
        lacking: whether sensors may lack a column of a wide file, as devices do that send events alone.

    Raises:
        SourceError: a wide file lacks a column.
    """

    def __init__(
        self,
        file: CsvTable | ParquetTable,
        table: SensorTable,
        wanted: tuple[Sensor, ...],
        *,
        repeat: bool = False,
        lacking: bool = False,
    ) -> None:
        self.path = file.path
        self.has_time = file.layout.time >= 0
        self.header_sha256 = file.digest
        self.first = FilePosition(*file.first)
        self._file = file
        self._repeat = repeat
        self._lacking = lacking or file.layout.long
        lack = self.change(table, wanted)
        if lack:
            raise SourceError(
                f"{self.path}: the sensors table contradicts the data: no column for "
                f"{some(sensor.name for sensor in lack)} (edge {wanted[0].edge!r}), found {some(file.names.names)}"
            )
        self._strict = True
        self._lap_rows, self._lap_us = self._measure() if repeat else (0, 0)
        self.seek(self.first)

    @property
    def place(self) -> FilePosition:
        """Where the next row begins; after the last one, the number of rows."""
        item = self._peek()
        return FilePosition(*(self._end if item is None else item.place))

    def seek(self, place: FilePosition) -> None:
        """Go on at a place that the property `place` had returned earlier."""
        self._lap = place.row // self._lap_rows if self._lap_rows else 0
        self._from_row = place.row
        self._end = TablePlace(place.row, place.line, place.offset)
        self._last_us: int | None = None
        begin = TablePlace(place.row - self._lap * self._lap_rows, place.line, place.offset)
        self._items = self._read(begin)
        self._next: _Item | None = None

    def change(self, table: SensorTable, wanted: tuple[Sensor, ...]) -> list[Sensor]:
        """Read other sensors from the next `seek` on; return those that should have a column and have none."""
        self._place_of = places_by_name(wanted)
        self._known = edges_by_name(table)
        self._codes: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._strict = False
        found = set(self._file.names.names)
        return [] if self._lacking else [sensor for sensor in wanted if not found & {sensor.name, sensor.key}]

    def skip(self, rows: int) -> None:
        """Pass over so many rows of the file, or over all that are left."""
        self._from_row += rows

    def next_row(self) -> CsvRow | None:
        """Return the readings of the next event time; None after the last one.

        Raises:
            SourceError: a row cannot be used, or time runs backwards.
        """
        first = self._peek()
        if first is None:
            return None
        if self._last_us is not None and first.time_us < self._last_us:
            raise SourceError(self._backwards(first))
        self._last_us = first.time_us
        values: dict[int, float] = {}
        strangers: list[tuple[str, str]] = []
        counts = [0, 0]  # missing, estimated
        for _ in range(_MOST):
            item = self._peek()
            if item is None or item.time_us != first.time_us or item.code in values:
                break
            self._next = None
            if item.code == _STRANGER:
                strangers.append((self._file.names.names[item.sensor], str(item.value)))
            elif item.estimated or item.missing:
                counts[item.estimated] += 1
            else:
                values[item.code] = item.value
        return CsvRow(
            FilePosition(*first.place),
            first.time_us if self.has_time else None,
            np.fromiter(values, np.intp, len(values)),
            np.fromiter(values.values(), np.float64, len(values)),
            strangers,
            missing=counts[0],
            estimated=counts[1],
        )

    def close(self) -> None:
        """Close the file."""
        self._items = iter(())
        self._next = None

    def _backwards(self, item: _Item) -> str:
        found, before = (datetime.fromtimestamp(us / 1e6, UTC).isoformat() for us in (item.time_us, self._last_us or 0))
        where = f"line {item.place.line}" if item.place.line else f"row {item.place.row + 1}"
        return (
            f"{self.path}, {where}: time runs backwards: found {found}, expected {before} or later; "
            "a replay needs rows in the order of time: sort the file by its times"
        )

    def _peek(self) -> _Item | None:
        while self._next is None or self._next.place.row < self._from_row:
            try:
                self._next = next(self._items, None)
            except TableError as error:
                raise SourceError(str(error)) from None
            if self._next is None:
                return None
        return self._next

    def _read(self, begin: TablePlace) -> Iterator[_Item]:
        """Yield the readings from a place on, in all laps, without those of other edges' sensors."""
        while True:
            rows, shift_us = self._lap * self._lap_rows, self._lap * self._lap_us
            found = False
            for block in self._file.blocks(begin):
                codes = self._coded(block, first=begin == self._file.first)
                mine = codes != _FOREIGN
                for row, line, offset, time_us, sensor, value, missing, estimated, code in _one_by_one(
                    block.chosen(mine), codes[mine]
                ):
                    place = TablePlace(row + rows, line, offset)
                    found = True
                    yield _Item(place, time_us + shift_us, sensor, code, value, missing, estimated)
            self._end = self._file.end._replace(row=self._file.end.row + rows)
            if not self._lap_rows or (not found and begin == self._file.first):
                return
            begin = self._file.first
            self._lap += 1

    def _coded(self, block: ReadingBlock, *, first: bool) -> npt.NDArray[np.int64]:
        """Return the code of each reading's sensor.

        Raises:
            TableError: the first block of the file has no sensor that the table has.
        """
        names = self._file.names.names
        more = [
            self._place_of.get(name, _FOREIGN if name in self._known else _STRANGER)
            for name in names[len(self._codes) :]
        ]
        self._codes = np.concatenate([self._codes, np.array(more, dtype=np.int64)])
        if first and self._strict and (self._codes == _STRANGER).all():
            raise TableError(
                f"{self.path}: no sensor is in the sensors table (found {some(names)}, expected {some(self._place_of)})"
            )
        return self._codes[block.sensors]

    def _measure(self) -> tuple[int, int]:
        """Return how many rows the file has, and the event time from its first row to that row's repetition."""
        times: list[int] = []
        try:
            for block in self._file.blocks():
                found = np.unique(block.times_us).tolist()
                times = sorted({*times[:1], *times[-2:], *found[:1], *found[-2:]})
        except TableError as error:
            raise SourceError(str(error)) from None
        rows = self._file.end.row
        # The first row is repeated as long after the last row as the last time came after the one before it.
        return rows, times[-1] - times[0] + (times[-1] - times[-2]) if len(times) > 1 else 0


def _one_by_one(block: ReadingBlock, codes: npt.NDArray[np.int64]) -> Iterator[tuple[Any, ...]]:
    """Yield the readings of a block as Python's numbers, of which only some are made at a time."""
    for begin in range(0, len(codes), _MOST):
        part = slice(begin, begin + _MOST)
        yield from zip(*(column[part].tolist() for column in (*block, codes)), strict=True)
