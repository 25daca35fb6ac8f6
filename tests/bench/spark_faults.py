"""The job on a standalone cluster, its driver and its workers killed and its table changed, over millions of rows.

    python -m tests.bench.spark_faults --rows 7000000 --driver-kills 5 --worker-kills 2 --moves 2 --out out/faults.json

Starts a broker, a master with two workers of a core each, and the job, as processes of this machine. `recovered` is
written at `--rate` as `tests.bench.stream` does it. All groups read something, but until the table has changed
`--moves` times those of one core read in every fourth step only, so that it has to change. The kills (SIGKILL; of a
worker its executor too, and another worker is started) come in random order, spread over the rows, each as soon as all
that was written before the last one has come out; a driver that ended is started again. Every block is compared with
what was written. One JSON object comes out:

    inversions    blocks of a group that came, for the first time, after a later one, or whose sensors do not ascend
    lost          rows that were written and did not come out
    duplicates    rows that came out under more than one name, or twice in one block
    wrong         blocks whose sensors, values, q1 or q2 are not those that were written and counted here
    changed       blocks that were sent again with other bytes, or in another partition
    repeats       blocks that were sent again (a reader drops them by name)
    moves         changes of the table; recovery_s: of each kill, until what was written by then had come out
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import sys
import time
import zlib
from collections import deque
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import structlog

from tests.bench import outcome
from tests.bench.stream import FIRST_STEP, READY_S, Writer, prepare
from tests.spark.cluster import HOST, Cluster
from tests.spark.driver import Driver
from tsunagi.broker.broker import Broker
from tsunagi.runtime.columns import floats, sensors
from tsunagi.runtime.kafka import KafkaLog
from tsunagi.runtime.log import RESULTS, Position, Record
from tsunagi.runtime.messages import ResultBlock
from tsunagi.runtime.sensors import read_sensors
from tsunagi.runtime.settings import CONFIG_VARIABLE, Settings
from tsunagi_spark.layout import Flags, Ints, Layout

SELDOM = 4
"""A group that is to be quiet reads something in one of so many steps."""

SETTLE_S = 300.0
REPORT_S = 15.0
READ_S = 0.02

Kill = Literal["driver", "worker"]


class Expected:
    """What each step must come to, counted along with the writing."""

    def __init__(self, settings: Settings, writer: Writer) -> None:
        table = read_sensors(settings.sensors)
        self.groups = sorted({sensor.group for sensor in table.sensors})
        number = {group: place for place, group in enumerate(self.groups)}
        self.group_of = np.array([number[sensor.group] for sensor in table.sensors])
        self.members = {group: np.flatnonzero(self.group_of == place) for group, place in number.items()}
        self.rows = 0
        self._threshold = np.array([sensor.threshold for sensor in table.sensors])
        self._span = round(settings.query.range_s * 1e6 / settings.steps.slide_us)
        self._writer = writer
        self._steps: list[tuple[Flags, Ints, Ints]] = []
        self._within: deque[tuple[Flags, Flags]] = deque()
        self._q1 = np.zeros(len(table), dtype=np.int64)
        self._q2 = np.zeros(len(table), dtype=np.int64)

    def add(self, gives: Flags) -> None:
        """Take in the next step: bool[sensors], who reads something."""
        above = gives & (self._writer.values(len(self._steps)) > self._threshold)
        self._within.append((gives, above))
        self._q1 += gives
        self._q2 += above
        if len(self._within) > self._span:
            old, old_above = self._within.popleft()
            self._q1 -= old
            self._q2 -= old_above
        self._steps.append((gives, self._q1.astype(np.int32), self._q2.astype(np.int32)))
        self.rows += int(gives.sum())

    def is_right(self, block: ResultBlock) -> bool:
        """Return whether a block is what its step must come to."""
        step = block.step - FIRST_STEP
        gives, q1, q2 = self._steps[step]
        ids = self.members[block.group]
        ids = ids[gives[ids]]
        return (
            np.array_equal(sensors(block.sensor), ids)
            and np.array_equal(floats(block.mean), self._writer.values(step)[ids])
            and np.array_equal(sensors(block.q1), q1[ids])
            and np.array_equal(sensors(block.q2), q2[ids])
        )


class Judge:
    """Reads all records of `results` by itself."""

    def __init__(self, expected: Expected) -> None:
        self.rows = self.inversions = self.duplicates = self.wrong = self.changed = self.repeats = 0
        self.last = dict.fromkeys(expected.groups, FIRST_STEP - 1)
        self._expected = expected
        self._sent: dict[bytes, tuple[int, int]] = {}
        self._counted: set[tuple[str, int]] = set()

    def take(self, records: list[Record]) -> None:
        """Take records in the order of the log."""
        for record in records:
            key, value = record.key or b"", record.value or b""
            sent = (record.partition, zlib.crc32(value))
            if (before := self._sent.setdefault(key, sent)) is not sent:
                self.repeats += 1
                self.changed += before != sent
                continue
            block = ResultBlock.FromString(value)
            ids = sensors(block.sensor).astype(np.int64)
            self.inversions += block.step < self.last[block.group] or bool((np.diff(ids) < 0).any())
            twice = (block.group, block.step) in self._counted
            self.duplicates += len(ids) if twice else len(ids) - len(np.unique(ids))
            self._counted.add((block.group, block.step))
            self.last[block.group] = max(block.step, self.last[block.group])
            self.rows += 0 if twice else len(ids)
            self.wrong += not self._expected.is_right(block)

    @property
    def reached(self) -> int:
        """Steps, from the first, that are out for all groups."""
        return min(self.last.values()) - FIRST_STEP + 1


class Run:
    """One run: writes, reads, kills, and starts again what has ended."""

    def __init__(self, log: KafkaLog, settings: Settings, cluster: Cluster, options: argparse.Namespace) -> None:
        self.cluster = cluster
        self.settings = settings
        self.options = options
        self.writer = Writer(log, settings)
        self.expected = Expected(settings, self.writer)
        self.judge = Judge(self.expected)
        self.reader = log.reader()
        self.reader.assign([Position(RESULTS, number, 0) for number in range(log.partitions(RESULTS))])
        self.workers = [cluster.worker(), cluster.worker()]
        self.driver = self._drive()
        self.driver_ends = 0
        self._quiet = 0

    def step(self, gives: Flags) -> None:
        """Write one step."""
        self.expected.add(gives)
        self.writer.step(gives)

    def read(self) -> None:
        """Read on; a driver that has ended is started again."""
        self.judge.take(self.reader.read(1000, READ_S))
        if self.driver.process.poll() is not None:
            self.driver_ends += 1
            self.driver.close()
            self.driver = self._drive()

    def kill(self, kind: Kill) -> None:
        """Kill the driver, or the older worker."""
        if kind == "driver":
            self.driver.kill()
            self.driver.close()
            self.driver = self._drive()
        else:
            self.cluster.kill(self.workers.pop(0))
            self.workers.append(self.cluster.worker())

    def layout(self) -> Layout | None:
        """Return the table in force."""
        files = list((self.settings.spark.checkpoint / "tsunagi" / "layouts").glob("[0-9]*"))
        newest = max(files, key=lambda file: int(file.name), default=None)
        return None if newest is None else Layout.load(newest.read_bytes())

    def gives(self, layout: Layout | None) -> Flags:
        """Return who reads something in the next step: while the table is to change, one core's groups seldom do."""
        number = self.writer.steps
        everybody = np.ones(len(self.expected.group_of), dtype=np.bool_)
        if layout is None or layout.serial > self.options.moves or number % SELDOM == 0:
            return everybody
        return np.asarray(layout.sensor_core != layout.serial % layout.cores)

    def close(self) -> None:
        """End what is left."""
        self.driver.close()
        self.reader.close()

    def _drive(self) -> Driver:
        options = {
            "TSUNAGI_SPARK__MASTER": self.cluster.url,
            "TSUNAGI_SPARK__REBALANCE_S": str(self.options.rebalance),
            "SPARK_LOCAL_IP": HOST,
        }
        return Driver(Path(os.environ[CONFIG_VARIABLE]), self.options.work.resolve() / "driver.log", **options)


def run(run: Run, options: argparse.Namespace) -> dict[str, Any]:
    """Let it run until all rows are written, every kill was made, and everything has come out."""
    logger = structlog.get_logger("bench")
    step_s = run.settings.steps.slide_us / 1e6
    kills: list[Kill] = ["driver" for _ in range(options.driver_kills)]
    kills += ["worker" for _ in range(options.worker_kills)]
    random.Random(options.seed).shuffle(kills)
    all_kills = len(kills)
    every = options.rows / (all_kills + 1)
    struck: tuple[Kill, float, int] | None = None  # what, when, steps written by then
    recovery_s: list[dict[str, Any]] = []
    first = run.gives(None)
    run.step(first)
    deadline = time.monotonic() + READY_S
    while run.judge.reached < 1:
        run.read()
        if time.monotonic() > deadline:
            raise RuntimeError(f"no results within {READY_S:g} s; see {run.driver.log}")
    begun = due = told = time.monotonic()
    deadline = float("inf")
    layout = run.layout()
    while True:
        now = time.monotonic()
        writing = run.expected.rows < options.rows or bool(kills)
        if writing and now >= due:
            if run.writer.steps % SELDOM == 0:
                layout = run.layout()
            run.step(run.gives(layout))
            due = max(due + step_s, now - 1.0)
        run.read()
        if struck is not None and run.judge.reached >= struck[2]:
            recovery_s.append({"kill": struck[0], "seconds": round(time.monotonic() - struck[1], 2)})
            struck = None
        if kills and struck is None and run.expected.rows >= every * (all_kills - len(kills) + 1):
            struck = (kills[0], time.monotonic(), run.writer.steps)
            logger.info("kill", what=kills[0], rows=run.expected.rows)
            run.kill(kills.pop(0))
        if not writing:
            deadline = min(deadline, time.monotonic() + SETTLE_S)
            if run.judge.reached == run.writer.steps and struck is None:
                break
            if time.monotonic() > deadline:
                break
        if time.monotonic() - told >= REPORT_S:
            told = time.monotonic()
            logger.info(
                "under way",
                rows=run.expected.rows,
                out=run.judge.rows,
                wrong=run.judge.wrong,
                moves=0 if layout is None else layout.serial - 1,
                kills_left=len(kills),
            )
    run.driver.stop()
    while records := run.reader.read(10_000, 2.0):
        run.judge.take(records)
    judge, found = run.judge, run.layout()
    return {
        "rows": run.expected.rows,
        "steps": run.writer.steps,
        "seconds": round(time.monotonic() - begun, 1),
        "kills": {kind: sum(item["kill"] == kind for item in recovery_s) for kind in ("driver", "worker")},
        "driver_ends": run.driver_ends,
        "moves": 0 if found is None else found.serial - 1,
        "recovery_s": recovery_s,
        "recovery_median_s": median(item["seconds"] for item in recovery_s) if recovery_s else None,
        "inversions": judge.inversions,
        "lost": run.expected.rows - judge.rows,
        "duplicates": judge.duplicates,
        "wrong": judge.wrong,
        "changed": judge.changed,
        "repeats": judge.repeats,
    }


def held_to(found: dict[str, Any], options: argparse.Namespace) -> dict[str, bool]:
    """Return which bounds are met."""
    clean = {name: found[name] == 0 for name in ("inversions", "lost", "duplicates", "wrong", "changed")}
    asked = {
        "rows": found["rows"] >= options.rows,
        "driver_kills": found["kills"]["driver"] >= options.driver_kills,
        "worker_kills": found["kills"]["worker"] >= options.worker_kills,
        "moves": found["moves"] >= options.moves,
    }
    return clean | asked


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=7_000_000)
    parser.add_argument("--driver-kills", type=int, default=5)
    parser.add_argument("--worker-kills", type=int, default=2)
    parser.add_argument("--moves", type=int, default=2, help="changes of the table that are brought about")
    parser.add_argument("--rate", type=float, default=10_000.0, help="rows a second when all sensors read something")
    parser.add_argument("--rebalance", type=float, default=10.0, help="[spark] rebalance_s")
    parser.add_argument("--batch", type=int, default=400, help="[spark] max_offsets")
    parser.add_argument("--sensors", type=int, default=2000)
    parser.add_argument("--machines", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--port", type=int, default=29694)
    parser.add_argument("--work", type=Path, default=Path("out/spark-faults"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    logging.getLogger().setLevel(logging.WARNING)
    settings = prepare(options)
    broker = Broker(options.work.resolve() / "kafka", options.port)
    log = KafkaLog(settings.kafka, client_id="bench")
    (options.work / "cluster").mkdir(parents=True)
    busy = os.getloadavg()[0]
    cluster = None
    try:
        broker.start()
        broker.wait_ready()
        log.ensure_topics(settings)
        cluster = Cluster(options.work.resolve() / "cluster")
        made = Run(log, settings, cluster, options)
        try:
            measured = run(made, options)
        finally:
            made.close()
    finally:
        if cluster is not None:
            cluster.close()
        broker.stop()
    asked = {name: getattr(options, name) for name in ("rate", "rebalance", "batch", "sensors", "machines", "seed")}
    found = {"bench": "spark_faults", **asked, "load_average": round(busy, 2), **measured}
    found["met"] = held_to(found, options)
    outcome.write(found, options.out)
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
