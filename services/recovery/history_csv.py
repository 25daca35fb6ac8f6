"""A CSV of readings: header = sensor names, one row a reading time, empty cell = no reading.

The first column may be `time`: ISO 8601 with a zone, or seconds since the epoch. A row is a line.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from services.recovery.history_piece import Piece, Rows, batch_rows
from services.recovery.model import ModelError
from services.runtime.columns import Floats
from services.runtime.times import NoZoneError, read_time_us

TIME = "time"
PIECE_BYTES = 16 * 2**20
CELL_BYTES = 8
"""Of a reading in a CSV, about, for an estimate of its size as float64."""


def examine(path: Path) -> tuple[tuple[str, ...], bool, list[Piece], int]:
    """Return sensors, whether there are times, the pieces, and the size of the readings as float64, about.

    Raises:
        ModelError: the header cannot be used, or the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            raw = file.readline()
            while raw and not raw.strip():
                raw = file.readline()
            names, timed = _header(path, _cells(path, "line 1", raw.removeprefix(b"\xef\xbb\xbf")))
            begin, end = file.tell(), path.stat().st_size
            places = [begin]
            while places[-1] + PIECE_BYTES < end:
                file.seek(places[-1] + PIECE_BYTES)
                file.readline()
                if file.tell() >= end:
                    break
                places.append(file.tell())
            pieces: list[Piece] = []
            number = 0
            for first, last in zip(places, [*places[1:], end], strict=True):
                piece = Piece(path, first, last, number)
                if timed:
                    file.seek(first)
                    line = _next_line(file, last)
                    if not line.strip():
                        continue
                    where = "line 2" if first == begin else f"byte {first}"
                    piece = piece._replace(first=parse_time(path, where, _cells(path, where, line)[0]))
                else:
                    rows = count(piece)
                    if not rows:
                        continue
                    number += rows
                    piece = piece._replace(rows=rows)
                pieces.append(piece)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error}") from None
    return names, timed, pieces, (end - begin) // CELL_BYTES * 8


def _next_line(file: BinaryIO, end: int) -> bytes:
    """Return the next line that is not blank, before `end`."""
    line = file.readline()
    while line and not line.strip() and file.tell() < end:
        line = file.readline()
    return line


def _header(path: Path, cells: list[str]) -> tuple[tuple[str, ...], bool]:
    names = [cell.strip() for cell in cells]
    timed = bool(names) and names[0] == TIME
    sensors = names[1:] if timed else names
    if not sensors or names == [""]:
        raise ModelError(f"{path}: empty; expected a header of sensor names")
    double = sorted({name for name in sensors if sensors.count(name) > 1})
    if double:
        raise ModelError(f"{path}, line 1: sensor {double[0]!r} stands twice")
    if "" in sensors:
        raise ModelError(f"{path}, line 1: column {names.index('') + 1} has no sensor name")
    return tuple(sensors), timed


def count(piece: Piece) -> int:
    """Return how many rows a piece has."""
    with piece.path.open("rb") as file:
        file.seek(piece.begin)
        text = file.read(piece.end - piece.begin)
    return sum(1 for line in text.splitlines() if line.strip())


def read(piece: Piece, names: tuple[str, ...], line: int | None, *, timed: bool) -> Iterator[Rows]:
    """Read a piece; `line` is the number of its first line, None = not known.

    Raises:
        ModelError: naming file and line, what was found and expected.
    """
    most, width = batch_rows(len(names)), len(names) + timed
    times: list[int] = []
    values: list[Floats] = []
    number, begin, at, newest = piece.first, "", piece.begin, None
    try:
        with piece.path.open("rb") as file:
            file.seek(piece.begin)
            left = piece.rows
            while at < piece.end and left != 0:
                raw = file.readline()
                where = f"line {line}" if line is not None else f"byte {at}"
                at, line = at + len(raw), None if line is None else line + 1
                if not raw.strip():
                    continue
                cells = _cells(piece.path, where, raw)
                if len(cells) != width:
                    raise ModelError(f"{piece.path}, {where}: found {len(cells)} fields, expected {width}")
                time = parse_time(piece.path, where, cells[0]) if timed else number
                if newest is not None and time <= newest:
                    raise ModelError(
                        f"{piece.path}, {where}: time {cells[0]!r} is not later than that of the line before"
                    )
                begin, newest = begin or where, time
                times.append(time)
                values.append(_numbers(piece.path, where, names, cells[1:] if timed else cells))
                number, left = number + 1, None if left is None else left - 1
                if len(times) == most:
                    yield Rows(np.array(times, dtype=np.int64), np.stack(values), begin, line)
                    times, values, begin = [], [], ""
    except OSError as error:
        raise ModelError(f"{piece.path}: cannot be read: {error}") from None
    if times:
        yield Rows(np.array(times, dtype=np.int64), np.stack(values), begin, line)


def _cells(path: Path, where: str, raw: bytes) -> list[str]:
    try:
        text = raw.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}: cannot be read: {where}: {error}") from None
    return next(csv.reader([text]), []) if '"' in text else text.split(",")


def parse_time(path: Path, where: str, cell: str) -> int:
    """Return microseconds since the epoch."""
    text = cell.strip()
    try:
        return read_time_us(text)
    except NoZoneError:
        example = f"{text}+00:00"
        raise ModelError(
            f"{path}, {where}: time: found {cell!r} without a zone, expected for example {example}"
        ) from None
    except ValueError:
        raise ModelError(f"{path}, {where}: time: found {cell!r}, expected ISO 8601 or epoch seconds") from None


def _numbers(path: Path, where: str, names: tuple[str, ...], cells: list[str]) -> Floats:
    try:
        return np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:
        pass  # an empty cell, or text
    row = np.full(len(cells), np.nan)
    for place, cell in enumerate(cells):
        if not cell.strip():
            continue
        try:
            row[place] = float(cell)
        except ValueError:
            raise ModelError(f"{path}, {where}: {names[place]}: found {cell!r}, expected a number or nothing") from None
    return row
