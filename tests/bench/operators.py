"""Operators that cost what a benchmark wants."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tsunagi.slot.config import SlotConfig
from tsunagi.slot.operators import Frame, Stateless

LOOK_S = 0.2


class Busy(Stateless):
    """Costs so many milliseconds of CPU a tuple as a file says (looked at anew each 0.2 s), and passes tuples on."""

    def __init__(self, config: SlotConfig, *, file: str) -> None:
        del config
        self._file = Path(file)
        self._cost_s = 0.0
        self._look_at = 0.0

    def process(self, frame: Frame) -> Sequence[Frame]:
        now = time.perf_counter()
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self._cost_s = float(self._file.read_text(encoding="utf-8")) / 1e3
        # Of the thread's own time: on a machine of half the speed, or shared with others, it takes longer.
        until = time.thread_time() + self._cost_s * len(frame.mean)
        while time.thread_time() < until:
            pass
        return (frame,)


class Ballast(Stateless):
    """Holds so many bytes of state, all in memory, and changes a little of it with each frame; passes frames on.

    The state is too large for a context and says nothing, so none is written of it (`Stateless`): what is measured is
    whether a takeover depends on what the operators hold.
    """

    def __init__(self, config: SlotConfig, *, size: int) -> None:
        del config
        self._held = np.ones(max(1, size // 8))
        self._place = 0

    def process(self, frame: Frame) -> Sequence[Frame]:
        self._held[self._place] += len(frame.mean)
        self._place = (self._place + 4096) % len(self._held)
        return (frame,)
