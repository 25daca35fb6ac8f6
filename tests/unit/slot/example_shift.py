"""Operators of one's own that go with steps and with runs of tuples alike: rows alone matter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tsunagi.slot.config import SlotConfig
from tsunagi.slot.operators import Frame, Stateless


class Shift(Stateless):
    """Adds a number to every value."""

    def __init__(self, config: SlotConfig, *, by: float = 0.0) -> None:
        del config
        self._by = by

    def process(self, frame: Frame) -> Sequence[Frame]:
        return (replace(frame, mean=frame.mean + self._by),)


class Narrow(Stateless):
    """Gives its values as float32, which a message has no column for."""

    def __init__(self, config: SlotConfig) -> None:
        del config

    def process(self, frame: Frame) -> Sequence[Frame]:
        return (replace(frame, mean=frame.mean.astype(np.float32)),)
