"""Figures 5, 6 and 7 of the approximate recovery paper, and an ablation: `make figures-recovery`.

    python -m tests.bench.recovery.figures --repeat 3 --out out/figures-recovery

Each figure is written as CSV and picture, and beside them what the paper says as statements, each with whether it held
here (claims.json). Experiment 1 is figures 5 and 6 (accuracy and response over r_f and t_f), 2 is figure 7 (over the
number of sensors), 3 the ablation: each device alone and all together. One process and one core; nothing else should
run meanwhile (set OPENBLAS_NUM_THREADS=1). With the defaults it takes about half an hour, with --quick a minute.

Responses are counted as the paper does, from a window's oldest reading to its output, over 2,880 units of 0.1 s: what a
step takes is measured here, that slots work side by side and fall behind is computed from it. What differs from the
paper's setting stands in docs/measured/recovery.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from tests.bench.findings import Curves, Findings, Panel, say
from tests.bench.recovery import claims
from tests.bench.recovery.claims import Row, Sized
from tests.bench.recovery.methods import ABLATION, OURS, PUBLISHED, Method, Splits
from tests.bench.recovery.scenario import (
    SLIDE,
    Flags,
    Fleet,
    Scenario,
    draw_outages,
    draw_readings,
    make_fleet,
)
from tests.bench.recovery.trial import Outcome, run
from tsunagi.runtime.columns import Floats

UNITS = 2880
"""The paper's tuples: responses are counted over as many."""
R_F = (0.005, 0.01, 0.02, 0.05, 0.1)
T_F = (10, 20, 50, 100)
SENSORS = (500, 1000, 2000, 3000, 5000)
LARGE = 2000
"""Fleets of more sensors are run once: single takes half a minute a step at 5,000."""
TIMED = 12
"""Steps whose time by the literal equations is taken, in a scenario."""
LATE = 60
"""Step from which figure 7's few steps are taken: the scenario's share is missing by then."""


FULL = {"repeat": 3, "fleet": 500, "sensors": SENSORS, "fail": R_F, "down": T_F, "tuples": 960}
SMALL = {"repeat": 1, "fleet": 200, "sensors": (200, 500), "fail": (0.01, 0.1), "down": (10, 50), "tuples": 240}


class Setting(NamedTuple):
    """A fleet and its failures."""

    splits: Splits
    downs: Flags
    readings: Floats


class Bench(Findings):
    """Runs trials, and tells how far it is."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options.out)
        self.options = options
        self.left_out: list[str] = []

    def trial(self, label: str, method: Method, setting: Setting, timed: int = TIMED) -> Outcome:
        """Run one method."""
        found = run(setting.splits, method, setting.downs, setting.readings, timed=timed, watched=UNITS // SLIDE)
        self.progress(
            f"{label}, {method.name}: RMSE {found.rmse:.3f}, satisfied {found.satisfied:.3f}, "
            f"step {found.slowest_ms:.3g} ms, response {found.response_s:.4g} s"
        )
        return found


def spread(values: Sequence[float]) -> float:
    """Return max - min."""
    return max(values) - min(values)


def row_of(vary: str, value: float, missing: float, method: Method, found: Sequence[Outcome]) -> Row:
    """Return medians over the repetitions."""
    middle = {key: median(getattr(item, key) for item in found) for key in Outcome._fields}
    return Row(
        vary=vary,
        value=value,
        missing=missing,
        method=method.name,
        rmse_spread=spread([item.rmse for item in found]),
        satisfied_spread=spread([item.satisfied for item in found]),
        response_spread=spread([item.response_s for item in found]),
        **{key: middle[key] for key in Row._fields if key in middle},
    )


def over_scenarios(
    bench: Bench, scenarios: Sequence[tuple[str, float, Scenario]], methods: Sequence[Method], units: int
) -> list[Row]:
    """Run methods through scenarios, each fleet once for all; a scenario that stands twice is run once."""
    repeat, n = bench.options.repeat, bench.options.fleet
    found: dict[tuple[Scenario, Method], list[Outcome]] = {}
    missing: dict[Scenario, list[float]] = {}
    for seed in range(1, repeat + 1):
        fleet = make_fleet(n, seed)
        splits = Splits(fleet, seed)
        for scenario in dict.fromkeys(scenario for _, _, scenario in scenarios):
            watched = Scenario(scenario.fail, scenario.down, units)
            downs = draw_outages(fleet, watched, seed)
            readings = draw_readings(fleet, len(downs), seed)
            missing.setdefault(scenario, []).append(float(downs.mean()))
            label = f"{seed}/{repeat}, r_f {scenario.fail:g}, t_f {scenario.down}"
            for method in methods:
                outcome = bench.trial(label, method, Setting(splits, downs, readings))
                found.setdefault((scenario, method), []).append(outcome)
    return [
        row_of(vary, value, median(missing[scenario]), method, found[scenario, method])
        for vary, value, scenario in scenarios
        for method in methods
    ]


def curves(rows: Sequence[Row], vary: str, field: str, scale: float = 1.0) -> Curves:
    """Return a curve a method."""
    mine = [row for row in rows if row.vary == vary]
    return {
        name: (
            [row.value for row in mine if row.method == name],
            [scale * getattr(row, field) for row in mine if row.method == name],
        )
        for name in dict.fromkeys(row.method for row in mine)
    }


def columns_of(rows: Sequence[Row], names: Sequence[str]) -> list[tuple[float | str, ...]]:
    """Return some columns."""
    return [tuple(getattr(row, name) for name in names) for row in rows]


def experiment_1(bench: Bench) -> None:
    """Figures 5 and 6: accuracy and response over r_f and t_f."""
    usual = Scenario()
    scenarios = [("r_f", fail, Scenario(fail, usual.down)) for fail in bench.options.fail]
    scenarios += [("t_f", float(down), Scenario(usual.fail, down)) for down in bench.options.down]
    rows = over_scenarios(bench, scenarios, PUBLISHED + OURS, bench.options.tuples)
    where = ("vary", "value", "missing", "method")
    accuracy = (*where, "rmse", "rmse_spread", "satisfied", "satisfied_spread", "coverage", "helpers")
    timing = (*where, "response_s", "response_spread", "one_core_s", "decide_ms", "filter_ms", "slowest_ms")
    bench.write("figure-05", columns_of(rows, accuracy), accuracy)
    bench.write("figure-06", columns_of(rows, timing), timing)
    names = {"r_f": "edge failure rate r_f", "t_f": "time to recovery t_f"}
    bench.picture(
        "figure-05",
        [
            Panel(curves(rows, vary, field), label, text, log_x=True)
            for field, text in (("rmse", "theoretical RMSE"), ("satisfied", "share satisfied"))
            for vary, label in names.items()
        ],
        columns=2,
    )
    late = [row._replace(response_s=row.response_s - claims.IDEAL_S) for row in rows]
    bench.picture(
        "figure-06",
        [
            Panel(curves(some, vary, field, scale), label, text, log_x=True, log_y=True)
            for some, field, text, scale in (
                (late, "response_s", "response beyond the ideal 1 s, ms", 1000.0),
                (rows, "slowest_ms", "slowest slot's step, ms", 1.0),
            )
            for vary, label in names.items()
        ],
        columns=2,
    )
    bench.judge(claims.accuracy(rows))
    bench.judge(claims.responses(rows))


def sized_of(n: int, method: Method, found: Sequence[Outcome]) -> Sized:
    """Return medians over the repetitions."""
    middle = {key: median(getattr(item, key) for item in found) for key in Outcome._fields}
    prepare = [item.helpers_s if method.helpers != "none" else item.split_s for item in found]
    return Sized(
        sensors=n,
        method=method.name,
        prepare_s=median(prepare),
        prepare_spread=spread(prepare),
        response_spread=spread([item.response_s for item in found]),
        repetitions=len(found),
        **{key: middle[key] for key in Sized._fields if key in middle},
    )


def few_steps(fleet: Fleet, seed: int, steps: int) -> tuple[Flags, Floats]:
    """Return some steps of the usual scenario, once its share is missing; what is read has no part in figure 7."""
    downs = draw_outages(fleet, Scenario(units=SLIDE * (LATE + steps)), seed)[-steps:]
    return downs, np.zeros((steps, len(fleet)))


def experiment_2(bench: Bench) -> None:
    """Figure 7: preparation and response over the number of sensors."""
    rows = []
    for n in bench.options.sensors:
        repeat = bench.options.repeat if n <= LARGE else 1
        methods = [method for method in PUBLISHED + OURS if method.split != "vanilla" or n <= bench.options.vanilla_to]
        if n > bench.options.vanilla_to:
            bench.left_out.append(f"vanilla at n = {n}: above --vanilla-to {bench.options.vanilla_to}")
        found: dict[Method, list[Outcome]] = {}
        for seed in range(1, repeat + 1):
            fleet = make_fleet(n, seed)
            splits = Splits(fleet, seed)
            downs, readings = few_steps(fleet, seed, 12)
            for method in methods:
                timed = 1 if method.split == "single" and n > LARGE else 3
                outcome = bench.trial(f"n {n}, {seed}/{repeat}", method, Setting(splits, downs, readings), timed)
                found.setdefault(method, []).append(outcome)
        rows += [sized_of(n, method, outcomes) for method, outcomes in found.items()]
        bench.write("figure-07", rows, Sized._fields)

    def over_n(field: str, names: Sequence[str]) -> Curves:
        return {
            name: (
                [row.sensors for row in rows if row.method == name],
                [getattr(row, field) for row in rows if row.method == name],
            )
            for name in names
        }

    prepared = ("vanilla", "proposed", "proposed+")
    bench.picture(
        "figure-07",
        [
            Panel(
                over_n("prepare_s", prepared) | {"ours, split": over_n("split_s", ["ours"])["ours"]},
                "sensors n",
                "preparation, s",
                log_y=True,
            ),
            Panel(
                over_n("response_s", [method.name for method in PUBLISHED + OURS]),
                "sensors n",
                "response, s",
                claims.IDEAL_S,
                "ideal",
                log_y=True,
            ),
        ],
        columns=2,
    )
    bench.judge(claims.scale(rows))


def experiment_3(bench: Bench) -> None:
    """The ablation: each device alone, and all together."""
    fails = dict.fromkeys((Scenario().fail, max(bench.options.fail)))
    scenarios = [("r_f", fail, Scenario(fail)) for fail in fails]
    rows = over_scenarios(bench, scenarios, ABLATION, bench.options.tuples // 2)
    bench.write("ablation", rows, Row._fields)
    groups, milliseconds = {}, []
    for fail in fails:
        mine = [row for row in rows if row.value == fail]
        groups[f"RMSE, r_f {fail:g}"] = {row.method: row.rmse for row in mine}
        groups[f"share satisfied, r_f {fail:g}"] = {row.method: row.satisfied for row in mine}
        milliseconds.append(f"a step on one core, ms, r_f {fail:g}")
        groups[milliseconds[-1]] = {row.method: row.decide_ms + row.filter_ms for row in mine}
    bench.bars("ablation", groups, log=milliseconds)
    bench.judge(claims.devices(rows))


EXPERIMENTS: dict[int, Callable[[Bench], None]] = {1: experiment_1, 2: experiment_2, 3: experiment_3}


def numbers(text: str) -> tuple[int, ...]:
    """Read a list of numbers."""
    return tuple(int(item) for item in text.split(","))


def rates(text: str) -> tuple[float, ...]:
    """Read a list of probabilities."""
    return tuple(float(item) for item in text.split(","))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, help=f"fleets; above {LARGE} sensors always one (default 3)")
    parser.add_argument("--experiments", type=numbers, default=tuple(EXPERIMENTS), help="e.g. 1,2")
    parser.add_argument("--fleet", type=int, help="sensors of experiments 1 and 3 (default 500)")
    parser.add_argument("--sensors", type=numbers, help="of experiment 2 (default 500,1000,2000,3000,5000)")
    parser.add_argument("--fail", type=rates, help="r_f of experiment 1 (default 0.005,0.01,0.02,0.05,0.1)")
    parser.add_argument("--down", type=numbers, help="t_f of experiment 1 (default 10,20,50,100)")
    parser.add_argument("--tuples", type=int, help="a repetition of experiment 1 (default 960: 2,880 in three)")
    parser.add_argument("--vanilla-to", type=int, default=5000, help="vanilla is left out above so many sensors")
    parser.add_argument("--quick", action="store_true", help="small and once: shows that it runs, not what holds")
    parser.add_argument("--out", type=Path, default=Path("out/figures-recovery"))
    options = parser.parse_args(arguments)
    for key, value in (SMALL if options.quick else FULL).items():
        if getattr(options, key) is None:
            setattr(options, key, value)
    options.out = options.out.resolve()
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    bench = Bench(options)
    begun = time.monotonic()
    for number in options.experiments:
        bench.progress(f"experiment {number}: {EXPERIMENTS[number].__doc__}")
        EXPERIMENTS[number](bench)
        bench.save(
            {
                "bench": "figures-recovery",
                **{key: getattr(options, key) for key in (*FULL, "experiments")},
                "left_out": bench.left_out,
                "seconds": round(time.monotonic() - begun),
            }
        )
    held = sum(claim.held for claim in bench.claims)
    say(f"{held} of {len(bench.claims)} statements held; {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
