"""What a forecaster is: rates come one a slot, and it says what the next slots bring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tsunagi.runtime.columns import Floats

LEVELS: Floats = np.array([0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99, 0.995])
"""Levels of the quantiles that are kept; others are interpolated between them."""

HORIZON = 24
"""Slots ahead that forecasters keep score of; two hours in slots of five minutes."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the next slots bring.

    Attributes:
        mean: (horizon,) expected values, the next slot's first.
        quantiles: (horizon, levels) values not exceeded with probability `LEVELS`, not decreasing in the level.
    """

    mean: Floats
    quantiles: Floats

    def at(self, level: float | Floats) -> Floats:
        """Return the quantiles of a level (or one a slot), (horizon,); outside of `LEVELS` the nearest."""
        place = np.interp(np.broadcast_to(level, self.mean.shape), LEVELS, np.arange(len(LEVELS)))
        low = np.minimum(place.astype(np.int64), len(LEVELS) - 2)
        slot = np.arange(len(self.mean))
        share = place - low
        return np.asarray(self.quantiles[slot, low] * (1 - share) + self.quantiles[slot, low + 1] * share)


class PointForecaster(Protocol):
    """Forecasts means only."""

    def update(self, value: float) -> None:
        """Take in the newest slot's value."""

    def means(self, horizon: int) -> Floats:
        """Return what is expected in the next `horizon` slots; zeros before the first value."""


class Forecaster(Protocol):
    """Forecasts means and quantiles. `target` is what the quantiles are about: mean, peak or effective rate."""

    def update(self, value: float, target: float | None = None) -> None:
        """Take in the newest slot's mean rate, and its target if that is another."""

    def forecast(self, horizon: int) -> Forecast:
        """Return what the next `horizon` slots bring."""
