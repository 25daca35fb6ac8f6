"""Throughput: how many records a second does a gateway process, from its log to `recovered`, on a real broker?

    python -m tests.bench.throughput --records 400000 --rows 1 --operator select --out out/throughput.json

One worker, in this process, takes its slot; then it rests while the slot's log is written, and goes on, while nothing
else runs but the broker (and `--secondary B` a standby, in a process of its own, that is stopped while the worker
rests: it would take it for dead). What counts is the middle of the run:
from a tenth of the records on, until the broker has acknowledged the last output. Rates are given by the
clock, for each second of the process's CPU, and of the main thread's: Python runs there, and it is what a core can do
at most. One JSON object comes out.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import structlog

from tests.bench import outcome
from tests.bench.one_slot import OPERATORS, Batches, begun, configure
from tsunagi.runtime.clock import SystemClock
from tsunagi.runtime.collector import relax
from tsunagi.runtime.kafka import KafkaLog
from tsunagi.runtime.sensors import read_sensors
from tsunagi.runtime.settings import CONFIG_VARIABLE, Settings, load
from tsunagi.runtime.threads import fix_arithmetic
from tsunagi.worker.host import ReplicaHost

WARM_SHARE = 0.1
READY_S = 60.0
SETTLE_S = 8.0
"""After the worker took its slot: the standby gets up."""
RUN_S = 600.0


def prepare(options: argparse.Namespace) -> Settings:
    """Write what the worker reads; return the settings."""
    work = options.work.resolve()
    outcome.fresh(work)
    standby = f"batch_size = {options.secondary or 100}"
    config = configure(work, f"127.0.0.1:{options.port}", OPERATORS[options.operator], standby, sensors=options.rows)
    os.environ[CONFIG_VARIABLE] = str(config)
    return load(config)


def fill(log: KafkaLog, options: argparse.Namespace) -> None:
    """Write the slot's log."""
    batches = Batches(log, options.rows)
    begin_us = time.time_ns() // 1000
    for number in range(options.records):
        batches.send(begin_us + number)
    batches.close()


def drop(*_: object) -> Any:
    """Say nothing."""
    raise structlog.DropEvent


def run(settings: Settings, log: KafkaLog, options: argparse.Namespace) -> dict[str, float]:
    """Let a worker process the log; return seconds of the middle part, by clock and by CPU."""
    silent = structlog.wrap_logger(structlog.ReturnLogger(), processors=[drop])
    host = ReplicaHost(settings, "gw-1", read_sensors(settings.sensors), log, SystemClock(), silent)
    host.start()
    relax()
    deadline = time.monotonic() + READY_S
    while (replica := host.replicas.get(0)) is None or replica.primary is None:
        host.step()
        if time.monotonic() > deadline:
            raise RuntimeError("the worker did not take its slot")
    owner = replica.primary
    with standby(options) as pause:
        settled = time.monotonic() + SETTLE_S
        while time.monotonic() < settled:
            host.step()
        begin = replica.slot.position
        with pause():
            fill(log, options)
        end, warm = begin + options.records, begin + int(options.records * WARM_SHARE)
        marks: list[tuple[int, int, float, float, float]] = []
        deadline = time.monotonic() + RUN_S
        while len(marks) < 2 and time.monotonic() < deadline and replica.primary is owner:
            host.step()
            position = replica.slot.position
            done = position >= end and not len(replica.pending)
            if done or (not marks and position >= warm):
                times = time.monotonic(), time.process_time(), time.thread_time()
                marks.append((position, owner.emitted, *times))
    host.close()
    if replica.primary is not owner:
        raise RuntimeError(f"the standby took the slot over, at offset {position} of {begin} to {end}")
    if len(marks) < 2:
        raise RuntimeError(f"offsets {begin} to {end} took over {RUN_S:g} s: the worker is at {position}")
    (first, emitted, *before), (last, emitted_last, *after) = marks
    seconds, cpu_s, main_s = (b - a for a, b in zip(before, after, strict=True))
    records = last - first
    return {
        "records_measured": records,
        "outputs_measured": emitted_last - emitted,
        "seconds": round(seconds, 3),
        "records_per_s": round(records / seconds),
        "records_per_cpu_s": round(records / cpu_s),
        "records_per_main_thread_s": round(records / main_s),
        "tuples_per_s": round(records * options.rows / seconds),
        "tuples_per_main_thread_s": round(records * options.rows / main_s),
    }


@contextmanager
def standby(options: argparse.Namespace) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Run a standby, if one is asked for; yield what stops it for a while (it would take a resting owner for dead)."""
    if not options.secondary:
        yield nullcontext
        return
    command = [sys.executable, "-m", "tsunagi.cli", "secondary", "run", "--node", "sec-1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    @contextmanager
    def pause() -> Iterator[None]:
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    try:
        yield pause
    finally:
        process.terminate()
        process.wait(timeout=30)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--rows", type=int, default=1, help="tuples in a record")
    parser.add_argument("--operator", choices=tuple(OPERATORS), default="select")
    parser.add_argument("--secondary", type=int, default=0, help="B of a standby that runs beside; 0 = there is none")
    parser.add_argument("--port", type=int, default=29592)
    parser.add_argument("--work", type=Path, default=Path("out/bench"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    fix_arithmetic(os.environ)
    logging.getLogger().setLevel(logging.WARNING)
    settings = prepare(options)
    with begun(settings, options.port, "gw-1", "sec-1" if options.secondary else "") as log:
        measured: dict[str, Any] = run(settings, log, options)
    asked = {name: getattr(options, name) for name in ("records", "rows", "operator", "secondary")}
    found = {"bench": "throughput", **asked, **measured}
    outcome.write(found, options.out)
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
