"""A horizontal autoscaler on the rate, which stands in where another policy has no forecast."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np

from tsunagi.runtime.columns import Floats
from tsunagi.scaler.policy import Answer, PolicySettings, PolicyView, WorkerType

CALM_S = 300.0
"""Fewer workers must have been enough for this many seconds before workers are stopped; Kubernetes' autoscaler has the
same default."""
UTILISATION = 0.8
"""Share of the capacity that the rate should take; the rest is room for bursts."""
TOLERANCE = 0.1
"""The number of workers changes only if the load differs from `UTILISATION` by more than this share of it, as in
Kubernetes' autoscaler."""


class OneType(ABC):
    """An autoscaler that knows one type: the cheapest for a tuple among those without a limit, else among all.

    `desired` says how many workers of it there should be.
    """

    looks_again = False

    def __init__(self, settings: PolicySettings) -> None:
        self.settings = settings
        by_price = sorted(settings.types, key=lambda kind: kind.price_h / kind.rate)
        self.type: WorkerType = next((kind for kind in by_price if kind.limit is None), by_price[0])
        self._asked: list[tuple[float, int]] = []

    def learn(self, rates: Floats, step_s: float) -> None:
        del rates, step_s

    @abstractmethod
    def desired(self, view: PolicyView) -> int:
        """Return how many workers there should be by what is seen now."""

    def _recent(self, view: PolicyView) -> int:
        """Return the largest number of workers that was desired in the last `CALM_S`."""
        count = self.desired(view)
        if self.type.limit is not None:
            count = min(count, self.type.limit)
        self._asked = [(at, n) for at, n in self._asked if at > view.now_s - CALM_S and n > count]
        self._asked.append((view.now_s, count))
        return max(n for _at, n in self._asked)

    def decide(self, view: PolicyView) -> Answer:
        return self._answer(view, self._recent(view))

    def guard(self, view: PolicyView) -> Answer | None:
        count = self._recent(view)
        return self._answer(view, count) if count > view.count(self.type.name) else None

    def _answer(self, view: PolicyView, count: int) -> Answer:
        wanted: Mapping[str, int] = {kind.name: 0 for kind in self.settings.types} | {self.type.name: count}
        return Answer(wanted, rate=count * self.type.rate + view.local_rate, reason="autoscaler")


class Threshold(OneType):
    """Keeps the rate of the last minute at `UTILISATION` of the capacity, within `TOLERANCE`."""

    def __init__(self, settings: PolicySettings) -> None:
        super().__init__(settings)
        self._minute = np.zeros(0)

    def desired(self, view: PolicyView) -> int:
        width = max(1, round(60.0 / view.step_s))
        minute = view.rates[-width:] if len(view.rates) else self._minute
        self._minute = minute
        rate = float(minute.mean()) if len(minute) else 0.0
        present = view.count(self.type.name)
        capacity_now = view.local_rate + present * self.type.rate
        if capacity_now > 0 and abs(rate / capacity_now / UTILISATION - 1.0) <= TOLERANCE:
            return present
        return max(0, math.ceil((rate / UTILISATION - view.local_rate) / self.type.rate))


def capacity(wanted: Mapping[str, int], types: tuple[WorkerType, ...]) -> float:
    """Return the capacity of workers in tuples/s, as benchmarked."""
    return sum(kind.rate * wanted.get(kind.name, 0) for kind in types)
