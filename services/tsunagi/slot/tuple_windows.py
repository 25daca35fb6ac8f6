"""Aggregates over the last tuples of each sensor, for queries without lock-step (CQL's [Rows N], as in A-SAS)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tsunagi.runtime.columns import Floats, pack_arrays, unpack_arrays
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.frames import Frame, OperatorError, Run, measured_run

FUNCTIONS: dict[str, Callable[[Floats], Floats]] = {
    "sum": lambda windows: windows.sum(axis=1),
    "count": lambda windows: np.full(len(windows), float(windows.shape[1])),
    "mean": lambda windows: windows.mean(axis=1),
    "min": lambda windows: windows.min(axis=1),
    "max": lambda windows: windows.max(axis=1),
}
"""The functions by name, each from float64[m, window] to float64[m]. Each window is reduced by itself, so results do
not depend on where a run is cut."""


class TupleAggregate:
    """Aggregates each sensor's last `window` tuples: first when it has so many, and then at each `slide`-th tuple.

    The values count as exact. The result takes the place of the tuple that completed the window.
    """

    def __init__(self, config: SlotConfig, *, function: str = "mean", window: int = 100, slide: int = 10) -> None:
        if function not in FUNCTIONS:
            raise OperatorError(f"aggregate: function: found {function!r}, expected {', '.join(FUNCTIONS)}")
        if not 1 <= slide <= window:
            raise OperatorError(f"aggregate: found slide = {slide}, window = {window}; expected 1 <= slide <= window")
        self._reduce = FUNCTIONS[function]
        self._window, self._slide = int(window), int(slide)
        self._sensor = np.array(config.sensors, dtype=np.uint32)
        self._seen = np.zeros(len(self._sensor), dtype=np.int64)
        self._last = np.zeros((len(self._sensor), self._window - 1))  # in the order of the log, the newest at the end

    def process(self, frame: Frame) -> Sequence[Frame]:
        assert isinstance(frame, Run)  # noqa: S101 - the chain sees to it; for the type checker
        if np.isnan(frame.mean).any():
            frame = frame.keep(~np.isnan(frame.mean))
        if not len(frame.mean):
            return ()
        before = self._window - 1
        # Sort the rows by sensor, and put each sensor's earlier values before its rows. Then each window is a slice.
        place = np.searchsorted(self._sensor, frame.sensor)
        order = np.argsort(place, kind="stable")
        placed = place[order]
        first = np.concatenate([[0], np.flatnonzero(placed[1:] != placed[:-1]) + 1])
        present, count = placed[first], np.diff(first, append=len(placed))
        which = np.repeat(np.arange(len(present)), count)
        rank = np.arange(len(order)) - first[which]
        begin = first + np.arange(len(present)) * before
        values = np.empty(len(order) + len(present) * before)
        at = begin[which] + before + rank
        values[at] = frame.mean[order]
        total = self._seen[present][which] + rank + 1
        if before:  # whole pieces are copied, which takes a fraction of the time of single values
            pieces = _pieces(values, before)
            pieces[begin] = self._last[present]
            self._last[present] = pieces[begin + count]
        self._seen[present] += count
        due = (total >= self._window) & ((total - self._window) % self._slide == 0)
        if not due.any():
            return ()
        rows = order[due]
        windows = _pieces(values, self._window)[at[due] - before]
        in_log_order = np.argsort(rows)
        rows, results = rows[in_log_order], self._reduce(windows)[in_log_order]
        times, origin = frame.time_us[rows], frame.origin[rows]
        return (measured_run(frame.step, frame.event_time_us, frame.sensor[rows], results, times, origin),)

    def take_over(self, earlier: TupleAggregate, step: int) -> None:
        """Go on with the last tuples of the sensors that both have."""
        del step
        _, mine, places = np.intersect1d(self._sensor, earlier._sensor, return_indices=True)
        self._seen[mine], self._last[mine] = earlier._seen[places], earlier._last[places]

    def context(self) -> bytes:
        """Return the state of the sensors that have had tuples, so that a context is small."""
        some = np.flatnonzero(self._seen)
        return pack_arrays({"place": some, "seen": self._seen[some], "last": self._last[some]})

    def restore(self, context: bytes) -> None:
        arrays = unpack_arrays(context)
        some = arrays["place"].astype(np.intp)
        self._seen[:] = 0
        self._seen[some] = arrays["seen"].astype(np.int64)
        self._last[some] = arrays["last"].astype(np.float64)


def _pieces(values: Floats, length: int) -> Floats:
    """Return float64[n - length + 1, length], the pieces of so many successive values, which share their memory."""
    return np.ndarray((len(values) - length + 1, length), np.float64, values, strides=2 * values.strides)
