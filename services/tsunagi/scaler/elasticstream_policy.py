"""The policy as published: forecast the mean of the next TimeSlot, solve figure 1, have just those workers."""

from __future__ import annotations

import math

from tsunagi.runtime.columns import Floats
from tsunagi.scaler.forecast_record import ForecastRecord
from tsunagi.scaler.policy import Answer, PolicySettings, PolicyView
from tsunagi.scaler.program import Cover, ProgramError, data_sizes, solve, spread, task_sizes
from tsunagi.scaler.threshold_policy import Threshold, capacity


class ElasticStream:
    """Solves the paper's program at the start of each slot, data-parallel or task-parallel."""

    looks_again = False

    def __init__(self, settings: PolicySettings) -> None:
        self._settings = settings
        self._ahead = ForecastRecord(settings.forecast or "sdar", settings.slot_s, settings.slo_s)
        self._sizes = data_sizes(settings.types, settings.tuple_bytes, settings.hour_s)
        self._cover = Cover(self._sizes, settings.solve_s)
        self._threshold = Threshold(settings)

    def learn(self, rates: Floats, step_s: float) -> None:
        self._ahead.add(rates, step_s)

    def decide(self, view: PolicyView) -> Answer:
        stood_in = self._threshold.decide(view)
        self._ahead.add(view.rates, view.step_s)
        if self._ahead.failure:
            return _instead(stood_in, f"threshold: {self._ahead.failure}")
        rate = float(self._ahead.newest.mean[0])
        fallback = ""
        if self._settings.application == "tasks":
            sizes = task_sizes(self._settings.types, rate, self._settings.tuple_bytes, self._settings.hour_s)
            need = self._settings.tasks - math.floor(view.local_rate / rate + 1e-9) if rate > 0 else 0.0
        else:
            sizes, need = self._sizes, rate - view.local_rate
        try:
            if self._settings.application == "tasks":
                found = solve(need, sizes, self._settings.bandwidth, self._settings.solve_s)
            else:
                found = dict(self._cover(need))
        except ProgramError as error:
            found, fallback = spread(need, sizes, self._settings.bandwidth), f"spread: {error}"
        wanted = {kind.name: found.get(kind.name, 0) for kind in self._settings.types}
        return Answer(wanted, rate, rate, capacity(wanted, self._settings.types) + view.local_rate, "program", fallback)

    def guard(self, view: PolicyView) -> Answer | None:
        return self._threshold.guard(view) if self._ahead.failure else None


def _instead(answer: Answer, fallback: str) -> Answer:
    return Answer(answer.wanted, answer.forecast, answer.quantile, answer.rate, answer.reason, fallback)
