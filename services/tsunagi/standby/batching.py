"""The batch size in force: fixed, or kept by A-SAS within the user's limits (algorithm 3, and a faster way).

Algorithm 3 is the paper's (`[paper] batch_steps`): every interval, B grows by a step where only the bandwidth is over
its limit, shrinks by one where only the recovery time is, and goes the way of the priority where both are. `model` asks
the cost models what every B would cost and goes to the best one at once. Neither does anything without a limit.
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
"""Algorithm 3 changes B by so many tuples."""
STEP_INTERVAL_S = 0.01
"""Algorithm 3 looks at the costs so often, seconds."""
MODEL_INTERVAL_S = 0.25
"""`model` looks at the costs so often, seconds."""
MARGIN = 0.85
"""`model` aims at so much of a limit: measurements of a second or two waver."""

WORTH = 1.25
"""`model` leaves a B that is feasible only for one that is better by this factor."""


@dataclass(frozen=True, slots=True)
class LimitVerdict:
    """Whether the limits hold at the B in force, by the cost models."""

    estimate: Estimate
    bandwidth_ok: bool
    recovery_ok: bool


class Batching:
    """Chooses B for one slot's secondary. Times are monotonic seconds of the caller's clock.

    Args:
        stepwise: policy `model` goes by algorithm 3 instead.

    Attributes:
        batch_tuples: B now; infinity = nothing is read before a takeover.
        costs: what the cost models are fed with.
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
        """What is aimed at: the settings', or what has been asked for since."""
        return self._target

    def aim(self, target: Target | None) -> None:
        """Aim at something else from now on; None = at what the settings say."""
        wanted = target if target is not None else self._own
        if wanted != self._target:
            self._target = wanted
            self.batch_tuples = wanted.batch_tuples

    def decide(self, now: float) -> float:
        """Return B, chosen anew where its interval is over."""
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
        """Algorithm 3."""
        target, step = self._target, STEP_TUPLES
        grow = not verdict.bandwidth_ok
        shrink = not verdict.recovery_ok
        if grow and shrink:
            grow, shrink = target.priority == "bandwidth", target.priority == "recovery"
        # From infinity no step leads down: begin where a larger B would make no difference.
        batch = min(self.batch_tuples, max(1.0, self.costs.most_held()), float(GRID[-1]))
        if grow:
            return min(batch + step, float(GRID[-1]))
        if shrink:
            return max(batch - step, 1.0)
        return self.batch_tuples

    def _model(self, verdict: LimitVerdict) -> float:
        """Go to the best B for which both limits hold; where there is none, keep the one that has priority."""
        target, costs = self._target, self.costs
        if not math.isfinite(costs.most_held()) and not costs.process_s():
            return self.batch_tuples  # nothing has been measured yet
        cheap = costs.bandwidth() <= MARGIN * target.max_bandwidth
        quick = costs.recovery(GRID) <= MARGIN * target.max_recovery_s
        both = np.flatnonzero(cheap & quick)
        if len(both):
            # The slack of one limit is spent on the other: on recovery, unless bandwidth is what matters or is free.
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
        """Return whether the B in force is as good as one of these."""
        place = min(int(np.searchsorted(GRID, self.batch_tuples)), len(GRID) - 1)
        return bool(np.any(places == place))
