"""Other traffic through a broker: so many MB/s, written to a topic and read again by the same process."""

from __future__ import annotations

import argparse
import os
import sys
import time

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

TOPIC = "bench-load"
RECORD_BYTES = 100_000
TICK_S = 0.02
KEPT_BYTES = 500_000_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=float, required=True, help="MB/s")
    parser.add_argument("--servers", required=True)
    options = parser.parse_args()
    admin = AdminClient({"bootstrap.servers": options.servers})
    kept = {"retention.bytes": str(KEPT_BYTES), "segment.bytes": str(KEPT_BYTES // 5)}
    for future in admin.create_topics([NewTopic(TOPIC, 1, 1, config=kept)]).values():
        future.exception(timeout=10)  # there already: fine
    producer = Producer({"bootstrap.servers": options.servers, "acks": 1, "linger.ms": 5})
    reader = Consumer({"bootstrap.servers": options.servers, "group.id": "bench-load", "auto.offset.reset": "latest"})
    reader.assign([TopicPartition(TOPIC, 0, -1)])
    payload = os.urandom(RECORD_BYTES)
    began, sent = time.monotonic(), 0
    while True:
        due = (time.monotonic() - began) * options.mb * 1e6 / RECORD_BYTES
        while sent < due:
            sent += 1
            try:
                producer.produce(TOPIC, payload, partition=0)
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
        reader.consume(1000, TICK_S)


if __name__ == "__main__":
    sys.exit(main())
