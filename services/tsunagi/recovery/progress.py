"""Reports what a long computation is doing, how far it is and how long it may still take: a line every few seconds.

A stage may be one call of LAPACK that takes a minute and reports nothing. So a thread of its own writes the lines, and
each stage comes with the number of multiplications that it is expected to take: from the speed of the stages before it
follows how far it may be.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

EVERY_S = 3.0
"""Seconds between two lines. A computation that takes less time writes none."""
MOST_GUESSED = 0.95
"""A stage that does not report how far it is counts as this share at most, until it ends."""

Tell = Callable[[str], None]


def silent(line: str) -> None:
    """Do nothing with a line."""
    del line


class FitStage(NamedTuple):
    """A part of the computation.

    Attributes:
        name: what it does, as the line says it.
        operations: number of multiplications that it is expected to take.
    """

    name: str
    operations: float


class ProgressReporter:
    """Writes lines while it is entered as a context.

    Args:
        tell: called with each line.
        clock: returns monotonic seconds.
    """

    def __init__(self, tell: Tell = silent, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._tell, self._clock = tell, clock
        self._stages: list[FitStage] = []
        self._place = -1  # number of the present stage
        self._share = 0.0  # share of that stage that is done, as far as it reports it
        self._began = self._stage_began = clock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> Self:
        if self._tell is not silent:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def expect(self, stages: Sequence[FitStage]) -> None:
        """Add stages after those known so far."""
        self._stages += stages

    def begin(self, name: str) -> None:
        """Begin the next stage of this name; the stages before it are over."""
        names = [stage.name for stage in self._stages]
        self._share, self._stage_began = 0.0, self._clock()
        self._place = names.index(name, self._place + 1)

    def reach(self, share: float) -> None:
        """Report how far the stage is, from 0 to 1."""
        self._share = min(1.0, share)

    def line(self) -> str:
        """Return a line: what is being done, how far it is, and how long it may still take."""
        now, place = self._clock(), self._place
        if place < 0:
            return "starting"
        weights = [stage.operations for stage in self._stages]
        before, own, whole = sum(weights[:place]), weights[place], sum(weights)
        share = self._share
        if not share and self._stage_began > self._began and before:
            rate = before / (self._stage_began - self._began)
            share = min(MOST_GUESSED, rate * (now - self._stage_began) / own)
        done = (before + share * own) / whole
        spent = now - self._began
        rest = f", about {spent / done - spent:.0f} s more" if done else ""
        return f"{self._stages[place].name}: {share:.0%} of it, {done:.0%} of all in {spent:.0f} s{rest}"

    def _run(self) -> None:
        while not self._over.wait(EVERY_S):
            self._tell(self.line())
