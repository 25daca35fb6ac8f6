"""What a pipeline is given in Python, as the files that services read: readings and the sensors table."""

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
from tsunagi.edge.source import SourceError
from tsunagi.operator_names import PipelineError
from tsunagi.recovery import history_parquet
from tsunagi.runtime.csv_text import CsvError, read_header, row_writer
from tsunagi.runtime.naming import is_time
from tsunagi.runtime.sensors import SensorsError, SensorTable

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = "time"
_PARQUET = frozenset({".parquet", ".pq"})
READINGS, SENSORS = "rows.csv", "sensors.csv"
EDGE = "edge-1"
"""The edge of all sensors where no table says otherwise."""

Readings = Sequence[Mapping[str, Any]]


class Scan(NamedTuple):
    """What a file of readings has; `first_us` and `interval_s` are None where its rows have no times.

    Attributes:
        interval_s: the usual time between two rows, the median.
    """

    rows: int
    first_us: int | None
    interval_s: float | None


def write_readings(source: Path | Readings, directory: Path) -> Path:
    """Return the CSV that an edge reads: the given one, or one that is written.

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


def _cell(value: object, where: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, Real):
        raise PipelineError(f"{where}: found {value!r}, expected a number or None")
    return "" if math.isnan(value) else repr(float(value))


def _of_parquet(path: Path) -> tuple[list[str], Iterator[list[Any]]]:
    names, timed, pieces, _ = history_parquet.examine(path)

    def cells() -> Iterator[list[Any]]:
        for piece in pieces:
            for part in history_parquet.read(piece, names, timed=timed):
                for time_us, values in zip(part.times.tolist(), part.values.tolist(), strict=True):
                    readings = ["" if math.isnan(value) else repr(value) for value in values]
                    moment = (_EPOCH + timedelta(microseconds=time_us)).isoformat()
                    yield [moment, *readings] if timed else readings

    return [_TIME, *names] if timed else list(names), cells()


def write_sensors(rows: Iterable[Mapping[str, Any]] | None, data: Path | None, directory: Path) -> Path:
    """Write a sensors table; None = every column of the readings is a sensor of one edge.

    Raises:
        PipelineError: there is nothing to make it of.
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


def scan(data: Path, table: SensorTable) -> Scan:
    """Read a CSV of readings to its end, so that its errors show before anything starts.

    Raises:
        SourceError: it cannot be used, as where time runs backwards.
        PipelineError: it has no rows.
    """
    file = CsvFile(data, table, table.sensors)
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
    """Have errors name the row that was given in Python, not the line of the file that was written of it."""
    try:
        yield
    except (SourceError, SensorsError) as error:
        text = str(error)
        for file, name in ((READINGS, "source"), (SENSORS, "sensors")):
            text = re.sub(rf"{re.escape(str(directory / file))}, line (\d+)", partial(_row, name), text)
        raise type(error)(text) from None


def _row(name: str, line: re.Match[str]) -> str:
    number = int(line[1]) - 1  # the names of the columns stand above the rows
    return f"{name}, row {number}" if number else name
