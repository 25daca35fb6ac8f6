"""The study that the paper's discussion asks for: cost and lateness against the TimeSlot's width, by simulation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.bench.findings import Curves, Findings, Panel
from tests.bench.scaler import claims
from tests.bench.scaler.claims import Width
from tsunagi.scaler.bound import cost_bound
from tsunagi.scaler.policy import Billing, PolicySettings
from tsunagi.scaler.policy_by_name import make_policy
from tsunagi.scaler.simulate import Simulation, SimulationResult
from tsunagi.scaler.trace import DAY_S, STEP_S, Trace, default_score_days, read_trace, resample, scale, split

MINUTES = (1.0, 5.0, 15.0, 60.0)
POLICIES = ("lookahead", "elasticstream")
BOUND = "bound"


class Task(NamedTuple):
    """A policy, or the bound, on a trace; `days` are scored, None = by the trace's length, `history` known before."""

    path: Path
    policy: str
    minutes: float
    billing: Billing
    days: float | None
    history: float


def tasks(traces: Sequence[Path], billing: Billing, days: float | None, history: float) -> list[Task]:
    """Return all there is to do, what takes longest first."""
    found = [Task(path, BOUND, 0.0, billing, days, history) for path in traces]
    for minutes in MINUTES:
        found += [Task(path, policy, minutes, billing, days, history) for policy in POLICIES for path in traces]
    return found


def settings_of(task: Task) -> PolicySettings:
    """Return the defaults (the paper's types, 100 s boot, 10 s limit) with the task's policy, width and billing."""
    if task.policy == BOUND:
        return PolicySettings(billing=task.billing)
    return PolicySettings(policy=task.policy, slot_s=60.0 * task.minutes, billing=task.billing)


@cache
def rates_of(path: Path, days: float | None) -> tuple[Trace, Trace]:
    """Return what is known beforehand and what is scored, as `tsunagi scaler simulate` has it."""
    trace = read_trace(path)
    return split(resample(scale(trace), STEP_S), default_score_days(trace) if days is None else days)


def work(task: Task) -> tuple[Task, SimulationResult | float, float]:
    """Return the bound, or what came of the policy, and the CPU seconds it took."""
    began = time.process_time()
    history, scored = rates_of(task.path, task.days)
    settings = settings_of(task)
    local_rate = float(np.median(scored.rates))
    found: SimulationResult | float
    if task.policy == BOUND:
        found = cost_bound(scored.rates, STEP_S, settings.types, local_rate, settings.slo_s)
    else:
        policy = make_policy(settings)
        policy.learn(history.rates[-round(task.history * DAY_S / STEP_S) :], STEP_S)
        found = Simulation(settings, policy, scored.rates, local_rate).run()
    return task, found, time.process_time() - began


def study(
    todo: Sequence[Task], jobs: int, progress: Callable[[str], None]
) -> Iterator[tuple[Task, SimulationResult | float]]:
    """Do all of it, in so many processes; yield as they end."""
    with ProcessPoolExecutor(jobs) as pool:
        futures = [pool.submit(work, task) for task in todo]
        for number, future in enumerate(as_completed(futures), 1):
            task, found, took_s = future.result()
            what = task.policy if task.policy == BOUND else f"{task.policy}, {task.minutes:g} min"
            said = f"{found:.2f}" if isinstance(found, float) else f"cost {found.cost:.2f}, {found.late_share:.2%} late"
            progress(f"{number} of {len(todo)}: {task.path.stem}, {what}: {said} ({took_s:.0f} s CPU)")
            yield task, found


def rows_of(found: Sequence[tuple[Task, SimulationResult | float]]) -> list[Width]:
    """Return a row a policy, trace and width."""
    bounds = {task.path: value for task, value in found if isinstance(value, float)}
    rows = [
        Width(
            task.path.stem,
            task.policy,
            task.minutes,
            run.cost,
            bounds[task.path],
            run.cost / bounds[task.path],
            run.late_share,
            run.changes_per_day,
            run.peak_workers,
        )
        for task, run in found
        if isinstance(run, SimulationResult)
    ]
    return sorted(rows)


def draw(findings: Findings, rows: Sequence[Width]) -> None:
    """Write CSV, picture and claims."""
    findings.write("widths", rows, Width._fields)
    cost: Curves = {}
    late: Curves = {}
    for trace, policy in dict.fromkeys((row.trace, row.policy) for row in rows):
        mine = [row for row in rows if (row.trace, row.policy) == (trace, policy)]
        minutes = [row.minutes for row in mine]
        cost[f"{trace}, {policy}"] = minutes, [row.cost_over_bound for row in mine]
        late[f"{trace}, {policy}"] = minutes, [100 * row.late_share for row in mine]
    x = "TimeSlot (minutes)"
    panels = [Panel(cost, x, "cost over the bound", log_x=True), Panel(late, x, "late (%)", log_x=True)]
    findings.picture("widths", panels, columns=2)
    findings.judge(claims.widths(list(rows)))
