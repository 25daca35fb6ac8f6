"""The interface of scaling policies: what they see at the start of a time slot, and what they answer. No I/O, no clock.

The caller of a policy (the scaler's loop or the simulator) does this, in this order:

1. `learn` once, with the rates of the time before, if any are known;
2. at the start of each time slot `decide(view)`, and then what follows from the answer: launches now, stops later;
3. between two slots, with each measurement, `guard(view)`: it returns None, or an answer that is carried out like the
others (the lag guard: it launches workers before the next slot if the forecast was too low).

A worker stops only at the end of a paid block. Most policies say at the start of a slot which of the blocks that end in
it are the last. A policy that `looks_again` is asked at the end of each block, through `guard` too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from tsunagi.runtime.columns import Floats

Billing = Literal["hourly", "second"]
HOUR_S = 3600.0
"""Seconds in a paid hour."""
NEVER = math.inf
"""Time of a stop that has not been decided."""


@dataclass(frozen=True, slots=True)
class WorkerType:
    """A size of worker that can be launched.

    Attributes:
        name: unique among the types; the same size in another region is another type.
        rate: tuples/s that one worker can process, as benchmarked.
        price_h: price of an hour.
        boot_s: time from a launch to a ready worker, in seconds.
        region: where it runs; only a label.
        limit: most workers that may run at once; None means any number.
        price_gb: price of a gigabyte that is sent to the worker (the paper's P_Nin).
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
    """A worker that runs or boots. Times are seconds on the clock of `PolicyView.now_s`.

    Attributes:
        name: identifies the worker in `Actions.stops`.
        type: name of its type.
        ready_s: when it became ready, or is expected to.
        paid_s: when its paid block ends; a worker that still runs then costs again. With billing by the second it is
            now.
        stop_s: when it will stop; NEVER if that has not been decided.
    """

    name: str
    type: str
    ready_s: float
    paid_s: float
    stop_s: float = NEVER


@dataclass(frozen=True, slots=True)
class PolicyView:
    """What is known when a policy is asked.

    Attributes:
        now_s: time of the decision: the start of a slot, or for `guard` a moment between two.
        rates: arrival rates since the last `decide` (or `learn`), in tuples/s, one for each `step_s`, oldest first.
        step_s: length of a step, the same in all calls; a slot is a whole number of steps.
        backlog: number of tuples that have arrived and are not yet processed.
        workers: the workers that run or boot, without the local ones.
        local_rate: tuples/s of the local workers, which run anyway and cost nothing.
        delay_s: longest delay of a tuple that was processed since the last `decide`; NaN if it was not measured.
        late: number of tuples processed since then that took longer than the limit; NaN if it was not measured.
        saturated: type -> tuples/s of one worker, measured since the last `decide` while its queue was never empty; a
            type that was not saturated is missing. "" is the local capacity.
        within: type -> share of its rate with which it keeps the promised delay, for example because its workers stall
            now and then; a type that is missing keeps it with its full rate.
        drain_s: time that it takes to empty a worker, which must therefore begin this long before the end of a paid
            block.
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
        """Return how many workers of a type run or boot and have no time to stop."""
        return sum(worker.type == kind and worker.stop_s == NEVER for worker in self.workers)


@dataclass(frozen=True, slots=True)
class Answer:
    """How many workers of each type are wanted from now on.

    Attributes:
        wanted: number of workers of every type.
        forecast: mean rate that is expected in the next slot, in tuples/s; NaN if the policy does not forecast.
        quantile: the rate in the next slot that was planned for, in tuples/s; NaN as above.
        rate: capacity of the wanted and the local workers, in tuples/s, as the policy believes it to be.
        reason: why, in a word or two, for logs.
        fallback: which simpler rule was used, and instead of what; "" if none was.
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
        looks_again: whether the policy is asked about a paid block when it ends (by `guard` too), not when its slot
            begins.
    """

    looks_again: bool

    def learn(self, rates: Floats, step_s: float) -> None:
        """Learn the rates of the time before the first decision: whole slots, oldest first."""

    def decide(self, view: PolicyView) -> Answer:
        """Answer at the start of a slot. A failed forecast or solution is no error: a simpler rule is used."""

    def guard(self, view: PolicyView) -> Answer | None:
        """Answer between two slots, if more workers are wanted at once; else return None."""


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """The settings of a policy (`[scaler]`).

    Attributes:
        policy: its name, one of `POLICIES`.
        types: the types of workers that can be launched.
        slot_s: length of a slot in seconds (the paper's TimeSlot).
        billing: hourly = whole hours from the launch are paid; second = only the time used is paid.
        hour_s: length of a paid hour in seconds; less than 3600 on a compressed clock.
        slo_s: longest delay that is promised, in seconds.
        forecast: name of the forecaster, for policies that forecast; "" means the default of the policy.
        application: data = the stream is split over the workers; tasks = each worker gets all of it and runs some
            tasks.
        tasks: task-parallel: number of tasks; a worker runs as many as its rate holds whole streams.
        bandwidth: task-parallel: bytes/s that may be sent to workers; each takes the whole stream.
        tuple_bytes: size of a tuple in bytes, for the price of traffic.
        solve_s: longest wait for a solution of the program, in seconds.
        solver: look-ahead: marginal = the greedy solution; program = the integer program.
        late_target: share of tuples that the latency feedback allows to be late.
        late_price: price of a late tuple at the start, as a multiple of the price of processing one.
        max_boost: the latency feedback raises this price to this multiple of it at most.
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
    """What to do.

    Attributes:
        launches: number of workers of each type to launch now.
        stops: for each worker by name, the time when it is to be gone.
    """

    launches: Mapping[str, int]
    stops: Mapping[str, float]


def actions(view: PolicyView, wanted: Mapping[str, int], billing: Billing, again_s: float) -> Actions:
    """Return what carries out an answer: the paid-hour rule.

    What is paid is used: a worker that is too many stops at the end of its paid block. Only a worker whose block ends
    before the policy is asked again (less `drain_s`) is told to stop; the policy is asked about the others again. With
    billing by the second it stops at once. Booting workers stop first, since nothing runs on them, then those whose
    blocks end first.

    Args:
        again_s: seconds until the policy is asked again about blocks that end: a slot, or a step.
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


def follow(
    policy: Policy, settings: PolicySettings, view: PolicyView, wanted: Mapping[str, int], *, guard: bool
) -> Actions:
    """Return what carries out an answer of a policy, given when it is asked again about blocks that end.

    Args:
        guard: whether the answer came between two slots; then only a policy that looks again stops a worker.
    """
    todo = actions(view, wanted, settings.billing, view.step_s if policy.looks_again else settings.slot_s)
    return Actions(todo.launches, {}) if guard and not policy.looks_again else todo
