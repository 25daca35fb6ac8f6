"""Figures 4 to 6 of the ElasticStream paper: `make figures-scaler`.

    python -m tests.bench.scaler.figures --out out/figures-scaler
    python -m tests.bench.scaler.figures --widths --traces DIRECTORY --out out/scaler-widths

A hand-made curve with bursts comes in on a real broker, four times: Local (two workers), Local+Cloud (and the cloud's
for the peak, all the time), ElasticStream and ours, whose workers the real scaler launches as processes of this machine
that keep to the rates of unequal ones. The clock is compressed: a second of the system is `--speed` of the paper's, so
a TimeSlot of five minutes takes 20 s; what a process takes to boot and a slot to move is not. As in the paper the
policies are told the rates that come (`--forecast told`) and the score is the time used (`--billing second`).

--widths is the study of the paper's discussion, by the simulator alone: cost and lateness against the TimeSlot's width.

CSV, picture and claims.json: what the paper says and what Tsunagi is held to, each with whether it held here. Nothing
else should run meanwhile. With the defaults it takes 25 minutes, with --quick three.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.bench.findings import Curves, Findings, Panel
from tests.bench.scaler import claims, foretold, widths
from tests.bench.scaler.arrangement import HOUR_S, LOCALS, PRICES, SCENARIOS
from tests.bench.scaler.claims import Row
from tests.bench.scaler.curve import MINUTE_S, PAPER, SHORT
from tests.bench.scaler.score import by_second, count, paid, score
from tests.bench.scaler.trial import Outcome, run, write_history

FULL = {"speed": 15.0, "slo": 2.0}
SMALL = {"speed": 80.0, "slo": 1.0}
WRONG = ("lost", "duplicates", "reordered")


class Bench(Findings):
    """Findings, and what was asked for."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options.out)
        self.options = options


def row_of(outcome: Outcome, options: argparse.Namespace, always: float) -> Row:
    """Return a scenario in figures."""
    last_s = options.curve.bursts[-1].rises * MINUTE_S / options.speed
    hour_s = HOUR_S / options.speed
    spent = score(outcome.lives, PRICES, hour_s, outcome.seconds)
    before = outcome.latency[outcome.arrived < last_s]
    return Row(
        scenario=outcome.scenario.name,
        score=spent,
        paid=paid(outcome.lives, PRICES, hour_s, outcome.seconds),
        saved=1 - spent / always,
        late=outcome.late_share(options.slo),
        before_last=outcome.late_share(options.slo, until_s=last_s),
        most_s=outcome.most_s(),
        before_most_s=outcome.most_s(until_s=last_s),
        last_most_s=outcome.most_s(last_s),
        median_s=float(np.median(before)) if len(before) else math.nan,
        wrong=sum(outcome.wrong[name] for name in WRONG) + outcome.unsent,
    )


def write(bench: Bench, found: Sequence[Outcome]) -> None:
    """Write figures 4 to 6, of the scenarios so far."""
    options = bench.options
    minute_s, hour_s = MINUTE_S / options.speed, HOUR_S / options.speed
    kinds = ("local", *PRICES)
    latencies, scores, workers, rates = [], [], [], []
    late: Curves = {}
    costs: Curves = {}
    for outcome in found:
        name, label = outcome.scenario.name, outcome.scenario.label
        seconds = np.arange(round(outcome.seconds))
        spread = by_second(outcome.arrived, outcome.latency, len(seconds))
        minutes = [round(float(second) / minute_s, 3) for second in seconds]
        latencies += [(name, minute, *values) for minute, values in zip(minutes, spread, strict=True)]
        late[label] = minutes, [mean for mean, _, _ in spread]
        spent = [score(outcome.lives, PRICES, hour_s, float(at_s)) for at_s in seconds]
        asked = [paid(outcome.lives, PRICES, hour_s, float(at_s)) for at_s in seconds]
        scores += [(name, *values) for values in zip(minutes, spent, asked, strict=True)]
        costs[label] = minutes, spent
        for item in outcome.seen:
            here = [count(outcome.lives, kind, item.at_s) for kind in kinds]
            ready = [item.ready.get(kind, 0) for kind in kinds]
            workers.append((name, round(item.at_s / minute_s, 3), *here, *ready))
            rates.append((name, round(item.at_s / minute_s, 3), round(item.rate, 1)))
    bench.write("figure-4", latencies, ("scenario", "minute", "mean_s", "p99_s", "most_s"))
    bench.write("figure-4-rates", rates, ("scenario", "minute", "rate_per_s"))
    bench.write("figure-5", scores, ("scenario", "minute", "score", "paid"))
    bench.write("figure-6", workers, ("scenario", "minute", *kinds, *(f"{kind}_ready" for kind in kinds)))
    x = "minutes of the paper's clock"
    seen = found[0].seen
    curve: Curves = {"input": ([item.at_s / minute_s for item in seen], [item.rate for item in seen])}
    bench.picture(
        "figure-4",
        [
            Panel(late, x, "latency (s)", options.slo, "promised", log_y=True, points=False),
            Panel(curve, x, "tuples/s", points=False),
        ],
    )
    bench.picture("figure-5", [Panel(costs, x, "score", points=False)])
    panels = []
    for outcome in found:
        minutes = [item.at_s / minute_s for item in outcome.seen]
        lines: Curves = {
            kind: (minutes, [count(outcome.lives, kind, item.at_s) for item in outcome.seen]) for kind in kinds
        }
        panels.append(Panel(lines, f"{x}, {outcome.scenario.label}", "workers", points=False))
    bench.picture("figure-6", panels, columns=min(2, len(panels)))


def measure(bench: Bench) -> None:
    """Run the scenarios, and judge them."""
    options = bench.options
    always = foretold.always_on(options.curve)
    write_history(options)
    found: list[Outcome] = []
    rows: dict[str, Row] = {}
    loads = {}
    for scenario in SCENARIOS:
        if scenario.name not in options.only:
            continue
        bench.progress(f"{scenario.label}: {options.curve.minutes:g} minutes at {options.speed:g} times the speed")
        outcome = run(scenario, options)
        found.append(outcome)
        row = rows[scenario.name] = row_of(outcome, options, always)
        loads[scenario.name] = round(outcome.load_average, 2)
        write(bench, found)
        bench.write("scenarios", list(rows.values()), Row._fields)
        spent = f"score {row.score:.4f} ({row.saved:.1%} below always-on)"
        bench.progress(f"{scenario.label}: {spent}, {row.late:.2%} late, {row.most_s:.1f} s at most, {row.wrong} wrong")
    slo_s = options.slo * options.speed
    bound = foretold.least(options.curve, slo_s)
    simulated = foretold.simulated(options.curve, options.billing, slo_s)
    bench.write("foretold", simulated, foretold.Foretold._fields)
    bench.judge(claims.figure_4(rows, options.slo))
    bench.judge(claims.figure_5(rows, 1 - bound / always, options.slo))
    bench.judge(claims.held_to(rows))
    bench.save(
        {
            "bench": "figures-scaler",
            "speed": options.speed,
            "factor": options.factor,
            "slo_s": options.slo,
            "forecast": options.forecast,
            "billing": options.billing,
            "local_workers": LOCALS,
            "scenarios": {name: row._asdict() for name, row in rows.items()},
            "bound": {"score": bound, "saved": 1 - bound / always, "always_on": always},
            "foretold": [item._asdict() for item in simulated],
            "load_average": loads,
            "seconds": bench.took_s,
        }
    )


def measure_widths(bench: Bench) -> None:
    """Run the study of the TimeSlot's width."""
    options = bench.options
    traces = sorted(options.traces.glob("*.csv"))
    todo = widths.tasks(traces, options.billing, options.score_days, options.history_days)
    bench.progress(f"{len(todo)} simulations and bounds on {len(traces)} traces, {options.jobs} at a time")
    rows = widths.rows_of(list(widths.study(todo, options.jobs, bench.progress)))
    widths.draw(bench, rows)
    bench.save(
        {
            "bench": "scaler-widths",
            "billing": options.billing,
            "score_days": options.score_days,
            "history_days": options.history_days,
            "traces": [path.stem for path in traces],
            "load_average": round(os.getloadavg()[0], 2),
            "seconds": bench.took_s,
        }
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [scenario.name for scenario in SCENARIOS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="these scenarios (default all)")
    parser.add_argument(
        "--forecast", choices=("told", "own"), default="told", help="policies are told the rates, or not"
    )
    parser.add_argument("--billing", choices=("second", "hourly"), help="default second; hourly with --widths")
    parser.add_argument("--speed", type=float, help="the paper's seconds in one of the system's (default 15)")
    parser.add_argument("--factor", type=float, default=1.0, help="rates and workers so many times as large [1]")
    parser.add_argument("--slo", type=float, help="latency promised, seconds of the system's clock (default 2)")
    parser.add_argument("--quick", action="store_true", help="short and fast: shows that it runs, not what holds")
    parser.add_argument("--port", type=int, default=19396, help="of the broker [19396]")
    parser.add_argument(
        "--widths", action="store_true", help="the TimeSlot's width, by the simulator, and nothing else"
    )
    parser.add_argument("--traces", type=Path, help="directory of CSV files: t_s,rate_per_s")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="simulations at a time [the cores]")
    parser.add_argument("--score-days", type=float, help="days scored of each trace [7, or 28 of a long one]")
    parser.add_argument("--history-days", type=float, default=56.0, help="days before that policies learn at most [56]")
    parser.add_argument("--work", type=Path, default=Path("out/bench-scaler"), help="scratch directory")
    parser.add_argument("--out", type=Path, help="default out/figures-scaler; out/scaler-widths with --widths")
    options = parser.parse_args(arguments)
    if options.widths and options.traces is None:
        parser.error("--widths needs --traces")
    for key, value in (SMALL if options.quick else FULL).items():
        if getattr(options, key) is None:
            setattr(options, key, value)
    options.curve = SHORT if options.quick else PAPER
    options.billing = options.billing or ("hourly" if options.widths else "second")
    options.out = (options.out or Path("out/scaler-widths" if options.widths else "out/figures-scaler")).resolve()
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    logging.getLogger().setLevel(logging.WARNING)
    bench = Bench(options)
    if options.widths:
        measure_widths(bench)
    else:
        measure(bench)
    held = sum(claim.held for claim in bench.claims)
    bench.progress(f"{held} of {len(bench.claims)} statements held; {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
