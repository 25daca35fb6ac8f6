"""How many tuples will be late with a given capacity: measured, for each number of slots ahead.

After each slot, capacities at several multiples of the forecast are tested on the rates that came: how many tuples
would have been late with each (in the fluid queue, empty at the start of the slot)? The discounted ratio of late tuples
to forecast tuples is the risk of that multiple. This needs no distribution, and holds for any forecaster.
Relative noise is smaller the more tuples there are, so the risk is kept separately for heights of the forecast, an
octave apart. A height that has been seen little leans on what is known of all heights.

If capacity is missing, the lag guard can still launch. What is late after the guard's worker would be ready is not the
plan's fault and is not counted. So missing capacity costs nothing if the guard can make up for it before a tuple is
late, and forecasts need no surplus for it.

If a slot is short compared with the promised delay, no tuple is late within it, however small the capacity. Then the
queue goes on over several slots (`together`) before it is emptied.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tsunagi.runtime.columns import Floats
from tsunagi.scaler.persistence import Reaction

TOGETHER = 30.0
"""The queue goes on for at least this many promised delays before it is emptied: then a capacity that is too small by a
thirtieth shows."""

MULTIPLES: Floats = np.concatenate(
    (
        [0.0, 0.5, 0.7, 0.8, 0.85],
        np.linspace(0.9, 1.1, 11),
        [1.15, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0],
    )
)
"""Multiples of the forecast whose capacities are tested; they are densest near 1, where most decisions are made."""


LOWEST = -4
"""Exponent of the lowest height of a forecast that is kept separately: 2^-4 tuples/s."""
OCTAVES = 24
"""Number of heights of a forecast that are kept separately, each twice the one before."""

LEAN_SLOTS = 30.0
"""What is known of all heights has the weight of this many slots of a height's own."""


def together(slot_s: float, slo_s: float) -> int:
    """Return the number of slots over which the queue goes on before it is emptied."""
    return max(1, round(TOGETHER * slo_s / slot_s))


class Risk:
    """The share of late tuples for each multiple of the forecast.

    Args:
        horizon: number of slots ahead.
        slo_s: longest delay that is promised, in seconds.
        slots: number of slots over which the queue goes on (`together`).
        memory: share of its weight that a past slot loses with each slot.
    """

    def __init__(self, horizon: int, slo_s: float, slots: int = 1, memory: float = 5e-4) -> None:
        self._slo_s = slo_s
        self._slots = slots
        self._slot = 0
        self._before = np.zeros((horizon, len(MULTIPLES)))
        # seconds until a launched worker is ready; inf if none is launched
        self._ready = np.full((horizon, len(MULTIPLES)), np.inf)
        self._keep = 1.0 - memory
        start = np.linspace(1.0, 0.0, len(MULTIPLES)) ** 4
        self._late = np.tile(1e-6 * start, (horizon, 1))
        self._told = np.full(horizon, 1e-6)
        self._late_at = np.zeros((OCTAVES, horizon, len(MULTIPLES)))
        self._told_at = np.zeros((OCTAVES, horizon))
        self._slot_s = 0.0
        self._leads = np.arange(horizon)

    def update(self, means: Floats, rates: Floats, step_s: float, reaction: Reaction | None = None) -> None:
        """Add the rates of a slot, with the means that were forecast for it 1, 2, ... slots before.

        Args:
            reaction: what the lag guard would have known; None if nobody launches within a slot.
        """
        leads = len(means)
        capacity = (means[:, None] * MULTIPLES)[:, :, None]
        time_s = np.arange(1.0, len(rates) + 1.0) * step_s
        # Tuples that wait at the ends of the steps: (leads, multiples, steps).
        path = self._before[:leads, :, None] + np.cumsum(rates) * step_s - capacity * time_s
        waiting = path - np.minimum(np.minimum.accumulate(path, axis=2), 0.0)
        late = (waiting > self._slo_s * capacity) * rates
        if reaction is not None:
            ready = self._react(means, capacity, waiting, time_s, reaction)
            late[time_s > ready[:, :, None]] = 0.0
            self._ready[:leads] = np.maximum(ready - time_s[-1], 0.0)
            waiting[:, :, -1][ready <= time_s[-1]] = 0.0
        self._slot = (self._slot + 1) % self._slots
        self._before[:leads] = waiting[:, :, -1] if self._slot else 0.0
        if not self._slot:
            self._ready[:] = np.inf
        found, told = late.sum(axis=2) * step_s, means * time_s[-1]
        self._late *= self._keep
        self._told *= self._keep
        self._late[:leads] += found
        self._told[:leads] += told
        self._late_at *= self._keep
        self._told_at *= self._keep
        self._slot_s = float(time_s[-1])
        for at, weight in _heights(means):
            self._late_at[at, self._leads[:leads]] += weight[:, None] * found
            self._told_at[at, self._leads[:leads]] += weight * told

    def _react(self, means: Floats, capacity: Floats, waiting: Floats, time_s: Floats, reaction: Reaction) -> Floats:
        """Return when the guard's workers would be ready, in seconds from the start of the slot, (leads, multiples).

        This is nearly what the guard does: it launches if the part of the excess that lasts is not covered, at any
        price.
        """
        said = means[:, None, None]
        too_much = waiting + (reaction.near - capacity) * reaction.boot_s - self._slo_s * capacity
        need = said + reaction.share * (reaction.near - said) + too_much / time_s[-1] - capacity
        launches = (waiting > 0) & (too_much > 0) & (need > 0)
        at_s = np.where(launches.any(axis=2), time_s[launches.argmax(axis=2)] + reaction.boot_s, np.inf)
        found: Floats = np.minimum(at_s, self._ready[: len(means)])
        return found

    def shares(self, means: Floats) -> Floats:
        """Return the late tuples that are expected for each multiple, as a share of those forecast, (leads, multiples).

        The result is convex and not increasing in the multiple.

        Args:
            means: what is forecast for 1, 2, ... slots ahead.
        """
        leads = self._leads[: len(means)]
        late, told = np.zeros((len(means), len(MULTIPLES))), np.zeros(len(means))
        for at, weight in _heights(means):
            late += weight[:, None] * self._late_at[at, leads]
            told += weight * self._told_at[at, leads]
        lean = LEAN_SLOTS * means * self._slot_s + 1e-9
        known = self._late[leads] / self._told[leads, None]
        return _convex((late + lean[:, None] * known) / (told + lean)[:, None])


def _heights(means: Floats) -> list[tuple[NDArray[np.intp], Floats]]:
    """Return the two octaves that each mean lies between, with their weights."""
    height = np.clip(np.log2(np.maximum(means, 1e-9)) - LOWEST, 0.0, OCTAVES - 1.001)
    below = height.astype(np.intp)
    above = height - below
    return [(below, 1.0 - above), (below + 1, above)]


def _convex(values: Floats) -> Floats:
    """Return the greatest convex functions of `MULTIPLES` that lie below the values, (rows, multiples)."""
    hull = values.copy()
    for left in range(len(MULTIPLES) - 2):
        # The line from each point to the later point with the least slope, where it lies below the points in between.
        slope = (hull[:, left + 1 :] - hull[:, left : left + 1]) / (MULTIPLES[left + 1 :] - MULTIPLES[left])
        steepest = slope.min(axis=1, keepdims=True)
        reach = slope.argmin(axis=1)[:, None]
        line = hull[:, left : left + 1] + steepest * (MULTIPLES[left + 1 :] - MULTIPLES[left])
        inside = np.arange(len(MULTIPLES) - left - 1) < reach
        hull[:, left + 1 :] = np.where(inside, line, hull[:, left + 1 :])
    return hull
