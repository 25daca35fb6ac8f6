"""`tsunagi scaler simulate`: reads the trace, runs the policy, writes JSON, CSV and a picture."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tsunagi.installation import missing
from tsunagi.runtime.csv_text import row_writer
from tsunagi.scaler.bound import cost_bound
from tsunagi.scaler.policy import Policy, PolicySettings, WorkerType
from tsunagi.scaler.policy_by_name import make_policy
from tsunagi.scaler.program import data_sizes, solve
from tsunagi.scaler.simulate import Simulation, SimulationResult
from tsunagi.scaler.trace import (
    PEAK_RATE,
    STEP_S,
    Trace,
    TraceError,
    default_score_days,
    read_trace,
    resample,
    scale,
    split,
)
from tsunagi.scaler.types_file import read_types


class SimulateError(ValueError):
    """The options do not fit together. The message names the option."""


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """The options of the command line.

    Attributes:
        types: TOML file of worker types; None means the paper's two.
        score_days: number of days at the end that are scored; None means that the length of the trace decides.
        speed: true rate of the workers as a multiple of the types' rates.
    """

    trace: Path
    settings: PolicySettings
    boot_s: float
    out: Path
    types: Path | None = None
    score_days: float | None = None
    csv: Path | None = None
    plot: Path | None = None
    speed: float = 1.0


def simulate(
    options: SimulateOptions, tell: Callable[[str], None], make: Callable[[PolicySettings], Policy] = make_policy
) -> dict[str, Any]:
    """Run a simulation, write the files that were asked for, and return the JSON object.

    Raises:
        TraceError, TypesError, PolicyError, SimulateError: an input cannot be used.
    """
    settings = _settings(options)
    history, scored = _rates(options)
    local_rate = float(np.median(scored.rates))
    policy = make(settings)
    tell(f"history {history.days:.1f} days, scored {scored.days:.1f} days, local capacity {local_rate:.1f} tuples/s")
    run = _run(settings, policy, history, scored, local_rate, options.speed, tell)
    bound = cost_bound(scored.rates, STEP_S, settings.types, local_rate, settings.slo_s, settings.hour_s)
    always = _always_on(settings, local_rate, scored)
    figures = _figures(options, settings, run, bound, always) | {"local_rate": local_rate, "score_days": scored.days}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    if options.csv is not None:
        write_csv(options.csv, run, settings.types)
    if options.plot is not None:
        draw(options.plot, run, f"{options.trace.name}: {settings.policy}, {settings.billing}")
    return figures


def _settings(options: SimulateOptions) -> PolicySettings:
    settings = options.settings
    slot_steps = settings.slot_s / STEP_S
    if slot_steps < 1 or abs(slot_steps - round(slot_steps)) > 1e-9:
        raise SimulateError(f"--slot: found {settings.slot_s:g}, expected a multiple of {STEP_S:g} s")
    if settings.types and options.types is None:
        return replace(settings, types=tuple(replace(kind, boot_s=options.boot_s) for kind in settings.types))
    return replace(settings, types=read_types(options.types, options.boot_s)) if options.types else settings


def _rates(options: SimulateOptions) -> tuple[Trace, Trace]:
    trace = read_trace(options.trace)
    days = default_score_days(trace) if options.score_days is None else options.score_days
    try:
        return split(resample(scale(trace), STEP_S), days)
    except TraceError as error:
        raise TraceError(f"{options.trace}: {error}") from None


def _run(
    settings: PolicySettings,
    policy: Policy,
    history: Trace,
    scored: Trace,
    local_rate: float,
    speed: float,
    tell: Callable[[str], None],
) -> SimulationResult:
    policy.learn(history.rates, STEP_S)
    simulation = Simulation(settings, policy, scored.rates, local_rate, speed)
    return simulation.run(lambda done: tell(f"simulated {done:.0%}"))


def _always_on(settings: PolicySettings, local_rate: float, scored: Trace) -> float:
    sizes = data_sizes(settings.types, settings.tuple_bytes, settings.hour_s)
    workers = solve(max(0.0, PEAK_RATE - local_rate), sizes)
    hours = len(scored.rates) * STEP_S / settings.hour_s
    paid = math.ceil(hours - 1e-9) if settings.billing == "hourly" else hours
    return sum(kind.price_h * workers[kind.name] for kind in settings.types) * paid


def _figures(
    options: SimulateOptions, settings: PolicySettings, run: SimulationResult, bound: float, always: float
) -> dict[str, Any]:
    fallbacks = sum(bool(decision.answer.fallback) for decision in run.decisions)
    return {
        "trace": options.trace.name,
        "policy": settings.policy,
        "billing": settings.billing,
        "slot_s": settings.slot_s,
        "slo_s": settings.slo_s,
        "cost": run.cost,
        "cost_always_on": always,
        "cost_bound": bound,
        "cost_over_bound": run.cost / bound if bound > 0 else None,
        "late_share": run.late_share,
        "changes_per_day": run.changes_per_day,
        "most_workers": run.peak_workers,
        "decisions": len(run.decisions),
        "guard_decisions": sum(decision.guard for decision in run.decisions),
        "fallbacks": fallbacks,
    }


def write_csv(path: Path, run: SimulationResult, types: Sequence[WorkerType]) -> None:
    """Write every decision, one row for each type."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        write = row_writer(file)
        write(["time", "type", "count", "forecast", "quantile", "rate", "backlog", "reason", "fallback"])
        for decision in run.decisions:
            answer = decision.answer
            for kind in types:
                write(
                    [
                        f"{decision.time_s:g}",
                        kind.name,
                        answer.wanted.get(kind.name, 0),
                        _text(answer.forecast),
                        _text(answer.quantile),
                        _text(answer.rate),
                        f"{decision.backlog:.1f}",
                        answer.reason,
                        answer.fallback,
                    ]
                )


def _text(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else ""


def draw(path: Path, run: SimulationResult, title: str) -> None:
    """Draw rate, capacity and late tuples over time.

    Raises:
        SimulateError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an optional dependency
    except ImportError:
        raise SimulateError(f"--plot needs matplotlib: {missing('report')}") from None
    width = max(1, len(run.rates) // 4000)
    count = len(run.rates) // width * width
    days = np.arange(0, count, width) * STEP_S / 86400.0
    figure = Figure(figsize=(11, 5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    above.plot(days, run.rates[:count].reshape(-1, width).mean(axis=1), lw=0.7, label="arrivals")
    above.plot(days, run.capacity[:count].reshape(-1, width).mean(axis=1), lw=0.9, label="capacity")
    above.set_ylabel("tuples/s")
    above.legend(loc="upper left")
    above.set_title(f"{title}: cost {run.cost:.2f}, late {run.late_share:.2%}")
    below.plot(days, run.late[:count].reshape(-1, width).sum(axis=1), lw=0.8, color="tab:red")
    below.set_ylabel("late tuples")
    below.set_xlabel("days")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
