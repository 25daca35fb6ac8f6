"""Measures how long a slot was silent: the longest gap between new outputs, less the length of a step. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import pairwise

_KEPT = 50_000
"""How many outputs of a slot are remembered, the last ones. The limit bounds the memory of a long run."""


class SlotTimes:
    """Remembers when the new outputs of one slot were appended.

    Args:
        kept: how many outputs are remembered, as `_KEPT`.
    """

    def __init__(self, kept: int = _KEPT) -> None:
        self._moments: deque[tuple[int, int]] = deque(maxlen=kept)  # (time of the append in microseconds, epoch)

    def add(self, appended_us: int, epoch: int) -> None:
        """Note a new output, which was appended at that time in a term."""
        self._moments.append((appended_us, epoch))

    def silence_s(self, from_us: int, to_us: int, step_us: int) -> float | None:
        """Return the longest silence that reaches into [from_us, to_us], in seconds; see the function `silence_s`."""
        return silence_s((appended_us for appended_us, _ in self._moments), from_us, to_us, step_us)

    def first_of(self, epoch: int) -> int | None:
        """Return when the first output of this term or a later one was appended; None if there is none yet."""
        return next((appended_us for appended_us, term in self._moments if term >= epoch), None)


def silence_s(times_us: Iterable[int], from_us: int, to_us: int, step_us: int) -> float | None:
    """Return the longest gap between outputs that reaches into [from_us, to_us], less a step; None if there is no gap.

    The first gap starts at the last output before `from_us`. A gap that still lasts ends at `to_us`.

    Args:
        times_us: when new outputs were appended, in log order, in microseconds.
        from_us, to_us: the span of time, in microseconds.
        step_us: length of a step, in microseconds.

    Returns:
        The silence in seconds.
    """
    until = [time_us for time_us in times_us if time_us <= to_us]
    before = [time_us for time_us in until if time_us <= from_us]
    moments = before[-1:] + [time_us for time_us in until if time_us > from_us]
    if moments and to_us - moments[-1] > step_us:
        moments.append(to_us)
    longest_us = max((later - earlier for earlier, later in pairwise(moments)), default=None)
    return None if longest_us is None else max(0.0, (longest_us - step_us) / 1e6)


def longest(silences: Iterable[float | None]) -> float | None:
    """Return the longest silence; None if nothing was measured."""
    return max((value for value in silences if value is not None), default=None)
