"""How long a slot was silent: the longest gap between new outputs beyond the length of a step. Pure."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass

_KEPT = 50_000


@dataclass(frozen=True, slots=True)
class Moment:
    """A new output was appended to `recovered`."""

    appended_us: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Takeover:
    """The parts of a slot's change of owner, in seconds.

    Attributes:
        detect_s: from the fault to the Ownership record; catch_up_s: from there to the first output of the new term.
        protected_s: from the Ownership record to a ready secondary; None = there was none yet.
    """

    slot: int
    epoch: int
    node: str
    detect_s: float
    catch_up_s: float | None
    protected_s: float | None = None


class SlotTimes:
    """When one slot's new outputs were appended."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._moments: deque[Moment] = deque(maxlen=kept)

    def add(self, appended_us: int, epoch: int) -> None:
        """Note a new output."""
        self._moments.append(Moment(appended_us, epoch))

    def silence_s(self, from_us: int, to_us: int, step_us: int) -> float | None:
        """Return the longest gap that reaches into [from_us, to_us], less the step; None = no output to measure from.

        The gap that a fault begins in starts at the last output before it, and one that still lasts ends at `to_us`.
        """
        before = [moment.appended_us for moment in self._moments if moment.appended_us <= from_us]
        inside = [moment.appended_us for moment in self._moments if from_us < moment.appended_us <= to_us]
        times = [*before[-1:], *inside]
        if not times:
            return None
        if to_us - times[-1] > step_us:
            times.append(to_us)
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        return max(0.0, (max(gaps, default=0) - step_us) / 1e6)

    def first_of(self, epoch: int) -> int | None:
        """Return when the first new output of a term was appended; None = none yet."""
        return next((moment.appended_us for moment in self._moments if moment.epoch >= epoch), None)


def longest(silences: list[float | None]) -> float | None:
    """Return the longest; None = nothing was measured."""
    return max((value for value in silences if value is not None), default=None)


def median(values: list[float]) -> float | None:
    """Return the median; None = no values."""
    ordered = sorted(values)
    if not ordered:
        return None
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
