"""Follows the scaler's metrics: load, forecast, workers by type, and what they cost."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from tsunagi.console.asking import LOOK_S, Looker, read_text
from tsunagi.console.history import number
from tsunagi.runtime.log import LogError
from tsunagi.runtime.settings import Settings
from tsunagi.scaler.bound import BoundError, cost_bound
from tsunagi.scaler.policy import WorkerType

KEPT = 1440
"""Looks that are kept: two hours."""
BOUND_S = 60.0
"""Shortest time between two computations of the least possible cost, in seconds."""
_ASK_S = 2.0
"""Longest wait for the scaler's metrics, in seconds."""
_HOUR_S = 3600.0
"""Seconds of an hour, for which prices are."""


class Look(NamedTuple):
    """What the scaler said at a moment. Rates are in tuples/s; NaN = it said nothing.

    Attributes:
        workers: how many workers of each type there are.
        price_h: what all of them cost in an hour.
    """

    time_s: float
    rate: float
    forecast: float
    quantile: float
    capacity: float
    workers: Mapping[str, int]
    price_h: float


class Spending:
    """Looks and costs, kept for the pages; may be used by several threads."""

    def __init__(self, settings: Settings) -> None:
        scaler = settings.scaler
        self._scaler = scaler
        self._lock = threading.Lock()
        self._looks: deque[Look] = deque(maxlen=KEPT)
        self._paid = 0.0
        self._since_s = 0.0
        self._least: float | None = None
        self._bound_at = float("-inf")
        self._types = [
            WorkerType(name, size.rate, size.price_h, scaler.boot_of(name), limit=size.most)
            for name, size in scaler.sizes.items()
            if size.rate is not None and size.price_h > 0
        ]

    def look_of(self, text: str, now_s: float) -> Look:
        """Return what a text of metrics says."""
        planned: dict[str, float] = {}
        workers: defaultdict[str, int] = defaultdict(int)
        rate = 0.0
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if family.name == "tsunagi_slot_arrival_tuples_per_second":
                    rate += sample.value
                elif family.name == "tsunagi_scaler_planned_tuples_per_second":
                    planned[sample.labels["what"]] = sample.value
                elif family.name == "tsunagi_scaler_workers_of_type" and sample.labels["state"] == "have":
                    workers[sample.labels["type"]] = int(sample.value)
        sizes = self._scaler.sizes
        price_h = sum(count * sizes[kind].price_h for kind, count in workers.items() if kind in sizes)
        nothing = float("nan")
        forecast, quantile, capacity = (planned.get(what, nothing) for what in ("forecast", "quantile", "capacity"))
        return Look(now_s, rate, forecast, quantile, capacity, dict(workers), price_h)

    def take(self, look: Look) -> None:
        """Add a look; what the workers cost since the one before is paid."""
        with self._lock:
            if self._looks:
                before = self._looks[-1]
                self._paid += before.price_h * (look.time_s - before.time_s) / _HOUR_S
            else:
                self._since_s = look.time_s
            self._looks.append(look)

    def compare(self, now: float) -> None:
        """Compute from time to time what somebody would have paid who had known all rates beforehand."""
        if not self._types or now - self._bound_at < BOUND_S:
            return
        self._bound_at = now
        with self._lock:
            rates = np.array([look.rate for look in self._looks])
        local = self._scaler.sizes.get("local")
        local_rate = 0.0 if local is None or local.rate is None else local.rate
        try:
            self._least = cost_bound(rates, LOOK_S, self._types, local_rate, self._scaler.slo_s)
        except BoundError:
            self._least = None

    def view(self) -> dict[str, Any]:
        """Return the looks as columns, and what was paid."""
        with self._lock:
            looks, paid, since_s = list(self._looks), self._paid, self._since_s
        columns = ("rate", "forecast", "quantile", "capacity", "price_h")
        return {
            "time_s": [round(look.time_s, 1) for look in looks],
            **{name: [number(getattr(look, name)) for look in looks] for name in columns},
            "workers": dict(looks[-1].workers) if looks else {},
            "priced": bool(self._types),
            "policy": self._scaler.policy,
            "paid": round(paid, 4),
            "least": None if self._least is None else round(self._least, 4),
            "since_s": since_s,
        }


class SpendingFollower(Looker):
    """A follower (`tsunagi.console.following`) of the scaler's metrics.

    Args:
        where: returns the address of the scaler's metrics, host:port; "" = no scaler has spoken.
    """

    def __init__(self, spending: Spending, where: Callable[[], str]) -> None:
        super().__init__()
        self._spending = spending
        self._where = where

    def look(self) -> None:
        where = self._where()
        if not where:
            raise LogError("no scaler has been heard")
        try:
            text = read_text(f"http://{where}/metrics", _ASK_S)
        except OSError as error:
            raise LogError(f"the scaler's metrics at {where} do not answer: {error}") from None
        self._spending.take(self._spending.look_of(text, time.time()))
        self._spending.compare(time.monotonic())
