"""How much of a rate above the forecast is still there when a worker launched now is ready."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

Floats = NDArray[np.float64]

GAIN = 0.3
"""Weight of the newest step in the smoothed rate."""
_ABOVE = 1.15
_MEMORY = 0.001


class Persistence:
    """Learns the share of an excess that lasts, by discounted least squares over the steps at which there was one.

    Args:
        boot_s: from launch to ready.
        span_s: time after that which a launched worker is wanted for.
    """

    def __init__(self, boot_s: float, span_s: float) -> None:
        self._boot_s = boot_s
        self._span_s = span_s
        self._before = np.zeros(0)
        self._forecast = 0.0
        self._product = 1e-9
        self._square = 1e-9

    @property
    def share(self) -> float:
        """Share of an excess that lasts, 0..1."""
        return min(max(self._product / self._square, 0.0), 1.0)

    def add(self, rates: Floats, step_s: float, forecast: float) -> None:
        """Take in a slot's rates, and what had been forecast of it one slot before."""
        before, said = self._before, self._forecast
        self._before, self._forecast = rates, forecast
        if not len(before):
            return
        near, _ = lfilter([GAIN], [1.0, GAIN - 1.0], before, zi=[(1.0 - GAIN) * before[0]])
        first = round(self._boot_s / step_s)
        span = max(1, min(round(self._span_s / step_s), len(rates) - 1))
        sums = np.concatenate(([0.0], np.cumsum(np.concatenate((before, rates)))))
        at = np.arange(len(before))
        at = at[at + 1 + first + span < len(sums)]
        later = (sums[at + 1 + first + span] - sums[at + 1 + first]) / span
        excess = near[at] - said
        above = excess > (_ABOVE - 1.0) * said
        self._product += float((excess * (later - said))[above].sum()) - _MEMORY * self._product
        self._square += float((excess * excess)[above].sum()) - _MEMORY * self._square
