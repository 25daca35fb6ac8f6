"""Past readings in CSV or Parquet files: lists what there is, and reads it a bounded number of rows at a time.

One row is a reading time: a column `time` (optional, the first one in a CSV) and a column for each sensor. The files of
a directory follow each other in the order of their names. The list is small, and can be sent to whoever reads the rows.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tsunagi.recovery import history_csv, history_parquet
from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.history_piece import HistoryPiece, HistoryRows, refused
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.settings import TableSettings
from tsunagi.runtime.tables.files import is_parquet, list_tables

__all__ = ["History", "HistoryFiles", "HistoryPiece", "HistoryRows", "list_history", "read_history"]

TAIL_ROWS = 100
"""Number of last rows that show how far apart rows are."""

_USUAL = TableSettings()
"""The form of files that tell by themselves how they are read."""

Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class History:
    """Past readings in memory.

    Attributes:
        names: names of the sensors, in the file's order.
        values: float64[rows, n]; NaN means no reading.
        times_us: int64[rows], event times, microseconds since 1970, ascending; None if there is no column of times.
    """

    names: tuple[str, ...]
    values: Floats
    times_us: Times | None


@dataclass(frozen=True, slots=True)
class HistoryFiles:
    """The files of a history and their rows.

    Attributes:
        path: the path as it was given, for messages.
        names: names of the sensors, in the files' order.
        timed: whether rows have times; if not, they are numbered.
        pieces: the pieces in order; each can be read alone.
        size_bytes: rough size of the readings as float64.
        form: how the files are read.
    """

    path: Path
    names: tuple[str, ...]
    timed: bool
    pieces: tuple[HistoryPiece, ...]
    size_bytes: int
    form: TableSettings = _USUAL

    def read(self, piece: HistoryPiece, line: int | None = None) -> Iterator[HistoryRows]:
        """Read a piece, some rows at a time.

        Args:
            line: number of its first line in a CSV, for messages; None if it is not known.

        Raises:
            ModelError: a row cannot be used; the message names file and line, what was found and expected.
        """
        if is_parquet(piece.path):
            return history_parquet.read(piece, self.names, self.form, timed=self.timed)
        return history_csv.read(piece, self.names, line, self.form, timed=self.timed)

    def count(self, piece: HistoryPiece) -> int:
        """Return the number of rows of a piece; in a CSV they are counted by reading it."""
        if piece.rows is not None:
            return piece.rows
        return history_csv.count(piece)

    def part(self, share: float) -> HistoryFiles:
        """Return the history of the first rows alone, a share in (0, 1] of all."""
        if share == 1.0:
            return self
        counts = [self.count(piece) for piece in self.pieces]
        ends = np.cumsum(counts).tolist()
        end = round(share * ends[-1])
        if end == 0:
            raise ModelError(f"{self.path}: rows: the share {share} of {ends[-1]} rows is none, expected some")
        last = bisect.bisect_left(ends, end)
        kept = end - (ends[last - 1] if last else 0)
        pieces = (*self.pieces[:last], self.pieces[last]._replace(rows=kept))
        return replace(self, pieces=pieces, size_bytes=round(self.size_bytes * end / ends[-1]))

    def times(self, piece: HistoryPiece) -> Times:
        """Return the times of a piece's rows, int64[rows], in microseconds; or their numbers."""
        if not self.timed:
            return np.arange(piece.first, piece.first + self.count(piece), dtype=np.int64)
        if is_parquet(piece.path):
            return np.concatenate([rows.times for rows in history_parquet.read(piece, (), self.form, timed=True)])
        return np.concatenate([rows.times for rows in self.read(piece)])

    def tail(self) -> Times:
        """Return the times of the last rows: `TAIL_ROWS` of them or more, if there are."""
        found = np.empty(0, dtype=np.int64)
        for piece in reversed(self.pieces):
            found = np.concatenate([self.times(piece), found])
            if len(found) >= TAIL_ROWS:
                break
        return found


def list_history(path: Path, form: TableSettings = _USUAL) -> HistoryFiles:
    """List a file, or the files of a directory, without reading the readings.

    Args:
        form: how the files are read, if they do not tell by themselves.

    Raises:
        ModelError: there is no file, or the files do not belong together.
    """
    files = _files(path)
    first: HistoryFiles | None = None
    for file in files:
        found = _list_file(file, first, form)
        if first is None:
            first = found
            continue
        if found.names != first.names or found.timed != first.timed:
            other = sorted(set(found.names) ^ set(first.names))
            what = f"sensor {other[0]!r} stands in only one of them" if other else "they have other columns"
            raise ModelError(f"{file}: does not go on from {files[0].name}: {what}")
        size = first.size_bytes + found.size_bytes
        first = replace(first, pieces=first.pieces + found.pieces, size_bytes=size)
    if first is None or not first.pieces:
        raise ModelError(f"{path}: no readings below the header")
    for before, piece in zip(first.pieces, first.pieces[1:], strict=False):
        if piece.first <= before.first:
            raise ModelError(
                f"{piece.path}: its time is not later than that of {before.path.name}; files are read in the order of "
                "their names"
            )
    return replace(first, path=path)


def _files(path: Path) -> list[Path]:
    with refused():
        found = list_tables(path)
    if len({is_parquet(file) for file in found}) > 1:
        raise ModelError(f"{path}: found both CSV and Parquet files, expected files of one kind")
    return found


def _list_file(path: Path, before: HistoryFiles | None, form: TableSettings) -> HistoryFiles:
    if is_parquet(path):
        names, timed, pieces, size = history_parquet.examine(path, form)
    else:
        names, timed, pieces, size = history_csv.examine(path, form)
    if not timed and before is not None:  # rows are numbered through
        last = before.pieces[-1]
        offset = last.first + before.count(last)
        pieces = [piece._replace(first=piece.first + offset) for piece in pieces]
    return HistoryFiles(path, names, timed, tuple(pieces), size, form)


def read_history(path: Path, form: TableSettings = _USUAL) -> History:
    """Read a whole history.

    Args:
        form: as for `list_history`.

    Raises:
        ModelError: a row cannot be used; the message names file and line, what was found and expected.
    """
    files = list_history(path, form)
    times: list[Times] = []
    values: list[Floats] = []
    line: int | None = None
    previous: Path | None = None
    for piece in files.pieces:
        if piece.path != previous:
            line = None if is_parquet(piece.path) else history_csv.first_line(piece.path, form)
        previous = piece.path
        for rows in files.read(piece, line):
            if files.timed and times and rows.times[0] <= times[-1][-1]:
                raise ModelError(f"{piece.path}: time is not later than that of the row before, at {rows.where}")
            times.append(rows.times)
            values.append(rows.values)
            line = rows.next_line
    return History(files.names, np.concatenate(values), np.concatenate(times) if files.timed else None)
