"""What order costs: a day of 130 sensors on 21 machines through Spark, with the job's queries, order and merge.

    python -m tests.bench.order --rows 7000000 --method optimised --out out/order.json

The day is written once (`--work`) and read by the tasks; `--zipf 1` gives the sensors rates of their own. On `--cores`
cores, counted by their work (tests/bench/psort/trial.py); on this machine they share what `--master` names. The first
pass is looked at (no row lost, doubled or out of order) and not timed. One JSON object comes out, each figure the
median over `--repeat` passes:

    wall_s          from the query's start to its end
    cpu_s           of the JVM and all Python workers
    task_cpu_s      of the tasks alone, and of it {split, order, merge}
    shuffled_rows   rows that went to a P-SORT core, and those that went on to the merge core
    busiest_core_s  CPU seconds of the core that had most to do, and which it was
    max_load, merged_share   what the assignment promised
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench import outcome
from tests.bench.psort.day import make_day
from tests.bench.psort.trial import arrange, run, session

METHODS = ("none", "basic", "optimised", "full")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=7_000_000)
    parser.add_argument("--method", choices=METHODS, required=True)
    parser.add_argument("--cores", type=int, default=16)
    parser.add_argument("--zipf", type=float, default=0.0, help="exponent of the sensors' rates; 0 = lock-step")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--master", default="local[*]", help="local[1]: tasks do not disturb each other")
    parser.add_argument("--work", type=Path, default=Path("out/order"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    work = options.work.resolve()
    day = make_day(work, options.rows, options.zipf)
    arrangement = arrange(day, options.method, options.cores)
    with session(options.master) as spark:
        run(spark, day, arrangement, work, check=True)
        passes = [run(spark, day, arrangement, work, check=False) for _ in range(options.repeat)]
    busiest = sorted(max((busy, core) for core, busy in enumerate(item.busy_s)) for item in passes)[len(passes) // 2]
    parts = {
        name: round(median(getattr(item, f"{name}_s") for item in passes), 3) for name in ("split", "order", "merge")
    }
    found: dict[str, Any] = {
        "bench": "order",
        "rows": day.rows,
        **{name: getattr(options, name) for name in ("method", "cores", "zipf", "repeat", "master")},
        "load_average": round(os.getloadavg()[0], 2),
        "wall_s": round(median(item.wall_s for item in passes), 3),
        "cpu_s": round(median(item.cpu_s for item in passes), 3),
        "task_cpu_s": {"all": round(sum(parts.values()), 3), **parts},
        "shuffled_rows": {"split": passes[0].rows, "merge": passes[0].merged},
        "busiest_core_s": round(busiest[0], 4),
        "busiest_core": "merge" if arrangement.merges and busiest[1] == arrangement.layout.cores else busiest[1],
        "max_load": round(arrangement.max_load, 4),
        "merged_share": round(arrangement.merged_share, 4),
    }
    outcome.write(found, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
