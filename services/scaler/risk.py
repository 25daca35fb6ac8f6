"""How many tuples will be late with so much capacity: measured, for each number of slots ahead.

After every slot each of a grid of capacities, as multiples of what was forecast, is put to the test on what came: how
many tuples would have been late with it (the fluid queue, empty at the slot's start). The discounted ratio of late
tuples to those forecast is the risk of that multiple. It needs no distribution, and holds whatever the forecaster is.

In a slot that is short beside the promised delay nothing is late that soon, however little the capacity; the queue then
goes on over several slots (`together`) before it is emptied.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

TOGETHER = 30.0
"""Promised delays that the queue goes on at least: capacity that is short by a thirtieth then is seen to be."""

MULTIPLES: Floats = np.array(
    [0.0, 0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0]
)


def together(slot_s: float, slo_s: float) -> int:
    """Return over how many slots the queue goes on before it is emptied."""
    return max(1, round(TOGETHER * slo_s / slot_s))


class Risk:
    """Late tuples by multiple of the forecast.

    Args:
        horizon: slots ahead.
        slo_s: longest delay promised.
        slots: over which the queue goes on (`together`).
        memory: weight that past slots lose in a slot.
    """

    def __init__(self, horizon: int, slo_s: float, slots: int = 1, memory: float = 5e-4) -> None:
        self._slo_s = slo_s
        self._slots = slots
        self._slot = 0
        self._before = np.zeros((horizon, len(MULTIPLES)))
        self._keep = 1.0 - memory
        start = np.linspace(1.0, 0.0, len(MULTIPLES)) ** 4
        self._late = np.tile(1e-6 * start, (horizon, 1))
        self._told = np.full(horizon, 1e-6)
        self._leads = np.arange(horizon)

    def update(self, means: Floats, rates: Floats, step_s: float) -> None:
        """Take in a slot's rates, with the means that were forecast of it 1, 2, ... slots before."""
        leads = len(means)
        capacity = means[:, None] * MULTIPLES
        free = np.cumsum(rates) * step_s
        # Waiting at the steps' ends: (leads, multiples, steps).
        path = self._before[:leads, :, None] + free - capacity[:, :, None] * (np.arange(1, len(rates) + 1) * step_s)
        waiting = path - np.minimum(np.minimum.accumulate(path, axis=2), 0.0)
        late = ((waiting > self._slo_s * capacity[:, :, None]) * rates).sum(axis=2) * step_s
        self._slot = (self._slot + 1) % self._slots
        self._before[:leads] = waiting[:, :, -1] if self._slot else 0.0
        self._late *= self._keep
        self._told *= self._keep
        self._late[:leads] += late
        self._told[:leads] += means * (len(rates) * step_s)

    def shares(self) -> Floats:
        """Return the late tuples expected with each multiple, of those forecast, (horizon, multiples).

        Convex and not increasing in the multiple.
        """
        return _convex(self._late / self._told[:, None])


def _convex(values: Floats) -> Floats:
    """Return the greatest convex functions of `MULTIPLES` below the values, (rows, multiples)."""
    hull = values.copy()
    for left in range(len(MULTIPLES) - 2):
        # The line from each point to the lowest-lying later one, where that is below what is between.
        slope = (hull[:, left + 1 :] - hull[:, left : left + 1]) / (MULTIPLES[left + 1 :] - MULTIPLES[left])
        steepest = slope.min(axis=1, keepdims=True)
        reach = slope.argmin(axis=1)[:, None]
        line = hull[:, left : left + 1] + steepest * (MULTIPLES[left + 1 :] - MULTIPLES[left])
        inside = np.arange(len(MULTIPLES) - left - 1) < reach
        hull[:, left + 1 :] = np.where(inside, line, hull[:, left + 1 :])
    return hull
