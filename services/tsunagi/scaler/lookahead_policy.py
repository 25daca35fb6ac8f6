"""The default policy: it has workers where they save more lateness than they cost, over the next slots together.

Nobody knows beforehand what a late tuple costs. So it has a price, in units of the cost of processing one tuple, and
feedback moves this price until the share of late tuples is the promised one. The price stays within bounds, so that a
promise that no capacity can keep is not pursued without end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tsunagi.runtime.columns import Floats
from tsunagi.scaler.capacity import corrected
from tsunagi.scaler.forecast.base import HORIZON
from tsunagi.scaler.forecast_record import ForecastRecord
from tsunagi.scaler.guarding import Queue, expected_late
from tsunagi.scaler.lookahead_program import Lookahead
from tsunagi.scaler.marginal import Offer, Prices, plan
from tsunagi.scaler.policy import NEVER, Answer, PolicySettings, PolicyView, actions
from tsunagi.scaler.program import Cover, ProgramError, data_sizes, spread
from tsunagi.scaler.risk import MULTIPLES
from tsunagi.scaler.standing import standing
from tsunagi.scaler.threshold_policy import Threshold

LEARN_S = 56 * 86400.0
"""Rates from longer ago than this many seconds (eight weeks) are not learnt: newer ones tell all that they do."""
_FEEDBACK = 0.003
"""Share by which the price of a late tuple moves with each slot, for a share of late tuples that is twice the
target."""
_CUT = 5.0
"""The feedback lowers the price of a late tuple to the configured price divided by this at most; it raises it to
`max_boost` times the configured price."""


class LookaheadPolicy:
    """Plans blocks over two hours by the measured risk of lateness; launches at once if the forecast was too low."""

    looks_again = True

    def __init__(self, settings: PolicySettings) -> None:
        self._settings = settings
        self._boot_s = min(kind.boot_s for kind in settings.types)
        # Where blocks are paid by the hour it saves money to leave a surplus to the lag guard. By the second it does
        # not.
        guarded = settings.billing == "hourly"
        self._ahead = ForecastRecord(
            settings.forecast or "mixture", settings.slot_s, settings.slo_s, self._boot_s, guarded=guarded
        )
        self._threshold = Threshold(settings)
        self._told = {kind.name: kind.rate for kind in settings.types}
        self._full = dict(self._told)
        self._rates = dict(self._told)
        self._program = Lookahead(settings.types, settings.slot_s, settings.billing, settings.solve_s, settings.hour_s)
        self._sizes = data_sizes(settings.types, settings.tuple_bytes, settings.hour_s)
        self._cover = Cover(self._sizes, settings.solve_s)
        self._tuple_price = min(size.price / size.amount for size in self._sizes) / settings.hour_s
        self._late_price = settings.late_price
        self._near = math.nan

    @property
    def late_price(self) -> float:
        """Price of a late tuple, as a multiple of the price of processing one."""
        return self._late_price

    @property
    def rates(self) -> Mapping[str, float]:
        """Tuples/s that a worker of each type is believed to process within the limit of the delay."""
        return self._rates

    def learn(self, rates: Floats, step_s: float) -> None:
        self._ahead.add(rates[-round(LEARN_S / step_s) :], step_s)

    def decide(self, view: PolicyView) -> Answer:
        self._correct(view)
        self._follow(view)
        stood_in = self._threshold.decide(view)
        self._ahead.add(view.rates, view.step_s)
        if self._ahead.failure:
            fallback = f"threshold: {self._ahead.failure}"
            return Answer(stood_in.wanted, rate=stood_in.rate, reason=stood_in.reason, fallback=fallback)
        self._feedback(view)
        begun, ends, fallback = self._plan(view, self._ahead.newest.mean)
        wanted = {kind: view.count(kind) - ends[kind] + count for kind, count in begun.items()}
        if self._settings.billing == "second":
            wanted = self._kept(view, wanted)
        ahead = self._ahead.newest
        rate = view.local_rate + self._capacity(wanted)
        return Answer(wanted, float(ahead.mean[0]), float(ahead.at(0.95)[0]), rate, "plan", fallback)

    def _kept(self, view: PolicyView, wanted: dict[str, int]) -> dict[str, int]:
        """Return `wanted`, or one that stops nobody if the guard would launch again at once: booting takes time."""
        stops = actions(view, wanted, self._settings.billing, view.step_s).stops
        left = [worker for worker in view.workers if worker.name not in stops]
        if not stops or self._help(replace(view, workers=left)) is None:
            return wanted
        return {kind: max(count, view.count(kind)) for kind, count in wanted.items()}

    def guard(self, view: PolicyView) -> Answer | None:
        self._follow(view)
        if self._ahead.failure:
            return self._threshold.decide(view) if self._ending(view) else self._threshold.guard(view)
        if not len(view.rates):
            return None
        return self._help(view) or self._look_again(view)

    def _follow(self, view: PolicyView) -> None:
        """Update the smoothed rate with the newest one."""
        if len(view.rates):
            newest = float(view.rates[-1])
            before = self._near if math.isfinite(self._near) else newest
            self._near = before + self._ahead.persistence.gain * (newest - before)

    def _ending(self, view: PolicyView) -> list[str]:
        """Return the types of the workers whose paid block ends before the guard is asked again."""
        if self._settings.billing != "hourly":
            return []
        last_s = view.now_s + view.step_s + view.drain_s
        return [worker.type for worker in view.workers if worker.stop_s == NEVER and worker.paid_s < last_s]

    def _help(self, view: PolicyView) -> Answer | None:
        """Launch at once if the queue will exceed the limit before a worker could boot, and if it is worth it."""
        if view.backlog <= 0:
            return None
        staying = [worker for worker in view.workers if worker.stop_s == NEVER]
        ready = [(worker.ready_s - view.now_s, self._rates[worker.type]) for worker in staying]
        there = view.local_rate + sum(rate for at_s, rate in ready if at_s <= 0)
        total = view.local_rate + sum(rate for _, rate in ready)
        if view.backlog + (self._near - there) * self._boot_s <= self._settings.slo_s * total:
            return None
        queue = Queue(
            view.backlog,
            np.array([(0.0, view.local_rate), *ready]),
            self._settings.slo_s,
            self._boot_s,
            self._settings.slot_s,
            view.step_s,
        )
        said = float(self._ahead.newest.mean[0])
        choices = [self._cover_now(amount) for amount in queue.amounts(self._near)]
        planned = self._planned(view)
        if any(planned.values()):
            choices.append(planned)
        more = np.array([self._capacity(choice) for choice in choices])
        late = expected_late(queue, self._near, said, self._ahead.persistence.share, more)
        price = {kind.name: kind.price_h * self._program.block_h for kind in self._settings.types}
        cost = np.array([sum(price[kind] * count for kind, count in choice.items()) for choice in choices])
        cost += late * self._late_price * self._tuple_price
        best = int(cost.argmin())
        if any(planned.values()) and more[-1] >= more[best]:
            best = len(choices) - 1  # the plan also knows what comes after the boot
        if not more[best]:
            return None
        wanted = {kind: view.count(kind) + count for kind, count in choices[best].items()}
        for kind in self._settings.types:
            if kind.limit is not None:
                wanted[kind.name] = min(wanted[kind.name], max(kind.limit, view.count(kind.name)))
        return Answer(wanted, self._near, rate=view.local_rate + self._capacity(wanted), reason="guard")

    def _planned(self, view: PolicyView) -> dict[str, int]:
        """Return the number of workers of each type that the plan would launch now."""
        begun, ends, _ = self._plan(view, self._ahead.now(self._near))
        return {kind: max(0, count - ends[kind]) for kind, count in begun.items()}

    def _cover_now(self, need: float) -> Mapping[str, int]:
        """Return the cheapest workers that carry `need` tuples/s, as far as types allow."""
        told = sum(self._rates[kind] / rate for kind, rate in self._told.items()) / len(self._told)
        try:
            return self._cover(need / told)  # the cover is computed with benchmarked rates
        except ProgramError:
            return spread(need / told, self._sizes)

    def _look_again(self, view: PolicyView) -> Answer | None:
        """Decide again about blocks that end before the next look: the rate may have changed since the slot began."""
        ending = self._ending(view)
        if not ending:
            return None
        begun, _, fallback = self._plan(view, self._ahead.now(self._near))
        over = {kind: max(0, ending.count(kind) - count) for kind, count in begun.items()}
        if not any(over.values()):
            return None
        wanted = {kind: view.count(kind) - count for kind, count in over.items()}
        rate = view.local_rate + self._capacity(wanted)
        return Answer(wanted, float(self._near), rate=rate, reason="second look", fallback=fallback)

    def _capacity(self, wanted: Mapping[str, int]) -> float:
        return sum(self._rates[kind] * count for kind, count in wanted.items())

    def _plan(self, view: PolicyView, means: Floats) -> tuple[dict[str, int], dict[str, int], str]:
        """Return by type the blocks that begin within a slot and those that end; and the simpler rule used, or "".

        Args:
            means: expected rates of the next slots, in tuples/s.
        """
        kinds = self._settings.types
        prices = self._prices(view, means)
        capacity, ends = standing(view, kinds, self._rates, self._settings.slot_s, HORIZON)
        running = [view.count(kind.name) for kind in kinds]
        begun: list[int] | None = None
        fallback = ""
        if self._settings.solver == "program":
            try:
                begun = self._program.solve(prices, capacity, ends, running, self._rates)
            except ProgramError as error:
                fallback = f"marginal: {error}"
        if begun is None:
            begun = plan(prices, capacity, self._offers(ends, running), self._program.block)
        names = [kind.name for kind in kinds]
        return dict(zip(names, begun, strict=True)), dict(zip(names, ends[:, 0].astype(int), strict=True)), fallback

    def _prices(self, view: PolicyView, means: Floats) -> Prices:
        means = np.maximum(means, 1e-3)
        tuples = means * self._settings.slot_s
        shift = np.zeros(HORIZON)
        together = self._ahead.together
        shift[:together] = view.backlog / (together * self._settings.slot_s)
        price = self._ahead.risk.shares(means) * (tuples * self._late_price * self._tuple_price)[:, None]
        return Prices(means, shift, MULTIPLES, price)

    def _offers(self, ends: Floats, running: list[int]) -> list[Offer]:
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

    def _correct(self, view: PolicyView) -> None:
        """Correct the rates by the throughput of saturated workers, within bounds, and by the latency of the types."""
        for kind, rate in view.saturated.items():
            if kind in self._full and math.isfinite(rate) and rate > 0:
                self._full[kind] = corrected(self._full[kind], rate, self._told[kind])
        self._rates = {kind: rate * view.within.get(kind, 1.0) for kind, rate in self._full.items()}

    def _feedback(self, view: PolicyView) -> None:
        """Move the price of a late tuple by the share of tuples that were late."""
        if not len(view.rates) or not math.isfinite(view.late):
            return
        share = view.late / max(self._ahead.level * self._settings.slot_s, 1e-9)
        step = min(_FEEDBACK * (share / self._settings.late_target - 1.0), math.log(2.0))
        low = self._settings.late_price / _CUT
        high = self._settings.late_price * self._settings.max_boost
        self._late_price = min(max(self._late_price * math.exp(step), low), high)
