"""What a core is worth: records that Tsunagi and Kafka Streams process for each second of CPU, in one run.

    python -m tests.bench.core.run --records 1000000 --runs 5 --out out/core.json

Both drain the same records: one value each, of `--keys` keys, in one partition. Of each value follows the sum of its
key's last 100 values, as soon as there are so many, and it counts when it stands in the output's topic, acknowledged by
the broker. Tsunagi is a worker process (`mode = "tuples"`, operator `aggregate`), with nobody that stands by. Its
Level-0-Ack says when it is done. Kafka Streams is `RunningSum.java`, all by default but its state store (`--stores`,
`tests.bench.core.streams.STORES`). It needs a JDK (javac) and Maven Central.

Neither start counts, nor what a JVM compiles first: each process first drains a tenth of the records. Then it is
stopped (SIGSTOP) while the log is filled, so that it does not work on a part of it. What counts is the CPU time of the
whole process, all of its threads, from when it goes on until all is in the log. They take turns, and each output is
judged: that all are there, once, in order, with the right value. One JSON object comes out.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from tests.bench import outcome
from tests.bench.core import streams
from tests.bench.core.judge import expected, judge_recovered, judge_sums
from tests.bench.one_slot import assign, configure
from tests.bench.system import say
from tsunagi.broker.broker import Broker
from tsunagi.local.topics import make_topics
from tsunagi.runtime.columns import pack_floats, pack_sensors
from tsunagi.runtime.kafka import KafkaLog
from tsunagi.runtime.log import ACKS, RECOVERED, TUPLES, Producer
from tsunagi.runtime.messages import VERSION, Ack, LogRecord, TupleBatch
from tsunagi.runtime.settings import CONFIG_VARIABLE, Settings, load
from tsunagi.runtime.threads import fix_arithmetic
from tsunagi.system.topics import read_partition

WINDOW = 100
"""How many of a key's last values each sum has."""
OPERATOR = f'{{ use = "aggregate", function = "sum", window = {WINDOW}, slide = 1 }}'
WARM_SHARE = 0.1
"""The share of the records that is drained before the measurement begins."""
RUN_S = 300.0
"""Longest wait for a process to start or to drain its log, seconds."""
POLL_S = 0.02
PAIR = struct.Struct(">Id")
"""A key and a value as Kafka's serializers write them."""
BOUND = 1.5
"""What each of `ratios` is held to: Tsunagi's median by that of Kafka Streams with a store."""

Pairs = tuple[npt.NDArray[np.uint32], npt.NDArray[np.float64]]
"""Keys and values, in the order of the log."""


def drawn(count: int, keys: int, seed: int) -> Pairs:
    """Return keys and values. The values are whole numbers, so that a sum does not depend on the order of additions."""
    chance = np.random.default_rng(seed)
    return chance.integers(0, keys, count, dtype=np.uint32), chance.integers(0, 1000, count).astype(np.float64)


def wait(what: str, holds: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait until something holds.

    Raises:
        RuntimeError: it took too long, or the process ended.
    """
    deadline = time.monotonic() + RUN_S
    while not holds():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {RUN_S:g} s, or the process ended ({process.poll()})")
        time.sleep(POLL_S)


def write(producer: Producer, topic: str, records: list[tuple[bytes, bytes]]) -> None:
    """Write records, and wait until the broker has them."""
    while records:
        records = records[producer.send_run(topic, 0, records[:10_000]) :]
        producer.poll(0.01)
    if producer.flush(RUN_S):
        raise RuntimeError(f"the broker did not take {topic}")


def batches(pairs: Pairs, begin_us: int) -> list[tuple[bytes, bytes]]:
    """Return the records of a slot's log: a batch of one value each, whose number is its event time in microseconds."""
    found, one = [], pack_sensors([1])
    for number, (key, value) in enumerate(zip(*pairs, strict=True)):
        time_us = begin_us + number
        batch = TupleBatch(edge="edge", incarnation=1, step=time_us, event_time_us=time_us, count=one)
        batch.sensor, batch.value = pack_sensors(key), pack_floats(value)
        found.append((b"edge", LogRecord(version=VERSION, batch=batch).SerializeToString()))
    return found


def measured(
    process: subprocess.Popen[bytes], fill: Callable[[], None], drained: Callable[[], bool]
) -> dict[str, float]:
    """Let a process drain what `fill` writes; return its seconds, by clock and by CPU (user and system)."""
    watched = psutil.Process(process.pid)
    process.send_signal(signal.SIGSTOP)
    try:
        fill()
        before, began = watched.cpu_times(), time.monotonic()
    finally:
        process.send_signal(signal.SIGCONT)
    wait("draining", drained, process)
    after, seconds = watched.cpu_times(), time.monotonic() - began
    return {"seconds": seconds, "cpu_s": after.user + after.system - before.user - before.system}


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process, and wait for it."""
    process.terminate()
    try:
        process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def settings_of(work: Path, broker: Broker, prefix: str, keys: int) -> tuple[Path, Settings]:
    """Write a configuration; return its file and the settings."""
    work.mkdir(parents=True, exist_ok=True)
    config = configure(work, broker.servers, OPERATOR, "", sensors=keys, prefix=prefix)
    return config, load(config)


def tsunagi(work: Path, broker: Broker, name: str, pairs: Pairs, warm: int, keys: int) -> dict[str, Any]:
    """Measure a worker."""
    config, settings = settings_of(work / name, broker, f"{name}.", keys)
    make_topics(settings)
    log = KafkaLog(settings.kafka, client_id="bench")
    assign(settings, log, "gw-1", "")
    command = [sys.executable, "-m", "tsunagi.cli", "gateway", "run", "--node", "gw-1"]
    with (work / f"{name}.log").open("wb") as output:
        environment = os.environ | {CONFIG_VARIABLE: str(config)}
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    producer, reader = log.producer(), log.reader()
    try:
        records = batches(pairs, time.time_ns() // 1000)

        def acknowledged() -> bool:
            acks = [Ack.FromString(record.value or b"") for record in read_partition(log, ACKS, 0)]
            inputs = reader.range(TUPLES, 0)[1]
            return any(ack.level0.offset >= inputs for ack in acks)

        write(producer, TUPLES, records[:warm])
        wait("the worker's start", acknowledged, process)
        found = measured(process, lambda: write(producer, TUPLES, records[warm:]), acknowledged)
        found["wrong"] = judge_recovered(read_partition(log, RECOVERED, 0), expected(pairs, len(records), WINDOW))
    finally:
        end(process)
        for client in (producer, reader, log):
            client.close()
    return found


def kafka_streams(
    work: Path, broker: Broker, name: str, pairs: Pairs, warm: int, class_path: str, store: str
) -> dict[str, Any]:
    """Measure Kafka Streams."""
    _, settings = settings_of(work / name, broker, "", 1)
    log = KafkaLog(settings.kafka, client_id="bench")
    source, target = f"{name}-in", f"{name}-out"
    streams.make_topics(broker.servers, source, target)
    packed = [PAIR.pack(key, value) for key, value in zip(*pairs, strict=True)]
    records = [(pair[:4], pair[4:]) for pair in packed]
    first, upto = (len(expected(pairs, count, WINDOW)[0]) for count in (warm, len(records)))
    producer, reader = log.producer(), log.reader()
    process = streams.begin(class_path, broker.servers, name, work, WINDOW, store)
    try:
        write(producer, source, records[:warm])
        wait("Kafka Streams' start", lambda: reader.range(target, 0)[1] >= first, process)
        found: dict[str, Any] = measured(
            process, lambda: write(producer, source, records[warm:]), lambda: reader.range(target, 0)[1] >= upto
        )
        found["wrong"] = judge_sums(read_partition(log, target, 0), expected(pairs, len(records), WINDOW))
    finally:
        end(process)
        for client in (producer, reader, log):
            client.close()
    return found


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the bench; return its figures."""
    work = options.work.resolve()
    outcome.fresh(work)
    class_path = streams.compiled(work)
    warm = int(options.records * WARM_SHARE)
    every: dict[str, list[dict[str, Any]]] = {"tsunagi": [], **{store: [] for store in options.stores}}
    broker = Broker(work / "kafka", options.port)
    try:
        broker.start()
        broker.wait_ready()
        for number in range(options.runs):
            pairs = drawn(options.records + warm, options.keys, number)
            every["tsunagi"].append(tsunagi(work, broker, f"tsunagi-{number}", pairs, warm, options.keys))
            for store in options.stores:
                name = f"{store}-{number}"
                every[store].append(kafka_streams(work, broker, name, pairs, warm, class_path, store))
            found = {name: round(options.records / each[-1]["cpu_s"]) for name, each in every.items()}
            say(f"{number + 1} of {options.runs}: records a CPU second {found}")
    finally:
        broker.stop()
    rates = {name: [round(options.records / found["cpu_s"]) for found in each] for name, each in every.items()}
    median = {name: float(np.median(each)) for name, each in rates.items()}
    ratios = {store: round(median["tsunagi"] / median[store], 2) for store in options.stores}
    return {
        "bench": "core",
        "records": options.records,
        "keys": options.keys,
        "runs": options.runs,
        "kafka": streams.version(),
        "wrong": sum(found["wrong"] for each in every.values() for found in each),
        "records_per_cpu_s": rates,
        "records_per_s": {
            name: [round(options.records / found["seconds"]) for found in each] for name, each in every.items()
        },
        "median_records_per_cpu_s": median,
        "ratios": ratios,
        "load": os.getloadavg(),
        "bounds": {"wrong": 0, "ratio": BOUND},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000, help="that are measured [1000000]")
    parser.add_argument("--keys", type=int, default=100, help="keys [100]")
    parser.add_argument("--runs", type=int, default=5, help="of each system, in turn [5]")
    parser.add_argument(
        "--stores", choices=tuple(streams.STORES), nargs="+", default=["cached", "memory"], help="of Kafka Streams"
    )
    parser.add_argument("--port", type=int, default=29596, help="of the broker [29596]")
    parser.add_argument("--work", type=Path, default=Path("out/bench-core"), help="scratch directory")
    parser.add_argument("--out", type=Path, default=Path("out/core.json"), help="where the figures go")
    options = parser.parse_args()
    fix_arithmetic(os.environ)
    logging.getLogger().setLevel(logging.WARNING)
    found = run(options)
    outcome.write(found, options.out)
    say(json.dumps(found, indent=1))
    return 0 if not found["wrong"] and min(found["ratios"].values()) >= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
