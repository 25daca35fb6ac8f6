"""An operator that kills its own process on a marked value, as a bug in somebody's operator would."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

import numpy as np

from tsunagi.slot.config import SlotConfig
from tsunagi.slot.operators import Frame, Stateless

ARMED = "E2E_POISON"
"""Environment variable without which the operator lets everything pass: a replay must survive."""


class KillOn(Stateless):
    """Passes every frame on, unless it holds the value `marker`."""

    def __init__(self, config: SlotConfig, *, marker: float) -> None:
        self._marker = marker

    def process(self, frame: Frame) -> Sequence[Frame]:
        if os.environ.get(ARMED) and bool(np.any(frame.mean == self._marker)):
            os.kill(os.getpid(), signal.SIGKILL)
        return (frame,)
