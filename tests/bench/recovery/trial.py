"""One method through one scenario: how wide its bounds are, how many do, and how long each step takes.

Bounds hang on which sensors are read alone, not on the method's arithmetic, so all are computed by Tsunagi's filters
(which agree with the literal equations to 1e-8); only the time of the published methods is that of the literal ones.
Seconds are the process' CPU seconds: what a step takes on a core of its own, whatever else runs on the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tests.bench.recovery.batch import RecoveryBatch
from tests.bench.recovery.helped import HelpedSlot
from tests.bench.recovery.methods import NOBODY, Chooser, Method, Splits
from tests.bench.recovery.scenario import DELTA, EPS, Flags, gaussian, joint, responses
from tests.unit.recovery.literal import literal
from tsunagi.recovery.filter import Recovery
from tsunagi.recovery.forms import Places
from tsunagi.recovery.model import half_width
from tsunagi.runtime.columns import Floats

WITHIN = 1e-9
"""Rounding, when a bound is compared with eps."""

Estimate = Callable[[Floats, Flags, Sequence[Places]], tuple[Places, Floats, Floats, Floats]]
"""Readings, lost sensors, helpers -> sensors, means, half widths; and seconds of each slot, float64[slots]."""


class Outcome(NamedTuple):
    """What came of it.

    Attributes:
        rmse: theoretical, section 5.2: root mean square of each sensor's error bounds, mean over the sensors.
        satisfied: share of recovered values with a bound of at most eps.
        coverage: share of recovered values whose truth is within the bound; should be delta.
        helpers: of all slots together, a step, on average.
        decide_ms, filter_ms: a step, all slots one after the other on one core, median.
        slowest_ms: a step of the slowest slot, decision and filter, median.
        response_s, one_core_s: mean response, with a core for each slot, and with one for all.
        split_s, helpers_s, filters_s: preparation: the split; what helpers are chosen by; the filters' own matrices,
            which the literal equations have none of.
    """

    rmse: float
    satisfied: float
    coverage: float
    helpers: float
    decide_ms: float
    filter_ms: float
    slowest_ms: float
    response_s: float
    one_core_s: float
    split_s: float
    helpers_s: float
    filters_s: float


class _Tally:
    """Bounds and errors, by sensor."""

    def __init__(self, n: int) -> None:
        self._squares, self._count = np.zeros(n), np.zeros(n, dtype=np.intp)
        self._satisfied = self._covered = 0

    def add(self, sensors: Places, error: Floats, bound: Floats) -> None:
        self._squares[sensors] += bound**2
        self._count[sensors] += 1
        self._satisfied += int((bound <= EPS + WITHIN).sum())
        self._covered += int((np.abs(error) <= bound).sum())

    def result(self) -> tuple[float, float, float]:
        """Return rmse, satisfied, coverage."""
        met = self._count > 0
        values = int(self._count.sum())
        if not values:
            raise ValueError("trial: found no lost value, expected a scenario in which edges fail")
        rmse = np.sqrt(self._squares[met] / self._count[met])
        return float(rmse.mean()), self._satisfied / values, self._covered / values


def run(
    splits: Splits,
    method: Method,
    downs: Flags,
    readings: Floats,
    *,
    timed: int = 24,
    watched: int | None = None,
) -> Outcome:
    """Run a method.

    Args:
        downs: bool[steps, edges].
        readings: float64[steps, n].
        timed: of so many steps the literal equations' time is taken, evenly spread, and holds until the next.
        watched: steps of the scenario that responses are counted over; longer than `downs`, its times are repeated.
    """
    fleet = splits.fleet
    chooser = Chooser(splits, method)
    estimate, filters_s = _filters(splits, method, chooser)
    tally = _Tally(len(fleet))
    steps, slots = len(downs), len(chooser.members)
    decide_s, slot_s, filter_s = np.zeros(steps), np.zeros((steps, slots)), np.zeros((steps, slots))
    sampled = np.unique(np.linspace(0, steps - 1, min(timed, steps)).round().astype(np.intp)).tolist()
    literal_s: dict[int, Floats] = {}
    nobody = [NOBODY] * slots
    helpers, helped = nobody, 0
    age = np.zeros(downs.shape[1], dtype=np.intp)
    for step, down in enumerate(downs):
        lost = down[fleet.edges]
        age = np.where(down, age + 1, 0)
        if chooser.helping and not (step and chooser.holds(down, downs[step - 1])):
            decision = chooser.decide(down, age)
            helpers = decision.helpers
            decide_s[step] = decision.shared_s + decision.slot_s.sum()
            slot_s[step] = decision.shared_s + decision.slot_s
        helped += sum(len(some) for some in helpers)
        sensors, mean, bound, filter_s[step] = estimate(readings[step], lost, helpers)
        tally.add(sensors, readings[step][sensors] - mean, bound)
        if method.arithmetic == "literal" and step in sampled:
            used = [np.concatenate([own, more]) for own, more in zip(chooser.members, helpers, strict=True)]
            literal_s[step] = np.array([literal_time(fleet.correlation[np.ix_(u, u)], lost[u]) for u in used])
    if method.arithmetic == "literal":
        last = np.searchsorted(sampled, np.arange(steps), side="right") - 1
        filter_s = np.stack([literal_s[sampled[place]] for place in last])
    at_once = method.arithmetic == "ours" and not chooser.helping
    slot_s += filter_s.sum(axis=1)[:, None] if at_once else filter_s
    core_s = decide_s + filter_s.sum(axis=1)
    repeated = np.arange(watched or steps) % steps
    rmse, satisfied, coverage = tally.result()
    return Outcome(
        rmse=rmse,
        satisfied=satisfied,
        coverage=coverage,
        helpers=helped / steps,
        decide_ms=1000 * float(np.median(decide_s)),
        filter_ms=1000 * float(np.median(filter_s.sum(axis=1))),
        slowest_ms=1000 * float(np.median(slot_s.max(axis=1))),
        response_s=float(responses(slot_s[repeated]).mean()),
        one_core_s=float(responses(core_s[repeated, None]).mean()),
        split_s=chooser.split_s,
        helpers_s=chooser.helpers_s,
        filters_s=filters_s if method.arithmetic != "literal" else 0.0,
    )


def literal_time(correlation: Floats, lost: Flags) -> float:
    """Return seconds that one step of one slot takes by the equations as they stand."""
    covariance = joint(correlation)
    values = np.where(lost, np.nan, 0.0)[None, :]
    mean = np.zeros(2 * len(correlation))
    begun = time.process_time()
    literal(mean, covariance, values)
    return time.process_time() - begun


def _filters(splits: Splits, method: Method, chooser: Chooser) -> tuple[Estimate, float]:
    """Make the filters of the slots, and return how many seconds that took."""
    sigma, members = splits.fleet.correlation, chooser.members
    multiple = half_width(DELTA)
    if chooser.helping:
        helped = [HelpedSlot(sigma, own) for own in members]

        def by_helped(
            readings: Floats, lost: Flags, helpers: Sequence[Places]
        ) -> tuple[Places, Floats, Floats, Floats]:
            taken = np.zeros(len(helped))
            parts = []
            for place, (slot, more) in enumerate(zip(helped, helpers, strict=True)):
                begun = time.process_time()
                parts.append(slot.step(readings, lost, more))
                taken[place] = time.process_time() - begun
            sensors, mean, variance = (np.concatenate(part) for part in zip(*parts, strict=True))
            return sensors.astype(np.intp), mean, multiple * np.sqrt(variance), taken

        return by_helped, 0.0
    if len(members) > 1 and method.arithmetic != "slot by slot":
        begun = time.process_time()
        batch = RecoveryBatch([gaussian(sigma[np.ix_(own, own)]) for own in members], eps=EPS, delta=DELTA)
        filters_s = time.process_time() - begun
        whole = np.stack(members)

        def by_batch(readings: Floats, lost: Flags, helpers: Sequence[Places]) -> tuple[Places, Floats, Floats, Floats]:
            begun = time.process_time()
            found = batch.step(np.where(lost, np.nan, readings)[whole])
            taken = time.process_time() - begun
            gone = lost[whole]
            return whole[gone], found.mean[gone], found.bound[gone], np.full(len(members), taken / len(members))

        return by_batch, filters_s
    if method.split not in splits.filters:
        begun = time.process_time()
        models = (gaussian(sigma[np.ix_(own, own)]) for own in members)
        made = [Recovery(model, eps=EPS, delta=DELTA) for model in models]
        splits.filters[method.split] = made, time.process_time() - begun
    made, filters_s = splits.filters[method.split]
    recoveries = [recovery.fork() for recovery in made]

    def by_slot(readings: Floats, lost: Flags, helpers: Sequence[Places]) -> tuple[Places, Floats, Floats, Floats]:
        taken = np.zeros(len(members))
        mean, bound = np.zeros(len(lost)), np.zeros(len(lost))
        for place, (own, recovery) in enumerate(zip(members, recoveries, strict=True)):
            begun = time.process_time()
            found = recovery.step(np.where(lost[own], np.nan, readings[own]))
            taken[place] = time.process_time() - begun
            mean[own], bound[own] = found.mean, found.bound
        gone = np.flatnonzero(lost)
        return gone, mean[gone], bound[gone], taken

    return by_slot, filters_s
