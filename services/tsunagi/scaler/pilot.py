"""Once a time slot the policy is asked, and in between its lag guard: how many workers of each type, from measurements.

What a policy sees is made here of what is measured, and what it answers becomes the number of workers that `rescale`
keeps (ElasticStream, sections 4.2 and 5). No I/O; times are seconds on one clock, which policies with a day profile
take for the time of day. A policy may think for as long as its solver is allowed to: the scaler goes on meanwhile,
since a worker may die, and the answer is carried out with what is there when it comes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from tsunagi.scaler.policy import NEVER, Answer, Policy, PolicySettings, View, Worker, follow

STEPS = 30
"""Rates are handed to a policy in so many steps a slot, at most."""

STEP_S = 1.0
"""A step is not shorter: slots are measured no more often, and between two measurements nothing seems to arrive."""


Ponder = Callable[[Callable[[], Answer]], "Future[Answer]"]
"""Has something thought out: by another thread, or at once."""


def at_once(think: Callable[[], Answer]) -> Future[Answer]:
    """Think, and return when that is done."""
    future: Future[Answer] = Future()
    future.set_result(think())
    return future


def step_of(slot_s: float) -> float:
    """Return what one rate covers that a policy is handed, seconds."""
    return slot_s / max(1, min(STEPS, int(slot_s / STEP_S)))


@dataclass(frozen=True, slots=True)
class Seen:
    """What is measured at a moment.

    Attributes:
        arrived: tuples since the start, all slots.
        late: tuples since the start that were processed later than the policy promises.
        backlog: tuples that have arrived and are not processed.
        delay_s: age of the oldest of them.
        workers: name -> type of those that were launched and run or boot, local ones left out.
        ready: those of them that have reported.
        local_rate: tuples/s of the local workers.
        saturated: type -> tuples/s of one worker that was never idle, measured now; "" = a local one.
        within: type -> share of its rate with which it keeps the promised delay; types that are missing: 1.
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
class Decision:
    """What was decided, for logs and metrics.

    Attributes:
        kind: slot | guard.
        launches, stops: what follows, by type and by name (the time at which it is to be gone).
    """

    at_s: float
    kind: str
    answer: Answer
    launches: Mapping[str, int]
    stops: Mapping[str, float]
    rate: float
    backlog: float


class Pilot:
    """Asks a policy at its times.

    Args:
        drain_s: what it takes to move the slots away from a worker, before it can stop.
        ponder: has a policy's decision thought out; its guard is asked in between, and answers at once.

    Attributes:
        target: type -> workers, as the policy has it; what is paid for still counts until its time comes.
        due: workers whose time has come: they are to go first.
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
        self._rate = math.nan  # the newest of them
        self._late = 0.0  # as it was at the last slot's end
        self._delay_s = math.nan
        self._saturated: dict[str, float] = {}
        self._since: dict[str, float] = {}
        self._ready: dict[str, float] = {}
        self._stops: dict[str, float] = {}

    def resume(self, target: Mapping[str, int]) -> None:
        """Go on from what an earlier scaler had decided, as it stands in `plan`."""
        self.target |= {kind: target.get(kind, 0) for kind in self.target}

    def step(self, seen: Seen, now_s: float) -> Decision | None:
        """Take in what is measured; return a decision if one is due."""
        self._follow(seen, now_s)
        self._let_go(seen, now_s)
        if now_s >= self._next_step_s:
            self._measure(seen, now_s)
            # A hair's breadth before its end a slot is over: steps are summed up.
            if now_s >= self._next_slot_s - 1e-6:
                self._end_slot(seen, now_s)
            elif self._pondered is None:
                answer = self._policy.guard(self._view(seen, now_s))
                return None if answer is None else self._carry_out("guard", answer, seen, now_s)
        if self._pondered is None or not self._pondered.done():
            return None
        answer, self._pondered = self._pondered.result(), None
        return self._carry_out("slot", answer, seen, now_s)

    def _measure(self, seen: Seen, now_s: float) -> None:
        missed = int((now_s - self._next_step_s) / self._step_s) + 1
        # A scaler that was held up knows what came in the meantime as a whole only.
        before = seen.arrived if self._arrived is None else self._arrived
        self._rate = max(0.0, (seen.arrived - before) / (missed * self._step_s))
        self._rates += [self._rate] * missed
        self._arrived = seen.arrived
        self._next_step_s += missed * self._step_s

    def _end_slot(self, seen: Seen, now_s: float) -> None:
        """Have the policy decide; one that still thinks about the slot before is asked at the end of the next."""
        self._next_slot_s += (int((now_s - self._next_slot_s) / self._settings.slot_s) + 1) * self._settings.slot_s
        if self._pondered is not None:
            return
        self._pondered = self._ponder(partial(self._policy.decide, self._view(seen, now_s)))
        self._rates.clear()
        self._late, self._delay_s = seen.late, math.nan
        self._saturated.clear()

    def _carry_out(self, kind: str, answer: Answer, seen: Seen, now_s: float) -> Decision:
        view = self._view(seen, now_s)
        known = {name: count for name, count in answer.wanted.items() if name in self.target}
        todo = follow(self._policy, self._settings, view, known, guard=kind == "guard")
        self._stops |= todo.stops
        for name in self.target:
            # What runs on until its paid hour is over counts as wanted until then, or it would be stopped now.
            running = sum(1 for worker in view.workers if worker.type == name and worker.name not in self.due)
            self.target[name] = running + todo.launches.get(name, 0)
        self._let_go(seen, now_s)
        return Decision(now_s, kind, answer, todo.launches, todo.stops, self._rate, seen.backlog)

    def _follow(self, seen: Seen, now_s: float) -> None:
        if self._arrived is None:
            self._arrived = seen.arrived
        if not seen.delay_s <= self._delay_s:  # also where nothing was measured yet
            self._delay_s = seen.delay_s
        self._saturated.update(seen.saturated)
        for name in seen.workers:
            self._since.setdefault(name, now_s)
        for name in seen.ready:
            self._ready.setdefault(name, now_s)
        for times in (self._since, self._ready):
            for name in [name for name in times if name not in seen.workers]:
                del times[name]

    def _let_go(self, seen: Seen, now_s: float) -> None:
        """Let those go whose time has come; one that is gone already makes room all the same."""
        for name, at in list(self._stops.items()):
            if at <= now_s or name not in seen.workers:
                del self._stops[name]
                self.due.add(name)
                kind = seen.workers.get(name) or name.rpartition("-")[0]
                if kind in self.target:
                    self.target[kind] = max(0, self.target[kind] - 1)
        self.due &= set(seen.workers)

    def _view(self, seen: Seen, now_s: float) -> View:
        workers = [
            Worker(
                name=name,
                type=kind,
                ready_s=self._ready.get(name, self._since[name] + self._boot_s.get(kind, 0.0)),
                paid_s=self._paid(self._since[name], now_s),
                stop_s=self._stops.get(name, now_s if name in self.due else NEVER),
            )
            for name, kind in sorted(seen.workers.items())
        ]
        return View(
            now_s=now_s,
            rates=np.array(self._rates, dtype=np.float64),
            step_s=self._step_s,
            backlog=seen.backlog,
            workers=workers,
            local_rate=seen.local_rate,
            delay_s=self._delay_s,
            late=seen.late - self._late,
            saturated=dict(self._saturated),
            within=seen.within,
            drain_s=self._drain_s,
        )

    def _paid(self, since_s: float, now_s: float) -> float:
        if self._settings.billing == "second":
            return now_s
        hour_s = self._settings.hour_s
        return since_s + max(1, math.ceil((now_s - since_s) / hour_s)) * hour_s
