"""Quantiles that hold for any forecaster: tracked online, one for each level and each number of slots ahead.

A quantile moves up by level x step when the value exceeded it, and down by (1 - level) x step when it did not. So in
the long run it is exceeded exactly as often as its level says, for any sequence of values (Gibbs and Candes 2021;
Angelopoulos et al. 2023). Errors are measured in units of the recent error, so that the quantiles are far apart in
rough times and close together in quiet ones.
"""

from __future__ import annotations

import numpy as np

from tsunagi.runtime.columns import Floats
from tsunagi.scaler.forecast.base import LEVELS

_NORMAL = np.array([0.0, 0.253, 0.524, 0.842, 1.036, 1.282, 1.44, 1.645, 1.881, 2.054, 2.326, 2.576])
"""The quantiles of the standard normal distribution at `LEVELS`, with which tracking begins."""


class Conformal:
    """Tracks quantiles of a forecast's errors.

    Args:
        horizon: number of slots ahead.
        step: how far a quantile moves after one value, in units of the recent error.
        memory: weight of the newest error in the recent error.
    """

    def __init__(self, horizon: int, step: float = 0.05, memory: float = 0.01) -> None:
        # a quantile further ahead is learnt from older forecasts and moves less
        self._step = step / (1.0 + np.arange(horizon) / 6.0)
        self._memory = memory
        self._scale = np.zeros(horizon)
        self._near = np.zeros(horizon)
        self._quantiles = np.tile(1.25 * _NORMAL, (horizon, 1))
        self._seen = np.zeros(horizon)

    def scale(self) -> Floats:
        """Return the unit of the errors, which is their recent size, (horizon,)."""
        return np.asarray(np.sqrt(self._scale * np.maximum(self._near, 0.1 * self._scale)) + 1e-9)

    def quantiles(self, means: Floats) -> Floats:
        """Return the values that are not exceeded with the probabilities `LEVELS`, (leads, levels)."""
        scale = self.scale()[: len(means)]
        ordered = np.maximum.accumulate(self._quantiles[: len(means)], axis=1)
        return np.asarray(means[:, None] + scale[:, None] * ordered)

    def update(self, means: Floats, scale: Floats, value: float) -> None:
        """Add a value, with the means that were forecast for it 1, 2, ... slots before, and the unit of errors then."""
        leads = len(means)
        error = value - means
        above = (error / scale)[:, None] > self._quantiles[:leads]
        step = (self._step[:leads] * np.maximum(1.0, 10.0 / (1.0 + 0.1 * self._seen[:leads])))[:, None]
        reach = np.maximum(1.0, np.abs(self._quantiles[:leads]))
        self._quantiles[:leads] += step * reach * (above - (1.0 - LEVELS))
        size = np.abs(error)
        gain = np.maximum(self._memory, 1.0 / (1.0 + self._seen[:leads]))
        self._scale[:leads] += gain * (size - self._scale[:leads])
        near = np.maximum(0.15, gain)
        self._near[:leads] += near * (size - self._near[:leads])
        self._seen[:leads] += 1
