"""`tsunagi fit`: fits a model to past readings, over the same windows as an edge computes.

A history that fits into memory is fitted here; a larger one through Spark (`tsunagi_spark.fit`), with the same result.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.estimation import REPORTED_DELTA, FitReport, estimate
from tsunagi.recovery.history import HistoryFiles, list_history, read_history
from tsunagi.recovery.model import Model
from tsunagi.recovery.progress import FitStage, ProgressReporter, Tell, silent
from tsunagi.recovery.step_history import StepHistory
from tsunagi.recovery.windows import Cut, history_steps, windows
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import StepsSettings, TableSettings

__all__ = [
    "IN_MEMORY_BYTES",
    "HistoryColumns",
    "described",
    "fit_history",
    "fit_steps",
    "period_of",
    "read_history",
    "summary",
    "windows",
]

IN_MEMORY_BYTES = 512 * 2**20
"""Most bytes of readings, as float64, that are fitted in memory; the fit itself takes a multiple of that."""
NEAR_SINGULAR = 1e7
"""A fit is reported as nearly singular from this condition number on: the precision form is not exact beyond it."""
WIDEST = 1e100
"""Plausible range, in both directions, of a sensor without one: computations with larger numbers might overflow."""
READING = "reading the history"
"""Name of the stage of reading, for progress lines."""
READ_BYTE = 1500.0
"""Multiplications that take as long as reading one byte of readings (as float64), for the estimate of the time."""
NAMED = 5
"""Most sensors that a message names."""
_USUAL = TableSettings()
"""The form of files that tell by themselves how they are read."""

Period = int | Literal["auto"] | None

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
"""Seconds in each unit of a duration such as 24h."""


@dataclass(frozen=True, slots=True)
class HistoryColumns:
    """What the sensors table says about the columns of a history.

    Attributes:
        sensors: the sensor of each column.
        low, high: float64[n], plausible range of each sensor.
        max_age: float64[n], nominal intervals for which a reading holds; NaN means only in its window.
    """

    sensors: tuple[Sensor, ...]
    low: Floats
    high: Floats
    max_age: Floats

    @classmethod
    def of(cls, files: HistoryFiles, table: SensorTable, steps: StepsSettings) -> HistoryColumns:
        """Look up the columns of a history.

        Raises:
            ModelError: the table lacks one of them.
        """
        return cls.named(files.names, f"{files.pieces[0].path}, line 1", table, steps)

    @classmethod
    def named(cls, names: Sequence[str], where: str, table: SensorTable, steps: StepsSettings) -> HistoryColumns:
        """Look up sensors by name; errors begin with `where`.

        A sensor is known by its name, and by the one that it had first.

        Raises:
            ModelError: the table lacks one of them, or two are of one sensor.
        """
        sensors = {name: sensor for sensor in table.sensors for name in (sensor.key, sensor.name)}
        unknown = [name for name in names if name not in sensors]
        if unknown:
            raise ModelError(f"{where}: sensor {unknown[0]!r} is not in the sensors table ({len(unknown)} such)")
        of = tuple(sensors[name] for name in names)
        first: dict[str, str] = {}
        for name, sensor in zip(names, of, strict=True):
            if (other := first.setdefault(sensor.key, name)) != name:
                raise ModelError(f"{where}: found {other!r} and {name!r}, expected one of them: they are one sensor's")
        low = np.nan_to_num(np.array([sensor.minimum for sensor in of]), nan=-WIDEST)
        high = np.nan_to_num(np.array([sensor.maximum for sensor in of]), nan=WIDEST)
        return cls(of, low, high, np.array([sensor.max_age_s for sensor in of]) / steps.interval_s)

    @property
    def keys(self) -> list[str]:
        """The name of each column in models: the one that its sensor had first."""
        return [sensor.key for sensor in self.sensors]

    @property
    def edges(self) -> list[str]:
        """The edge of each column."""
        return [sensor.edge for sensor in self.sensors]

    def plausible(self, values: Floats) -> tuple[Floats, int]:
        """Return readings, float64[rows, n], with NaN for those out of range, and the number of these."""
        outside = (values < self.low) | (values > self.high)
        return np.where(outside, np.nan, values), int(outside.sum())


def fit_history(
    path: Path,
    table: SensorTable,
    steps: StepsSettings,
    rows: float | tuple[int, int] = 1.0,
    period: str = "none",
    *,
    form: TableSettings = _USUAL,
    tell: Tell = silent,
) -> tuple[Model, FitReport]:
    """Fit a model in memory.

    Args:
        path: a CSV, a Parquet file, or a directory of either: a column for each sensor, perhaps a column `time`, one
            row a nominal interval.
        table: gives each sensor's edge, plausible range and maximal age; a sensor without a column stays unmodelled.
        steps: window, slide and aggregate.
        rows: share of the rows from the start, in (0, 1], or (first, end) with end exclusive.
        period: period of a profile: none, auto, a number of steps, or a duration such as 24h; see `period_of`.
        form: how the files are read, if they do not tell by themselves.
        tell: called every few seconds with a line: what is being done, how far it is, how long it may still take.

    A reading outside its sensor's plausible range counts as missing.

    Raises:
        ModelError: the history cannot be used; the message names file and line, what was found and expected.
    """
    with ProgressReporter(tell) as progress:
        return _fitted(path, table, steps, rows, period, form, progress)


def fit_steps(
    history: StepHistory, table: SensorTable, steps: StepsSettings, period: str = "none", *, tell: Tell = silent
) -> tuple[Model, FitReport]:
    """Fit a model to values of steps, as `fit_history` does to readings.

    Raises:
        ModelError: the history cannot be used.
    """
    cut = history.cut or Cut(round(steps.interval_s * 1e6), steps.window_us, steps.slide_us, 0, numbered=True)
    columns = HistoryColumns.named(history.names, history.source, table, steps)
    values, outside = columns.plausible(history.values)
    last = history.first + len(values) - 1
    with ProgressReporter(tell) as progress:
        try:
            model, report = estimate(
                values,
                columns.keys,
                edges=columns.edges,
                period=period_of(period, steps, cut),
                first_step=history.first if cut.numbered else 0,
                progress=progress,
            )
        except ModelError as error:
            raise ModelError(f"{history.source}, steps {history.first} to {last}: {error}") from None
    about = described(model, columns.sensors, steps, cut) | {
        "rows": [0, len(values)],
        "period": [_moment(step * cut.slide + cut.shift) for step in (history.first, last)],
        "outside_range": outside + history.outside,
    }
    return model.with_words(about=about), report


def _fitted(
    path: Path,
    table: SensorTable,
    steps: StepsSettings,
    rows: float | tuple[int, int],
    period: str,
    form: TableSettings,
    progress: ProgressReporter,
) -> tuple[Model, FitReport]:
    files = list_history(path, form)
    progress.expect([FitStage(READING, READ_BYTE * files.size_bytes)])
    progress.begin(READING)
    columns = HistoryColumns.of(files, table, steps)
    history = read_history(path, form)
    first, end = _rows(path, len(history.values), rows)
    times = None if history.times_us is None else history.times_us[first:end]
    values, outside = columns.plausible(history.values[first:end])
    most = 4 * max(IN_MEMORY_BYTES, values.nbytes)
    try:
        aggregates, step, cut = history_steps(values, times, steps, columns.max_age, most_bytes=most)
        chosen = period_of(period, steps, cut)
        model, report = estimate(
            aggregates,
            columns.keys,
            edges=columns.edges,
            period=chosen,
            first_step=step if cut.numbered else 0,
            progress=progress,
        )
    except ModelError as error:
        raise ModelError(f"{path}, rows {first} to {end}: {error}") from None
    about = described(model, columns.sensors, steps, cut) | {
        "rows": [first, end],
        "period": [] if times is None else [_moment(int(times[0])), _moment(int(times[-1]))],
        "outside_range": outside,
    }
    return model.with_words(about=about), report


def period_of(text: str, steps: StepsSettings, cut: Cut) -> Period:
    """Read the period of a profile, in steps.

    Args:
        text: none; auto (found in the history; none if its steps have no numbers); a number of steps; or a duration in
            s, min, h or d.

    Raises:
        ModelError: the text is none of these or not a whole number of steps, or the steps of the history have no
            numbers, so that the phase of a profile would be wrong in the running system.
    """
    if text == "none" or (text == "auto" and not cut.numbered):
        return None
    if text == "auto":
        return "auto"
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)|(\d+)", text.strip())
    if found is None:
        raise ModelError(f"period: found {text!r}, expected none, auto, steps such as 144, or a duration such as 24h")
    if not cut.numbered:
        why = _unnumbered(steps, cut)
        raise ModelError(f"period: found {text!r}, but steps have no numbers: {why}; expected none")
    if found[3]:
        return int(found[3])
    seconds = float(found[1]) * _UNITS[found[2]]
    count = seconds / steps.slide_s
    if abs(count - round(count)) > 1e-9 * count:
        raise ModelError(
            f"period: found {text!r}, {count:.6g} steps of {steps.slide_s:g} s, expected a whole number of them"
        )
    return round(count)


def _unnumbered(steps: StepsSettings, cut: Cut) -> str:
    if cut.speed == 1.0:
        return "the history has no column time"
    apart = cut.speed * steps.interval_s
    return f"the history's rows are {apart:g} s apart, with [steps] interval_s = {steps.interval_s:g}"


def described(model: Model, sensors: Sequence[Sensor], steps: StepsSettings, cut: Cut) -> dict[str, Any]:
    """Return the `about` of a model, with a description of its steps."""
    units = {sensor.key: sensor.unit for sensor in sensors}
    return {
        **model.about,
        "window": steps.window,
        "slide": steps.slide,
        "aggregate": steps.aggregate,
        "numbered": cut.numbered,
        "speed": cut.speed,
        "units": [units[name] for name in model.names],
    }


def summary(model: Model, report: FitReport, steps: StepsSettings) -> list[str]:
    """Return lines that say what was fitted, how good it is, and what is odd about the sensors."""
    profile = f"profile of {report.profile[0]} steps" if report.profile else "no profile"
    size = f"at most {report.rank} shared causes" if report.rank else f"shrinkage {report.shrinkage:g}"
    structure = f"persistence {report.persistence:.3g}, {size}"
    naive = f"last value {report.last_value_nrmse:.3f}, mean {report.mean_nrmse:.3f}"
    trial = f"trial on {report.masked_values} hidden values: error {report.nrmse:.3f} standard deviations ({naive})"
    lines = [
        f"{report.sensors} sensors, {report.steps} steps, {report.missing_share:.1%} of their values missing",
        f"{report.transition} transition ({structure}), {profile}",
        f"{trial}; bounds of {REPORTED_DELTA} widened by {report.inflation:.3g}",
    ]
    if not model.about.get("numbered", True):
        speed = float(model.about.get("speed", 1.0))
        why = _unnumbered(steps, Cut(1, 1, 1, 0, numbered=False, speed=speed))
        lines.append(f"note: {why}: taken as rows a nominal interval apart, without a profile")
    if report.left_out:
        lines.append(f"left out: {_some(report.left_out)}: too few readings; the model does not know them")
    if report.constant:
        lines.append(f"constant: {_some(report.constant)}: never changed; their scale is a floor, their bounds a guess")
    if report.duplicated:
        pairs = [" = ".join(group) for group in report.duplicated]
        lines.append(f"duplicated: {_some(pairs)}: always the same reading; together they tell no more than one")
    if report.nugget > 0:
        lines.append(
            f"near singular: condition number {report.condition:.2g}; the filter adds a nugget of {report.nugget:.2g} "
            "to the variances"
        )
    elif report.condition > NEAR_SINGULAR and not report.rank:  # low rank needs no other form
        lines.append(f"near singular: condition number {report.condition:.2g}; the filter uses the covariance form")
    return lines


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _moment(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat()


def _rows(path: Path, count: int, rows: float | tuple[int, int]) -> tuple[int, int]:
    if isinstance(rows, tuple):
        first, end = rows
        if not 0 <= first < end <= count:
            raise ModelError(f"{path}: rows: found {first} to {end}, expected a range within its {count} rows")
        return first, end
    if not 0 < rows <= 1:
        raise ModelError(f"{path}: rows: found the share {rows}, expected more than 0 and at most 1")
    return 0, round(rows * count)
