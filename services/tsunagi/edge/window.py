"""Sliding windows over the readings of one edge, by event time; no clock and no I/O.

Step k is the window (k x slide - window, k x slide]. Each window is computed afresh from the readings it contains,
never by adding and subtracting at its ends: so sums cannot drift, and readings may come in any order before a step
closes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tsunagi.runtime.columns import Floats, Sensors
from tsunagi.runtime.sensors import Sensor
from tsunagi.runtime.settings import MICROSECONDS, StepsSettings

Places = npt.NDArray[np.intp]

LATE = "reading-late"
"""Reason of a dead letter: each window that the reading belongs to has been closed."""
EARLY = "before-first-window"
"""Reason of a count: the reading is older than the first whole window."""
NOT_A_NUMBER = "not-a-number"
"""Reason of a dead letter: the reading is NaN or infinite."""
OUT_OF_RANGE = "out-of-range"
"""Reason of a dead letter: the reading lies outside the range that the sensors table gives its sensor."""

_NEVER_US = np.iinfo(np.int64).min // 2
"""An event time earlier than any other, in microseconds. Differences to it do not overflow an int64."""
NEW = -1
"""Stands for the earlier place of a sensor that the edge did not have before."""
_FIRST_CAPACITY = 4096
"""Readings that the arrays have room for at first; they double when they are full."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A reading that goes into no window.

    Attributes:
        reason: `LATE`, `NOT_A_NUMBER` or `OUT_OF_RANGE`.
        place: the sensor's place among the edge's sensors.
    """

    reason: str
    place: int
    time_us: int
    value: float


class ClosedWindow(NamedTuple):
    """The result of one step.

    Attributes:
        sensors: uint32[m], ids of the sensors that have a value, ascending.
        places: intp[m], the same sensors, each by its place among the edge's sensors.
        values: float64[m], aggregates of the readings, or the last reading held over where `counts` is 0.
        counts: uint32[m], number of readings in the window.
    """

    step: int
    sensors: Sensors
    places: Places
    values: Floats
    counts: Sensors


class Limits:
    """The range of values that each sensor may have, from the sensors table."""

    def __init__(self, sensors: tuple[Sensor, ...]) -> None:
        self._minimum = np.nan_to_num(np.array([sensor.minimum for sensor in sensors]), nan=-np.inf)
        self._maximum = np.nan_to_num(np.array([sensor.maximum for sensor in sensors]), nan=np.inf)

    def judge(self, time_us: int, places: Places, values: Floats) -> tuple[Places, Floats, list[Rejected]]:
        """Return the readings that are within their range, and those that are not or are no finite numbers."""
        good = (values >= self._minimum[places]) & (values <= self._maximum[places]) & np.isfinite(values)
        if good.all():
            return places, values, []
        finite = np.isfinite(values)
        outside = finite & ~good
        rejected = reject(NOT_A_NUMBER, time_us, places[~finite], values[~finite])
        rejected += reject(OUT_OF_RANGE, time_us, places[outside], values[outside])
        return places[good], values[good], rejected


def reject(reason: str, time_us: int, places: Places, values: Floats) -> list[Rejected]:
    """Return readings of one event time as `Rejected`, all for the same reason."""
    pairs = zip(places.tolist(), values.tolist(), strict=True)
    return [Rejected(reason, place, time_us, value) for place, value in pairs]


class SlidingWindows:
    """The windows of an edge's sensors.

    Args:
        sensors: the edge's sensors; a reading names one by its place in this sequence.
        steps: window, slide and aggregate.
    """

    def __init__(self, sensors: tuple[Sensor, ...], steps: StepsSettings) -> None:
        self._slide_us = steps.slide_us
        self._window_us = steps.window_us
        self._aggregate = steps.aggregate
        self._know(sensors)
        # No reading of the sensor after this event time was missed.
        self._since_us: npt.NDArray[np.int64] = np.full(len(sensors), _NEVER_US, dtype=np.int64)
        self._last_us: npt.NDArray[np.int64] = np.full(len(sensors), _NEVER_US, dtype=np.int64)
        self._last: Floats = np.full(len(sensors), np.nan)
        # Readings that open windows contain, in order of arrival.
        self._times: npt.NDArray[np.int64] = np.empty(_FIRST_CAPACITY, dtype=np.int64)
        self._places: Places = np.empty(_FIRST_CAPACITY, dtype=np.intp)
        self._values: Floats = np.empty(_FIRST_CAPACITY)
        self._size = 0
        self._closed_us: int = _NEVER_US
        self.next_step: int | None = None

    def _know(self, sensors: tuple[Sensor, ...]) -> None:
        self._ids: Sensors = np.array([sensor.id for sensor in sensors], dtype=np.uint32)
        # NaN: a value is not held over
        self._max_age_us = np.array([sensor.max_age_s for sensor in sensors]) * MICROSECONDS
        self._holds = bool(np.isfinite(self._max_age_us).any())
        self._limits = Limits(sensors)

    def change(self, sensors: tuple[Sensor, ...], kept: Places, since_us: int) -> None:
        """Go on with other sensors. Those that stay keep their readings; a new one begins with its first whole window.

        Args:
            sensors: the edge's sensors from now on.
            kept: intp[n], the earlier place of each of them, or `NEW`.
            since_us: each reading of a new sensor after this event time will be added.
        """
        places = np.full(len(self._ids), NEW, dtype=np.intp)
        places[kept[kept != NEW]] = np.flatnonzero(kept != NEW)
        self._places[: self._size] = places[self._places[: self._size]]
        self._keep(self._places[: self._size] != NEW)
        self._since_us = _carried(self._since_us, kept, since_us)
        self._last_us = _carried(self._last_us, kept, _NEVER_US)
        self._last = _carried(self._last, kept, np.nan)
        self._know(sensors)

    def end_us(self, step: int) -> int:
        """Return the event time at which a step's window ends; the window contains it."""
        return step * self._slide_us

    def begin_us(self, step: int) -> int:
        """Return the event time at which a step's window begins; the window does not contain it."""
        return step * self._slide_us - self._window_us

    def observe_from(self, time_us: int, *, not_before: int | None = None) -> None:
        """Declare that each reading after `time_us` will be added; the next step is the first window whole from there.

        Args:
            time_us: event time in microseconds; a reading of this very time may be missing.
            not_before: the next step is not below this one, even if an earlier window is whole.
        """
        step = -((-time_us - self._window_us) // self._slide_us)
        for bound in (self.next_step, not_before):
            step = step if bound is None else max(step, bound)
        self.next_step = step

    def add(self, time_us: int, places: Places, values: Floats) -> list[Rejected]:
        """Add readings of one event time.

        Args:
            places: intp[m], the sensors, each by its place among the edge's sensors.
            values: float64[m], their readings.

        Returns:
            The readings that were rejected.
        """
        if time_us <= self._closed_us:
            return reject(LATE, time_us, places, values)
        places, values, rejected = self._limits.judge(time_us, places, values)
        end = self._size + len(values)
        if end > len(self._values):
            self._grow(end)
        self._times[self._size : end] = time_us
        self._places[self._size : end] = places
        self._values[self._size : end] = values
        self._size = end
        return rejected

    def early(self, time_us: int, places: Places) -> int:
        """Return how many readings of one event time came before their sensors' first whole windows."""
        if self.next_step is None or time_us <= self._closed_us:
            return 0
        if time_us <= self.begin_us(self.next_step):
            return len(places)
        return int((time_us <= self._since_us[places]).sum())

    def close(self, step: int) -> ClosedWindow:
        """Close a step: readings up to its end are not taken from now on.

        Raises:
            ValueError: the step is below `next_step`: it was closed before, or its window is not whole.
        """
        if self.next_step is None or step < self.next_step:
            raise ValueError(f"step {step} cannot be closed, the next is {self.next_step}")
        end_us = self.end_us(step)
        times, places, values = self._times[: self._size], self._places[: self._size], self._values[: self._size]
        inside = (times > self.begin_us(step)) & (times <= end_us)
        within, readings = places[inside], values[inside]
        counts = np.bincount(within, minlength=len(self._ids))
        results = self._combine(times[inside], within, readings, counts)
        present = counts > 0
        if self._holds:
            self._remember(times, places, values, end_us)
            held = ~present & (end_us - self._last_us < self._max_age_us)
            results[held] = self._last[held]
            present |= held
        present &= self.begin_us(step) >= self._since_us
        self._closed_us = end_us
        self.next_step = step + 1
        self._forget(self.begin_us(step + 1))
        found = np.flatnonzero(present)
        return ClosedWindow(step, self._ids[found], found, results[found], counts[found].astype(np.uint32))

    def _combine(
        self, times: npt.NDArray[np.int64], places: Places, values: Floats, counts: npt.NDArray[np.intp]
    ) -> Floats:
        """Return the aggregate of each sensor, float64[n]; it means nothing for a sensor without a reading."""
        results: Floats = np.zeros(len(self._ids))
        match self._aggregate:
            case "mean" | "sum":
                results[:] = np.bincount(places, weights=values, minlength=len(self._ids))
                if self._aggregate == "mean":
                    results /= np.maximum(counts, 1)
            case "min":
                results[:] = np.inf
                np.minimum.at(results, places, values)
            case "max":
                results[:] = -np.inf
                np.maximum.at(results, places, values)
            case "last":
                order = np.argsort(times, kind="stable")
                results[places[order]] = values[order]  # of several readings of a sensor the last assignment stays
        return results

    def _remember(self, times: npt.NDArray[np.int64], places: Places, values: Floats, end_us: int) -> None:
        """Keep each sensor's latest reading up to `end_us`; this step must not see later ones."""
        known = np.flatnonzero(times <= end_us)
        order = known[np.argsort(times[known], kind="stable")]
        order = order[times[order] >= self._last_us[places[order]]]
        self._last_us[places[order]] = times[order]
        self._last[places[order]] = values[order]

    def _forget(self, time_us: int) -> None:
        """Drop the readings up to `time_us`, which no open window contains."""
        self._keep(self._times[: self._size] > time_us)

    def _keep(self, wanted: npt.NDArray[np.bool_]) -> None:
        kept = np.flatnonzero(wanted)
        self._size = len(kept)
        for column in (self._times, self._places, self._values):
            column[: self._size] = column[kept]

    def _grow(self, size: int) -> None:
        capacity = max(size, 2 * len(self._values))
        self._times = np.resize(self._times, capacity)
        self._places = np.resize(self._places, capacity)
        self._values = np.resize(self._values, capacity)


def _carried(column: npt.NDArray[Any], kept: Places, fill: float) -> npt.NDArray[Any]:
    """Return a column of the earlier sensors for those of now; a new sensor gets `fill`."""
    found = np.full(len(kept), fill, dtype=column.dtype)
    found[kept != NEW] = column[kept[kept != NEW]]
    return found
