"""The default policy: workers where they save more lateness than they cost, over the next slots together.

What a late tuple costs is not known beforehand: it is a price, in units of what processing a tuple costs, that feedback
moves until the share of late tuples is what is promised. The price stays between bounds, so that a promise that no
capacity can keep is not chased without end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from services.scaler.ahead import Ahead
from services.scaler.baselines import Threshold
from services.scaler.capacity import corrected
from services.scaler.forecast.base import HORIZON
from services.scaler.lookahead import Lookahead
from services.scaler.marginal import Offer, Prices, plan
from services.scaler.persistence import GAIN
from services.scaler.policy import NEVER, Answer, PolicySettings, View
from services.scaler.program import Cover, ProgramError, data_sizes, spread
from services.scaler.risk import MULTIPLES
from services.scaler.standing import standing

LEARN_S = 56 * 86400.0
"""Older rates tell nothing that newer ones do not."""
_FEEDBACK = 0.003
_CUT = 5.0
"""The feedback divides the first price of a late tuple by no more than this; it multiplies it by `max_boost`."""


class LookaheadPolicy:
    """Plans blocks over two hours by the measured risk of lateness; launches at once when the forecast was wrong."""

    def __init__(self, settings: PolicySettings) -> None:
        self._settings = settings
        self._boot_s = min(kind.boot_s for kind in settings.types)
        self._ahead = Ahead(settings.forecast or "mixture", settings.slot_s, settings.slo_s, self._boot_s)
        self._threshold = Threshold(settings)
        self._rates = {kind.name: kind.rate for kind in settings.types}
        self._told = dict(self._rates)
        self._program = Lookahead(settings.types, settings.slot_s, settings.billing, settings.solve_s, settings.hour_s)
        self._sizes = data_sizes(settings.types, settings.tuple_bytes, settings.hour_s)
        self._cover = Cover(self._sizes, settings.solve_s)
        self._tuple_price = min(size.price / size.amount for size in self._sizes) / settings.hour_s
        self._late_price = settings.late_price
        self._near = 0.0

    @property
    def late_price(self) -> float:
        """Price of a late tuple, in prices of processing one."""
        return self._late_price

    @property
    def rates(self) -> Mapping[str, float]:
        """Tuples/s believed of a worker, by type."""
        return self._rates

    def learn(self, rates: NDArray[np.float64], step_s: float) -> None:
        self._ahead.add(rates[-round(LEARN_S / step_s) :], step_s)

    def decide(self, view: View) -> Answer:
        self._correct(view)
        stood_in = self._threshold.decide(view)
        self._ahead.add(view.rates, view.step_s)
        if self._ahead.failure:
            fallback = f"threshold: {self._ahead.failure}"
            return Answer(stood_in.wanted, rate=stood_in.rate, reason=stood_in.reason, fallback=fallback)
        self._feedback(view)
        prices = self._prices(view)
        kinds = self._settings.types
        capacity, ends = standing(view, kinds, self._rates, self._settings.slot_s, HORIZON)
        running = [view.count(kind.name) for kind in kinds]
        begun, fallback = self._begin(prices, capacity, ends, running)
        wanted = {kind.name: running[i] - int(ends[i, 0]) + begun[i] for i, kind in enumerate(kinds)}
        ahead = self._ahead.newest
        rate = view.local_rate + self._capacity(wanted)
        return Answer(wanted, float(ahead.mean[0]), float(ahead.at(0.95)[0]), rate, "plan", fallback)

    def guard(self, view: View) -> Answer | None:
        if self._ahead.failure:
            return self._threshold.guard(view)
        if not len(view.rates):
            return None
        self._near += GAIN * (float(view.rates[-1]) - self._near)
        if view.backlog <= 0:
            return None
        total = view.local_rate + sum(self._rates[w.type] for w in view.workers if w.stop_s == NEVER)
        ready = view.local_rate + sum(self._rates[w.type] for w in view.workers if w.ready_s <= view.now_s)
        waiting = view.backlog + (self._near - ready) * self._boot_s
        too_much = waiting - self._settings.slo_s * total
        if too_much <= 0:
            return None
        said = float(self._ahead.newest.mean[0])
        lasting = said + self._ahead.persistence.share * (self._near - said)
        need = lasting + too_much / self._settings.slot_s - total
        if need <= 0:
            return None
        told = sum(self._rates[kind] / rate for kind, rate in self._told.items()) / len(self._told)
        need /= told  # the cover counts in benchmarked rates
        try:
            more = self._cover(need)
        except ProgramError:
            more = spread(need, self._sizes)
        cost = sum(kind.price_h * self._program.block_h * more[kind.name] for kind in self._settings.types)
        # Without more workers all that comes before the next slot's would be late.
        if lasting * self._settings.slot_s * self._late_price * self._tuple_price < cost:
            return None
        wanted = {kind.name: view.count(kind.name) + more[kind.name] for kind in self._settings.types}
        for kind in self._settings.types:
            if kind.limit is not None:
                wanted[kind.name] = min(wanted[kind.name], max(kind.limit, view.count(kind.name)))
        return Answer(wanted, lasting, rate=view.local_rate + self._capacity(wanted), reason="guard")

    def _capacity(self, wanted: Mapping[str, int]) -> float:
        return sum(self._rates[kind] * count for kind, count in wanted.items())

    def _begin(
        self, prices: Prices, capacity: NDArray[np.float64], ends: NDArray[np.float64], running: list[int]
    ) -> tuple[list[int], str]:
        fallback = ""
        if self._settings.solver == "program":
            try:
                return self._program.solve(prices, capacity, ends, running, self._rates), ""
            except ProgramError as error:
                fallback = f"marginal: {error}"
        return plan(prices, capacity, self._offers(ends, running), self._program.block), fallback

    def _prices(self, view: View) -> Prices:
        means = np.maximum(self._ahead.newest.mean, 1e-3)
        tuples = means * self._settings.slot_s
        shift = np.zeros(HORIZON)
        together = self._ahead.together
        shift[:together] = view.backlog / (together * self._settings.slot_s)
        price = self._ahead.risk.shares() * (tuples * self._late_price * self._tuple_price)[:, None]
        return Prices(means, shift, MULTIPLES, price)

    def _offers(self, ends: NDArray[np.float64], running: list[int]) -> list[Offer]:
        offers = []
        for i, kind in enumerate(self._settings.types):
            boots = max(1, math.ceil(kind.boot_s / self._settings.slot_s - 1e-9))
            offers.append(
                Offer(
                    self._rates[kind.name],
                    self._sizes[i].price * self._program.block_h,
                    boots,
                    boots - kind.boot_s / self._settings.slot_s,
                    10**6 if kind.limit is None else max(0, kind.limit - running[i]),
                    ends[i],
                )
            )
        return offers

    def _correct(self, view: View) -> None:
        """Follow the throughput of saturated workers, within bounds of what was benchmarked."""
        for kind, rate in view.saturated.items():
            if kind in self._rates and math.isfinite(rate) and rate > 0:
                self._rates[kind] = corrected(self._rates[kind], rate, self._told[kind])

    def _feedback(self, view: View) -> None:
        """Move the price of a late tuple by how many were late."""
        if not len(view.rates) or not math.isfinite(view.late):
            return
        share = view.late / max(self._ahead.level * self._settings.slot_s, 1e-9)
        step = min(_FEEDBACK * (share / self._settings.late_target - 1.0), math.log(2.0))
        low = self._settings.late_price / _CUT
        high = self._settings.late_price * self._settings.max_boost
        self._late_price = min(max(self._late_price * math.exp(step), low), high)
