"""A worker that keeps itself to a rate, as a smaller machine would (`limit` in [scaler.sizes])."""

from __future__ import annotations

LENT_S = 0.25
"""So much unused time may be made up for: what a worker does besides is no reason to stay below its rate."""


class Pace:
    """Says how long to rest. Times are monotonic seconds of the caller's clock.

    Args:
        limit: tuples/s.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._free_at = 0.0

    def cost_s(self, tuples: float) -> float:
        """Return what so many tuples cost on such a machine, whether one has to rest after them now or not."""
        return tuples / self.limit

    def rest_s(self, tuples: float, began: float, now: float) -> float:
        """Return how long to rest after so many tuples, whose processing began then."""
        self._free_at = max(self._free_at, began - LENT_S) + self.cost_s(tuples)
        return max(0.0, self._free_at - now)
