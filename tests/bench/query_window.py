"""A query over many keys with a long sliding window: do time and memory for a row stay the same for hours?

    python -m tests.bench.query_window --keys 10000 --range-s 3600 --steps 7200 --out out/query-window.json

Runs the engine of queries alone, in this process, on rows of one step a second: aggregates, or with --changes the
changes (ISTREAM) of the rows above a limit. One JSON object comes out:

    us_per_row   CPU microseconds for a row that comes in, by each stretch of `--stretch` steps
    rss_mb       memory of the process at the end of each stretch, MB
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import psutil

from tests.bench import outcome
from tsunagi.query.planning import make_program
from tsunagi.query.relations import Rows
from tsunagi.query.running import Queries
from tsunagi.query.values import Column, Kind


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--range-s", type=int, default=3600)
    parser.add_argument("--steps", type=int, default=7200)
    parser.add_argument("--batch", type=int, default=10, help="steps in a call")
    parser.add_argument("--stretch", type=int, default=600)
    parser.add_argument("--select", default="COUNT(*) AS n, AVG(value) AS mean, MAX(value) AS most")
    parser.add_argument("--changes", action="store_true", help="ISTREAM of a selection, not aggregates")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    text = (
        f"CREATE QUERY q AS SELECT sensor, {options.select} FROM readings "
        f"[RANGE {options.range_s} SECONDS SLIDE 1 SECOND] GROUP BY sensor"
    )
    if options.changes:
        window = f"[RANGE {options.range_s} SECONDS]"
        text = f"CREATE QUERY q AS ISTREAM (SELECT sensor, value FROM readings {window} WHERE value > 70)"
    queries = Queries(make_program([("bench", text)], 1_000_000))
    names = tuple(f"s{number}" for number in range(options.keys))
    chance, process = np.random.default_rng(1), psutil.Process()
    us, memory, spent, rows = [], [], 0.0, 0
    sensor = np.tile(np.arange(options.keys), options.batch)
    for low in range(0, options.steps, options.batch):
        step = low + 1 + np.repeat(np.arange(options.batch), options.keys)
        columns = {
            name: Column(Kind.TEXT, np.zeros(len(step), np.int64), None, ("",))
            for name in ("edge", "group", "unit", "quality")
        }
        columns |= {name: Column(Kind.DOUBLE, np.zeros(len(step))) for name in ("threshold", "sd", "bound")}
        columns["sensor"] = Column(Kind.TEXT, sensor, None, names)
        columns["value"] = Column(Kind.DOUBLE, chance.normal(50, 10, len(step)))
        columns["time"] = Column(Kind.TIMESTAMP, step * 1_000_000)
        began = time.process_time()
        queries.advance({"readings": Rows(step, columns)}, low, low + options.batch)
        spent += time.process_time() - began
        rows += len(step)
        if (low + options.batch) % options.stretch == 0:
            us.append(round(spent / rows * 1e6, 3))
            memory.append(round(process.memory_info().rss / 1e6))
            spent, rows = 0.0, 0
    settings = {key: value for key, value in vars(options).items() if key != "out"}
    outcome.write({"bench": "query_window", **settings, "us_per_row": us, "rss_mb": memory}, options.out)


if __name__ == "__main__":
    main()
