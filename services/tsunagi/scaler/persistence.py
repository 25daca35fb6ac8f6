"""Learns how much of a rate above the forecast is still there when a worker that is launched now becomes ready."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tsunagi.runtime.columns import Floats

GAINS = (1.0, 0.6, 0.3, 0.15)
"""Weights of the newest step in the smoothed rate that are tried: 1 fits calm steps, the small ones noisy steps."""
_ABOVE = 1.15
"""A rate counts as an excess if it is above the forecast by more than this factor: smaller differences are noise."""
_MEMORY = 0.001
"""Share of its weight that an old step loses with each slot."""


@dataclass(frozen=True, slots=True)
class Reaction:
    """What the lag guard would have known in a slot, and how long its help takes.

    Attributes:
        near: (steps,) smoothed rate after each step, in tuples/s.
        share: share of an excess over the forecast that lasts.
        boot_s: time from a launch to a ready worker, in seconds.
    """

    near: Floats
    share: float
    boot_s: float


class Persistence:
    """Learns the share of an excess that lasts, by discounted least squares over the steps with an excess.

    The rate is smoothed in several ways at once; the one whose excess has predicted best is used.

    Args:
        boot_s: time from a launch to a ready worker, in seconds.
        span_s: time after that for which a launched worker is wanted, in seconds.
    """

    def __init__(self, boot_s: float, span_s: float) -> None:
        self._boot_s = boot_s
        self._span_s = span_s
        self._before = np.zeros(0)
        self._paths = np.zeros((len(GAINS), 0))
        self._forecast = 0.0
        self._near = np.zeros(len(GAINS))
        self._product = np.full(len(GAINS), 1e-9)
        self._square = np.full(len(GAINS), 1e-9)
        self._any_product = np.full(len(GAINS), 1e-9)
        self._any_square = np.full(len(GAINS), 1e-9)

    @property
    def _best(self) -> int:
        return int((self._product * np.abs(self._product) / self._square).argmax())

    @property
    def gain(self) -> float:
        """Weight of the newest step in the smoothed rate that is used."""
        return GAINS[self._best]

    @property
    def share(self) -> float:
        """Share of an excess that lasts, 0..1."""
        best = self._best
        return min(max(float(self._product[best] / self._square[best]), 0.0), 1.0)

    @property
    def difference(self) -> float:
        """Share of any difference from the forecast, above or below and however small, that lasts, 0..1."""
        best = self._best
        return min(max(float(self._any_product[best] / self._any_square[best]), 0.0), 1.0)

    def add(self, rates: Floats, step_s: float, forecast: float) -> Reaction:
        """Add the rates of a slot, and what had been forecast for it one slot before.

        Returns:
            What the guard could know during this slot; `share` is the one learnt before it.
        """
        from scipy.signal import lfilter  # noqa: PLC0415 - half a second, which a scaler without a policy need not wait

        best, share = self._best, self.share
        before, said, paths = self._before, self._forecast, self._paths
        if not len(before):
            self._near[:] = rates[0]
        self._before, self._forecast = rates, forecast
        self._paths = np.array(
            [
                lfilter([gain], [1.0, gain - 1.0], rates, zi=[(1.0 - gain) * near])[0]
                for gain, near in zip(GAINS, self._near, strict=True)
            ]
        )
        self._near = self._paths[:, -1].copy()
        if len(before):
            self._learn(before, rates, paths - said, said, step_s)
        return Reaction(self._paths[best], share, self._boot_s)

    def _learn(self, before: Floats, rates: Floats, excess: Floats, said: float, step_s: float) -> None:
        """Compare the excess at each step of the slot before with what was left of it one boot later."""
        first = round(self._boot_s / step_s)
        span = max(1, min(round(self._span_s / step_s), len(rates) - 1))
        sums = np.concatenate(([0.0], np.cumsum(np.concatenate((before, rates)))))
        at = np.arange(len(before))
        at = at[at + 1 + first + span < len(sums)]
        later = (sums[at + 1 + first + span] - sums[at + 1 + first]) / span - said
        excess = excess[:, at]
        self._any_product += excess @ later - _MEMORY * self._any_product
        self._any_square += (excess * excess).sum(axis=1) - _MEMORY * self._any_square
        excess = np.where(excess > (_ABOVE - 1.0) * said, excess, 0.0)
        self._product += excess @ later - _MEMORY * self._product
        self._square += (excess * excess).sum(axis=1) - _MEMORY * self._square
