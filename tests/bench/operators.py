"""Operators that cost what a benchmark wants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from services.gateway.config import SlotConfig
from services.gateway.operators import Frame, Stateless


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
