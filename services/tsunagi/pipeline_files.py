"""Writes the readings and the sensors table that a pipeline is given in Python into files that the services read."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tsunagi.edge.csv_file import CsvFile
from tsunagi.edge.csv_tuples import CsvTuples
from tsunagi.edge.source import SourceError
from tsunagi.operator_names import PipelineError
from tsunagi.query.form import TupleForm
from tsunagi.recovery import history_parquet
from tsunagi.runtime.csv_text import CsvError, read_header, row_writer
from tsunagi.runtime.naming import is_time
from tsunagi.runtime.sensors import SensorsError, SensorTable
from tsunagi.runtime.settings import TableSettings

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""The moment from which times in microseconds are counted."""
_TIME = "time"
"""The name of the column of times in a written CSV, as edges expect it."""
_PARQUET = frozenset({".parquet", ".pq"})
"""The suffixes by which a Parquet file is known; every other file is read as a CSV."""
READINGS, SENSORS = "rows.csv", "sensors.csv"
"""The names of the written files."""
EDGE = "edge-1"
"""The edge of all sensors if the user gives no sensors table."""

Readings = Sequence[Mapping[str, Any]]


class Scan(NamedTuple):
    """What a file of readings contains.

    Attributes:
        rows: how many rows it has.
        first_us: the time of the first row, in microseconds since 1970; None if the rows have no times.
        interval_s: the median time between two rows, in seconds; None if the rows have no times.
    """

    rows: int
    first_us: int | None
    interval_s: float | None


def write_readings(source: Path | Readings, directory: Path) -> Path:
    """Return the CSV that an edge reads: the given one, or one that is written into the directory.

    Raises:
        PipelineError, ModelError: the readings cannot be used.
    """
    if isinstance(source, Path) and source.suffix.lower() not in _PARQUET:
        return source.absolute()
    file = directory / READINGS
    header, rows = _of_parquet(source) if isinstance(source, Path) else _of_rows(source)
    _write(file, [header], rows)
    return file


def _write(file: Path, *parts: Iterable[Sequence[Any]]) -> None:
    with file.open("w", encoding="utf-8", newline="") as text:
        write = row_writer(text)
        for part in parts:
            for row in part:
                write(row)


def _of_rows(rows: Readings) -> tuple[list[str], Iterator[list[Any]]]:
    if not rows:
        raise PipelineError("source: found no rows, expected at least one")
    names: dict[str, None] = {}
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise PipelineError(f"source, row {number}: found {row!r}, expected a mapping of sensors to values")
        names |= dict.fromkeys(row)
    timed = next((name for name in names if is_time(str(name))), None)
    sensors = [name for name in names if name != timed]
    header = [_TIME, *sensors] if timed is not None else sensors

    def cells() -> Iterator[list[Any]]:
        for number, row in enumerate(rows, start=1):
            readings = [_cell(row.get(name), f"source, row {number}: {name}") for name in sensors]
            time = row.get(timed) if timed is not None else None
            moment = time.isoformat() if isinstance(time, datetime) else "" if time is None else str(time)
            yield [moment, *readings] if timed is not None else readings

    return header, cells()


def write_events(stream: str, source: Path | Readings, directory: Path) -> Path:
    """Return the CSV of a stream's events: the given one, or one that is written into the directory.

    Raises:
        PipelineError: an event has no time.
    """
    if isinstance(source, Path):
        return source.absolute()
    file = directory / f"events-{stream}.csv"
    names = [name for name in dict.fromkeys(key for row in source for key in row) if name != _TIME]

    def cells() -> Iterator[list[str]]:
        for number, row in enumerate(source, start=1):
            if row.get(_TIME) is None:
                raise PipelineError(f"events of {stream}, row {number}: found no {_TIME}, expected one")
            yield [_event_cell(row.get(name)) for name in (_TIME, *names)]

    _write(file, [[_TIME, *names]], cells())
    return file


def _event_cell(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.isoformat()
    return "" if value is None else str(value)


def _cell(value: object, where: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, Real):
        raise PipelineError(f"{where}: found {value!r}, expected a number or None")
    return "" if math.isnan(value) else repr(float(value))


def _of_parquet(path: Path) -> tuple[list[str], Iterator[list[Any]]]:
    names, timed, pieces, _ = history_parquet.examine(path, TableSettings())

    def cells() -> Iterator[list[Any]]:
        for piece in pieces:
            for part in history_parquet.read(piece, names, TableSettings(), timed=timed):
                for time_us, values in zip(part.times.tolist(), part.values.tolist(), strict=True):
                    readings = ["" if math.isnan(value) else repr(value) for value in values]
                    moment = (_EPOCH + timedelta(microseconds=time_us)).isoformat()
                    yield [moment, *readings] if timed else readings

    return [_TIME, *names] if timed else list(names), cells()


def write_sensors(rows: Iterable[Mapping[str, Any]] | None, data: Path | None, directory: Path) -> Path:
    """Write a sensors table, and return its path.

    Args:
        rows: the rows of the table; None makes every column of the readings a sensor of one edge.
        data: the CSV of readings; None if a live source brings them.

    Raises:
        PipelineError: there are neither rows nor readings that can be read.
    """
    if rows is None:
        if data is None:
            raise PipelineError("sensors: found none, expected a table: a live source does not say what it will bring")
        try:
            with data.open("rb") as readings:
                names = read_header(readings, data).sensors
        except CsvError as error:
            raise PipelineError(str(error)) from None
        except OSError as error:
            raise PipelineError(f"source: {data}: cannot be read: {error.strerror}") from None
        rows = [{"sensor": name, "edge": EDGE} for name in names]
    given = list(rows)
    columns = list(dict.fromkeys(key for row in given for key in row))
    file = directory / SENSORS
    _write(file, [columns], ([row.get(column, "") for column in columns] for row in given))
    return file


def scan(data: Path, table: SensorTable, form: TupleForm | None = None, *, lacking: bool = False) -> Scan:
    """Read a CSV to its end, so that its errors show before anything starts.

    Args:
        form: the columns of tuples (CREATE STREAM); None = the file has readings.
        lacking: whether sensors may lack a column, as devices do that send events alone.

    Raises:
        SourceError: the file cannot be used, for example because its time runs backwards.
        PipelineError: the file has no rows.
    """
    file = (
        CsvFile(data, table, table.sensors, lacking=lacking)
        if form is None
        else CsvTuples(data, table, table.sensors, form)
    )
    times: list[int] = []
    rows = 0
    try:
        while (row := file.next_row()) is not None:
            rows += 1
            if row.time_us is not None:
                times.append(row.time_us)
    finally:
        file.close()
    if not rows:
        raise PipelineError(f"source: {data}: found no rows, expected at least one")
    between = np.diff(times)
    between = between[between > 0]
    return Scan(rows, times[0] if times else None, float(np.median(between)) / 1e6 if len(between) else None)


@contextlib.contextmanager
def rows_named(directory: Path) -> Iterator[None]:
    """Make errors name the row that the user gave in Python, not the line of the file into which it was written."""
    try:
        yield
    except (SourceError, SensorsError) as error:
        text = str(error)
        for file, name in ((READINGS, "source"), (SENSORS, "sensors")):
            text = re.sub(rf"{re.escape(str(directory / file))}, line (\d+)", partial(_row, name), text)
        raise type(error)(text) from None


def _row(name: str, line: re.Match[str]) -> str:
    number = int(line[1]) - 1  # the first line has the names of the columns
    return f"{name}, row {number}" if number else name
