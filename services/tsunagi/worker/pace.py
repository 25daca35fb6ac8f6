"""Slows a worker down to the rate of a smaller machine (`limit` in [scaler.sizes])."""

from __future__ import annotations

LENT_S = 0.25
"""The most unused time that a worker may make up for, seconds: other work does not put it below its rate."""


class Pace:
    """Computes how long a worker must rest. Times are monotonic seconds of the caller's clock.

    Args:
        limit: the rate, tuples/s.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._free_at = 0.0

    def cost_s(self, tuples: float) -> float:
        """Return how many seconds so many tuples take at the rate, whether or not the worker must rest after them."""
        return tuples / self.limit

    def rest_s(self, tuples: float, began: float, now: float) -> float:
        """Return how many seconds to rest after so many tuples, whose processing began at `began`."""
        self._free_at = max(self._free_at, began - LENT_S) + self.cost_s(tuples)
        return max(0.0, self._free_at - now)
