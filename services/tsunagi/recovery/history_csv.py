"""Reads a history from a CSV: header = sensor names, one row a reading time, an empty cell = no reading.

The first column may be `time`: ISO 8601 with a zone, or seconds since 1970. A row is a line.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.history_piece import HistoryPiece, HistoryRows, batch_rows
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.csv_text import CsvError, Dialect, Header, passed_over, read_header, split_line
from tsunagi.runtime.settings import TableSettings
from tsunagi.runtime.tables.cells import NumberReader, TimeReader

PIECE_BYTES = 16 * 2**20
"""Rough size of a piece in bytes: small enough to share a file between many tasks, large enough that a task is worth
its start."""
CELL_BYTES = 8
"""Rough size of a reading in a CSV, in bytes, for an estimate of its size as float64."""


def examine(path: Path, form: TableSettings) -> tuple[tuple[str, ...], bool, list[HistoryPiece], int]:
    """Return sensors, whether there are times, the pieces, and the rough size of the readings as float64 in bytes.

    Args:
        form: which column has the times, and how cells are read.

    Raises:
        ModelError: the header cannot be used, or the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            header = _header(file, path, form)
            names, timed = header.sensors, header.timed
            times = TimeReader(form, header.names[0])
            begin, end = file.tell(), path.stat().st_size
            places = [begin]
            while places[-1] + PIECE_BYTES < end:
                file.seek(places[-1] + PIECE_BYTES)
                file.readline()
                if file.tell() >= end:
                    break
                places.append(file.tell())
            pieces: list[HistoryPiece] = []
            number = 0
            for first, last in zip(places, [*places[1:], end], strict=True):
                piece = HistoryPiece(path, first, last, number)
                if timed:
                    file.seek(first)
                    line = _next_line(file, last)
                    if passed_over(line):
                        continue
                    where = f"{path}, line {header.line}" if first == begin else f"{path}, byte {first}"
                    piece = piece._replace(
                        first=times.read(split_line(line, where, header.dialect.separator)[0], where)
                    )
                else:
                    rows = count(piece)
                    if not rows:
                        continue
                    number += rows
                    piece = piece._replace(rows=rows)
                pieces.append(piece)
    except CsvError as error:
        raise ModelError(str(error)) from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    return names, timed, pieces, (end - begin) // CELL_BYTES * 8


def _header(file: BinaryIO, path: Path, form: TableSettings) -> Header:
    return read_header(file, path, Dialect(form.separator, form.decimal), form.time)


def _next_line(file: BinaryIO, end: int) -> bytes:
    """Return the next line before `end` that is a row."""
    line = file.readline()
    while line and passed_over(line) and file.tell() < end:
        line = file.readline()
    return line


def first_line(path: Path, form: TableSettings) -> int:
    """Return the number of the first line below the header.

    Raises:
        ModelError: there is no header.
    """
    try:
        with path.open("rb") as file:
            return _header(file, path, form).line
    except CsvError as error:
        raise ModelError(str(error)) from None


def count(piece: HistoryPiece) -> int:
    """Return the number of rows of a piece."""
    with piece.path.open("rb") as file:
        file.seek(piece.begin)
        text = file.read(piece.end - piece.begin)
    return sum(1 for line in text.splitlines() if not passed_over(line))


def read(
    piece: HistoryPiece, names: tuple[str, ...], line: int | None, form: TableSettings, *, timed: bool
) -> Iterator[HistoryRows]:
    """Read a piece; `line` is the number of its first line, None if it is not known.

    Raises:
        ModelError: a row cannot be used; the message names file and line, what was found and expected.
    """
    most, width = batch_rows(len(names)), len(names) + timed
    times: list[int] = []
    values: list[Floats] = []
    number, begin, at, newest = piece.first, "", piece.begin, None
    try:
        with piece.path.open("rb") as file:
            header = _header(file, piece.path, form)
            clock, numbers = TimeReader(form, header.names[0]), NumberReader(form, header.dialect)
            file.seek(piece.begin)
            left = piece.rows
            while at < piece.end and left != 0:
                raw = file.readline()
                where = f"{piece.path}, line {line}" if line is not None else f"{piece.path}, byte {at}"
                at, line = at + len(raw), None if line is None else line + 1
                if passed_over(raw):
                    continue
                cells = split_line(raw, where, header.dialect.separator)
                if len(cells) != width:
                    raise ModelError(f"{where}: found {len(cells)} fields, expected {width}")
                time = clock.read(cells[0], where) if timed else number
                if newest is not None and time <= newest:
                    raise ModelError(f"{where}: time {cells[0]!r} is not later than that of the line before")
                begin, newest = begin or where, time
                times.append(time)
                values.append(_numbers(where, names, cells[1:] if timed else cells, numbers))
                number, left = number + 1, None if left is None else left - 1
                if len(times) == most:
                    yield HistoryRows(np.array(times, dtype=np.int64), np.stack(values), begin, line)
                    times, values, begin = [], [], ""
    except CsvError as error:
        raise ModelError(str(error)) from None
    except OSError as error:
        raise ModelError(f"{piece.path}: cannot be read: {error.strerror}") from None
    if times:
        yield HistoryRows(np.array(times, dtype=np.int64), np.stack(values), begin, line)


def _numbers(where: str, names: tuple[str, ...], cells: list[str], numbers: NumberReader) -> Floats:
    """Return the readings of a row, float64[n]; NaN means no reading."""
    found = numbers.plain(cells)
    if found is not None:
        return found
    row = np.full(len(cells), np.nan)
    for place, cell in enumerate(cells):
        value = numbers.read(cell, where, names[place])
        if value is not None:
            row[place] = value
    return row
