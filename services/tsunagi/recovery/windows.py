"""Windows over the rows of a history, by the same rule as an edge's: step k is (k x slide - window, k x slide].

Each window is computed afresh from its rows. Rows may come in pieces and with gaps; a step without a reading is
missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tsunagi.recovery.errors import ModelError
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.settings import StepsSettings

BLOCK_CELLS = 2_000_000
"""Number of values of windows that are computed at once: it bounds the memory that this takes."""
AS_CONFIGURED = 2.0
"""Rows that are less than this many times `[steps] interval_s` apart count as live readings."""

Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Cut:
    """How the rows of a history are cut into steps; in microseconds, or in rows if there are no times.

    Attributes:
        interval: nominal time between two rows.
        window, slide: as in `Steps`.
        shift: what is subtracted from the time (or number) of a row.
        numbered: whether steps have the numbers of the running system, event time / slide.
        speed: how many times faster than its own time the history is taken.
    """

    interval: int
    window: int
    slide: int
    shift: int
    numbered: bool
    speed: float = 1.0

    @classmethod
    def of(cls, steps: StepsSettings, times_us: Times | None, first_us: int | None = None) -> Cut:
        """Choose how to cut rows.

        Args:
            times_us: int64[rows], event times; None if there are none: then a row is a nominal interval.
            first_us: time of the first row, if `times_us` are not of all rows.

        Times about `[steps] interval_s` apart, or closer (sensors that are not read together), are event times. Rows
        further apart would leave most windows empty; they are meant for a replay that is faster than real time
        (`[source] speed`). They count as a nominal interval apart, and the numbers of the steps depend on when the
        replay begins.
        """
        if times_us is None or len(times_us) < 2:
            return cls(1, steps.window, steps.slide, steps.window - 1, numbered=False)
        spacing = max(1, round(float(np.median(np.diff(times_us)))))
        interval = steps.interval_s * 1e6
        if spacing < interval * AS_CONFIGURED:
            return cls(round(interval), steps.window_us, steps.slide_us, 0, numbered=True)
        window = steps.window * spacing
        shift = (int(times_us[0]) if first_us is None else first_us) + window - spacing
        return cls(spacing, window, steps.slide * spacing, shift, numbered=False, speed=spacing / interval)

    def first_step(self, time: int) -> int:
        """Return the step of the first whole window; the first row, at `time`, stands for the interval before it."""
        return -(-(time - self.shift - self.interval + self.window) // self.slide)

    def step_of(self, time: int) -> int:
        """Return the last step that ends at `time` or before."""
        return (time - self.shift) // self.slide

    def step_after(self, time: int) -> int:
        """Return the first step that ends at `time` or after."""
        return -(-(time - self.shift) // self.slide)

    def begin(self, step: int, reach: int) -> int:
        """Return the time after which readings matter to a step; `reach` is the longest time that a reading holds."""
        return step * self.slide + self.shift - max(self.window, reach)


class StepBlock(NamedTuple):
    """Neighbouring steps.

    Attributes:
        step: number of the first of them.
        values: float64[steps, n]; NaN means neither a reading nor one that still holds.
    """

    step: int
    values: Floats


class WindowAggregator:
    """Aggregates rows that come in the order of time.

    Args:
        cut: how rows are cut into steps.
        aggregate: mean, sum, min, max or last.
        max_age: float64[n], in the units of the cut: how long a reading holds if the window has none; NaN = not at all.
        next_step: the first step wanted; None means the first whole window after the first row.
    """

    def __init__(self, cut: Cut, aggregate: str, max_age: Floats, next_step: int | None = None) -> None:
        self._cut, self._aggregate, self.next_step = cut, aggregate, next_step
        n = len(max_age)
        self._held = np.flatnonzero(np.isfinite(max_age))
        self._max_age = max_age[self._held]
        self.reach = int(np.ceil(self._max_age.max())) if len(self._held) else 0
        self._last = np.full(len(self._held), np.nan)
        self._last_time = np.zeros(len(self._held), dtype=np.int64)
        self._times: Times = np.empty(0, dtype=np.int64)
        self._values: Floats = np.empty((0, n))
        self._block = max(1, BLOCK_CELLS // n)

    def add(self, times: Times, values: Floats, until: int | None = None) -> Iterator[StepBlock]:
        """Add rows, and yield the steps that they complete, in order; runs of empty steps may be left out.

        Args:
            times: int64[rows], later than all before.
            values: float64[rows, n]; NaN or infinite means no reading.
            until: the last step wanted, if no other row comes before its end; None means the last that these rows
                complete.
        """
        cut = self._cut
        self._times = np.concatenate([self._times, times - cut.shift])
        self._values = np.concatenate([self._values, values])
        if not len(self._times):
            return
        if self.next_step is None:
            self.next_step = cut.first_step(int(self._times[0]) + cut.shift)
        last = int(self._times[-1]) // cut.slide if until is None else until
        while self.next_step <= last:
            steps = np.arange(self.next_step, min(self.next_step + self._block, last + 1))
            ends = steps * cut.slide
            low = np.searchsorted(self._times, ends - cut.window, side="right")
            high = np.searchsorted(self._times, ends, side="right")
            yield StepBlock(int(steps[0]), self._combine(ends, low, high))
            self.next_step = int(steps[-1]) + 1
            self._leap(last)
        self._forget(self.next_step * cut.slide - cut.window)

    def _leap(self, last: int) -> None:
        """Skip steps to which no reading can matter."""
        if self.next_step is None or self.next_step > last:
            return
        end = self.next_step * self._cut.slide
        following = int(np.searchsorted(self._times, end, side="right"))
        newest = int(self._times[following - 1]) if following else end - max(self._cut.window, self.reach)
        if end - newest < max(self._cut.window, self.reach):
            return
        if following == len(self._times):
            self.next_step = last + 1
        else:
            self.next_step = min(last + 1, -(-int(self._times[following]) // self._cut.slide))

    def _combine(self, ends: Times, low: npt.NDArray[np.intp], high: npt.NDArray[np.intp]) -> Floats:
        """Return the aggregates of the rows [low, high), window by window."""
        shape = len(ends), self._values.shape[1]
        summed = self._aggregate in ("mean", "sum")
        result = np.zeros(shape) if summed else np.full(shape, np.nan)
        count = np.zeros(shape, dtype=np.int32)
        for place in range(int((high - low).max())):
            has = np.flatnonzero(low + place < high)
            cells = self._values[low[has] + place]
            seen = np.isfinite(cells)
            count[has] += seen
            if summed:
                result[has] += cells if seen.all() else np.where(seen, cells, 0.0)
                continue
            cells = np.where(seen, cells, np.nan)
            if self._aggregate == "last":
                result[has] = np.where(seen, cells, result[has])
            else:
                result[has] = (np.fmin if self._aggregate == "min" else np.fmax)(result[has], cells)
        if self._aggregate == "mean":
            result /= np.maximum(count, 1)
        result[count == 0] = np.nan
        if len(self._held):
            self._hold(result, ends, high)
        return result

    def _hold(self, result: Floats, ends: Times, high: npt.NDArray[np.intp]) -> None:
        """Fill in readings that still hold where a window has none."""
        values = self._values[:, self._held]
        rows = np.where(np.isfinite(values), np.arange(len(values))[:, None], -1)
        newest = np.maximum.accumulate(rows, axis=0)[high - 1] if len(values) else np.empty((0, 0), dtype=np.intp)
        newest = np.where((high == 0)[:, None], -1, newest)
        found = newest >= 0
        value = np.where(found, np.take_along_axis(values, np.maximum(newest, 0), axis=0), self._last)
        time = np.where(found, self._times[np.maximum(newest, 0)], self._last_time)
        holds = np.isfinite(value) & (ends[:, None] - time < self._max_age)
        current = result[:, self._held]
        result[:, self._held] = np.where(np.isnan(current) & holds, value, current)

    def _forget(self, time: int) -> None:
        """Drop the rows up to `time`, which no later window contains; each sensor's last reading is kept."""
        kept = int(np.searchsorted(self._times, time, side="right"))
        if kept and len(self._held):
            values = self._values[:kept, self._held]
            rows = np.where(np.isfinite(values), np.arange(kept)[:, None], -1).max(axis=0)
            found = rows >= 0
            self._last[found] = values[rows[found], np.flatnonzero(found)]
            self._last_time[found] = self._times[rows[found]]
        self._times, self._values = self._times[kept:].copy(), self._values[kept:].copy()


def windows(values: Floats, steps: StepsSettings, max_age_rows: Floats | None = None) -> Floats:
    """Return the aggregates of readings over whole sliding windows, as an edge computes them.

    Args:
        values: float64[rows, n], one row a nominal interval; NaN means no reading.
        steps: window, slide and aggregate.
        max_age_rows: float64[n], for how many rows a reading holds if the window has none; NaN means only in its
            window.

    Returns:
        float64[steps, n]; NaN means neither a reading nor one that still holds.
    """
    max_age = np.full(values.shape[1], np.nan) if max_age_rows is None else max_age_rows
    return history_steps(values, None, steps, max_age)[0]


def history_steps(
    values: Floats,
    times_us: Times | None,
    steps: StepsSettings,
    max_age_intervals: Floats,
    *,
    most_bytes: int | None = None,
) -> tuple[Floats, int, Cut]:
    """Aggregate a history in memory.

    Args:
        values: float64[rows, n].
        times_us: int64[rows], or None: as in `Cut.of`.
        max_age_intervals: float64[n], in nominal intervals.
        most_bytes: most bytes that the steps may take; None means no limit.

    Returns:
        float64[steps, n], the number of the first step, and how the rows were cut.

    Raises:
        ModelError: gaps in time make too many steps.
    """
    cut = Cut.of(steps, times_us)
    n = values.shape[1]
    times = np.arange(len(values), dtype=np.int64) if times_us is None else times_us
    if not len(times):
        return np.empty((0, n)), 0, cut
    first = cut.first_step(int(times[0]))
    count = max(0, cut.step_of(int(times[-1])) + 1 - first)
    if most_bytes is not None and count * n * 8 > most_bytes:
        gap = int(np.argmax(np.diff(times)))
        raise ModelError(
            f"time: found {count} steps from the first row to the last, {len(times)} rows; expected no gap as long as "
            f"that of {(times[gap + 1] - times[gap]) / 1e6:g} s after row {gap + 1}"
        )
    result = np.full((count, n), np.nan)
    made = WindowAggregator(cut, steps.aggregate, max_age_intervals * cut.interval)
    for block in made.add(times, values):
        result[block.step - first : block.step - first + len(block.values)] = block.values
    return result, first, cut
