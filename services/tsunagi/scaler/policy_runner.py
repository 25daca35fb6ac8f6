"""Asks the policy once a time slot, and its lag guard in between: how many workers of each type are wanted.

It makes what a policy sees from measurements, and turns the policy's answer into the number of workers that `rescale`
keeps (ElasticStream, sections 4.2 and 5). There is no I/O. Times are seconds on one clock, which policies with a
profile of the day take for the time of day. A policy may think for as long as its solver is allowed to. The scaler goes
on meanwhile, since a worker may die, and carries the answer out with what is there when it comes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from tsunagi.scaler.policy import NEVER, Answer, Policy, PolicySettings, PolicyView, Worker, follow

STEPS = 30
"""Most steps a slot in which a policy is given rates: with slots of five minutes, a rate stands for ten seconds."""

STEP_S = 1.0
"""Shortest step, in seconds: the slots are measured once in this time, and nothing seems to arrive in between."""


Ponder = Callable[[Callable[[], Answer]], "Future[Answer]"]
"""Runs a policy's decision: in another thread, or at once."""


def at_once(think: Callable[[], Answer]) -> Future[Answer]:
    """Run a decision, and return when it is done."""
    future: Future[Answer] = Future()
    future.set_result(think())
    return future


def step_of(slot_s: float) -> float:
    """Return the length of the steps in which a policy is given rates, in seconds."""
    return slot_s / max(1, min(STEPS, int(slot_s / STEP_S)))


@dataclass(frozen=True, slots=True)
class ScalerMeasurement:
    """What is measured at one moment.

    Attributes:
        arrived: number of tuples since the start, over all slots.
        late: number of tuples since the start that were processed later than the policy promises.
        backlog: number of tuples that have arrived and are not processed.
        delay_s: how long the oldest of them has waited.
        workers: name -> type of the launched workers that run or boot; local workers are left out.
        ready: those of them that have sent a heartbeat.
        local_rate: tuples/s of the local workers.
        saturated: type -> tuples/s of one worker that was never idle, measured now; "" stands for a local worker.
        within: type -> share of its rate with which it keeps the promised delay; a type that is missing has 1.
    """

    arrived: float
    late: float
    backlog: float
    delay_s: float
    workers: Mapping[str, str]
    ready: Collection[str]
    local_rate: float
    saturated: Mapping[str, float] = field(default_factory=dict)
    within: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PolicyDecision:
    """A decision, for logs and metrics.

    Attributes:
        kind: slot | guard.
        launches, stops: what follows: number of launches by type, and by worker the time when it is to be gone.
    """

    at_s: float
    kind: str
    answer: Answer
    launches: Mapping[str, int]
    stops: Mapping[str, float]
    rate: float
    backlog: float


class PolicyRunner:
    """Asks a policy when it is time.

    Args:
        drain_s: time that it takes to move the slots away from a worker before it can stop, in seconds.
        ponder: runs a policy's decision. The guard is asked in between and answers at once.

    Attributes:
        target: type -> number of workers that the policy wants; a paid worker counts until its time comes.
        due: workers whose time has come; they are the first to stop.
    """

    def __init__(
        self, policy: Policy, settings: PolicySettings, drain_s: float, now_s: float, ponder: Ponder = at_once
    ) -> None:
        self.target: dict[str, int] = {kind.name: 0 for kind in settings.types}
        self.due: set[str] = set()
        self._policy = policy
        self._ponder = ponder
        self._pondered: Future[Answer] | None = None
        self._settings = settings
        self._boot_s = {kind.name: kind.boot_s for kind in settings.types}
        self._drain_s = drain_s
        self._step_s = step_of(settings.slot_s)
        self._next_step_s = now_s + self._step_s
        self._next_slot_s = now_s + settings.slot_s
        self._arrived: float | None = None
        self._rates: list[float] = []
        self._rate = math.nan  # the newest rate
        self._late = 0.0  # `ScalerMeasurement.late` at the end of the last slot
        self._delay_s = math.nan
        self._saturated: dict[str, float] = {}
        self._since: dict[str, float] = {}
        self._ready: dict[str, float] = {}
        self._stops: dict[str, float] = {}

    def resume(self, target: Mapping[str, int]) -> None:
        """Go on from what an earlier scaler had decided, which stands in `plan`."""
        self.target |= {kind: target.get(kind, 0) for kind in self.target}

    def step(self, measured: ScalerMeasurement, now_s: float) -> PolicyDecision | None:
        """Take note of what is measured; return a decision if one is due."""
        self._follow(measured, now_s)
        self._let_go(measured, now_s)
        if now_s >= self._next_step_s:
            self._measure(measured, now_s)
            # The small tolerance is for rounding: the steps of a slot are summed up.
            if now_s >= self._next_slot_s - 1e-6:
                self._end_slot(measured, now_s)
            elif self._pondered is None:
                answer = self._policy.guard(self._view(measured, now_s))
                return None if answer is None else self._carry_out("guard", answer, measured, now_s)
        if self._pondered is None or not self._pondered.done():
            return None
        answer, self._pondered = self._pondered.result(), None
        return self._carry_out("slot", answer, measured, now_s)

    def _measure(self, measured: ScalerMeasurement, now_s: float) -> None:
        missed = int((now_s - self._next_step_s) / self._step_s) + 1
        # A scaler that was held up knows only the sum of what came meanwhile; it is spread over the missed steps.
        before = measured.arrived if self._arrived is None else self._arrived
        self._rate = max(0.0, (measured.arrived - before) / (missed * self._step_s))
        self._rates += [self._rate] * missed
        self._arrived = measured.arrived
        self._next_step_s += missed * self._step_s

    def _end_slot(self, measured: ScalerMeasurement, now_s: float) -> None:
        """Let the policy decide. If it still thinks about the slot before, it is asked at the end of the next one."""
        self._next_slot_s += (int((now_s - self._next_slot_s) / self._settings.slot_s) + 1) * self._settings.slot_s
        if self._pondered is not None:
            return
        self._pondered = self._ponder(partial(self._policy.decide, self._view(measured, now_s)))
        self._rates.clear()
        self._late, self._delay_s = measured.late, math.nan
        self._saturated.clear()

    def _carry_out(self, kind: str, answer: Answer, measured: ScalerMeasurement, now_s: float) -> PolicyDecision:
        view = self._view(measured, now_s)
        known = {name: count for name, count in answer.wanted.items() if name in self.target}
        todo = follow(self._policy, self._settings, view, known, guard=kind == "guard")
        self._stops |= todo.stops
        for name in self.target:
            # A worker that runs until its paid hour is over counts as wanted until then, or it would be stopped now.
            running = sum(1 for worker in view.workers if worker.type == name and worker.name not in self.due)
            self.target[name] = running + todo.launches.get(name, 0)
        self._let_go(measured, now_s)
        return PolicyDecision(now_s, kind, answer, todo.launches, todo.stops, self._rate, measured.backlog)

    def _follow(self, measured: ScalerMeasurement, now_s: float) -> None:
        if self._arrived is None:
            self._arrived = measured.arrived
        if not measured.delay_s <= self._delay_s:  # true also if nothing was measured yet
            self._delay_s = measured.delay_s
        self._saturated.update(measured.saturated)
        for name in measured.workers:
            self._since.setdefault(name, now_s)
        for name in measured.ready:
            self._ready.setdefault(name, now_s)
        for times in (self._since, self._ready):
            for name in [name for name in times if name not in measured.workers]:
                del times[name]

    def _let_go(self, measured: ScalerMeasurement, now_s: float) -> None:
        """Release the workers whose time has come; a worker that is gone already no longer counts either."""
        for name, at in list(self._stops.items()):
            if at <= now_s or name not in measured.workers:
                del self._stops[name]
                self.due.add(name)
                kind = measured.workers.get(name) or name.rpartition("-")[0]
                if kind in self.target:
                    self.target[kind] = max(0, self.target[kind] - 1)
        self.due &= set(measured.workers)

    def _view(self, measured: ScalerMeasurement, now_s: float) -> PolicyView:
        workers = [
            Worker(
                name=name,
                type=kind,
                ready_s=self._ready.get(name, self._since[name] + self._boot_s.get(kind, 0.0)),
                paid_s=self._paid(self._since[name], now_s),
                stop_s=self._stops.get(name, now_s if name in self.due else NEVER),
            )
            for name, kind in sorted(measured.workers.items())
        ]
        return PolicyView(
            now_s=now_s,
            rates=np.array(self._rates, dtype=np.float64),
            step_s=self._step_s,
            backlog=measured.backlog,
            workers=workers,
            local_rate=measured.local_rate,
            delay_s=self._delay_s,
            late=measured.late - self._late,
            saturated=dict(self._saturated),
            within=measured.within,
            drain_s=self._drain_s,
        )

    def _paid(self, since_s: float, now_s: float) -> float:
        if self._settings.billing == "second":
            return now_s
        hour_s = self._settings.hour_s
        return since_s + max(1, math.ceil((now_s - since_s) / hour_s)) * hour_s
