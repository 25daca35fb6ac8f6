"""`tsunagi fit`: a model from a CSV of readings, over the same windows as an edge computes."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import numpy as np

from services.recovery.estimation import FitReport, estimate
from services.recovery.model import Model, ModelError
from services.runtime.columns import Floats
from services.runtime.sensors import SensorTable
from services.runtime.settings import Steps

CHUNK_WINDOWS = 4096


@dataclass(frozen=True, slots=True)
class History:
    """Readings of a CSV file.

    Attributes:
        names: sensors, in the file's order.
        values: float64[rows, n]; NaN = no reading.
        times: the time cells as they stand there; empty without a time column.
    """

    names: tuple[str, ...]
    values: Floats
    times: tuple[str, ...]


def fit_csv(
    path: Path, table: SensorTable, steps: Steps, rows: float | tuple[int, int] = 1.0
) -> tuple[Model, FitReport]:
    """Fit a model to a CSV of readings.

    Args:
        path: the CSV: header = sensor names, optional first column `time`, one row a nominal interval.
        table: gives each sensor's edge, plausible range and maximal age; a sensor that only it has stays unmodelled.
        steps: window, slide and aggregate.
        rows: share of the rows from the start, in (0, 1], or (first, end) with end exclusive.

    Readings outside a sensor's plausible range count as missing.

    Raises:
        ModelError: naming file and line, what was found and expected.
    """
    history = read_history(path)
    sensors = {sensor.name: sensor for sensor in table.sensors}
    unknown = [name for name in history.names if name not in sensors]
    if unknown:
        raise ModelError(f"{path}, line 1: sensor {unknown[0]!r} is not in the sensors table ({len(unknown)} such)")
    first, end = _rows(path, len(history.values), rows)
    values = history.values[first:end].copy()
    of = [sensors[name] for name in history.names]
    low = np.nan_to_num(np.array([sensor.minimum for sensor in of]), nan=-np.inf)
    high = np.nan_to_num(np.array([sensor.maximum for sensor in of]), nan=np.inf)
    outside = (values < low) | (values > high)
    values[outside] = np.nan
    max_age_rows = np.array([sensor.max_age_s for sensor in of]) / steps.interval_s
    aggregates = windows(values, steps, max_age_rows)
    try:
        model, report = estimate(aggregates, history.names, edges=[sensor.edge for sensor in of])
    except ModelError as error:
        raise ModelError(f"{path}, rows {first} to {end}: {error}") from None
    about = {
        **model.about,
        "rows": [first, end],
        "period": [history.times[first], history.times[end - 1]] if history.times else [],
        "outside_range": int(outside.sum()),
        "window": steps.window,
        "slide": steps.slide,
        "aggregate": steps.aggregate,
        "units": [sensors[name].unit for name in model.names],
    }
    return replace(model, about=about), report


def windows(values: Floats, steps: Steps, max_age_rows: Floats | None = None) -> Floats:
    """Aggregate readings over whole sliding windows, as an edge does.

    Args:
        values: float64[rows, n], one row a nominal interval; NaN = no reading.
        steps: window, slide, aggregate.
        max_age_rows: float64[n], for how many rows a reading holds when the window has none; NaN = only in its window.

    Returns:
        float64[steps, n]; NaN = neither a reading nor one held.
    """
    rows, n = values.shape
    if rows < steps.window:
        return np.empty((0, n))
    view = np.lib.stride_tricks.sliding_window_view(values, steps.window, axis=0)[:: steps.slide]
    parts = [_aggregate(view[at : at + CHUNK_WINDOWS], steps.aggregate) for at in range(0, len(view), CHUNK_WINDOWS)]
    result = np.concatenate(parts)
    if max_age_rows is not None and not np.isnan(max_age_rows).all():
        ends = np.arange(steps.window - 1, rows, steps.slide)
        number = np.where(np.isfinite(values), np.arange(rows)[:, None], -1)
        newest = np.maximum.accumulate(number, axis=0)[ends]
        held = np.take_along_axis(values, np.maximum(newest, 0), axis=0)
        holds = (newest >= 0) & (ends[:, None] - newest < np.nan_to_num(max_age_rows, nan=0.0))
        result = np.where(np.isnan(result) & holds, held, result)
    return result


def _aggregate(view: Floats, aggregate: str) -> Floats:
    """Aggregate the last axis over its finite cells; NaN where there is none."""
    seen = np.isfinite(view)
    count = seen.sum(axis=-1)
    if aggregate in ("mean", "sum"):
        total = np.where(seen, view, 0.0).sum(axis=-1)
        result = total / np.maximum(count, 1) if aggregate == "mean" else total
    elif aggregate == "min":
        result = np.where(seen, view, np.inf).min(axis=-1)
    elif aggregate == "max":
        result = np.where(seen, view, -np.inf).max(axis=-1)
    else:
        newest = view.shape[-1] - 1 - np.argmax(seen[..., ::-1], axis=-1)
        result = np.take_along_axis(view, newest[..., None], axis=-1)[..., 0]
    return np.asarray(np.where(count > 0, result, np.nan))


def read_history(path: Path) -> History:
    """Read a CSV of readings; empty cell = no reading.

    Raises:
        ModelError: naming file and line, what was found and expected.
    """
    rows = _lines(path)
    line, header = next(rows, (1, []))
    names = [cell.strip() for cell in header]
    timed = bool(names) and names[0] == "time"
    sensors = names[1:] if timed else names
    if not sensors:
        raise ModelError(f"{path}: empty; expected a header of sensor names")
    double = sorted({name for name in sensors if sensors.count(name) > 1})
    if double:
        raise ModelError(f"{path}, line {line}: sensor {double[0]!r} stands twice")
    if "" in sensors:
        raise ModelError(f"{path}, line {line}: column {names.index('') + 1} has no sensor name")
    values: list[Floats] = []
    times: list[str] = []
    last = -np.inf
    for line, cells in rows:
        if len(cells) != len(names):
            raise ModelError(f"{path}, line {line}: found {len(cells)} fields, expected {len(names)}")
        if timed:
            now = _time(path, line, cells[0])
            if now <= last:
                raise ModelError(f"{path}, line {line}: time {cells[0]!r} is not later than that of the line before")
            last = now
            times.append(cells[0].strip())
        values.append(_numbers(path, line, sensors, cells[1:] if timed else cells))
    if not values:
        raise ModelError(f"{path}: no readings below the header")
    return History(tuple(sensors), np.array(values), tuple(times))


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells) of each line that is not blank."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            for cells in reader:
                if cells:
                    yield reader.line_num, cells
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file of readings") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from None


def _time(path: Path, line: int, cell: str) -> float:
    """Return seconds since the epoch."""
    text = cell.strip()
    try:
        return float(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ModelError(f"{path}, line {line}: time: found {cell!r}, expected ISO 8601 or epoch seconds") from None
    if moment.tzinfo is None:
        raise ModelError(f"{path}, line {line}: time: found {cell!r} without a zone, expected for example {text}+00:00")
    return moment.timestamp()


def _numbers(path: Path, line: int, names: list[str], cells: list[str]) -> Floats:
    try:
        return np.array([float(cell) if cell.strip() else np.nan for cell in cells])
    except ValueError:
        for name, cell in zip(names, cells, strict=True):
            try:
                float(cell.strip() or "nan")
            except ValueError:
                raise ModelError(f"{path}, line {line}: {name}: found {cell!r}, expected a number or nothing") from None
        raise


def _rows(path: Path, count: int, rows: float | tuple[int, int]) -> tuple[int, int]:
    if isinstance(rows, tuple):
        first, end = rows
        if not 0 <= first < end <= count:
            raise ModelError(f"{path}: rows: found {first} to {end}, expected a range within its {count} rows")
        return first, end
    if not 0 < rows <= 1:
        raise ModelError(f"{path}: rows: found the share {rows}, expected more than 0 and at most 1")
    return 0, round(rows * count)
