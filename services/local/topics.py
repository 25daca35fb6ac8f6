"""Topics as the tools see them: made and awaited by `tsunagi up`, read whole by whoever judges a run."""

from __future__ import annotations

import time

from services.runtime.kafka import KafkaLog
from services.runtime.log import TOPICS, Log, LogError, Position, Record
from services.runtime.settings import Settings

_READ_RECORDS = 2000
_READ_S = 2.0
_IDLE_READS = 5
_LEADER_S = 20.0


def tool_log(settings: Settings, client_id: str) -> KafkaLog:
    """Return the log for a command of the user's: the client library says nothing of its own on the terminal."""
    options = {"log_level": 0, **settings.kafka.options}
    return KafkaLog(settings.kafka.model_copy(update={"options": options}), client_id=client_id)


def make_topics(settings: Settings) -> None:
    """Make or check the topics, and wait until every partition answers: a new one has no leader for a moment.

    Raises:
        LogError: see `KafkaLog.ensure_topics`; or a partition did not answer.
    """
    source = tool_log(settings, "up")
    source.ensure_topics(settings)
    reader = source.reader()
    deadline = time.monotonic() + _LEADER_S
    try:
        for topic in TOPICS:
            partition = 0
            while partition < source.partitions(topic):
                try:
                    reader.range(topic, partition)
                    partition += 1
                except LogError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)
    finally:
        reader.close()
        source.close()


def read_topic(source: Log, topic: str) -> dict[int, list[Record]]:
    """Read all that a topic holds now, by partition.

    Raises:
        LogError: see `read_partition`.
    """
    return {partition: read_partition(source, topic, partition) for partition in range(source.partitions(topic))}


def read_partition(source: Log, topic: str, partition: int) -> list[Record]:
    """Read all that a partition holds now.

    Raises:
        LogError: the log does not answer, or gives less than it says it has.
    """
    reader = source.reader()
    records: list[Record] = []
    try:
        low, high = reader.range(topic, partition)
        reader.assign([Position(topic, partition, low)])
        idle = 0
        while low < high and (not records or records[-1].offset < high - 1):
            fresh = reader.read(_READ_RECORDS, _READ_S)
            idle = 0 if fresh else idle + 1
            if idle == _IDLE_READS:
                end = records[-1].offset + 1 if records else low
                raise LogError(f"{topic}/{partition}: read up to {end} only, expected {high}")
            records.extend(record for record in fresh if record.offset < high)
    finally:
        reader.close()
    return records
