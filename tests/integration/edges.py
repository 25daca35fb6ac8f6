"""Edges as processes on a real broker: their topics, their sensors, and what stands in the log of them.

Tests on live sources know every reading they sent. Whatever the machine's speed, each one that falls into a published
window is in it, or stands in dead-letters as late: `LiveWorld.check` adds that up.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tsunagi.runtime.columns import floats, pack_sensors, sensors
from tsunagi.runtime.kafka import KafkaLog
from tsunagi.runtime.log import DEAD_LETTERS, PLAN, TUPLES, Record
from tsunagi.runtime.messages import VERSION, DeadLetter, LogRecord, Placement, Plan, TupleBatch
from tsunagi.runtime.sensors import place, read_sensors
from tsunagi.runtime.settings import KafkaSettings, Settings
from tsunagi.system.topics import read_topic

SLOTS = 2
INTERVAL_US = 100_000
WINDOW_US, SLIDE_US = 10 * INTERVAL_US, 2 * INTERVAL_US
OWN = ("s0", "s2", "s4")
MARK = "nobody"
"""No sensor: a message of its own, which comes to dead-letters."""
Send = Callable[[str, int, float], None]
"""(sensor, event time in microseconds, value)"""


class EdgeProcesses:
    """Topics of its own on a broker, a table of sensors, and edges as processes."""

    def __init__(self, path: Path, kafka: KafkaSettings, table: Sequence[str], slots: int, **environment: str) -> None:
        self.path = path
        (path / "sensors.csv").write_text("\n".join(["sensor,edge", *table]) + "\n")
        self.settings = Settings.model_validate(
            {"state": path / "run", "sensors": path / "sensors.csv", "kafka": kafka, "slots": {"count": slots}}
        )
        self.environment = {
            "TSUNAGI_STATE": str(path / "run"),
            "TSUNAGI_SENSORS": str(path / "sensors.csv"),
            "TSUNAGI_KAFKA__SERVERS": kafka.servers,
            "TSUNAGI_KAFKA__PREFIX": kafka.prefix,
            "TSUNAGI_SLOTS__COUNT": str(slots),
            "TSUNAGI_STEPS__INTERVAL_S": str(INTERVAL_US / 1e6),
            **environment,
        }
        self.slots = place(read_sensors(path / "sensors.csv"), slots)
        self.log = KafkaLog(kafka, client_id="test")
        self.processes: list[subprocess.Popen[bytes]] = []

    def prepare(self) -> None:
        """Make the topics and write the placement, as the scaler does."""
        self.log.ensure_topics(self.settings)
        placement = Placement(
            serial=1,
            slots=self.settings.slots.count,
            slot=pack_sensors(self.slots),
            table_sha256=read_sensors(self.path / "sensors.csv").digest(),
        )
        producer = self.log.producer()
        producer.send(PLAN, 0, b"placement", Plan(version=VERSION, placement=placement).SerializeToString())
        assert producer.flush(30) == 0
        producer.close()

    def start(self, edge: str = "a", *, stdin: int | None = None) -> subprocess.Popen[bytes]:
        with (self.path / f"{edge}.log").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "tsunagi.cli", "edge", "run", "--edge", edge],
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stderr=output,
            )
        self.processes.append(process)
        return process

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(10)
            if process.stdin is not None:
                process.stdin.close()
        self.log.close()

    def read(self, topic: str) -> list[Record]:
        """Everything that stands in a topic now."""
        return [record for records in read_topic(self.log, topic).values() for record in records]

    def batches(self) -> list[tuple[int, TupleBatch]]:
        """Return (slot, batch) of all that stands in `tuples`."""
        return [(record.partition, LogRecord.FromString(record.value or b"").batch) for record in self.read(TUPLES)]

    def letters(self, reason: str | None = None) -> list[DeadLetter]:
        """Return the dead letters: those of a reason, or all."""
        found = [DeadLetter.FromString(record.value or b"") for record in self.read(DEAD_LETTERS)]
        return [letter for letter in found if reason is None or letter.reason == reason]


class LiveWorld(EdgeProcesses):
    """An edge on a live source, and what was sent to it."""

    def __init__(self, path: Path, kafka: KafkaSettings, **source: object) -> None:
        environment = {
            "TSUNAGI_STEPS__AGGREGATE": "last",  # MQTT delivers at least once: a mean would not bear that
            "TSUNAGI_SOURCE__TIME_UNIT": "us",
            "TSUNAGI_SOURCE__DISORDER_S": "1.0",
            **{f"TSUNAGI_SOURCE__{name.upper()}": str(value) for name, value in source.items()},
        }
        table = [f"s{number},{'ab'[number % 2]}" for number in range(6)]
        super().__init__(path, kafka, table, SLOTS, **environment)
        self.sent: dict[tuple[str, int], float] = {}
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.prepare()

    def said(self) -> str:
        file = self.path / "a.log"
        return file.read_text() if file.exists() else ""

    def keep_sending(self, send: Send) -> None:
        """Send a reading of each of the edge's sensors every 50 ms, from a thread, until `stop_sending`."""

        def run() -> None:
            while not self._stop.wait(0.05):
                now_us = time.time_ns() // 1000
                for sensor in OWN:
                    value = float(len(self.sent))
                    send(sensor, now_us, value)
                    self.sent[sensor, now_us] = value

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def stop_sending(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(150)
        self._threads.clear()
        self._stop.clear()

    def close(self) -> None:
        self.stop_sending()
        super().close()

    def full_steps(self) -> set[int]:
        """Steps with a value of each of the edge's sensors."""
        found: dict[int, int] = {}
        for _, batch in self.batches():
            found[batch.step] = found.get(batch.step, 0) + len(sensors(batch.sensor))
        return {step for step, count in found.items() if count == len(OWN)}

    def check(self, *, at_least_once: bool = False, outage_us: tuple[int, int] = (0, 0)) -> None:
        """What was sent is in its windows, or late in dead-letters; no step of the edge came twice.

        A reading that could not be sent in an outage is in those of its windows that were still open when it came: of
        windows in `outage_us` only this is asked, that nothing in them is invented.
        """
        letters = [letter for letter in self.letters() if f"/{MARK}'" not in letter.detail]
        assert {letter.reason for letter in letters} <= {"reading-late"}
        late = set()
        for letter in letters:
            body = json.loads(letter.value)
            late.add((body["sensor"], body["time"]))
        keys = [(batch.step, slot) for slot, batch in self.batches()]
        assert len(keys) == len(set(keys))
        checked = 0
        for _, batch in self.batches():
            columns = (sensors(batch.sensor).tolist(), floats(batch.value).tolist(), sensors(batch.count).tolist())
            found = {f"s{number}": (value, count) for number, value, count in zip(*columns, strict=True)}
            end_us = batch.step * SLIDE_US
            for sensor, (value, count) in found.items():
                inside = {
                    time_us: value
                    for (name, time_us), value in self.sent.items()
                    if name == sensor and end_us - WINDOW_US < time_us <= end_us and (name, time_us) not in late
                }
                if end_us > outage_us[0] and end_us - WINDOW_US < outage_us[1]:
                    assert value in inside.values()
                    continue
                assert value == inside[max(inside)]
                assert count >= len(inside) if at_least_once else count == len(inside)
                checked += 1
        assert checked > 0


def until(condition: Callable[[], object], timeout_s: float = 300.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def line(sensor: str, time_us: int, value: float) -> bytes:
    return json.dumps({"sensor": sensor, "time": time_us, "value": value}).encode()


def further(world: LiveWorld, steps: int = 6) -> Callable[[], bool]:
    """True once so many more steps have a value of every sensor."""
    before = len(world.full_steps())
    return lambda: len(world.full_steps()) >= before + steps
