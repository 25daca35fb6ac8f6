"""Profiles: what this time of the day, or of the week, usually brings."""

from __future__ import annotations

import numpy as np

from tsunagi.runtime.columns import Floats


class Profile:
    """A discounted mean for each slot of a period. A slot that has not been seen yet has the last value.

    Args:
        period: number of slots in a day, or in a week.
        gain: weight of the newest period in the mean.
    """

    def __init__(self, period: int, gain: float = 0.2) -> None:
        self._period = period
        self._gain = gain
        self._values = np.zeros(period)
        self._weights = np.zeros(period)
        self._next = 0
        self._last = 0.0

    @property
    def complete(self) -> bool:
        """Whether every slot of a period has been seen."""
        return bool(self._weights.min() > 0)

    def update(self, value: float) -> None:
        slot = self._next
        weight = (1 - self._gain) * self._weights[slot] + self._gain
        self._values[slot] += self._gain / weight * (value - self._values[slot])
        self._weights[slot] = weight
        self._next = (slot + 1) % self._period
        self._last = value

    def means(self, horizon: int) -> Floats:
        slots = (self._next + np.arange(horizon)) % self._period
        return np.where(self._weights[slots] > 0, self._values[slots], self._last)

    def window(self, first: int, count: int) -> Floats:
        """Return the profile from `first` slots ahead (0 is the next slot, -1 the newest one), for `count` slots."""
        slots = (self._next + first + np.arange(count)) % self._period
        return np.where(self._weights[slots] > 0, self._values[slots], self._last)
