"""`python -m tsunagi.broker.archive`: archives the broker's classes, so that it starts in half the CPU time.

Java's class data sharing (JDK 13 and later) keeps the classes that a training run has loaded and checked. Without the
archive, or with one of another Java or of other jars, everything works too, only slower: Java ignores it then.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tsunagi.broker.broker import ARCHIVE, Broker
from tsunagi.broker.checks import free_port
from tsunagi.broker.configuration import QUIET_SHARING
from tsunagi.jars.java import find_java

_WAIT_S = 60.0
"""Longest wait for the training record, for the end of the broker, and for Java's check of the archive, in seconds
each."""


def make(path: Path = ARCHIVE) -> None:
    """Run a broker that takes a record and gives it, and write the classes that it has loaded to `path`.

    Raises:
        RuntimeError: Java wrote no archive, or the broker did not give the record.
        BrokerError: the broker did not start.
    """
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        options = (f"-XX:ArchiveClassesAtExit={fresh}", *QUIET_SHARING)
        broker = Broker(Path(directory), free_port(), java_options=options)
        broker.start()
        try:
            broker.wait_ready()
            _use(broker.servers)
        finally:
            broker.stop(_WAIT_S)  # the JVM writes the archive when it ends
    check = [find_java(), f"-XX:SharedArchiveFile={fresh}", "-version"]
    if not fresh.exists() or subprocess.run(check, capture_output=True, timeout=_WAIT_S, check=False).returncode:
        fresh.unlink(missing_ok=True)  # an archive cut short by a full disk would end every JVM that opens it
        raise RuntimeError(f"{path}: Java wrote no archive that it can read")
    fresh.replace(path)


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
