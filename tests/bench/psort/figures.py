"""Figure 11 and table 1 of the P-SORT paper: `make figures-psort`.

    python -m tests.bench.psort.figures --rows 7000000 --cores 1,2,4,8,12,16 --repeat 3 --out out/figures-psort

A day of 130 sensors on 21 machines goes through Spark in lock-step, and with rates by Zipf's law (exponents .5 and 1),
unordered (`none`), `full`, `basic` and `optimised`. Cores are counted by their work: each task's own CPU time, with one
task at a time (`local[1]`), so that sixteen cores can be looked at on any machine; the busiest core, that of the merge
included, sets the speed-up over one core. A core's time is its least over the repetitions, which take turns with those
of the other methods and numbers of cores: what others do on the machine lengthens CPU time, too, for minutes. Beside it
what the law predicts from the cost of a row, which is measured on one core (S, P) and on three with a full merge (M).
By the clock all four are run once more on `--wall-cores` cores with as many tasks at a time.

CSV, picture and claims.json: what the paper says and what Tsunagi is held to, each with whether it held here. Nothing
else should run meanwhile. With the defaults it takes about half an hour, with --quick two minutes.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Literal

import numpy as np
from pyspark.sql import SparkSession

from tests.bench.findings import Curves, Findings, Panel
from tests.bench.psort import claims
from tests.bench.psort.claims import Row
from tests.bench.psort.day import GROUP_OF, Day, make_day
from tests.bench.psort.trial import Arrangement, Costs, Outcome, arrange, run, session
from tsunagi_spark.layout import Order
from tsunagi_spark.psort import assign

METHODS: tuple[Order, ...] = ("none", "full", "basic", "optimised")
CORES = (1, 2, 4, 6, 8, 10, 12, 14, 16)
UNEVEN_CORES = (1, 2, 8, 12, 16)
ZIPF = (0.5, 1.0)
FULL = {"rows": 7_000_000, "cores": CORES, "uneven_cores": UNEVEN_CORES, "repeat": 3}
SMALL = {"rows": 500_000, "cores": (1, 2, 12, 16), "uneven_cores": (1, 2, 16), "repeat": 1}
MERGING_CORES = 3
"""On so many M is measured: with `full` one of them merges what two have processed; one run alone costs half."""
TABLE_1_CORES = {"full": 12, "basic": 16, "optimised": 15}
"""Cores that process in table 1: of sixteen, full gives four to the merge and optimised one."""
LARGE = (17_000, 1_000, 256)
"""OPKs, SPKs and cores of the large assignment."""


class Bench(Findings):
    """Runs passes, and tells how far it is."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options.out)
        self.options = options

    def passes(self, spark: SparkSession, day: Day, arrangement: Arrangement) -> list[Outcome]:
        """Order a day, once to look at it and then some times by the clock."""
        work = self.options.work
        judged = run(spark, day, arrangement, work, check=True).judged
        found = [run(spark, day, arrangement, work, check=False) for _ in range(self.options.repeat)]
        return [item._replace(judged=judged) for item in found]


def busiest_s(found: Sequence[Outcome]) -> float:
    """Return the busiest core's CPU seconds; of each core the least over the repetitions."""
    return float(np.min([item.busy_s for item in found], axis=0).max())


def over_cores(bench: Bench, spark: SparkSession, day: Day, zipf: float, cores: Sequence[int]) -> list[Row]:
    """Run every method on every number of cores."""
    pairs = [
        (method, count)
        for count in sorted({1, MERGING_CORES, *cores})
        for method in (METHODS if count > 1 else METHODS[:1])
    ]
    arrangements = {pair: arrange(day, *pair) for pair in pairs}
    passes: dict[tuple[Order, int], list[Outcome]] = {pair: [] for pair in pairs}
    answers: set[tuple[int, int]] = set()
    work = bench.options.work
    for number in range(1 + bench.options.repeat):
        for (method, count), arrangement in arrangements.items():
            outcome = run(spark, day, arrangement, work, check=not number)
            if number:
                passes[method, count].append(outcome)
            else:
                answers.add((outcome.judged["q1"], outcome.judged["q2"]))
            bench.progress(
                f"zipf {zipf:g}, {method} on {count}, pass {number}: busiest {max(outcome.busy_s):.3f} s CPU"
            )
    if len(answers) != 1:
        raise RuntimeError(f"zipf {zipf:g}: found sums of q1 and q2 {answers}, expected the same from every method")
    alone, whole = passes["none", 1], passes["full", MERGING_CORES]
    costs = Costs(
        min(item.split_s for item in alone) / day.rows,
        min(item.order_s for item in alone) / day.rows,
        min(item.merge_s / item.merged for item in whole),
    )
    us = ", ".join(f"{name} {cost * 1e6:.3f}" for name, cost in zip(("split", "P", "M"), costs, strict=True))
    bench.progress(f"zipf {zipf:g}: microseconds a row: {us}")
    return [
        row_of(day, zipf, method, count, arrangements[pair], passes[pair], costs, alone)
        for method in METHODS
        for count in cores
        for pair in [("none" if count == 1 else method, count)]
    ]


def row_of(
    day: Day,
    zipf: float,
    method: str,
    cores: int,
    arrangement: Arrangement,
    found: Sequence[Outcome],
    costs: Costs,
    alone: Sequence[Outcome],
) -> Row:
    """Return what came of the repetitions: the least of each."""
    base = busiest_s(alone)
    ups = [base / max(item.busy_s) for item in found]
    split_s, order_s, merge_s = (
        min(getattr(item, name) for item in found) for name in ("split_s", "order_s", "merge_s")
    )
    return Row(
        zipf=zipf,
        method=method,
        cores=cores,
        processing=arrangement.layout.cores,
        speed_up=base / busiest_s(found),
        spread=max(ups) - min(ups),
        predicted=arrangement.predicted(costs),
        max_load=arrangement.max_load,
        merged_share=arrangement.merged_share,
        largest=float(day.readings.max()) / day.rows,
        bound=bound_of(day, arrangement, costs),
        busiest_s=busiest_s(found),
        task_s=split_s + order_s + merge_s,
        split_s=split_s,
        order_s=order_s,
        merge_s=merge_s,
    )


def bound_of(day: Day, arrangement: Arrangement, costs: Costs) -> float:
    """Return the speed-up that the largest sensor's share and the merge leave possible."""
    least = max(float(day.readings.max()) / day.rows, 1 / arrangement.layout.cores)
    ideal = Arrangement(arrangement.layout, arrangement.merges, least, arrangement.merged_share)
    return ideal.predicted(costs)


def write_table_1(bench: Bench) -> None:
    """Table 1, and how long a large assignment takes."""
    spk_of = dict(enumerate(GROUP_OF.tolist()))
    found = {}
    kinds: dict[str, Literal["full", "basic", "optimised"]] = {
        "full": "full",
        "basic": "basic",
        "optimised": "optimised",
    }
    for name, method in kinds.items():
        made = assign(spk_of, TABLE_1_CORES[name], method=method)
        found[name] = (made.max_load * 100, made.merged_share * 100)
    bench.write(
        "table-1",
        [(name, TABLE_1_CORES[name], round(load, 2), round(merged, 2)) for name, (load, merged) in found.items()],
        ("method", "cores", "max_load_percent", "merged_percent"),
    )
    opks, spks, cores = LARGE
    draw = np.random.default_rng(1)
    rates = dict(enumerate(draw.lognormal(size=opks).tolist()))
    began = time.process_time()
    assign({opk: opk % spks for opk in range(opks)}, cores, rates)
    bench.judge(claims.table_1(found, time.process_time() - began))


def draw(bench: Bench, rows: Sequence[Row]) -> None:
    """Write figure 11: a panel a day."""
    bench.write("figure-11", rows, Row._fields)
    panels = []
    for zipf in dict.fromkeys(row.zipf for row in rows):
        curves: Curves = {}
        for method in METHODS:
            mine = [row for row in rows if (row.zipf, row.method) == (zipf, method)]
            curves[method] = ([row.cores for row in mine], [row.speed_up for row in mine])
        mine = [row for row in rows if (row.zipf, row.method) == (zipf, "optimised")]
        curves["optimised, predicted"] = ([row.cores for row in mine], [row.predicted for row in mine])
        label = "cores" if not zipf else f"cores (rates by Zipf, exponent {zipf:g})"
        panels.append(Panel(curves, label, "times one core"))
    bench.picture("figure-11", panels, columns=len(panels))


def wall(bench: Bench, day: Day) -> None:
    """The clock, on this machine's cores."""
    cores = bench.options.wall_cores
    rows = []
    with session(f"local[{cores}]") as spark:
        for method in METHODS:
            found = bench.passes(spark, day, arrange(day, method, cores))
            times = [item.wall_s for item in found]
            rows.append((method, cores, median(times), max(times) - min(times), median(item.cpu_s for item in found)))
            bench.progress(f"wall, {method} on {cores}: {rows[-1][2]:.2f} s")
    bench.write("wall", rows, ("method", "cores", "wall_s", "spread_s", "cpu_s"))
    bench.judge(claims.wall({row[0]: row[2] for row in rows}))


def numbers(text: str) -> tuple[int, ...]:
    """Read a list of numbers."""
    return tuple(int(item) for item in text.split(","))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, help="readings of a day (default 7,000,000)")
    parser.add_argument("--cores", type=numbers, help="of the lock-step day (default 1,2,4,6,8,10,12,14,16)")
    parser.add_argument("--uneven-cores", type=numbers, help="of the days with Zipf's rates (default 1,2,8,12,16)")
    parser.add_argument("--repeat", type=int, help="timed passes of each (default 3)")
    parser.add_argument("--wall-cores", type=int, default=2, help="cores for the clock; 0 = not by the clock")
    parser.add_argument("--quick", action="store_true", help="small and once: shows that it runs, not what holds")
    parser.add_argument("--work", type=Path, default=Path("out/order"), help="where the days are kept")
    parser.add_argument("--out", type=Path, default=Path("out/figures-psort"))
    options = parser.parse_args(arguments)
    for key, value in (SMALL if options.quick else FULL).items():
        if getattr(options, key) is None:
            setattr(options, key, value)
    options.out, options.work = options.out.resolve(), options.work.resolve()
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    bench = Bench(options)
    begun, load = time.monotonic(), os.getloadavg()[0]
    write_table_1(bench)
    rows: list[Row] = []
    with session("local[1]") as spark:
        for zipf in (0.0, *ZIPF):
            day = make_day(options.work, options.rows, zipf)
            rows += over_cores(bench, spark, day, zipf, options.uneven_cores if zipf else options.cores)
            draw(bench, rows)
    bench.judge(claims.figure_11([row for row in rows if not row.zipf]))
    bench.judge(claims.uneven(rows))
    bench.judge(claims.predictions(rows))
    if options.wall_cores:
        wall(bench, make_day(options.work, options.rows, 0.0))
    bench.save(
        {
            "bench": "figures-psort",
            **{key: getattr(options, key) for key in (*FULL, "wall_cores")},
            "load_average": [round(load, 2), round(os.getloadavg()[0], 2)],
            "seconds": round(time.monotonic() - begun),
        }
    )
    held = sum(claim.held for claim in bench.claims)
    bench.progress(f"{held} of {len(bench.claims)} statements held; {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
