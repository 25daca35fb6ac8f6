"""The k-way merge alone: how many rows a second of a core does `tsunagi_spark.kway` merge, against what else there is?

    python -m tests.bench.merge --out out/merge.json

Sorted runs of (int64 time, int32 sensor, two float64) are merged into the order of (time, sensor), with all columns in
place at the end. `lockstep`: a day of 130 sensors that share their time stamps, each run with every 16th sensor;
`random`: every row has a time of its own. Rates are rows a CPU second of the best of `--repeat` passes, by CPU of this
process and of all it has started (polars with one thread, Spark with `local[1]`), so that others here count little.
Every method's table is compared with the first one's. One JSON object comes out:

    rows_per_s    by shape and method: {best, median, wall_best}
    times_heapq   ours over heapq, by shape
    held_to       the bounds, and `met`

heapq gets its rows as tuples that were made before, of a part of each run (`--heap-rows`), and leaves tuples.
"""

from __future__ import annotations

import argparse
import heapq
import importlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil

from tests.bench import outcome
from tsunagi_spark.kway import Column, merge_runs

Run = dict[str, Column]
Merge = Callable[[], Mapping[str, Column] | None]
"""Merges; returns the table for the comparison, or None where making one is no part of the method."""

SENSORS = 130
DAY_US = 86_400_000_000
BEGIN_US = 1_700_000_000_000_000
ROWS_PER_S = {"lockstep": 30e6, "random": 15e6}
TIMES_HEAPQ = 10.0
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}


def make_runs(shape: str, rows: int, count: int) -> list[Run]:
    """Make sorted runs, each with its own share of the sensors."""
    draw = np.random.default_rng(1)
    runs = []
    for number in range(count):
        mine = np.arange(number, SENSORS, count, dtype=np.int32)
        if shape == "lockstep":
            steps = rows // SENSORS
            time_us = np.repeat(BEGIN_US + np.arange(steps) * (DAY_US // steps), len(mine))
            sensor = np.tile(mine, steps)
        else:
            time_us = BEGIN_US + np.sort(draw.integers(0, DAY_US, rows // count))
            sensor = draw.choice(mine, rows // count)
            _, once = np.unique(time_us * SENSORS + sensor, return_index=True)  # a sensor has one row at a time
            time_us, sensor = time_us[once], sensor[once]
        values = draw.random((2, len(time_us)))
        runs.append({"time": time_us, "sensor": sensor, "mean": values[0], "sd": values[1]})
    return runs


def joined(runs: Sequence[Run]) -> Run:
    """Return the runs one after the other."""
    return {name: np.concatenate([run[name] for run in runs]) for name in runs[0]}


def by_kway(runs: Sequence[Run]) -> Merge:
    return lambda: merge_runs(runs)


def by_heapq(runs: Sequence[Run]) -> Merge:
    rows = [list(zip(*(column.tolist() for column in run.values()), strict=True)) for run in runs]

    def merge() -> None:
        for _ in heapq.merge(*rows):
            pass

    return merge


def by_lexsort(runs: Sequence[Run]) -> Merge:
    def merge() -> Run:
        table = joined(runs)
        place = np.lexsort((table["sensor"], table["time"]))
        return {name: column[place] for name, column in table.items()}

    return merge


def by_argsort(runs: Sequence[Run]) -> Merge:
    """Timsort, which finds the runs, over one key; it has to know that the key fits."""

    def merge() -> Run:
        table = joined(runs)
        key = (table["time"] - table["time"].min()) * SENSORS + table["sensor"]
        place = np.argsort(key, kind="stable")
        return {name: column[place] for name, column in table.items()}

    return merge


def by_ranks(runs: Sequence[Run]) -> Merge:
    """Pairs of runs, and pairs of those: a row's place is its own in its run and its rank in the other."""

    def pair(one: Run, other: Run) -> Run:
        keys = [(run["time"] - BEGIN_US) * SENSORS + run["sensor"] for run in (one, other)]
        places = [
            np.arange(len(keys[0])) + np.searchsorted(keys[1], keys[0], side="left"),
            np.arange(len(keys[1])) + np.searchsorted(keys[0], keys[1], side="right"),
        ]
        merged = {}
        for name in one:
            merged[name] = np.empty(len(keys[0]) + len(keys[1]), dtype=one[name].dtype)
            merged[name][places[0]], merged[name][places[1]] = one[name], other[name]
        return merged

    def merge() -> Run:
        level = list(runs)
        while len(level) > 1:
            odd = level[len(level) & ~1 :]
            level = [pair(*level[first : first + 2]) for first in range(0, len(level) - 1, 2)] + odd
        return level[0]

    return merge


def by_polars(runs: Sequence[Run]) -> Merge:
    polars: Any = importlib.import_module("polars")
    frames = [polars.DataFrame(run) for run in runs]

    def merge() -> Run:
        table = polars.concat(frames).sort("time", "sensor")
        return {name: table[name].to_numpy() for name in table.columns}

    return merge


def by_spark(runs: Sequence[Run]) -> Merge:
    """Spark's sort of rows that it holds already; what it sorts is not taken out of it."""
    pa: Any = importlib.import_module("pyarrow")
    sql: Any = importlib.import_module("pyspark.sql")
    session = (
        sql.SparkSession.builder.master("local[1]")
        .config("spark.driver.memory", "6g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    frame = session.createDataFrame(pa.table(joined(runs))).coalesce(1).cache()
    frame.count()
    return lambda: frame.sortWithinPartitions("time", "sensor").write.format("noop").mode("overwrite").save()


METHODS: dict[str, Callable[[Sequence[Run]], Merge]] = {
    "kway": by_kway,
    "heapq": by_heapq,
    "lexsort": by_lexsort,
    "argsort": by_argsort,
    "ranks": by_ranks,
    "polars": by_polars,
    "spark": by_spark,
}


def cpu_s() -> float:
    """Return the CPU time of this process, and of those that it has started and that live (in hundredths)."""
    times = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
    return time.process_time() + sum(item.user + item.system for item in times)


def measure(merge: Merge, rows: int, repeat: int) -> dict[str, float]:
    """Merge some times over; return rows a second."""
    cpus, walls = [], []
    for _ in range(repeat):
        before, began = cpu_s(), time.perf_counter()
        merge()
        walls.append(time.perf_counter() - began)
        cpus.append(cpu_s() - before)
    return {
        "best": round(rows / min(cpus)),
        "median": round(rows / median(cpus)),
        "wall_best": round(rows / min(walls)),
    }


def run_shape(shape: str, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Measure every method on one shape."""
    runs = make_runs(shape, options.rows, options.runs)
    expected = merge_runs(runs)
    found = {}
    for name in options.methods:
        few = options.heap_rows // options.runs if name == "heapq" else options.rows
        mine = [{key: column[:few] for key, column in run.items()} for run in runs]
        merge = METHODS[name](mine)
        table = merge()
        if table is not None and not all(np.array_equal(table[key], expected[key]) for key in expected):
            raise RuntimeError(f"{shape}: {name} has another order than kway")
        found[name] = measure(merge, sum(len(run["time"]) for run in mine), options.repeat)
        sys.stderr.write(f"{shape:<9} {name:<8} {found[name]['best'] / 1e6:8.2f} million rows a CPU second\n")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=7_000_000)
    parser.add_argument("--runs", type=int, default=16)
    parser.add_argument("--heap-rows", type=int, default=500_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--shapes", nargs="+", choices=tuple(ROWS_PER_S), default=list(ROWS_PER_S))
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS), default=list(METHODS))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        os.environ |= ONE_THREAD  # read when the libraries are loaded
        os.execv(sys.executable, [sys.executable, "-m", "tests.bench.merge", *sys.argv[1:]])
    if "polars" in options.methods and importlib.util.find_spec("polars") is None:
        options.methods.remove("polars")
        sys.stderr.write("polars is not installed: left out\n")
    load = os.getloadavg()[0]
    rates = {shape: run_shape(shape, options) for shape in options.shapes}
    found: dict[str, Any] = {
        "bench": "merge",
        **{name: getattr(options, name) for name in ("rows", "runs", "heap_rows", "repeat")},
        "load_average": [round(load, 2), round(os.getloadavg()[0], 2)],
        "rows_per_s": rates,
    }
    if {"kway", "heapq"} <= set(options.methods):
        found["times_heapq"] = {
            shape: round(by["kway"]["best"] / by["heapq"]["best"], 1) for shape, by in rates.items()
        }
    if "kway" in options.methods:
        found["held_to"] = {shape: ROWS_PER_S[shape] for shape in rates} | {"times_heapq": TIMES_HEAPQ}
        found["met"] = {shape: by["kway"]["best"] >= ROWS_PER_S[shape] for shape, by in rates.items()} | {
            "times_heapq": all(times >= TIMES_HEAPQ for times in found.get("times_heapq", {}).values())
        }
    outcome.write(found, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
