"""`python -m tsunagi.broker.archive`: archives the broker's classes (tsunagi.jars.archive)."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tsunagi.broker.broker import ARCHIVE, Broker
from tsunagi.broker.checks import free_port
from tsunagi.jars.archive import keep, writing

_WAIT_S = 60.0
"""Longest wait for the training record, and for the end of the broker, in seconds each."""


def make(path: Path = ARCHIVE) -> None:
    """Run a broker that takes a record and gives it, and write the classes that it has loaded to `path`.

    Raises:
        RuntimeError: Java wrote no archive, or the broker did not give the record.
        BrokerError: the broker did not start.
    """
    with tempfile.TemporaryDirectory() as directory:
        broker = Broker(Path(directory), free_port(), java_options=writing(path))
        broker.start()
        try:
            broker.wait_ready()
            _use(broker.servers)
        finally:
            broker.stop(_WAIT_S)  # the JVM writes the archive when it ends
    keep(path)


def _use(servers: str) -> None:
    """Make a topic, write a record and read it, so that what clients need is loaded."""
    address = {"bootstrap.servers": servers, "broker.address.family": "v4"}
    admin = AdminClient(dict(address))  # its answers come only while it is kept
    admin.create_topics([NewTopic("training", 1, 1)])["training"].result(_WAIT_S)
    producer = Producer(address | {"enable.idempotence": True, "compression.type": "lz4"})
    producer.produce("training", b"value", b"key")
    producer.flush(_WAIT_S)
    consumer = Consumer(address | {"group.id": "training", "auto.offset.reset": "earliest"})
    consumer.subscribe(["training"])
    record = consumer.poll(_WAIT_S)
    consumer.close()
    if record is None or record.error() is not None:
        raise RuntimeError("the broker that Java was to learn from gave no record")


if __name__ == "__main__":
    make()
    sys.stdout.write(f"{ARCHIVE}: {ARCHIVE.stat().st_size // 1_000_000} MB\n")
