"""Reads a CSV of readings, wide or long, some rows at a time: it may be larger than memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from operator import itemgetter
from pathlib import Path

import numpy as np

from tsunagi.runtime.csv_text import CsvError, Dialect, check_header, passed_over, read_columns, split_line
from tsunagi.runtime.settings import TableSettings
from tsunagi.runtime.tables.block import MEASURED, ReadingBlock, SensorNames, TablePlace
from tsunagi.runtime.tables.cells import NumberReader, TimeReader
from tsunagi.runtime.tables.layout import TableError, find_layout

CHUNK_BYTES = 1 << 20
"""Bytes that are read at a time: some ten thousand rows, which are worth the work of a block."""


class CsvTable:
    """A CSV of readings.

    Args:
        path: the file.
        form: how it is read.
        names: the numbers of the sensors. Several files share them.

    Attributes:
        layout: which columns count.
        first: where the first row begins.
        end: where the last row ends, once `blocks` has come to it.
        digest: SHA-256 of the header, in hex.

    Raises:
        TableError: the file cannot be opened, or its header cannot be used.
    """

    def __init__(self, path: Path, form: TableSettings, names: SensorNames) -> None:
        self.path = path
        self.names = names
        try:
            with path.open("rb") as file:
                header = read_columns(file, path, Dialect(form.separator, form.decimal), form.time)
            self._header_line = f"{path}, line {header.line - 1}"
            self.layout = find_layout(header.names, form, self._header_line)
            if not self.layout.long:
                check_header(header, path, form.time)
        except CsvError as error:
            raise TableError(str(error)) from None
        except FileNotFoundError:
            raise TableError(f"{path}: no such file") from None
        except OSError as error:
            raise TableError(f"{path}: cannot be read: {error.strerror}") from None
        self.first = self.end = TablePlace(0, header.line, header.offset)
        self.digest = sha256(header.text.encode()).hexdigest()
        self._separator = header.dialect.separator
        self._columns = header.names
        self._numbers = NumberReader(form, header.dialect)
        self._times = TimeReader(form, header.names[self.layout.time] if self.layout.time >= 0 else "time")
        if not self.layout.long:
            self._sensors = [names.number(name, self._header_line, name) for name in header.sensors]

    def blocks(self, begin: TablePlace | None = None) -> Iterator[ReadingBlock]:
        """Yield the readings from a place on; None = from the first row.

        Raises:
            TableError: a row cannot be used. All readings before it have been yielded.
        """
        place = begin or self.first
        try:
            with self.path.open("rb") as file:
                file.seek(place.offset)
                while raws := file.readlines(CHUNK_BYTES):
                    found = self._long_block(raws, place) if self.layout.long else None
                    if found is None:
                        yield from self._careful(raws, place)
                    else:
                        yield found
                    place = TablePlace(
                        place.row + sum(not passed_over(raw) for raw in raws)
                        if found is None
                        else place.row + len(raws),
                        place.line + len(raws),
                        place.offset + sum(map(len, raws)),
                    )
        except OSError as error:
            raise TableError(f"{self.path}: cannot be read: {error.strerror}") from None
        self.end = place

    def _long_block(self, raws: list[bytes], place: TablePlace) -> ReadingBlock | None:
        """Return the readings of lines; None if one of them is not plain, so that each must be looked at alone."""
        try:
            text = b"".join(raws).decode()
        except UnicodeDecodeError:
            return None
        if "\r" in text:
            text = text.replace("\r\n", "\n")
        if '"' in text or "\r" in text or text[0] == "#" or "\n#" in text:
            return None
        lines = text.removesuffix("\n").split("\n")
        rows = [line.split(self._separator) for line in lines]
        if set(map(len, rows)) != {len(self._columns)}:
            return None
        layout = self.layout
        values = self._numbers.plain(list(map(itemgetter(layout.value), rows)))
        if values is None:
            return None
        times = list(map(itemgetter(layout.time), rows))
        sensors = list(map(itemgetter(layout.sensor), rows))
        where = f"{self.path}, line {place.line} or below"
        try:
            time_of = {time: self._times.read(time, where) for time in dict.fromkeys(times)}
            number_of = {name: self._sensor(name, where) for name in dict.fromkeys(sensors)}
        except (CsvError, TableError):
            return None
        estimated = np.zeros(len(rows), dtype=np.bool_)
        for column, wanted in zip((layout.quality, layout.query), MEASURED, strict=True):
            if column >= 0:
                estimated |= np.array([row[column].strip() != wanted for row in rows])
        starts = np.cumsum([0, *map(len, raws[:-1])])
        count = np.arange(len(rows))
        return ReadingBlock(
            place.row + count,
            place.line + count,
            place.offset + starts,
            np.array([time_of[time] for time in times], dtype=np.int64),
            np.array([number_of[name] for name in sensors], dtype=np.int64),
            values,
            np.zeros(len(rows), dtype=np.bool_),
            estimated,
        )

    def _sensor(self, written: str, where: str) -> int:
        found = self.names.find(written)
        return self.names.number(written, where, self._columns[self.layout.sensor]) if found is None else found

    def _careful(self, raws: list[bytes], place: TablePlace) -> Iterator[ReadingBlock]:
        """Yield the readings of lines, each looked at alone. Readings before a row that cannot be used come first."""
        rows = _Rows()
        row, offset = place.row, place.offset
        fault: Exception | None = None
        for line, raw in enumerate(raws, start=place.line):
            if not passed_over(raw):
                try:
                    self._row(raw, TablePlace(row, line, offset), rows)
                except (CsvError, TableError) as error:
                    fault = error
                    break
                row += 1
            offset += len(raw)
        if rows.places:
            yield rows.block()
        if fault is not None:
            raise TableError(str(fault)) from None

    def _row(self, raw: bytes, place: TablePlace, rows: _Rows) -> None:
        where = f"{self.path}, line {place.line}"
        cells = split_line(raw, where, self._separator)
        if len(cells) != len(self._columns):
            raise TableError(f"{where}: found {len(cells)} fields, expected {len(self._columns)} as in the header")
        layout = self.layout
        time_us = self._times.read(cells[layout.time], where) if layout.time >= 0 else place.row * 1_000_000
        if layout.long:
            sensor = self._sensor(cells[layout.sensor], where)
            found = (layout.quality, layout.query)
            marks = [
                cells[column].strip() if column >= 0 else mark for column, mark in zip(found, MEASURED, strict=True)
            ]
            value = self._numbers.read(cells[layout.value], where, self._columns[layout.value])
            rows.add(place, time_us, [sensor], [value], estimated=tuple(marks) != MEASURED)
            return
        texts = cells[layout.time + 1 :]
        plain = self._numbers.plain(texts)
        if plain is not None:
            rows.add(place, time_us, self._sensors, plain.tolist())
            return
        there = [at for at, text in enumerate(texts) if text.strip()]
        names = self._columns[layout.time + 1 :]
        values = [self._numbers.read(texts[at], where, names[at]) for at in there]
        rows.add(place, time_us, [self._sensors[at] for at in there], values)


class _Rows:
    """Readings that are collected row by row."""

    def __init__(self) -> None:
        self.places: list[TablePlace] = []
        self._times_us: list[int] = []
        self._counts: list[int] = []
        self._estimated: list[bool] = []
        self._sensors: list[int] = []
        self._values: list[float | None] = []

    def add(
        self,
        place: TablePlace,
        time_us: int,
        sensors: Sequence[int],
        values: Sequence[float | None],
        *,
        estimated: bool = False,
    ) -> None:
        self.places.append(place)
        self._times_us.append(time_us)
        self._counts.append(len(sensors))
        self._estimated.append(estimated)
        self._sensors.extend(sensors)
        self._values.extend(values)

    def block(self) -> ReadingBlock:
        places = np.repeat(np.array(self.places, dtype=np.int64), self._counts, axis=0)
        values = np.array(self._values, dtype=np.float64)  # None becomes NaN
        missing = np.zeros(len(values), dtype=np.bool_)
        maybe = np.flatnonzero(np.isnan(values))  # NaN may also stand in the file as a number
        missing[maybe] = [self._values[at] is None for at in maybe.tolist()]
        return ReadingBlock(
            places[:, 0],
            places[:, 1],
            places[:, 2],
            np.repeat(np.array(self._times_us, dtype=np.int64), self._counts),
            np.array(self._sensors, dtype=np.int64),
            values,
            missing,
            np.repeat(np.array(self._estimated, dtype=np.bool_), self._counts),
        )
