"""Reads a history from a Parquet file: a column for each sensor, null = no reading, and perhaps a column `time`.

Times are timestamps with a zone, ISO 8601 texts with one, or seconds since 1970. A piece is a row group, so the way a
file was written decides how many tasks can share it; row groups of some hundred megabytes are good.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.history_piece import HistoryPiece, HistoryRows, batch_rows
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.csv_text import CsvError, read_time
from tsunagi.runtime.naming import is_time, text_fault
from tsunagi.runtime.times import hint, in_range

if TYPE_CHECKING:
    import pyarrow as pa

Times = npt.NDArray[np.int64]


def examine(path: Path) -> tuple[tuple[str, ...], bool, list[HistoryPiece], int]:
    """Return sensors, whether there are times, the pieces, and the size of the readings as float64 in bytes.

    Raises:
        ModelError: the columns cannot be used, or the file cannot be read.
    """
    import pyarrow as pa  # noqa: PLC0415 - not in the services' image, which needs it for nothing else

    file = _open(path)
    schema = file.schema_arrow
    clock = _time_column(path, schema.names)
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
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
            raise ModelError(f"{path}: {name}: found a column of {kind}, expected numbers")
    pieces: list[HistoryPiece] = []
    number = 0
    for group in range(file.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if not rows:
            continue
        first = number
        if timed:
            batch = next(file.iter_batches(batch_size=1, row_groups=[group], columns=[clock]))
            first = int(_times(path, "row 1 of a row group", batch.column(0))[0])
        pieces.append(HistoryPiece(path, group, group + 1, first, rows))
        number += rows
    return names, timed, pieces, number * len(names) * 8


def read(piece: HistoryPiece, names: tuple[str, ...], *, timed: bool) -> Iterator[HistoryRows]:
    """Read a piece, some rows at a time.

    Raises:
        ModelError: a row cannot be used; the message names file and row group, what was found and expected.
    """
    file = _open(piece.path)
    left, number = piece.rows, piece.first
    groups = list(range(piece.begin, piece.end))
    clock = _time_column(piece.path, file.schema_arrow.names) if timed else None
    columns = [clock, *names] if timed else list(names)
    newest: int | None = None
    for batch in file.iter_batches(batch_size=batch_rows(len(names)), row_groups=groups, columns=columns):
        rows = batch.num_rows if left is None else min(left, batch.num_rows)
        if not rows:
            return
        batch = batch.slice(0, rows)  # noqa: PLW2901 - only the rows that count
        where = f"row group {piece.begin}, row {number - piece.first}"
        times: Times = np.arange(number, number + rows, dtype=np.int64)
        if timed:
            times = _times(piece.path, where, batch.column(batch.schema.names.index(clock)))
            before = times[:-1] if newest is None else np.concatenate([[newest], times[:-1]])
            wrong = np.flatnonzero(times[len(times) - len(before) :] <= before)
            if len(wrong):
                place = int(wrong[0]) + len(times) - len(before)
                where = f"row group {piece.begin}, row {number - piece.first + place}"
                raise ModelError(f"{piece.path}, {where}: its time is not later than that of the row before")
            newest = int(times[-1])
        yield HistoryRows(times, _values(piece.path, where, batch, names), where)
        number += rows
        left = None if left is None else left - rows


def _open(path: Path) -> Any:  # noqa: ANN401 - pyarrow has no types
    try:
        import pyarrow as pa  # noqa: PLC0415
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError:
        raise ModelError(f"{path}: Parquet needs pyarrow, which the image tsunagi-spark has") from None
    try:
        found = path.stat()
        # A task reads one row group after the other: with thousands of columns the footer takes longer than the rows.
        return parquet.ParquetFile(path, metadata=_footer(path, found.st_mtime_ns, found.st_size))
    except (OSError, pa.ArrowException) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from None


@lru_cache(maxsize=1)
def _footer(path: Path, _mtime_ns: int, _size: int) -> Any:  # noqa: ANN401 - as above
    from pyarrow import parquet  # noqa: PLC0415

    return parquet.read_metadata(path)


def _time_column(path: Path, names: list[str]) -> str | None:
    """Return the name of the column of times; None if there is none."""
    found = [name for name in names if is_time(name)]
    if len(found) > 1:
        raise ModelError(f"{path}: found the columns {found[0]!r} and {found[1]!r}, expected one column of times")
    return found[0] if found else None


def _values(path: Path, where: str, batch: pa.RecordBatch, names: tuple[str, ...]) -> Floats:
    """Return the readings in the sensors' columns, float64[rows, n].

    Raises:
        ModelError: a whole number is beyond 2^53, where float64 cannot tell it from its neighbours.
    """
    import pyarrow as pa  # noqa: PLC0415

    places = {name: place for place, name in enumerate(batch.schema.names)}
    values = np.empty((batch.num_rows, len(names)))
    for column, name in enumerate(names):
        try:
            values[:, column] = batch.column(places[name]).cast("float64").to_numpy(zero_copy_only=False)
        except pa.ArrowInvalid as error:
            raise ModelError(
                f"{path}, {where}: {name}: {error}; expected at most 2^53: scale the column, or write it as float64"
            ) from None
    return values


def _times(path: Path, where: str, column: Any) -> Times:  # noqa: ANN401 - as above
    """Return the times in a column, in microseconds since 1970."""
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import compute as pc  # noqa: PLC0415

    kind = column.type
    if column.null_count:
        raise ModelError(f"{path}, {where}: time: found nothing, expected a time in every row")
    if pa.types.is_timestamp(kind):
        if kind.tz is None:
            raise ModelError(f"{path}: time: found timestamps without a zone, expected them with one, such as UTC")
        # Nanoseconds may be cut off, but a time beyond the range of microseconds must not become another time.
        options = pc.CastOptions(pa.timestamp("us", tz=kind.tz), allow_time_truncate=True)
        try:
            microseconds = column.cast(options=options).cast("int64").to_numpy(zero_copy_only=False)
        except pa.ArrowInvalid as error:
            raise ModelError(f"{path}, {where}: time: {error}") from None
        return _checked(path, where, np.asarray(microseconds, dtype=np.int64))
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        seconds = column.cast("float64", safe=False).to_numpy(zero_copy_only=False)
        if not np.isfinite(seconds).all():
            raise ModelError(f"{path}, {where}: time: found NaN or infinity, expected epoch seconds")
        return _checked(path, where, np.round(seconds * 1e6))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        try:
            return np.array([read_time(cell, f"{path}, {where}") for cell in column.to_pylist()], dtype=np.int64)
        except CsvError as error:
            raise ModelError(str(error)) from None
    raise ModelError(f"{path}: time: found a column of {kind}, expected timestamps with a zone, or epoch seconds")


def _checked(path: Path, where: str, times_us: npt.NDArray[np.int64 | np.float64]) -> Times:
    """Return times, in microseconds since 1970, as int64[rows].

    Raises:
        ModelError: a time is beyond the range of times.
    """
    for time_us in (times_us.min(initial=0), times_us.max(initial=0)):
        if not in_range(float(time_us)):
            found = float(time_us) / 1e6
            raise ModelError(f"{path}, {where} or below: time: found {found:.15g}: {hint(found)}")
    return times_us.astype(np.int64)
