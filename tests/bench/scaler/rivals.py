"""What users run today, to compare with: workers for the peak, and a horizontal autoscaler on the lag."""

from __future__ import annotations

import math

import numpy as np

from tsunagi.runtime.columns import Floats
from tsunagi.scaler.policy import Answer, Policy, PolicySettings, PolicyView
from tsunagi.scaler.policy_by_name import POLICIES, make_policy
from tsunagi.scaler.program import Cover, ProgramError, data_sizes, spread
from tsunagi.scaler.threshold_policy import CALM_S, OneType, capacity

RIVALS = (*POLICIES, "always-on", "lag")
"""All policies that are compared."""


def make_rival(settings: PolicySettings, peak: float = math.nan) -> Policy:
    """Make any of `RIVALS`; `peak`: tuples/s that always-on is told of."""
    if settings.policy == "always-on":
        return AlwaysOn(settings, peak)
    return Lag(settings) if settings.policy == "lag" else make_policy(settings)


class AlwaysOn:
    """The cheapest workers for the peak, all the time: the peak it was told, or the highest minute it has seen."""

    looks_again = False

    def __init__(self, settings: PolicySettings, peak: float = math.nan) -> None:
        self._settings = settings
        self._peak = peak
        self._fixed = math.isfinite(peak)
        self._sizes = data_sizes(settings.types, settings.tuple_bytes, settings.hour_s)
        self._cover = Cover(self._sizes, settings.solve_s)

    def learn(self, rates: Floats, step_s: float) -> None:
        if not self._fixed and len(rates):
            width = max(1, round(60.0 / step_s))
            minutes = np.add.reduceat(rates, np.arange(0, len(rates), width)) / width
            self._peak = max(float(minutes.max()), self._peak if math.isfinite(self._peak) else 0.0)

    def decide(self, view: PolicyView) -> Answer:
        self.learn(view.rates, view.step_s)
        peak = self._peak if math.isfinite(self._peak) else 0.0
        need = max(0.0, peak - view.local_rate)
        fallback = ""
        try:
            wanted = dict(self._cover(need))
        except ProgramError as error:
            wanted, fallback = spread(need, self._sizes), f"spread: {error}"
        return Answer(
            wanted, rate=capacity(wanted, self._settings.types) + view.local_rate, reason="peak", fallback=fallback
        )

    def guard(self, view: PolicyView) -> Answer | None:
        del view
        return None


class Lag(OneType):
    """A worker more for each lag that one works off within the limit; one fewer after five minutes without lag."""

    def __init__(self, settings: PolicySettings) -> None:
        super().__init__(settings)
        self._calm_since = 0.0

    def desired(self, view: PolicyView) -> int:
        present = view.count(self.type.name)
        target = self.type.rate * self.settings.slo_s
        if view.backlog > 0:
            self._calm_since = view.now_s
            booting = sum(worker.ready_s > view.now_s for worker in view.workers)
            return (
                max(present, present - booting + math.ceil(view.backlog / target - 1.0))
                if view.backlog > target
                else present
            )
        return present - 1 if present and view.now_s - self._calm_since >= CALM_S else present
