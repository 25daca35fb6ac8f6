"""The policies that users run today: workers for the peak, an autoscaler on the rate, an autoscaler on the lag."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tsunagi.scaler.policy import Answer, PolicySettings, View, WorkerType
from tsunagi.scaler.program import Cover, ProgramError, data_sizes, spread

CALM_S = 300.0
"""Fewer workers must have been enough for this many seconds before workers are stopped; Kubernetes' autoscaler has the
same default."""
UTILISATION = 0.8
"""Share of the capacity that the rate should take; the rest is room for bursts."""
TOLERANCE = 0.1
"""The number of workers changes only if the load differs from `UTILISATION` by more than this share of it, as in
Kubernetes' autoscaler."""


class AlwaysOn:
    """The cheapest workers for the peak, all the time. The peak is given, or it is the highest minute so far."""

    looks_again = False

    def __init__(self, settings: PolicySettings, peak: float = math.nan) -> None:
        self._settings = settings
        self._peak = peak
        self._fixed = math.isfinite(peak)
        self._sizes = data_sizes(settings.types, settings.tuple_bytes, settings.hour_s)
        self._cover = Cover(self._sizes, settings.solve_s)

    def learn(self, rates: NDArray[np.float64], step_s: float) -> None:
        if not self._fixed and len(rates):
            width = max(1, round(60.0 / step_s))
            minutes = np.add.reduceat(rates, np.arange(0, len(rates), width)) / width
            self._peak = max(float(minutes.max()), self._peak if math.isfinite(self._peak) else 0.0)

    def decide(self, view: View) -> Answer:
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

    def guard(self, view: View) -> Answer | None:
        del view
        return None


class _OneType:
    """An autoscaler that knows one type: the cheapest for a tuple among those without a limit, else among all."""

    looks_again = False

    def __init__(self, settings: PolicySettings) -> None:
        self._settings = settings
        by_price = sorted(settings.types, key=lambda kind: kind.price_h / kind.rate)
        self._type: WorkerType = next((kind for kind in by_price if kind.limit is None), by_price[0])
        self._asked: list[tuple[float, int]] = []

    def learn(self, rates: NDArray[np.float64], step_s: float) -> None:
        del rates, step_s

    def _desired(self, view: View) -> int:
        raise NotImplementedError

    def _recent(self, view: View) -> int:
        """Return the largest number of workers that was desired in the last `CALM_S`."""
        count = self._desired(view)
        if self._type.limit is not None:
            count = min(count, self._type.limit)
        self._asked = [(at, n) for at, n in self._asked if at > view.now_s - CALM_S and n > count]
        self._asked.append((view.now_s, count))
        return max(n for _at, n in self._asked)

    def decide(self, view: View) -> Answer:
        return self._answer(view, self._recent(view))

    def guard(self, view: View) -> Answer | None:
        count = self._recent(view)
        return self._answer(view, count) if count > view.count(self._type.name) else None

    def _answer(self, view: View, count: int) -> Answer:
        wanted: Mapping[str, int] = {kind.name: 0 for kind in self._settings.types} | {self._type.name: count}
        return Answer(wanted, rate=count * self._type.rate + view.local_rate, reason="autoscaler")


class Threshold(_OneType):
    """Keeps the rate of the last minute at `UTILISATION` of the capacity, within `TOLERANCE`."""

    def __init__(self, settings: PolicySettings) -> None:
        super().__init__(settings)
        self._minute = np.zeros(0)

    def _desired(self, view: View) -> int:
        width = max(1, round(60.0 / view.step_s))
        minute = view.rates[-width:] if len(view.rates) else self._minute
        self._minute = minute
        rate = float(minute.mean()) if len(minute) else 0.0
        present = view.count(self._type.name)
        capacity_now = view.local_rate + present * self._type.rate
        if capacity_now > 0 and abs(rate / capacity_now / UTILISATION - 1.0) <= TOLERANCE:
            return present
        return max(0, math.ceil((rate / UTILISATION - view.local_rate) / self._type.rate))


class Lag(_OneType):
    """Adds a worker for each lag that one can work off within the limit; removes one after `CALM_S` without lag."""

    def __init__(self, settings: PolicySettings) -> None:
        super().__init__(settings)
        self._calm_since = 0.0

    def _desired(self, view: View) -> int:
        present = view.count(self._type.name)
        target = self._type.rate * self._settings.slo_s
        if view.backlog > 0:
            self._calm_since = view.now_s
            booting = sum(worker.ready_s > view.now_s for worker in view.workers)
            return (
                max(present, present - booting + math.ceil(view.backlog / target - 1.0))
                if view.backlog > target
                else present
            )
        return present - 1 if present and view.now_s - self._calm_since >= CALM_S else present


def capacity(wanted: Mapping[str, int], types: tuple[WorkerType, ...]) -> float:
    """Return the capacity of workers in tuples/s, as benchmarked."""
    return sum(kind.rate * wanted.get(kind.name, 0) for kind in types)
