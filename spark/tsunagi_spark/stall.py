"""How long the results have not moved, computed at each scrape, since a batch that hangs would not report it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable


class Stall:
    """Watches the last delivered step of every group.

    Args:
        clock: returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._moved: dict[str, tuple[int, float]] = {}

    def on_delivered(self, steps: Iterable[tuple[str, int]]) -> None:
        """Take note of (group, last delivered step) of all groups that have one; a missing group is forgotten."""
        now = self._clock()
        before = self._moved
        self._moved = {}
        for group, step in steps:
            known = before.get(group)
            self._moved[group] = known if known is not None and known[0] == step else (step, now)

    def seconds(self) -> float:
        """Return for how many seconds the slowest group has not moved; 0 while nothing has been delivered."""
        moved = self._moved
        return self._clock() - min(at for _, at in moved.values()) if moved else 0.0
