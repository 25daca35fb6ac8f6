"""The interface of forecasters: they are given one rate a slot, and say what the next slots will bring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tsunagi.runtime.columns import Floats

LEVELS: Floats = np.array([0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99, 0.995])
"""Levels of the quantiles that are kept; quantiles of other levels are interpolated between them."""

HORIZON = 24
"""Number of slots ahead for which the errors of forecasts are tracked: two hours, if a slot is five minutes."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the next slots will bring.

    Attributes:
        mean: (horizon,) expected values; the next slot comes first.
        quantiles: (horizon, levels) values that are not exceeded with the probabilities `LEVELS`; they grow with the
            level.
    """

    mean: Floats
    quantiles: Floats

    def at(self, level: float | Floats) -> Floats:
        """Return the quantiles of a level (or of one level a slot), (horizon,); outside of `LEVELS` the nearest one."""
        place = np.interp(np.broadcast_to(level, self.mean.shape), LEVELS, np.arange(len(LEVELS)))
        low = np.minimum(place.astype(np.int64), len(LEVELS) - 2)
        slot = np.arange(len(self.mean))
        share = place - low
        return np.asarray(self.quantiles[slot, low] * (1 - share) + self.quantiles[slot, low + 1] * share)


class PointForecaster(Protocol):
    """Forecasts means only."""

    def update(self, value: float) -> None:
        """Add the value of the newest slot."""

    def means(self, horizon: int) -> Floats:
        """Return the expected values of the next `horizon` slots; zeros before the first value."""


class Forecaster(Protocol):
    """Forecasts means and quantiles. The quantiles are about a `target`: the mean, peak or effective rate of a slot."""

    def update(self, value: float, target: float | None = None) -> None:
        """Add the mean rate of the newest slot, and its target if that is another value."""

    def forecast(self, horizon: int) -> Forecast:
        """Return what the next `horizon` slots will bring."""
