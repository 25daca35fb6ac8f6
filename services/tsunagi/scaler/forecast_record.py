"""Feeds measured rates to a forecaster, and keeps its forecasts together with how good they have been."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tsunagi.runtime.columns import Floats
from tsunagi.scaler.forecast.base import HORIZON, LEVELS, Forecast
from tsunagi.scaler.forecast.calibrated import Calibrated
from tsunagi.scaler.forecast.make import make_point
from tsunagi.scaler.persistence import Persistence
from tsunagi.scaler.queueing import effective_rate
from tsunagi.scaler.risk import Risk, together
from tsunagi.scaler.time_slots import Slots

Ints = NDArray[np.intp]

ERRORS_FADE = 0.001
"""Share of its weight that an old forecast error loses with each slot: errors of a thousand slots ago hardly count."""


class ForecastError(RuntimeError):
    """The forecaster raised an error, or returned something that is not a rate."""


class ForecastRecord:
    """Feeds a forecaster slot by slot. Its quantiles are about the SLO-effective rate (`effective_rate`).

    Args:
        name: the forecaster, as `[scaler] forecast` names it.
        boot_s: time that a worker takes to boot, in seconds.
        guarded: whether the risk leaves out lateness that the lag guard can still prevent.

    Attributes:
        together: number of slots over which the queue of the risk goes on, and in which a backlog is worked off
            (`risk`).
    """

    def __init__(self, name: str, slot_s: float, slo_s: float, boot_s: float = 100.0, *, guarded: bool = True) -> None:
        self._slots = Slots(slot_s)
        self._slo_s = slo_s
        self._guarded = guarded
        self._forecaster = Calibrated(make_point(name, slot_s))
        self.together = together(slot_s, slo_s)
        self.risk = Risk(HORIZON, slo_s, self.together)
        self.persistence = Persistence(boot_s, slot_s)
        self.level = 0.0
        self.failure = ""
        self.newest = Forecast(np.zeros(HORIZON), np.zeros((HORIZON, len(LEVELS))))
        self._said = np.zeros((HORIZON, HORIZON))
        self._missed = np.zeros(HORIZON)  # for each past slot, its mean less the forecast made one slot before
        self._together = np.zeros(HORIZON)  # sums, over forecasts, of the first slot's error times each slot's error
        self._alone = 1e-9
        self._seen = 0
        self._leads = np.arange(HORIZON)

    def add(self, rates: Floats, step_s: float) -> None:
        """Add measured rates. A forecaster that fails is asked again after the next slot; `failure` says why."""
        for slot in self._slots.add(rates, step_s):
            leads = self._leads[: min(self._seen, HORIZON)]
            if len(leads):
                said = float(self._said[(self._seen - 1) % HORIZON, 0])
                reaction = self.persistence.add(slot, step_s, said)
                before = self._said[(self._seen - 1 - leads) % HORIZON, leads]
                self.risk.update(before, slot, step_s, reaction if self._guarded else None)
                self._compare(leads, float(slot.mean()))
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

    def now(self, near: float) -> Floats:
        """Return the forecast means of the next slots, corrected by the rate of this moment, (HORIZON,).

        Args:
            near: the smoothed rate now, in tuples/s, within the slot that the newest forecast begins with.
        """
        off = self.persistence.difference * (near - self.newest.mean[0])
        shares = np.clip(self._together / self._alone, 0.0, 1.0)
        found: Floats = np.maximum(self.newest.mean + shares * off, 0.0)
        return found

    def _compare(self, leads: Ints, mean: float) -> None:
        """Learn how much of the error of a forecast's first slot the later slots of the same forecast share."""
        errors = mean - self._said[(self._seen - 1 - leads) % HORIZON, leads]
        self._missed[self._seen % HORIZON] = errors[0]
        # first-slot errors of the forecasts that reached this slot
        first = self._missed[(self._seen - leads) % HORIZON]
        self._together[leads] += first * errors - ERRORS_FADE * self._together[leads]
        self._alone += errors[0] ** 2 - ERRORS_FADE * self._alone

    def _next(self, mean: float, effective: float) -> Forecast:
        try:
            self._forecaster.update(mean, effective)
            found = self._forecaster.forecast(HORIZON)
        except Exception as error:  # a user's forecaster may raise any error
            raise ForecastError(f"the forecaster raised {type(error).__name__}: {error}") from error
        if found.mean.shape != (HORIZON,) or not np.isfinite(found.quantiles).all():
            raise ForecastError("the forecaster gave something that is not finite")
        if not math.isfinite(float(found.mean.sum())):
            raise ForecastError("the forecaster gave a mean that is not finite")
        return found
