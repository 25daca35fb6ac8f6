"""Computes from the CSV alone what must come out of a run.

This shares only the reading of CSV with the edges, the replicas and the Spark job. The file is read again as a whole
table, windows are cut again, and q1, q2 and q3 are counted again, in the plainest way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tsunagi.runtime.columns import Floats
from tsunagi.runtime.csv_text import read_table
from tsunagi.runtime.naming import is_time
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import StepsSettings

Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TrueReadings:
    """The readings of the CSV.

    Attributes:
        times_us: int64[T], the event time of each row, in microseconds since 1970.
        values: float64[T, n], by row and sensor id; NaN where there is no reading.
    """

    times_us: Times
    values: Floats


@dataclass(frozen=True, slots=True)
class Truth:
    """Every whole window of the stream.

    Attributes:
        first_step: the step of the first row of `values`.
        values: float64[steps, n], the aggregate of each sensor's window. NaN where the window has no reading and no
            earlier reading holds.
        counts: int64[steps, n], the number of readings in the window; 0 where an earlier reading holds.
    """

    first_step: int
    values: Floats
    counts: Times

    @property
    def last_step(self) -> int:
        """The last step whose window lies in the stream as a whole."""
        return self.first_step + len(self.values) - 1

    def row(self, step: int) -> Floats:
        """Return the values of a step, float64[n]."""
        return np.asarray(self.values[step - self.first_step], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class World:
    """Everything with which the outputs of a run are compared.

    Attributes:
        table: the sensors.
        truth: the windows of the CSV.
        steps: the section [steps] of the settings.
        modelled: ids of the sensors that the model knows.
        range_us: the range of q1 and q2, in microseconds.
        unknown_group: the group of sensors whose table names none.
        restart_us: how long the process of a restarted edge may take until it reads its source, in microseconds.
        scale: float64[n], the standard deviation of each sensor over the stream, which is its unit in the NRMSE.
        delta: the probability with which a bound must hold.
        undisturbed: whether nothing but the run's own kills and outages disturbed it. Late batches, dead letters,
            changes of owner and bounds are judged only then.
    """

    table: SensorTable
    truth: Truth
    steps: StepsSettings
    modelled: frozenset[int]
    range_us: int
    unknown_group: str = "ungrouped"
    restart_us: int = 10_000_000
    scale: Floats = field(default_factory=lambda: np.empty(0))
    delta: float = 0.9
    undisturbed: bool = True

    def group(self, sensor: int) -> str:
        """Return the group of a sensor (its SPK, docs/explanation/psort.md)."""
        return self.table.sensors[sensor].group or self.unknown_group

    def back_us(self, started_us: int) -> int:
        """Return when an edge must have whole windows again whose process was started at that time.

        If it was never started (0), that is never.
        """
        return (started_us or 1 << 62) + self.restart_us + self.steps.window_us + self.steps.slide_us


def read_readings(
    path: Path, table: SensorTable, *, origin_us: int, interval_us: int, speed: float = 1.0
) -> TrueReadings:
    """Read the CSV once more.

    It has a header of sensor names, and its first column may be `time`. An empty cell is no reading, and neither is a
    value outside the plausible range of its sensor. The first row has the event time `origin_us`. The other rows follow
    it as the column `time` says, or every `interval_us` microseconds, in both cases `speed` times as fast.
    """
    rows = [line.cells for line in read_table(path)]
    header = [name.strip() for name in rows[0]]
    columns = {name: position for position, name in enumerate(header)}
    values = np.full((len(rows) - 1, len(table)), math.nan)
    for number, row in enumerate(rows[1:]):
        for sensor in table.sensors:
            cell = row[columns[sensor.name]].strip() if sensor.name in columns else ""
            value = float(cell) if cell else math.nan
            if math.isfinite(value) and not (value < sensor.minimum or value > sensor.maximum):
                values[number, sensor.id] = value
    if is_time(header[0]):
        since_us = [_microseconds(row[0].strip()) - _microseconds(rows[1][0].strip()) for row in rows[1:]]
    else:
        since_us = [number * interval_us for number in range(len(rows) - 1)]
    return TrueReadings(np.array([origin_us + round(since / speed) for since in since_us], dtype=np.int64), values)


def _microseconds(cell: str) -> int:
    try:
        return round(float(cell) * 1e6)
    except ValueError:
        return (datetime.fromisoformat(cell) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def windows(readings: TrueReadings, steps: StepsSettings, max_age_us: Floats) -> Truth:
    """Aggregate every whole window. That of step k is (k slide - window, k slide], and begins no earlier than the CSV.

    Args:
        readings: the readings of the CSV.
        steps: the section [steps] of the settings.
        max_age_us: float64[n], how long a reading holds, in microseconds; NaN if no longer than its window.
    """
    slide_us, window_us = steps.slide_us, steps.window_us
    times, values = readings.times_us, readings.values
    first_step = -(-(int(times[0]) - 1 + window_us) // slide_us)
    last_step = int(times[-1]) // slide_us
    count = max(0, last_step - first_step + 1)
    aggregates = np.full((count, values.shape[1]), math.nan)
    counts = np.zeros((count, values.shape[1]), dtype=np.int64)
    for row in range(count):
        end_us = (first_step + row) * slide_us
        low, high = np.searchsorted(times, [end_us - window_us, end_us], side="right")
        for sensor in range(values.shape[1]):
            inside = [value for value in values[low:high, sensor].tolist() if not math.isnan(value)]
            counts[row, sensor] = len(inside)
            if inside:
                aggregates[row, sensor] = _aggregate(steps.aggregate, inside)
            elif not math.isnan(max_age_us[sensor]):
                aggregates[row, sensor] = _held(times[:high], values[:high, sensor], end_us, float(max_age_us[sensor]))
    return Truth(first_step, aggregates, counts)


def _aggregate(kind: str, inside: list[float]) -> float:
    if kind == "mean":
        return math.fsum(inside) / len(inside)
    if kind == "sum":
        return math.fsum(inside)
    if kind == "last":
        return inside[-1]
    return min(inside) if kind == "min" else max(inside)


def _held(times_us: Times, values: Floats, end_us: int, max_age_us: float) -> float:
    known = np.flatnonzero(~np.isnan(values))
    if len(known) == 0 or end_us - int(times_us[known[-1]]) >= max_age_us:
        return math.nan
    return float(values[known[-1]])


def queries(
    steps: Times, present: npt.NDArray[np.bool_], above: npt.NDArray[np.bool_], slide_us: int, range_us: int
) -> tuple[Times, Times, Floats]:
    """Count q1, q2 and q3 again, for rows in the order of their steps.

    Args:
        steps: int64[T], ascending.
        present: bool[T, n], whether the step has a row of the sensor.
        above: bool[T, n], whether the value of the row is above the threshold of the sensor.
        slide_us: length of a slide, in microseconds.
        range_us: the range of q1 and q2, in microseconds.

    Returns:
        (q1 int64[T, n], q2 int64[T, n], q3 float64[T, n]) over (t - range, t] of event time.
    """
    q1 = np.zeros(present.shape, dtype=np.int64)
    q2 = np.zeros(present.shape, dtype=np.int64)
    for row, step in enumerate(steps.tolist()):
        oldest = (step * slide_us - range_us) // slide_us + 1
        inside = (steps >= oldest) & (steps <= step)
        q1[row] = present[inside].sum(axis=0)
        q2[row] = (above[inside] & present[inside]).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        q3 = q2 / q1
    return q1, q2, q3
