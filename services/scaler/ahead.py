"""The forecasts of a policy: rates in, means of the next slots out, with what they were worth so far."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from services.scaler.forecast.base import HORIZON, LEVELS, Forecast
from services.scaler.forecast.calibrated import Calibrated
from services.scaler.forecast.make import make_point
from services.scaler.persistence import Persistence
from services.scaler.queueing import effective_rate
from services.scaler.risk import Risk, together
from services.scaler.slots import Slots

Floats = NDArray[np.float64]


class ForecastError(RuntimeError):
    """The forecaster raised, or gave something that is no rate."""


class Ahead:
    """Feeds a forecaster slot by slot; the quantiles are of the SLO-effective rate.

    Args:
        name: the forecaster, as `[scaler] forecast`.
        boot_s: what a worker takes to boot.

    Attributes:
        together: slots in which a backlog is worked off, and over which the risk's queue goes on (`risk`).
    """

    def __init__(self, name: str, slot_s: float, slo_s: float, boot_s: float = 100.0) -> None:
        self._slots = Slots(slot_s)
        self._slo_s = slo_s
        self._forecaster = Calibrated(make_point(name, slot_s))
        self.together = together(slot_s, slo_s)
        self.risk = Risk(HORIZON, slo_s, self.together)
        self.persistence = Persistence(boot_s, slot_s)
        self.level = 0.0
        self.failure = ""
        self.newest = Forecast(np.zeros(HORIZON), np.zeros((HORIZON, len(LEVELS))))
        self._said = np.zeros((HORIZON, HORIZON))
        self._seen = 0
        self._leads = np.arange(HORIZON)

    def add(self, rates: Floats, step_s: float) -> None:
        """Take in measured rates. A forecaster that fails is asked again with the next slot; `failure` says why."""
        for slot in self._slots.add(rates, step_s):
            leads = self._leads[: min(self._seen, HORIZON)]
            if len(leads):
                said = float(self._said[(self._seen - 1) % HORIZON, 0])
                self.persistence.add(slot, step_s, said)
                self.risk.update(self._said[(self._seen - 1 - leads) % HORIZON, leads], slot, step_s)
            mean = float(slot.mean())
            self.level += max(0.002, 1.0 / (1 + self._seen)) * (mean - self.level)
            try:
                self.newest = self._next(mean, effective_rate(slot, step_s, self._slo_s))
            except ForecastError as error:
                self.failure = str(error)
            else:
                self.failure = ""
            self._said[self._seen % HORIZON] = self.newest.mean
            self._seen += 1

    def _next(self, mean: float, effective: float) -> Forecast:
        try:
            self._forecaster.update(mean, effective)
            found = self._forecaster.forecast(HORIZON)
        except Exception as error:  # another's forecaster may raise whatever it likes
            raise ForecastError(f"the forecaster raised {type(error).__name__}: {error}") from error
        if found.mean.shape != (HORIZON,) or not np.isfinite(found.quantiles).all():
            raise ForecastError("the forecaster gave something that is not finite")
        if not math.isfinite(float(found.mean.sum())):
            raise ForecastError("the forecaster gave a mean that is not finite")
        return found
