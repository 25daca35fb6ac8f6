"""What tests of the log on a real broker write to it, and how they read it back."""

from __future__ import annotations

import time

from tsunagi.broker.broker import Broker
from tsunagi.runtime.kafka import KafkaLog
from tsunagi.runtime.kafka_reader import KafkaReader
from tsunagi.runtime.log import (
    TUPLES,
    LogError,
    Position,
    Record,
)
from tsunagi.runtime.settings import KafkaSettings

PATIENCE_S = 60.0


def log_of(broker: Broker) -> KafkaLog:
    return KafkaLog(KafkaSettings(servers=broker.servers), client_id="test")


def send(log: KafkaLog, values: range) -> list[int]:
    """Append numbers to `tuples`/0 and return the offsets they got, once all are acknowledged."""
    offsets: list[int] = []

    def delivered(error: LogError | None, offset: int) -> None:
        assert error is None
        offsets.append(offset)

    producer = log.producer()
    for value in values:
        producer.send(TUPLES, 0, b"edge", str(value).encode(), delivered)
    assert producer.flush(PATIENCE_S) == 0
    producer.close()
    return offsets


def read(reader: KafkaReader, count: int) -> list[Record]:
    """Read `count` records, or what has come when patience is over."""
    records: list[Record] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(records) < count and time.monotonic() < deadline:
        records += reader.read(500, 0.2)
    return records


def values(records: list[Record]) -> list[int]:
    return [int(record.value or b"-1") for record in records]


def read_back(log: KafkaLog, count: int) -> list[int]:
    """Read the first `count` numbers of `tuples`/0 with a reader of their own."""
    reader = log.reader()
    reader.assign([Position(TUPLES, 0, 0)])
    found = values(read(reader, count))
    reader.close()
    return found
