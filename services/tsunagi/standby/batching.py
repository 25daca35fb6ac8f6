"""Chooses B, the batch size: how many tuples the slot's log holds before a secondary reads them.

B is fixed, or A-SAS keeps its costs within the user's limits on bandwidth and recovery time, in one of two ways. The
paper's algorithm 3 (`[paper] batch_steps`) changes B by a step each interval: B grows if only the bandwidth is over its
limit, shrinks if only the recovery time is, and follows the priority if both are. Policy `model` asks the cost models
what each B would cost and goes to the best one at once. Without a limit B stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tsunagi.runtime.settings import StandbySettings, Target
from tsunagi.standby.costs import GRID, Estimate, StandbyCosts

STEP_TUPLES = 5
"""Tuples by which algorithm 3 changes B at a time."""
STEP_INTERVAL_S = 0.01
"""Seconds between two decisions of algorithm 3."""
MODEL_INTERVAL_S = 0.25
"""Seconds between two decisions of `model`."""
MARGIN = 0.85
"""Share of a limit that `model` aims at, since costs measured over a second or two vary."""

WORTH = 1.25
"""`model` leaves a feasible B only for one that is better by this factor, so that B does not change all the time."""


@dataclass(frozen=True, slots=True)
class LimitVerdict:
    """Whether the costs at the present B are within the limits, by the cost models."""

    estimate: Estimate
    bandwidth_ok: bool
    recovery_ok: bool


class Batching:
    """Chooses B for one slot's secondary. Times are monotonic seconds of the caller's clock.

    Args:
        stepwise: use algorithm 3 where the policy is `model`.

    Attributes:
        batch_tuples: B now, tuples; infinity = nothing is read before a takeover.
        costs: the measurements and the cost models.
        verdict: the last comparison of the costs with the limits; None = none yet.
    """

    def __init__(self, settings: StandbySettings, slot: int, *, stepwise: bool = False) -> None:
        self._stepwise = stepwise
        self._own = settings.target(slot)
        self._target = self._own
        self._decide_at = 0.0
        self.costs = StandbyCosts(settings.cost_period_s)
        self.batch_tuples = self._own.batch_tuples
        self.verdict: LimitVerdict | None = None

    @property
    def target(self) -> Target:
        """The policy and limits in force: those of the settings, or those asked for since."""
        return self._target

    def set_target(self, target: Target | None) -> None:
        """Use this policy and these limits from now on; None = those of the settings."""
        wanted = target if target is not None else self._own
        if wanted != self._target:
            self._target = wanted
            self.batch_tuples = wanted.batch_tuples

    def decide(self, now: float) -> float:
        """Return B; choose it anew if the interval between two decisions is over."""
        target = self._target
        if now < self._decide_at:
            return self.batch_tuples
        stepping = self._stepwise and target.policy == "model"
        self._decide_at = now + (STEP_INTERVAL_S if stepping else MODEL_INTERVAL_S)
        estimate = self.costs.estimate(self.batch_tuples)
        bandwidth_ok = estimate.bandwidth <= target.max_bandwidth
        recovery_ok = estimate.recovery_s <= target.max_recovery_s
        self.verdict = LimitVerdict(estimate, bandwidth_ok, recovery_ok)
        if target.limited and target.policy != "fixed":
            choose: Callable[[LimitVerdict], float] = self._step if stepping else self._model
            self.batch_tuples = choose(self.verdict)
        return self.batch_tuples

    def _step(self, verdict: LimitVerdict) -> float:
        """Return the next B by the paper's algorithm 3."""
        target, step = self._target, STEP_TUPLES
        grow = not verdict.bandwidth_ok
        shrink = not verdict.recovery_ok
        if grow and shrink:
            grow, shrink = target.priority == "bandwidth", target.priority == "recovery"
        # Steps down from infinity lead nowhere, so begin at the smallest B that reads as little as infinity does.
        batch = min(self.batch_tuples, max(1.0, self.costs.most_held()), float(GRID[-1]))
        if grow:
            return min(batch + step, float(GRID[-1]))
        if shrink:
            return max(batch - step, 1.0)
        return self.batch_tuples

    def _model(self, verdict: LimitVerdict) -> float:
        """Return the best B within both limits; if there is none, the best B within the limit that has priority."""
        target, costs = self._target, self.costs
        if not math.isfinite(costs.most_held()) and not costs.process_s():
            return self.batch_tuples  # nothing has been measured yet
        cheap = costs.bandwidth() <= MARGIN * target.max_bandwidth
        quick = costs.recovery(GRID) <= MARGIN * target.max_recovery_s
        both = np.flatnonzero(cheap & quick)
        if len(both):
            # Of the feasible B the largest costs the least bandwidth, the smallest the least recovery time.
            spare = target.priority == "bandwidth" or math.isinf(target.max_bandwidth)
            if math.isinf(target.max_recovery_s):
                spare = False
            best = float(GRID[both[-1] if spare else both[0]])
            better = best / self.batch_tuples if spare else self.batch_tuples / best
            fine = verdict.bandwidth_ok and verdict.recovery_ok and self._among(both)
            return best if better > WORTH or not fine else self.batch_tuples
        if target.priority == "recovery":
            found = np.flatnonzero(quick)
            return float(GRID[found[-1]]) if len(found) else 1.0
        found = np.flatnonzero(cheap)
        return float(GRID[found[0]]) if len(found) else math.inf

    def _among(self, places: npt.NDArray[np.intp]) -> bool:
        """Return whether the present B is one of these places of `GRID`, or lies right below one."""
        place = min(int(np.searchsorted(GRID, self.batch_tuples)), len(GRID) - 1)
        return bool(np.any(places == place))
