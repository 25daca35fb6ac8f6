"""The job on a real broker: how long after the last input of a step is its ordered result readable, and how much?

    python -m tests.bench.stream --rate 20000 --seconds 60 --out out/stream.json
    python -m tests.bench.stream --drain 7000000 --out out/drain.json

Starts a broker and the job (`tsunagi spark run`) as processes of this machine, below `--work`, and writes `recovered`
as gateways would: a record a step and slot. The sensors are `--sensors` on `--machines` machines, all in lock-step; at
`--rate` rows a second a step so takes sensors / rate seconds. One JSON object comes out:

    latency_s     {p50, p90, p99, max} over the blocks of all steps after the first `--warm` seconds: from the append
                  of a step's last input to the moment at which this process has read the block
    inversions    blocks of a group that came after a later one, and blocks whose sensors do not ascend
    lost          rows that were written and did not come out; duplicates: rows that came out more than once
    rows_per_s    that came out; with --drain N: from the first tenth of N rows that wait in the log to the last
    cpu_s_per_million_rows   of the job's processes (driver, JVM, Python workers) over the same time
    batch_s       medians over the batches of that time: Spark's stages (of one batch a second; triggerExecution is the
                  whole), and what the job itself takes (decide, act, keep) and its busiest core in `act`
                  (wait, load, compute, ...)

With --drain nothing is read before all is out: the job's acknowledgements tell how far it is.
With --queries the job also runs the queries in CQL of these files; `query_rows` are those that came out of them. With
--only-queries it runs nothing else, and their rows stand for readings: they must give one for each (q3.sql does).

With --fill FILE the queries of this file are added when the warm seconds are over, and filled from the first step on;
--past rows were written before the job began. `fill` says how long it took, and how many readings a second that were.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tests.bench import outcome
from tests.spark.driver import Driver
from tsunagi.broker.broker import Broker
from tsunagi.local.queries import add_queries
from tsunagi.runtime.columns import Floats, pack_floats, pack_octets, pack_sensors, sensors
from tsunagi.runtime.kafka import KafkaLog
from tsunagi.runtime.log import ACKS, PLAN, RECOVERED, RESULTS, Position, Record
from tsunagi.runtime.messages import VERSION, Ack, Placement, Plan, Recovered, ResultBlock
from tsunagi.runtime.names import Name, pack_key
from tsunagi.runtime.sensors import read_sensors
from tsunagi.runtime.settings import CONFIG_VARIABLE, Settings, load
from tsunagi_spark.layout import Flags

GENERATION = 1
FIRST_STEP = 1_000_000
SLOTS = 2
VARIANTS = 16
"""So many steps have values of their own, and then again."""

WARM_SHARE = 0.1
READY_S = 300.0
DRAIN_S = 900.0
LOOK_S = 0.05
BOUNDS = {"p50": 0.5, "p99": 1.5, "rows_per_s": 350_000, "cpu_s_per_million_rows": 4.0}

CONFIG = """\
state = "{work}/run"
sensors = "{work}/sensors.csv"
[kafka]
servers = "127.0.0.1:{port}"
[slots]
count = {slots}
[steps]
interval_s = {step_s}
window = 1
slide = 1
[spark]
checkpoint = "{work}/checkpoint"
max_offsets = {batch}
[recovery]
store = "{work}/models"
"""


def prepare(options: argparse.Namespace) -> Settings:
    """Write what the job reads; return the settings."""
    work = options.work.resolve()
    if (work / "kafka").exists():
        Broker(work / "kafka", options.port).stop()
    outcome.fresh(work)
    lines = [f"s{n},edge-{n % 10},machine-{n % options.machines},1.0\n" for n in range(options.sensors)]
    (work / "sensors.csv").write_text("sensor,edge,group,threshold\n" + "".join(lines), encoding="utf-8")
    step_s = round(options.sensors / options.rate, 6)
    config = work / "tsunagi.toml"
    text = CONFIG.format(work=work, port=options.port, slots=SLOTS, step_s=step_s, batch=options.batch)
    files = [str(path.resolve()) for path in options.queries]
    text += f"[query]\nfiles = {json.dumps(files)}\n[results]\nreadings = {json.dumps(not options.only_queries)}\n"
    config.write_text(text, encoding="utf-8")
    os.environ[CONFIG_VARIABLE] = str(config)
    return load(config)


class Writer:
    """Writes `recovered` and the placement as gateways and the scaler would."""

    def __init__(self, log: KafkaLog, settings: Settings) -> None:
        table = read_sensors(settings.sensors)
        self._slide_us = settings.steps.slide_us
        self._producer = log.producer()
        slot_of = np.arange(len(table), dtype=np.uint32) // (-(-len(table) // SLOTS))
        self._ids = [np.flatnonzero(slot_of == slot) for slot in range(SLOTS)]
        self._values = np.random.default_rng(1).normal(size=(VARIANTS, len(table)))
        self._whole = [[self._columns(slot, step) for step in range(VARIANTS)] for slot in range(SLOTS)]
        self.steps = 0
        placement = Placement(serial=1, slots=SLOTS, slot=pack_sensors(slot_of), table_sha256=table.digest(len(table)))
        self._producer.send(PLAN, 0, b"placement", Plan(version=VERSION, placement=placement).SerializeToString())
        self.flush()

    def values(self, step: int) -> Floats:
        """Return what the sensors read at a step, counted from 0: float64[sensors]."""
        return np.asarray(self._values[step % VARIANTS])

    def step(self, gives: Flags | None = None) -> None:
        """Write the next step of all slots; it is appended now.

        Args:
            gives: bool[sensors], who reads something; None = all.
        """
        step = FIRST_STEP + self.steps
        now_us = time.time_ns() // 1000
        for slot in range(SLOTS):
            if gives is None:
                columns = self._whole[slot][self.steps % VARIANTS]
            else:
                columns = self._columns(slot, self.steps, gives)
            message = Recovered(
                version=VERSION,
                slot=slot,
                generation=GENERATION,
                offset=step,
                index=0,
                epoch=1,
                step=step,
                event_time_us=step * self._slide_us,
                appended_us=now_us,
            )
            for name, column in columns.items():
                setattr(message, name, column)
            value = message.SerializeToString()
            key = pack_key(GENERATION, slot, Name(step, 0))
            while True:
                try:
                    self._producer.send(RECOVERED, slot, key, value)
                    break
                except BufferError:
                    self._producer.poll(LOOK_S)
        self._producer.poll(0)
        self.steps += 1

    def _columns(self, slot: int, step: int, gives: Flags | None = None) -> dict[str, bytes]:
        ids = self._ids[slot] if gives is None else self._ids[slot][gives[self._ids[slot]]]
        return {
            "sensor": pack_sensors(ids),
            "mean": pack_floats(self.values(step)[ids]),
            "sd": bytes(8 * len(ids)),
            "quality": pack_octets(np.zeros(len(ids))),
            "bound": bytes(8 * len(ids)),
        }

    def flush(self) -> None:
        """Wait until the broker has all of it."""
        if self._producer.flush(60.0):
            raise RuntimeError("the broker did not take what was written")


@dataclass
class Judge:
    """Reads results on its own, and compares them with what was written.

    Args:
        queries: whether rows of queries stand for readings: there are no others then, and one for each reading.

    Attributes:
        latency_s: (step, seconds) of each block.
    """

    queries: bool
    rows: int = 0
    query_rows: int = 0
    query_step: int = 0
    inversions: int = 0
    duplicates: int = 0
    latency_s: list[tuple[int, float]] = field(default_factory=list)
    _last: dict[tuple[str, int], int] = field(default_factory=dict)
    _seen: dict[tuple[str, int], set[int]] = field(default_factory=lambda: defaultdict(set))

    def take(self, records: list[Record]) -> None:
        """Take records of `results`, in the order of the log."""
        now_us = time.time_ns() // 1000
        for record in records:
            block = ResultBlock.FromString(record.value or b"")
            name = (f"{block.query}/{block.group}", record.partition)
            count = len(block.quality)
            if block.step in self._seen[name]:
                self.duplicates += count
                continue
            if block.column or block.definition:
                self.query_rows += block.rows
                self.query_step = max(self.query_step, block.step - FIRST_STEP)
                self.inversions += block.step < self._last.get(name, -1)
                self._seen[name].add(block.step)
                self._last[name] = block.step
                if self.queries and block.rows:
                    self.rows += block.rows
                    self.latency_s.append((block.step - FIRST_STEP, (now_us - block.appended_us) / 1e6))
                continue
            ids = sensors(block.sensor).astype(np.int64)
            self.inversions += block.step < self._last.get(name, -1) or bool((np.diff(ids) <= 0).any())
            self._seen[name].add(block.step)
            self._last[name] = max(block.step, self._last.get(name, -1))
            self.rows += count
            self.latency_s.append((block.step - FIRST_STEP, (now_us - block.appended_us) / 1e6))


class Acknowledged:
    """Reads how many records of `recovered` the job has worked off."""

    def __init__(self, log: KafkaLog) -> None:
        self._reader = log.reader()
        self._reader.assign([Position(ACKS, cell, 0) for cell in range(log.partitions(ACKS))])
        self._offsets: dict[int, int] = {}

    def read(self) -> int:
        """Return the number of records, as far as the job has acknowledged them."""
        for record in self._reader.read(1000, LOOK_S):
            ack = Ack.FromString(record.value or b"").level0
            self._offsets[ack.slot] = ack.offset
        return sum(self._offsets.values())

    def close(self) -> None:
        self._reader.close()


def start_job(options: argparse.Namespace) -> Driver:
    """Start the job, of whose life a file below the work directory tells."""
    log = options.work.resolve() / "driver.log"
    return Driver(Path(os.environ[CONFIG_VARIABLE]), log, TSUNAGI_LOG_LEVEL="debug")


def batch_seconds(log: Path, begin: int) -> dict[str, float]:
    """Return the medians of what the job has logged of each batch since its log was `begin` bytes long."""
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    for line in log.read_bytes()[begin:].splitlines():
        fields = json.loads(line) if line.startswith(b"{") else {}
        if fields.get("event") == "stages":
            found = dict(fields["seconds"])
        elif fields.get("event") == "batch":
            found = {name: fields[name] for name in ("decide_s", "act_s", "keep_s")}
            names = {name for core in fields["cores"] for name in core}
            found |= {f"core_{name}": max(core.get(name, 0.0) for core in fields["cores"]) for name in names}
        else:
            continue
        for name, value in found.items():
            seconds[name].append(value)
    return {name: round(float(np.median(values)), 4) for name, values in seconds.items()}


def family_cpu_s(driver: Driver) -> float:
    """Return the CPU time of the job's processes so far; Spark's Python workers stay until the end."""
    found = 0.0
    for process in (psutil.Process(driver.process.pid), *driver.family()):
        times = process.cpu_times()
        found += times.user + times.system
    return found


def drain(log: KafkaLog, settings: Settings, options: argparse.Namespace) -> dict[str, Any]:
    """Let the job work off what waits in the log."""
    writer = Writer(log, settings)
    while writer.steps * options.sensors < options.drain:
        writer.step()
    writer.flush()
    written, blocks = writer.steps * options.sensors, writer.steps * options.machines
    reader = log.reader()
    partitions = range(log.partitions(RESULTS))
    recovered = sum(reader.range(RECOVERED, slot)[1] for slot in range(SLOTS))
    acks = Acknowledged(log)
    driver = start_job(options)
    marks: list[tuple[int, float, float]] = []
    log_before = 0
    try:
        deadline = time.monotonic() + DRAIN_S
        while len(marks) < 2:
            out = acks.read()
            if out >= recovered or (not marks and out >= recovered * WARM_SHARE):
                marks.append((out, time.monotonic(), family_cpu_s(driver)))
                log_before = log_before or driver.log.stat().st_size
            if driver.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the job has acknowledged {out} of {recovered} records; see {driver.log}")
            time.sleep(LOOK_S)
        driver.stop()
    finally:
        driver.close()
        acks.close()
    judge = Judge(options.only_queries)
    reader.assign([Position(RESULTS, number, 0) for number in partitions])
    left = sum(reader.range(RESULTS, number)[1] for number in partitions)
    while left:
        records = reader.read(2000, 1.0)
        judge.take(records)
        left -= len(records)
    reader.close()
    (first, begun, cpu_before), (last, ended, cpu_after) = marks
    rows = (last - first) * written / recovered
    return {
        "rows": written,
        "blocks": blocks,
        "rows_measured": round(rows),
        "rows_per_s": round(rows / (ended - begun)),
        "cpu_s_per_million_rows": round((cpu_after - cpu_before) / rows * 1e6, 3),
        "batch_s": batch_seconds(driver.log, log_before),
        "query_rows": judge.query_rows,
        "inversions": judge.inversions,
        "lost": written - judge.rows,
        "duplicates": judge.duplicates,
    }


def stream(log: KafkaLog, settings: Settings, options: argparse.Namespace) -> dict[str, Any]:
    """Write at a rate, and read along."""
    writer = Writer(log, settings)
    step_s = settings.steps.slide_us / 1e6
    while writer.steps * options.sensors < options.past:
        writer.step()
    writer.flush()
    driver = start_job(options)
    reader = log.reader()
    judge = Judge(options.only_queries)
    try:
        reader.assign([Position(RESULTS, number, 0) for number in range(log.partitions(RESULTS))])
        writer.step()
        writer.flush()
        deadline = time.monotonic() + READY_S
        while judge.rows < max(1, options.past):
            judge.take(reader.read(1000, LOOK_S))
            if driver.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no results within {READY_S:g} s; see {driver.log}")
        warm_steps, all_steps = (round(seconds / step_s) for seconds in (options.warm, options.warm + options.seconds))
        begun, base, late_s = time.monotonic(), writer.steps, 0.0
        cpu_before, rows_before, log_before = 0.0, 0, 0
        end_s = begun + all_steps * step_s + options.settle
        fill: dict[str, Any] = {}
        added, added_s = 0, 0.0
        while time.monotonic() < end_s and judge.rows < (base + all_steps) * options.sensors:
            number = writer.steps - base
            due = begun + number * step_s
            now = time.monotonic()
            if number < all_steps and now >= due:
                late_s = max(late_s, now - due)
                if number == warm_steps:
                    cpu_before, rows_before = family_cpu_s(driver), judge.rows
                    log_before = driver.log.stat().st_size
                    if options.fill:
                        begin = str(FIRST_STEP * settings.steps.slide_us / 1e6)
                        add_queries(settings, [str(options.fill)], lambda _: None, begin)
                        added, added_s = writer.steps, time.monotonic()
                writer.step()
            if added and not fill and judge.query_step >= added:
                spent_s = time.monotonic() - added_s
                rows = added * options.sensors
                fill = {"seconds": round(spent_s, 2), "rows": rows, "rows_per_s": round(rows / spent_s)}
            judge.take(reader.read(1000, min(max(due - time.monotonic(), 0.0), 0.01)))
        spent_s = time.monotonic() - begun - warm_steps * step_s
        cpu_s, rows = family_cpu_s(driver) - cpu_before, judge.rows - rows_before
        driver.stop()
        judge.take(reader.read(10_000, 1.0))
    finally:
        driver.close()
        reader.close()
    times = [seconds for step, seconds in judge.latency_s if step >= base + warm_steps]
    if not times:
        raise RuntimeError(f"no results after the first {options.warm:g} s; see {driver.log}")
    return {
        "step_s": step_s,
        "rows": writer.steps * options.sensors,
        "blocks_measured": len(times),
        "latency_s": {
            name: round(float(np.percentile(times, share)), 4)
            for name, share in (("p50", 50), ("p90", 90), ("p99", 99), ("max", 100))
        },
        "batch_s": batch_seconds(driver.log, log_before),
        "writer_late_s": round(late_s, 4),
        "fill": fill,
        "rows_per_s": round(rows / spent_s),
        "cpu_s_per_million_rows": round(cpu_s / rows * 1e6, 3),
        "query_rows": judge.query_rows,
        "inversions": judge.inversions,
        "lost": writer.steps * options.sensors - judge.rows,
        "duplicates": judge.duplicates,
    }


def held_to(found: dict[str, Any]) -> dict[str, bool]:
    """Return which bounds are met."""
    clean = {name: found[name] == 0 for name in ("inversions", "lost", "duplicates")}
    if "latency_s" in found:
        return clean | {name: found["latency_s"][name] <= BOUNDS[name] for name in ("p50", "p99")}
    return clean | {
        "rows_per_s": found["rows_per_s"] >= BOUNDS["rows_per_s"],
        "cpu_s_per_million_rows": found["cpu_s_per_million_rows"] <= BOUNDS["cpu_s_per_million_rows"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=20_000.0, help="rows a second of all sensors together")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warm", type=float, default=10.0, help="seconds before that, not judged for latency")
    parser.add_argument("--settle", type=float, default=20.0, help="seconds that the last results are waited for")
    parser.add_argument("--drain", type=int, default=0, help="rows that wait in the log before the job starts")
    parser.add_argument("--batch", type=int, help="[spark] max_offsets (default: 20,000 records; with --drain 400)")
    parser.add_argument("--sensors", type=int, default=2000)
    parser.add_argument("--queries", type=Path, nargs="*", default=[], help="files with queries in CQL")
    parser.add_argument("--only-queries", action="store_true", help="readings are no results, only rows of queries are")
    parser.add_argument("--fill", type=Path, help="a file with queries that are added later, and filled")
    parser.add_argument("--past", type=int, default=0, help="rows that are there before the job begins")
    parser.add_argument("--machines", type=int, default=100)
    parser.add_argument("--port", type=int, default=29692)
    parser.add_argument("--work", type=Path, default=Path("out/stream"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.batch = options.batch or (400 if options.drain else 20_000)
    logging.getLogger().setLevel(logging.WARNING)
    settings = prepare(options)
    broker = Broker(options.work.resolve() / "kafka", options.port)
    log = KafkaLog(settings.kafka, client_id="bench")
    load = os.getloadavg()[0]
    try:
        broker.start()
        broker.wait_ready()
        log.ensure_topics(settings)
        measured = (drain if options.drain else stream)(log, settings, options)
    finally:
        broker.stop()
    asked = {name: getattr(options, name) for name in ("rate", "seconds", "drain", "batch", "sensors", "machines")}
    found = {
        "bench": "stream",
        **asked,
        "cores": settings.spark.cores,
        "load_average": [round(load, 2), round(os.getloadavg()[0], 2)],
        **measured,
        "held_to": BOUNDS,
        "met": held_to(measured),
    }
    outcome.write(found, options.out)
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
