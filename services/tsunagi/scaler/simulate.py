"""Runs a policy against a trace: a fluid queue, workers that boot, blocks that are paid for. No I/O, no clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tsunagi.runtime.columns import Floats
from tsunagi.scaler.policy import NEVER, Answer, Policy, PolicySettings, PolicyView, Worker, WorkerType, follow
from tsunagi.scaler.queueing import late_tuples
from tsunagi.scaler.trace import DAY_S, STEP_S


@dataclass(frozen=True, slots=True)
class SimulatedDecision:
    """An answer of the policy, for the CSV. `guard` says that it came between two slots."""

    time_s: float
    answer: Answer
    backlog: float
    guard: bool


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The outcome of a policy.

    Attributes:
        capacity: (steps,) tuples/s that could be processed.
        late: (steps,) number of tuples that arrived in the step and took longer than the limit.
        backlog: (steps,) number of tuples that wait at the end of the step.
    """

    cost: float
    launches: int
    stops: int
    rates: Floats
    capacity: Floats
    late: Floats
    backlog: Floats
    decisions: Sequence[SimulatedDecision]
    peak_workers: int

    @property
    def late_share(self) -> float:
        """Share of the tuples that took longer than the limit."""
        return float(self.late.sum() / max(self.rates.sum() * STEP_S, 1e-12))

    @property
    def changes_per_day(self) -> float:
        """Number of launches and stops in a day."""
        return (self.launches + self.stops) / (len(self.rates) * STEP_S / DAY_S)


class Simulation:
    """One run over the scored rates.

    Args:
        settings: the settings with which the policy was made.
        policy: a policy that has learnt the time before.
        rates: tuples/s in steps of `STEP_S`.
        local_rate: tuples/s that cost nothing.
        speed: true rate of a worker as a multiple of the benchmarked rate; 0.85 means 15 % slower than the policy
            believes.
    """

    def __init__(
        self, settings: PolicySettings, policy: Policy, rates: Floats, local_rate: float, speed: float = 1.0
    ) -> None:
        self._settings = settings
        self._policy = policy
        self._rates = rates
        self._local = local_rate
        self._types = {kind.name: kind for kind in settings.types}
        self._speed = speed
        self._workers: tuple[Worker, ...] = ()
        self._capacity = np.zeros(len(rates))
        self._backlog = np.zeros(len(rates))
        self._decisions: list[SimulatedDecision] = []
        self._cost = 0.0
        self._used = dict.fromkeys(self._types, 0.0)
        self._launched = 0
        self._stopped = 0
        self._most = 0
        self._next_event_s = -math.inf
        self._ready_rate = 0.0
        self._waiting = 0.0
        self._late = 0.0
        self._worst_s = 0.0
        self._full: set[str] = set()
        self._ready_types: set[str] = set()
        self._born: dict[str, float] = {}

    def run(self, tell: Callable[[float], None] = lambda _done: None) -> SimulationResult:
        """Run to the end; `tell` is called once a simulated day with the share that is done."""
        slot = max(1, round(self._settings.slot_s / STEP_S))
        for step in range(len(self._rates)):
            now_s = step * STEP_S
            first = step - step % slot
            if step == first:  # the policy is asked before a block that ends now is paid again
                self._ask(now_s, step, max(0, step - slot), guard=False)
                self._turn(now_s)
                if step % round(DAY_S / STEP_S) == 0:
                    tell(step / len(self._rates))
            else:
                self._ask(now_s, step, first, guard=True)
                if now_s >= self._next_event_s:
                    self._turn(now_s)
            self._flow(step)
        end_s = len(self._rates) * STEP_S
        if self._settings.billing == "second":
            self._cost += sum(
                self._price(worker) * (min(worker.stop_s, end_s) - self._born[worker.name]) / self._settings.hour_s
                for worker in self._workers
            )
        late = late_tuples(self._rates, self._capacity, STEP_S, self._settings.slo_s)
        return SimulationResult(
            self._cost,
            self._launched,
            self._stopped,
            self._rates,
            self._capacity,
            late,
            self._backlog,
            self._decisions,
            self._most,
        )

    def _price(self, worker: Worker) -> float:
        return self._types[worker.type].price_h

    def _flow(self, step: int) -> None:
        """Let the tuples of a step arrive and be processed."""
        rate, capacity = float(self._rates[step]), self._local + self._ready_rate
        before = self._waiting
        self._waiting = max(0.0, before + (rate - capacity) * STEP_S)
        self._capacity[step] = capacity
        self._backlog[step] = self._waiting
        if self._waiting > 0:
            delay_s = self._waiting / capacity if capacity > 0 else math.inf
            self._worst_s = max(self._worst_s, delay_s)
            if delay_s > self._settings.slo_s:
                self._late += rate * STEP_S
            if before > 0:
                self._full.update(self._ready_types)

    def _ask(self, now_s: float, step: int, first: int, *, guard: bool) -> None:
        view = PolicyView(
            now_s,
            self._rates[first:step],
            STEP_S,
            self._waiting,
            self._workers,
            self._local,
            self._worst_s,
            self._late,
            {kind: self._types[kind].rate * self._speed for kind in self._full},
        )
        answer = self._policy.guard(view) if guard else self._policy.decide(view)
        if answer is None:
            return
        self._decisions.append(SimulatedDecision(now_s, answer, self._waiting, guard))
        doing = follow(self._policy, self._settings, view, answer.wanted, guard=guard)
        if not guard:
            self._late = self._worst_s = 0.0
            self._full.clear()
        if not doing.launches and not doing.stops:
            return
        workers = [replace(worker, stop_s=doing.stops.get(worker.name, worker.stop_s)) for worker in self._workers]
        for kind, count in doing.launches.items():
            workers += [self._launch(self._types[kind], now_s) for _ in range(count)]
        self._workers = tuple(workers)
        self._turn(now_s)

    def _launch(self, kind: WorkerType, now_s: float) -> Worker:
        self._launched += 1
        name = f"{kind.name}-{self._launched}"
        self._born[name] = now_s
        hourly = self._settings.billing == "hourly"
        if hourly:
            self._cost += kind.price_h
        return Worker(name, kind.name, now_s + kind.boot_s, now_s + self._settings.hour_s if hourly else now_s)

    def _turn(self, now_s: float) -> None:
        """Stop workers whose time has come, begin new blocks, and count the ready workers."""
        kept = []
        hourly = self._settings.billing == "hourly"
        for worker in self._workers:
            if worker.stop_s <= now_s:
                self._stopped += 1
                if not hourly:
                    self._cost += self._price(worker) * (now_s - self._born[worker.name]) / self._settings.hour_s
                continue
            if hourly and worker.paid_s <= now_s:
                self._cost += self._price(worker)
                kept.append(replace(worker, paid_s=worker.paid_s + self._settings.hour_s))
            else:
                kept.append(worker)
        self._workers = tuple(kept)
        self._most = max(self._most, len(kept))
        ready = [worker for worker in kept if worker.ready_s <= now_s]
        self._ready_types = {worker.type for worker in ready}
        self._ready_rate = sum(self._types[worker.type].rate for worker in ready) * self._speed
        coming = [worker.ready_s for worker in kept if worker.ready_s > now_s]
        events = coming + [worker.stop_s for worker in kept] + ([worker.paid_s for worker in kept] if hourly else [])
        self._next_event_s = min(events, default=NEVER)
