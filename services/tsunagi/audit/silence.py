"""How long a slot was silent: the longest gap between new outputs beyond the length of a step. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import pairwise

_KEPT = 50_000


class SlotTimes:
    """When one slot's new outputs were appended."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._moments: deque[tuple[int, int]] = deque(maxlen=kept)  # (when, epoch)

    def add(self, appended_us: int, epoch: int) -> None:
        """Note a new output."""
        self._moments.append((appended_us, epoch))

    def silence_s(self, from_us: int, to_us: int, step_us: int) -> float | None:
        """Return the longest silence that reaches into [from_us, to_us]; see `silence_s`."""
        return silence_s((appended_us for appended_us, _ in self._moments), from_us, to_us, step_us)

    def first_of(self, epoch: int) -> int | None:
        """Return when the first new output of a term was appended; None = none yet."""
        return next((appended_us for appended_us, term in self._moments if term >= epoch), None)


def silence_s(times_us: Iterable[int], from_us: int, to_us: int, step_us: int) -> float | None:
    """Return the longest gap between outputs that reaches into [from_us, to_us], less the step; None = there is no gap.

    The gap that a fault begins in starts at the last output before it, and one that still lasts ends at `to_us`.

    Args:
        times_us: when new outputs were appended, in the order of the log.
    """
    until = [time_us for time_us in times_us if time_us <= to_us]
    before = [time_us for time_us in until if time_us <= from_us]
    moments = before[-1:] + [time_us for time_us in until if time_us > from_us]
    if moments and to_us - moments[-1] > step_us:
        moments.append(to_us)
    longest_us = max((later - earlier for earlier, later in pairwise(moments)), default=None)
    return None if longest_us is None else max(0.0, (longest_us - step_us) / 1e6)


def longest(silences: Iterable[float | None]) -> float | None:
    """Return the longest; None = nothing was measured."""
    return max((value for value in silences if value is not None), default=None)
