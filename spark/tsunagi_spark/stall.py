"""How long the results have stood still, told at the moment of the scrape: a batch that hangs would not tell it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable


class Stall:
    """Watches the last step delivered of every group.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._moved: dict[str, tuple[int, float]] = {}

    def on_delivered(self, steps: Iterable[tuple[str, int]]) -> None:
        """Take in (group, last step delivered) of all groups that have one; groups not named any more are forgotten."""
        now = self._clock()
        before = self._moved
        self._moved = {}
        for group, step in steps:
            known = before.get(group)
            self._moved[group] = known if known is not None and known[0] == step else (step, now)

    def seconds(self) -> float:
        """Return since when the group that has waited longest has not moved; 0 while nothing was delivered yet."""
        moved = self._moved
        return self._clock() - min(at for _, at in moved.values()) if moved else 0.0
