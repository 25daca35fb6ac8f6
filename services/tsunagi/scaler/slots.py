"""Cuts measured rates into time slots, and keeps what has not filled one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tsunagi.runtime.columns import Floats


class Slots:
    """Gives whole slots of steps.

    Args:
        slot_s: length of a slot.
    """

    def __init__(self, slot_s: float) -> None:
        self._slot_s = slot_s
        self._rest = np.zeros(0)

    def add(self, rates: Floats, step_s: float) -> Iterator[Floats]:
        """Yield the rates of each slot that is full now."""
        width = max(1, round(self._slot_s / step_s))
        rates = np.concatenate((self._rest, rates)) if len(self._rest) else rates
        whole = len(rates) // width * width
        self._rest = np.array(rates[whole:])
        for first in range(0, whole, width):
            yield rates[first : first + width]
