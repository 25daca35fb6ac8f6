"""What a scaling policy sees at the start of a time slot, and what it answers. No I/O, no clock.

Whoever runs a policy (the scaler's loop, the simulator) does, in this order:

1. `learn` once, with the rates of all that came before, if any are known;
2. at the start of every time slot `decide(view)`, then `follow` its answer: launches now, stops at their times;
3. between two slots, as often as it measures, `guard(view)`: None, or an answer that is followed like the others (the
   lag guard: workers are launched before the next slot when the forecast was wrong).

A worker stops only at the end of a paid block. Most policies say at the start of a slot which of those blocks that end
in it are the last; one that `looks_again` is asked at each block's end, by `guard` too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from tsunagi.runtime.columns import Floats

Billing = Literal["hourly", "second"]
HOUR_S = 3600.0
NEVER = math.inf


@dataclass(frozen=True, slots=True)
class WorkerType:
    """A size of worker that can be launched.

    Attributes:
        name: unique among the types; a size in another region is a type of its own.
        rate: tuples/s one worker can process, as benchmarked.
        price_h: price of an hour.
        boot_s: from launch to ready.
        region: where it runs; a label.
        limit: how many may run at once; None = as many as wanted.
        price_gb: price of a gigabyte sent to it (the paper's P_Nin).
    """

    name: str
    rate: float
    price_h: float
    boot_s: float = 100.0
    region: str = ""
    limit: int | None = None
    price_gb: float = 0.0


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker that runs or boots. Times are seconds on the clock of `View.now_s`.

    Attributes:
        name: who it is, for `Actions.stops`.
        type: name of its type.
        ready_s: when it reported ready, or is expected to.
        paid_s: when its paid block ends; it costs again if it still runs then. Billing by the second: now.
        stop_s: when it will stop, already decided; NEVER = not decided.
    """

    name: str
    type: str
    ready_s: float
    paid_s: float
    stop_s: float = NEVER


@dataclass(frozen=True, slots=True)
class View:
    """What is known when a policy is asked.

    Attributes:
        now_s: time of the decision, the start of a slot (between slots for `guard`).
        rates: arrival rates measured since the last `decide` (or `learn`), tuples/s, one a `step_s`, oldest first.
        step_s: what one of them covers, the same in all calls; a slot is a whole number of steps.
        backlog: tuples that have arrived and are not yet processed.
        workers: those that run or boot, without the local ones.
        local_rate: tuples/s of what runs anyway and costs nothing.
        delay_s: longest delay of a tuple processed since the last `decide`; NaN = not measured.
        late: tuples among those processed since then that took longer than the limit; NaN = not measured.
        saturated: type -> tuples/s of one worker, measured since the last `decide` while its queue was never empty;
            types that were not saturated are missing. "" is the local capacity.
        within: type -> share of its rate with which it keeps the promised delay (its workers stall now and then, say);
            types that are missing keep it with all.
        drain_s: time it takes to empty a worker before it stops; it must begin so long before a paid block's end.
    """

    now_s: float
    rates: Floats
    step_s: float
    backlog: float
    workers: Sequence[Worker]
    local_rate: float = 0.0
    delay_s: float = math.nan
    late: float = math.nan
    saturated: Mapping[str, float] = field(default_factory=dict)
    within: Mapping[str, float] = field(default_factory=dict)
    drain_s: float = 0.0

    def count(self, kind: str) -> int:
        """Return how many workers of a type run or boot and are not about to stop."""
        return sum(worker.type == kind and worker.stop_s == NEVER for worker in self.workers)


@dataclass(frozen=True, slots=True)
class Answer:
    """How many workers of each type are wanted from now on.

    Attributes:
        wanted: type -> workers, of every type.
        forecast: mean rate expected in the next slot, tuples/s; NaN = this policy does not forecast.
        quantile: the rate that was planned for in the next slot, tuples/s; NaN as above.
        rate: capacity of what is wanted with the local capacity, tuples/s, as the policy believes it to be.
        reason: why, in a word or two, for logs.
        fallback: which stated rule stood in and for what; "" = none did.
    """

    wanted: Mapping[str, int]
    forecast: float = math.nan
    quantile: float = math.nan
    rate: float = math.nan
    reason: str = ""
    fallback: str = ""


class Policy(Protocol):
    """Says how many workers are wanted.

    Attributes:
        looks_again: whether it is asked about a paid block at its end (`guard` too), not at the start of that slot.
    """

    looks_again: bool

    def learn(self, rates: Floats, step_s: float) -> None:
        """Take in the rates of the time before the first decision, whole slots, oldest first."""

    def decide(self, view: View) -> Answer:
        """Answer at the start of a slot. Never raises for what it forecasts or solves: it falls back and says so."""

    def guard(self, view: View) -> Answer | None:
        """Answer between two slots, if more workers are wanted at once."""


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """What a policy is told (`[scaler]`).

    Attributes:
        policy: its name, one of `POLICIES`.
        types: what can be launched.
        slot_s: the paper's TimeSlot.
        billing: hourly = whole hours from launch; second = what is used.
        hour_s: what a paid hour lasts; less than an hour on a compressed clock.
        slo_s: longest delay promised.
        forecast: name of the forecaster, for the policies that forecast; "" = as the policy has it by default.
        application: data = the stream is split over workers; tasks = each gets a copy and runs some of the tasks.
        tasks: task-parallel: how many tasks there are; a worker runs as many as its rate holds whole streams.
        bandwidth: task-parallel: bytes/s that may leave for workers; each takes the whole stream.
        tuple_bytes: size of a tuple, for traffic.
        solve_s: time after which the program's solution is no longer waited for.
        solver: look-ahead: marginal = the greedy solution; program = the integer program.
        late_target: share of tuples that the latency feedback lets be late.
        late_price: price of a late tuple at first, in prices of processing one.
        max_boost: latency feedback multiplies it by no more than this.
    """

    policy: str = "lookahead"
    types: tuple[WorkerType, ...] = (WorkerType("small", 40.0, 0.095), WorkerType("medium", 90.0, 0.19))
    slot_s: float = 300.0
    billing: Billing = "hourly"
    hour_s: float = HOUR_S
    slo_s: float = 10.0
    forecast: str = ""
    application: Literal["data", "tasks"] = "data"
    tasks: int = 0
    bandwidth: float = math.inf
    tuple_bytes: float = 1000.0
    solve_s: float = 5.0
    solver: Literal["marginal", "program"] = "marginal"
    late_target: float = 0.008
    late_price: float = 10.0
    max_boost: float = 4.0


@dataclass(frozen=True, slots=True)
class Actions:
    """What is to be done.

    Attributes:
        launches: by type, now.
        stops: by name, the time at which a worker is to be gone.
    """

    launches: Mapping[str, int]
    stops: Mapping[str, float]


def actions(view: View, wanted: Mapping[str, int], billing: Billing, again_s: float) -> Actions:
    """Return what carries out an answer: the paid-hour rule.

    What is paid is used: a surplus worker stops at the end of its paid block, and only one whose block ends before the
    policy is asked again (less `drain_s`) is told so; the others are asked about again. Where billing is by the second
    it stops at once. Booting workers go first (nothing runs on them), then those whose block ends first.

    Args:
        again_s: how long until the policy is asked again about blocks that end: a slot, or a step.
    """
    launches: dict[str, int] = {}
    stops: dict[str, float] = {}
    for kind, count in wanted.items():
        staying = [worker for worker in view.workers if worker.type == kind and worker.stop_s == NEVER]
        surplus = len(staying) - count
        if surplus < 0:
            launches[kind] = -surplus
            continue
        for worker in sorted(staying, key=lambda worker: (worker.paid_s, -worker.ready_s))[:surplus]:
            if billing == "second":
                stops[worker.name] = view.now_s
            elif worker.paid_s - view.drain_s < view.now_s + again_s:
                stops[worker.name] = max(worker.paid_s - view.drain_s, view.now_s)
    return Actions(launches, stops)


def follow(policy: Policy, settings: PolicySettings, view: View, wanted: Mapping[str, int], *, guard: bool) -> Actions:
    """Return what carries out an answer of a policy, by when it is asked about blocks that end.

    Args:
        guard: the answer came between two slots; then only a policy that looks again tells a worker to stop.
    """
    todo = actions(view, wanted, settings.billing, view.step_s if policy.looks_again else settings.slot_s)
    return Actions(todo.launches, {}) if guard and not policy.looks_again else todo
