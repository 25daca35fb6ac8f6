"""What benchmarks of a single slot share: its configuration, operators, a plan, a broker, and a writer of its log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tsunagi.broker.broker import Broker
from tsunagi.local.topics import make_topics
from tsunagi.runtime.columns import pack_floats, pack_sensors
from tsunagi.runtime.kafka import KafkaLog
from tsunagi.runtime.log import PLAN, TUPLES, Log
from tsunagi.runtime.messages import VERSION, Assignment, LogRecord, Placement, Plan, TupleBatch
from tsunagi.runtime.sensors import read_sensors
from tsunagi.runtime.settings import Settings

OPERATORS = {
    "select": '{ use = "select", at_least = -1e9 }',
    "aggregate": '{ use = "aggregate", function = "sum", window = 100, slide = 10 }',
}
"""As in the A-SAS paper, for `[query] operators`; all tuples pass `select`."""


CONFIG = """\
state = "{work}/run"
sensors = "{work}/sensors.csv"
[kafka]
servers = "{servers}"
prefix = "{prefix}"
[slots]
count = 1
[query]
mode = "tuples"
operators = [{operator}]
[standby]
{standby}
[recovery]
store = "{work}/models"
[scaler]
launcher = "none"
"""


def configure(work: Path, servers: str, operator: str, standby: str, *, sensors: int = 1, prefix: str = "") -> Path:
    """Write the sensors table, all of one edge, and the configuration; return its file.

    Args:
        operator: for `[query] operators`.
        standby: lines of `[standby]`.
    """
    rows = "".join(f"s{number},edge\n" for number in range(sensors))
    (work / "sensors.csv").write_text(f"sensor,edge\n{rows}", encoding="utf-8")
    config = work / "tsunagi.toml"
    text = CONFIG.format(work=work, servers=servers, prefix=prefix, operator=operator, standby=standby)
    config.write_text(text, encoding="utf-8")
    return config


@contextmanager
def begun(settings: Settings, port: int, client_id: str, secondary: str) -> Iterator[KafkaLog]:
    """Start a broker with topics and a plan that gives the slot to gw-1; stop it in the end.

    Args:
        secondary: who stands by; "" = nobody.
    """
    broker = Broker(settings.state / "kafka", port)
    log = KafkaLog(settings.kafka, client_id=client_id)
    try:
        broker.start()
        broker.wait_ready()
        make_topics(settings)
        assign(settings, log, "gw-1", secondary)
        yield log
    finally:
        broker.stop()


class Batches:
    """Writes batches of all sensors, with drawn values, to the slot's log.

    Args:
        rows: how many sensors there are.
    """

    def __init__(self, log: KafkaLog, rows: int) -> None:
        self._producer = log.producer()
        self._rows = rows
        self._ids, self._count = pack_sensors(np.arange(rows)), pack_sensors([1] * rows)
        self._draw = np.random.default_rng(1)
        self.sent = 0

    def send(self, step: int) -> None:
        """Send a batch; its number is its event time in microseconds."""
        batch = TupleBatch(edge="edge", incarnation=1, step=step, event_time_us=step)
        batch.sensor, batch.value, batch.count = self._ids, pack_floats(self._draw.random(self._rows)), self._count
        value = LogRecord(version=VERSION, batch=batch).SerializeToString()
        while True:
            try:
                self._producer.send(TUPLES, 0, b"edge", value)
            except BufferError:
                self._producer.poll(0.05)
            else:
                break
        self.sent += 1
        if self.sent % 1000 == 0:
            self._producer.poll()

    def poll(self) -> None:
        """Let the client take in what the broker has answered."""
        self._producer.poll()

    def flush(self) -> None:
        """Wait until the broker has all."""
        if self._producer.flush(300.0):
            raise RuntimeError("the broker did not take the slot's log")

    def close(self) -> None:
        """Wait until the broker has all, and close the client."""
        self.flush()
        self._producer.close()


def assign(settings: Settings, log: Log, owner: str, secondary: str) -> None:
    """Put all sensors into slot 0, and say who should have it."""
    table = read_sensors(settings.sensors)
    count = len(table)
    placement = Placement(serial=1, slots=1, slot=pack_sensors([0] * count), table_sha256=table.digest(count))
    wish = Assignment(slot=0, owner=owner, secondary=secondary, serial=1, reason="bench")
    producer = log.producer()
    producer.send(PLAN, 0, b"placement", Plan(version=VERSION, placement=placement).SerializeToString())
    producer.send(PLAN, 0, b"assignment/0", Plan(version=VERSION, assignment=wish).SerializeToString())
    producer.flush(10.0)
    producer.close()
