"""Cuts measured rates into time slots, and keeps the rest that does not fill one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tsunagi.runtime.columns import Floats


class Slots:
    """Collects steps into whole slots.

    Args:
        slot_s: length of a slot in seconds.
    """

    def __init__(self, slot_s: float) -> None:
        self._slot_s = slot_s
        self._rest = np.zeros(0)

    def add(self, rates: Floats, step_s: float) -> Iterator[Floats]:
        """Add rates; yield the rates of each slot that they complete."""
        width = max(1, round(self._slot_s / step_s))
        rates = np.concatenate((self._rest, rates)) if len(self._rest) else rates
        whole = len(rates) // width * width
        self._rest = np.array(rates[whole:])
        for first in range(0, whole, width):
            yield rates[first : first + width]
