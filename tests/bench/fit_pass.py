"""The one pass of `tsunagi fit` through Spark: how long do a history's second moments take, in how much memory?

    python -m tests.bench.fit_pass --sensors 5000 --rows 20000 --lag 1 --out out/fit-pass.json

A Parquet history is written (deleted afterwards), and `tsunagi_spark.fit.sum_up` sums its moments: those of single
steps (--lag 0, a diagonal model) or of the joint of steps `lag` apart. One JSON object comes out:

    steps         that were summed
    wall_s, cpu_s of the pass, from reading the files to the sums on the driver; cpu_s is the Python workers'
    task_mib      greatest resident memory of a Python worker; jvm_mib, driver_mib: of the others
    state_mib     what the sums themselves take in each task
    expected_s    cpu_s at 1,000,000 rows, in proportion
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
from pyarrow import parquet

from tests.bench import outcome
from tsunagi.recovery.fit import HistoryColumns
from tsunagi.recovery.history import list_history
from tsunagi.recovery.shares import HistorySteps
from tsunagi.recovery.sums import Units
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import Settings, SparkSettings
from tsunagi_spark.fit import start, sum_up

GROUP_ROWS = 1000
EDGES, OUTAGE_ROWS = 50, 100


def write_history(path: Path, sensors: int, rows: int, missing: float) -> None:
    """Write autoregressions that share ten causes, a row group at a time; edges are down at random."""
    draw = np.random.default_rng(1)
    loads = draw.normal(size=(10, sensors))
    names = [f"s{place}" for place in range(sensors)]
    schema = pa.schema([pa.field(name, pa.float64()) for name in names])
    causes = np.zeros(10)
    with parquet.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for first in range(0, rows, GROUP_ROWS):
            count = min(GROUP_ROWS, rows - first)
            waves = np.empty((count, 10))
            for row in range(count):
                causes = 0.95 * causes + 0.3 * draw.normal(size=10)
                waves[row] = causes
            values = 20 + waves @ loads + draw.normal(size=(count, sensors))
            down = draw.random((-(-count // OUTAGE_ROWS), EDGES)) < missing
            lost = np.repeat(down, OUTAGE_ROWS, axis=0)[:count]
            values[lost[:, np.arange(sensors) % EDGES]] = np.nan
            writer.write_table(pa.table([pa.array(values[:, place]) for place in range(sensors)], schema=schema))


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")


class Watch:
    """Memory and CPU of what this process has started."""

    def __init__(self) -> None:
        self.peak_mib: dict[str, float] = {}
        self.cpu_s: dict[int, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        own = psutil.Process()
        while not self._over.wait(0.2):
            for process in [own, *own.children(recursive=True)]:
                try:
                    kind = "driver" if process.pid == own.pid else "jvm" if process.name() == "java" else "task"
                    used = process.memory_info().rss / 2**20
                    if kind == "task":
                        times = process.cpu_times()
                        self.cpu_s[process.pid] = times.user + times.system
                except psutil.NoSuchProcess:
                    continue
                self.peak_mib[kind] = max(self.peak_mib.get(kind, 0.0), used)

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sensors", type=int, default=5000)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--lag", type=int, default=1)
    parser.add_argument("--missing", type=float, default=0.0, help="share of the readings lost in outages of edges")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--out", type=Path, default=Path("out/fit-pass.json"))
    given = parser.parse_args()
    n = given.sensors
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "history.parquet"
        write_history(path, n, given.rows, given.missing)
        settings = Settings(spark=SparkSettings(master=given.master, checkpoint=Path(directory) / "checkpoint"))
        table = SensorTable(tuple(Sensor(i, f"s{i}", f"e{i % EDGES}") for i in range(n)))
        files = list_history(path)
        work = HistorySteps.of(files, HistoryColumns.of(files, table, settings.steps), settings.steps)
        session = start(settings)
        session.range(0, 2, numPartitions=2).mapInArrow(lambda batches: batches, "id long").collect()
        watch, began = Watch(), time.monotonic()
        units = Units(np.full(n, 20.0), np.full(n, 3.0))
        found, _ = sum_up(session, work, np.arange(n), (given.lag,), units, settings.spark.checkpoint, _tell)
        wall_s = time.monotonic() - began
        watch.stop()
        session.stop()
    cpu_s = sum(watch.cpu_s.values())
    result = {
        "bench": "fit_pass",
        "sensors": n,
        "rows": given.rows,
        "steps": work.end - work.first,
        "lag": given.lag,
        "missing": given.missing,
        "master": given.master,
        "load": os.getloadavg()[0],
        "wall_s": round(wall_s, 1),
        "cpu_s": round(cpu_s, 1),
        "task_mib": round(watch.peak_mib.get("task", 0.0)),
        "jvm_mib": round(watch.peak_mib.get("jvm", 0.0)),
        "driver_mib": round(watch.peak_mib.get("driver", 0.0)),
        "state_mib": round(sum(matrix.nbytes for matrix in found[given.lag].matrices.values()) / 2**20),
        "expected_s": round(cpu_s * 1e6 / given.rows),
    }
    outcome.write(result, given.out)
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
