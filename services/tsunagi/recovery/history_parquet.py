"""Reads a history from a Parquet file: a column for each sensor, null = no reading, and perhaps a column `time`.

Times are timestamps with a zone, ISO 8601 texts with one, or seconds since 1970. A piece is a row group, so the way a
file was written decides how many tasks can share it; row groups of some hundred megabytes are good.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.history_piece import HistoryPiece, HistoryRows, batch_rows, refused
from tsunagi.runtime.naming import is_time, text_fault
from tsunagi.runtime.settings import TableSettings
from tsunagi.runtime.tables.arrow import is_number, numbers_of, open_parquet, times_of
from tsunagi.runtime.tables.cells import Missing

Times = npt.NDArray[np.int64]


def examine(path: Path, form: TableSettings) -> tuple[tuple[str, ...], bool, list[HistoryPiece], int]:
    """Return sensors, whether there are times, the pieces, and the size of the readings as float64 in bytes.

    Args:
        form: which column has the times, and how they are read.

    Raises:
        ModelError: the columns cannot be used, or the file cannot be read.
    """
    with refused():
        file = open_parquet(path)
    schema = file.schema_arrow
    clock = _time_column(path, schema.names, form)
    timed = clock is not None
    names = tuple(name for name in schema.names if name != clock)
    if not names:
        raise ModelError(f"{path}: empty; expected a column a sensor")
    if len(set(names)) != len(names):
        double = sorted({name for name in names if names.count(name) > 1})
        raise ModelError(f"{path}: sensor {double[0]!r} stands twice")
    for name in names:
        if fault := text_fault(name):
            raise ModelError(f"{path}: column of a sensor: {fault}")
        kind = schema.field(name).type
        if not is_number(kind):
            raise ModelError(f"{path}: {name}: found a column of {kind}, expected numbers")
    pieces: list[HistoryPiece] = []
    number = 0
    for group in range(file.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if not rows:
            continue
        first = number
        if clock is not None:
            batch = next(file.iter_batches(batch_size=1, row_groups=[group], columns=[clock]))
            with refused():
                first = int(times_of(batch.column(0), f"{path}, row 1 of a row group", form, clock)[0])
        pieces.append(HistoryPiece(path, group, group + 1, first, rows))
        number += rows
    return names, timed, pieces, number * len(names) * 8


def read(piece: HistoryPiece, names: tuple[str, ...], form: TableSettings, *, timed: bool) -> Iterator[HistoryRows]:
    """Read a piece, some rows at a time.

    Raises:
        ModelError: a row cannot be used; the message names file and row group, what was found and expected.
    """
    with refused():
        file = open_parquet(piece.path)
    left, number = piece.rows, piece.first
    groups = list(range(piece.begin, piece.end))
    clock = _time_column(piece.path, file.schema_arrow.names, form) if timed else None
    columns = [clock, *names] if timed else list(names)
    missing = Missing(form).numbers
    newest: int | None = None
    for batch in file.iter_batches(batch_size=batch_rows(len(names)), row_groups=groups, columns=columns):
        rows = batch.num_rows if left is None else min(left, batch.num_rows)
        if not rows:
            return
        batch = batch.slice(0, rows)  # noqa: PLW2901 - only the rows that count
        where = f"{piece.path}, row group {piece.begin}, row {number - piece.first}"
        times: Times = np.arange(number, number + rows, dtype=np.int64)
        values = np.empty((rows, len(names)))
        places = {name: place for place, name in enumerate(batch.schema.names)}
        with refused():
            if clock is not None:
                times = times_of(batch.column(places[clock]), where, form, clock)
            for column, name in enumerate(names):
                values[:, column] = numbers_of(batch.column(places[name]), where, name)
        if timed:
            before = times[:-1] if newest is None else np.concatenate([[newest], times[:-1]])
            wrong = np.flatnonzero(times[len(times) - len(before) :] <= before)
            if len(wrong):
                place = int(wrong[0]) + len(times) - len(before)
                where = f"row group {piece.begin}, row {number - piece.first + place}"
                raise ModelError(f"{piece.path}, {where}: its time is not later than that of the row before")
            newest = int(times[-1])
        if len(missing):
            values[np.isin(values, missing)] = np.nan
        yield HistoryRows(times, values, where.removeprefix(f"{piece.path}, "))
        number += rows
        left = None if left is None else left - rows


def _time_column(path: Path, names: list[str], form: TableSettings) -> str | None:
    """Return the name of the column of times; None if there is none."""
    if form.time:
        return form.time if form.time in names else None
    found = [name for name in names if is_time(name)]
    if len(found) > 1:
        raise ModelError(f"{path}: found the columns {found[0]!r} and {found[1]!r}, expected one column of times")
    return found[0] if found else None
