"""Aggregates readings of a long table into the steps of an edge, whatever the order of its rows.

Windows of `window` microseconds, one each `slide`, are put together from panes of their greatest common divisor: a
reading belongs to one pane, so it is looked at once, and no row need be kept (Li et al., "No pane, no gain", 2005).
"""

from __future__ import annotations

import itertools
import math
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.windows import Cut
from tsunagi.runtime.columns import Floats

Ints = npt.NDArray[np.int64]

_CHUNK = 256
"""Panes that are kept together: a time far from all others costs the memory of so many."""
_BLOCK = 1024
"""Steps that are put together at once."""
_STARTS = {"min": np.inf, "max": -np.inf}
"""What least and greatest values begin with; sums begin with 0."""
_NEVER = np.iinfo(np.int64).min
"""The time of a sensor's last reading while it has none."""


class _Chunk:
    """Neighbouring panes: what is needed of their readings, for each sensor."""

    def __init__(self, sensors: int, aggregate: str, *, holds: bool) -> None:
        size = _CHUNK * sensors
        self.count = np.zeros(size, dtype=np.int32)
        self.value: Floats = np.full(size, _STARTS.get(aggregate, 0.0))
        self.last: Floats = np.full(size if holds else 0, np.nan)
        self.last_us: Ints = np.full(size if holds else 0, _NEVER)

    @property
    def nbytes(self) -> int:
        return self.count.nbytes + self.value.nbytes + self.last.nbytes + self.last_us.nbytes


class PaneCollector:
    """Collects readings, in any order, and makes steps of them.

    Args:
        cut: how time is cut into steps.
        aggregate: mean, sum, min, max or last. Of readings of one time the one that came last counts as the last.
        max_age_us: float64[n], how long a reading of each sensor holds if a window has none; NaN = not at all.
        most_bytes: how much memory the readings may take, about; the oldest are left out.

    Attributes:
        left_out: how many readings were left out, since there was no room.
    """

    def __init__(self, cut: Cut, aggregate: str, max_age_us: Floats, most_bytes: int) -> None:
        self._cut, self._aggregate, self._max_age_us = cut, aggregate, max_age_us
        self._n = len(max_age_us)
        self._pane_us = math.gcd(cut.window, cut.slide)
        self._held = bool(np.isfinite(max_age_us).any())
        self._most_bytes = most_bytes
        self._chunks: dict[int, _Chunk] = {}
        self._floor: int | None = None  # the first chunk that is still kept, once one was given up
        self._range: tuple[int, int] | None = None
        self.left_out = 0

    def add(self, times_us: Ints, sensors: Ints, values: Floats) -> None:
        """Take readings.

        Args:
            times_us: int64[m].
            sensors: int64[m], numbers from 0 to n - 1.
            values: float64[m], finite numbers.
        """
        panes = -(-(times_us - self._cut.shift) // self._pane_us)
        chunks = panes // _CHUNK
        if self._floor is not None:
            kept = chunks >= self._floor
            self.left_out += int((~kept).sum())
            times_us, sensors, panes, chunks = (column[kept] for column in (times_us, sensors, panes, chunks))
            values = values[kept]
        if not len(panes):
            return
        first, last = int(times_us.min()), int(times_us.max())
        self._range = (first, last) if self._range is None else (min(first, self._range[0]), max(last, self._range[1]))
        places = (panes - chunks * _CHUNK) * self._n + sensors
        if chunks[0] == chunks[-1] and (chunks == chunks[0]).all():
            self._put(int(chunks[0]), times_us, places, values)
        else:
            order = np.argsort(chunks, kind="stable")
            bounds = np.flatnonzero(np.diff(chunks[order])) + 1
            for part in np.split(order, bounds):
                self._put(int(chunks[part[0]]), times_us[part], places[part], values[part])
        self._make_room()

    def _put(self, number: int, times_us: Ints, places: Ints, values: Floats) -> None:
        chunk = self._chunks.get(number)
        if chunk is None:
            holds = self._held or self._aggregate == "last"
            chunk = self._chunks[number] = _Chunk(self._n, self._aggregate, holds=holds)
        np.add.at(chunk.count, places, 1)
        match self._aggregate:
            case "mean" | "sum":
                np.add.at(chunk.value, places, values)
            case "min":
                np.minimum.at(chunk.value, places, values)
            case "max":
                np.maximum.at(chunk.value, places, values)
        if len(chunk.last):
            order = np.argsort(times_us, kind="stable")
            places, times_us, values = places[order], times_us[order], values[order]
            newer = times_us >= chunk.last_us[places]
            # Of several readings of one place numpy assigns the last one, which is the newest.
            chunk.last[places[newer]] = values[newer]
            chunk.last_us[places[newer]] = times_us[newer]

    def _make_room(self) -> None:
        one = next(iter(self._chunks.values())).nbytes
        while len(self._chunks) > max(2, self._most_bytes // one):
            oldest = min(self._chunks)
            self.left_out += int(self._chunks.pop(oldest).count.sum())
            self._floor = oldest + 1
            if self._range is not None:
                begin = (self._floor * _CHUNK - 1) * self._pane_us + self._cut.shift + 1
                self._range = (max(begin, self._range[0]), self._range[1])

    def steps(self, most_bytes: int) -> tuple[int, Floats]:
        """Return the number of the first step, and the values of all, float64[steps, n]; NaN = no value.

        Args:
            most_bytes: most bytes that the values may take.

        Raises:
            ModelError: there are no readings, or gaps in time make too many steps.
        """
        if self._range is None:
            raise ModelError("found no readings")
        cut, (begin_us, end_us) = self._cut, self._range
        first, last = cut.first_step(begin_us), cut.step_of(end_us)
        count = max(0, last + 1 - first)
        if count * self._n * 8 > most_bytes:
            raise ModelError(f"time: found {count} steps from the first reading to the last; {self._gap()}")
        result = np.full((count, self._n), np.nan)
        held, held_us = np.full(self._n, np.nan), np.full(self._n, _NEVER)
        if self._held:  # a reading before the first whole window may hold still
            self._hold_before(first, held, held_us)
        for place in range(0, count, _BLOCK):
            block = result[place : place + _BLOCK]
            self._fill(first + place, block, held, held_us)
        return first, result

    def _gap(self) -> str:
        numbers = sorted(self._chunks)
        long, after = max(
            ((later - earlier, earlier) for earlier, later in itertools.pairwise(numbers)), default=(0, 0)
        )
        moment = datetime.fromtimestamp((after * _CHUNK * self._pane_us + self._cut.shift) / 1e6, UTC).isoformat()
        seconds = long * _CHUNK * self._pane_us / 1e6
        return f"expected no gap as long as that of about {seconds:g} s after {moment}"

    def _fill(self, step: int, result: Floats, held: Floats, held_us: Ints) -> None:
        """Compute neighbouring steps, from `step` on, into `result`."""
        a_slide, a_window = self._cut.slide // self._pane_us, self._cut.window // self._pane_us
        first = step * a_slide - a_window + 1
        panes = (len(result) - 1) * a_slide + a_window
        count, value, last, last_us = self._dense(first, panes)
        total = np.zeros(result.shape, dtype=np.int64)
        summed = self._aggregate in ("mean", "sum")
        found = np.full(result.shape, _STARTS.get(self._aggregate, 0.0))
        end = (len(result) - 1) * a_slide + 1
        for offset in range(a_window):
            at = slice(offset, offset + end, a_slide)
            total += count[at]
            if summed:
                found += value[at]
            elif self._aggregate == "last":
                found = np.where(count[at] > 0, last[at], found)
            else:
                found = (np.minimum if self._aggregate == "min" else np.maximum)(found, value[at])
        if self._aggregate == "mean":
            found /= np.maximum(total, 1)
        result[:] = np.where(total > 0, found, np.nan)
        if self._held:
            self._hold(step, result, (last, last_us), held, held_us)

    def _hold(self, step: int, result: Floats, last: tuple[Floats, Ints], held: Floats, held_us: Ints) -> None:
        """Fill in readings that still hold where a window has none; remember the last ones of these steps."""
        a_slide, a_window = self._cut.slide // self._pane_us, self._cut.window // self._pane_us
        for place in range(len(result)):
            end = a_window + place * a_slide
            for pane in range(max(0, end - a_slide), end):
                there = last[1][pane] != _NEVER
                held[there], held_us[there] = last[0][pane][there], last[1][pane][there]
            end_us = (step + place) * self._cut.slide + self._cut.shift
            holds = (held_us != _NEVER) & (end_us - held_us < self._max_age_us) & np.isnan(result[place])
            result[place][holds] = held[holds]

    def _hold_before(self, step: int, held: Floats, held_us: Ints) -> None:
        end = step * (self._cut.slide // self._pane_us)  # the pane at whose end the first step ends
        oldest = min(self._chunks) * _CHUNK
        if end <= oldest:
            return
        _, _, last, last_us = self._dense(oldest, end - oldest)
        for values, times in zip(last, last_us, strict=True):
            there = times != _NEVER
            held[there], held_us[there] = values[there], times[there]

    def _dense(self, first: int, panes: int) -> tuple[npt.NDArray[np.int32], Floats, Floats, Ints]:
        """Return counts, values, last values and their times of neighbouring panes, each [panes, n]."""
        shape = panes, self._n
        holds = self._held or self._aggregate == "last"
        count, value = np.zeros(shape, dtype=np.int32), np.full(shape, _STARTS.get(self._aggregate, 0.0))
        last = np.full(shape if holds else (panes, 0), np.nan)
        last_us = np.full(shape if holds else (panes, 0), _NEVER)
        for number in range(first // _CHUNK, (first + panes - 1) // _CHUNK + 1):
            chunk = self._chunks.get(number)
            if chunk is None:
                continue
            low, high = max(first, number * _CHUNK), min(first + panes, (number + 1) * _CHUNK)
            into, out = slice(low - first, high - first), slice(low - number * _CHUNK, high - number * _CHUNK)
            count[into] = chunk.count.reshape(_CHUNK, self._n)[out]
            value[into] = chunk.value.reshape(_CHUNK, self._n)[out]
            if holds:
                last[into] = chunk.last.reshape(_CHUNK, self._n)[out]
                last_us[into] = chunk.last_us.reshape(_CHUNK, self._n)[out]
        return count, value, last, last_us
