"""Adds quantiles to any forecaster of means."""

from __future__ import annotations

import numpy as np

from tsunagi.scaler.forecast.base import HORIZON, Forecast, PointForecaster
from tsunagi.scaler.forecast.conformal import Conformal


class Calibrated:
    """A forecaster of means with conformal quantiles of a target: the mean, peak or effective rate of a slot.

    Args:
        point: forecasts the means.
        horizon: number of slots ahead for which quantiles are kept; later slots have those of the last one.
    """

    def __init__(self, point: PointForecaster, horizon: int = HORIZON) -> None:
        self.point = point
        self._horizon = horizon
        self._conformal = Conformal(horizon)
        self._means = np.zeros((horizon, horizon))
        self._scales = np.ones((horizon, horizon))
        self._seen = 0
        self._leads = np.arange(horizon)

    def update(self, value: float, target: float | None = None) -> None:
        leads = self._leads[: min(self._seen, self._horizon)]
        if len(leads):
            rows = (self._seen - 1 - leads) % self._horizon
            aim = value if target is None else target
            self._conformal.update(self._means[rows, leads], self._scales[rows, leads], aim)
        self.point.update(value)
        row = self._seen % self._horizon
        self._means[row] = self.point.means(self._horizon)
        self._scales[row] = self._conformal.scale()
        self._seen += 1

    def forecast(self, horizon: int) -> Forecast:
        means = self.point.means(horizon)
        quantiles = np.maximum(self._conformal.quantiles(means[: self._horizon]), 0.0)
        if horizon > self._horizon:
            quantiles = np.concatenate((quantiles, np.repeat(quantiles[-1:], horizon - self._horizon, axis=0)))
        return Forecast(means, quantiles)
