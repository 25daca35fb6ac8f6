"""Results as Spark and owners write them, sinks that read them as processes, and what must come out."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tsunagi.broker.checks import free_port
from tsunagi.local.up import unready
from tsunagi.runtime.columns import pack_floats, pack_octets, pack_sensors
from tsunagi.runtime.kafka import KafkaLog
from tsunagi.runtime.log import DEAD_LETTERS, LATE, RESULTS
from tsunagi.runtime.messages import VERSION, DeadLetter, Late, ResultBlock, TupleBatch, TypedColumn
from tsunagi.runtime.settings import KafkaSettings, Settings, make
from tsunagi.runtime.toml_text import to_toml
from tsunagi.system.topics import read_topic

PATIENCE_S = 120.0
STEP_US = 1_000_000
BEGIN_STEP = 1_700_000_000
SENSORS, GROUPS = 40, 4
SHARES = (0.9, 0.08, 0.01, 0.01)
WORDS = ("exact", "bounded", "unbounded", "unmodelled")


class Ledger(NamedTuple):
    """A row of `readings` as it must stand in the end, but for its time and sensor."""

    value: float
    bound: float
    quality: str
    q1: int | None
    step: int


def moment(step: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=step * STEP_US)


class SinkWorld:
    """Topics of their own on a broker, and processes of sinks.

    Attributes:
        rows: what must stand in a table of readings in the end, by (time, sensor).
        step: the next step that is written.
    """

    def __init__(self, path: Path, kafka: KafkaSettings, *sinks: dict[str, Any], seed: int = 1, **more: Any) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        table = "".join(f"s{number},edge,g{number % GROUPS},K\n" for number in range(SENSORS))
        (path / "sensors.csv").write_text("sensor,edge,group,unit\n" + table, encoding="utf-8")
        tables: dict[str, Any] = {
            "state": str(path / "state"),
            "sensors": str(path / "sensors.csv"),
            "kafka": {"servers": kafka.servers, "prefix": kafka.prefix, "group_prefix": kafka.group_prefix},
            "steps": {"interval_s": 1.0, "window": 1, "slide": 1},
            "spark": {"cores": 2},
            "metrics": {"port": 0},
            "sinks": list(sinks),
        } | more
        self.config = path / "tsunagi.toml"
        self.config.write_text(to_toml(tables), encoding="utf-8")
        self.settings: Settings = make(tables, str(self.config))
        self.log = KafkaLog(self.settings.kafka, client_id="test")
        self.log.ensure_topics(self.settings)
        self.rows: dict[tuple[datetime, str], Ledger] = {}
        self.step = BEGIN_STEP
        self.environment = os.environ | {"TSUNAGI_CONFIG": str(self.config), "PYTHONUNBUFFERED": "1"}
        self._random = random.Random(seed)
        self._producer = self.log.producer()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._ports: dict[str, int] = {}

    # ---- what Spark and owners write

    def write(self, steps: int, *, truths: bool = True, repeats: bool = True) -> None:
        """Append steps of all groups: estimates whose truth comes before or after them, and steps that come again."""
        for _ in range(steps):
            step = self.step
            early = self._random.random() < 0.3
            blocks, late = [], dict[int, float]()
            for group in range(GROUPS):
                block, estimated = self._block(group, step)
                blocks.append(block)
                if truths:
                    late |= {sensor: self._random.uniform(0, 100) for sensor in estimated if sensor % 3}
            self.step += 1
            if early:
                self._late(step, late)
            for block in blocks:
                self.append(block)
                if repeats and self._random.random() < 0.05:
                    self.append(block)
            if not early:
                self._late(step, late)
        self.flush()

    def append(self, block: ResultBlock) -> None:
        """Append a block to the partition of its group."""
        key = f"{block.query}/{block.group}/{block.step}".encode()
        partition = int(block.group.removeprefix("g") or 0) % 2
        while True:
            try:
                self._producer.send(RESULTS, partition, key, block.SerializeToString())
            except BufferError:
                self._producer.poll(0.1)
            else:
                return

    def flush(self) -> None:
        assert self._producer.flush(PATIENCE_S) == 0

    def _block(self, group: int, step: int) -> tuple[ResultBlock, list[int]]:
        ids = list(range(group, SENSORS, GROUPS))
        quality = self._random.choices(range(4), SHARES, k=len(ids))
        mean = [self._random.uniform(0, 100) for _ in ids]
        bound = [self._random.uniform(0.1, 3) if 1 <= word <= 2 else 0.0 for word in quality]
        for sensor, value, width, word in zip(ids, mean, bound, quality, strict=True):
            self.rows[moment(step), f"s{sensor}"] = Ledger(value, width, WORDS[word], 60, step)
        block = ResultBlock(
            version=VERSION,
            query="readings",
            group=f"g{group}",
            step=step,
            event_time_us=step * STEP_US,
            appended_us=time.time_ns() // 1000,
            sensor=pack_sensors(ids),
            mean=pack_floats(mean),
            sd=pack_floats([width / 2 for width in bound]),
            quality=pack_octets(np.array(quality)),
            bound=pack_floats(bound),
            q1=pack_sensors([60] * len(ids)),
            q2=pack_sensors([0] * len(ids)),
            q3=pack_floats([0.0] * len(ids)),
        )
        return block, [sensor for sensor, word in zip(ids, quality, strict=True) if 1 <= word <= 2]

    def _late(self, step: int, found: dict[int, float]) -> None:
        if not found:
            return
        batch = TupleBatch(
            edge="edge",
            incarnation=1,
            step=step,
            event_time_us=step * STEP_US,
            sensor=pack_sensors(sorted(found)),
            value=pack_floats([found[sensor] for sensor in sorted(found)]),
            count=pack_sensors([1] * len(found)),
        )
        late = Late(version=VERSION, slot=0, offset=step, reason="closed", batch=batch)
        self._producer.send(LATE, 0, f"late/{step}".encode(), late.SerializeToString())
        for sensor, value in found.items():
            before = self.rows[moment(step), f"s{sensor}"]
            self.rows[moment(step), f"s{sensor}"] = before._replace(value=value, bound=0.0, quality="corrected")

    # ---- processes

    def start(self, sink: str, node: str = "", **environment: str) -> subprocess.Popen[bytes]:
        """Start an instance of a sink."""
        node = node or f"sink-{sink}"
        self._ports[node] = self._ports.get(node) or free_port()
        variables = self.environment | {"TSUNAGI_METRICS__PORT": str(self._ports[node])} | environment
        with (self.path / f"{node}.log").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "tsunagi.cli", "sink", "run", "--sink", sink, "--node", node],
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._processes.append(process)
        return process

    def fault(self, node: str) -> str:
        """Return why an instance is not ready; "" = it is."""
        return unready("127.0.0.1", self._ports[node])

    def port(self, node: str) -> int:
        """Return the port of an instance's metrics."""
        return self._ports[node]

    def said(self, node: str) -> str:
        return (self.path / f"{node}.log").read_text(encoding="utf-8")

    def letters(self) -> list[DeadLetter]:
        records = read_topic(self.log, DEAD_LETTERS)[0]
        return [DeadLetter.FromString(record.value or b"") for record in records]

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait(10)
        self._producer.close()
        self.log.close()


def wait_until(holds: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def query_block(
    name: str, step: int, columns: Sequence[tuple[str, str, Sequence[Any]]], group: str = "", run: int = 0
) -> ResultBlock:
    """Return a block of a query: (name, kind, values) of each column, of which none is NULL."""
    rows = len(columns[0][2])
    found = []
    for column, kind, values in columns:
        if kind == "TEXT":
            pool = list(dict.fromkeys(values))
            value = pack_sensors([pool.index(text) for text in values])
            found.append(TypedColumn(name=column, kind=kind, value=value, text=pool))
        elif kind == "DOUBLE":
            found.append(TypedColumn(name=column, kind=kind, value=pack_floats(values)))
        elif kind == "BOOLEAN":
            found.append(TypedColumn(name=column, kind=kind, value=pack_octets(np.array(values))))
        else:
            found.append(TypedColumn(name=column, kind=kind, value=np.array(values, dtype="<i8").tobytes()))
    return ResultBlock(
        version=VERSION,
        query=name,
        group=group,
        step=step,
        event_time_us=step * STEP_US,
        appended_us=step * STEP_US,
        column=found,
        rows=rows,
        run=run,
    )
