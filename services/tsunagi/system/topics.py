"""Opens a system's log for tools, and reads whole topics."""

from __future__ import annotations

import time
from collections.abc import Iterator

from tsunagi.runtime.auth import authenticated
from tsunagi.runtime.kafka import KafkaLog
from tsunagi.runtime.log import Log, LogError, Position, Reader, Record
from tsunagi.runtime.settings import Settings

_READ_RECORDS = 2000
"""The most records of one read."""
_READ_S = 0.1
"""Longest wait of one read, in seconds. A read waits as long unless all that it asks for comes."""
_IDLE_READS = 100
"""A partition counts as unreadable after this many reads in a row without a record, since records must be missing."""
_CONNECT_S = 15.0
"""Longest wait for the first answer, in seconds. A new client must connect first, which takes seconds on a busy
machine."""
_PAUSE_S = 0.05
"""Pause between two questions for the range of a partition that does not answer, in seconds."""


def tool_log(settings: Settings, client_id: str) -> Log:
    """Return the log for a command of the user's; the client library prints nothing on the terminal.

    Raises:
        ConfigError: the settings `[security]` cannot be used (see `tsunagi.runtime.auth.authenticated`).
    """
    return authenticated(quiet_log(settings, client_id), settings)


def quiet_log(settings: Settings, client_id: str) -> KafkaLog:
    """Return the log without `[security]`, as a `KafkaLog`, which can also manage topics and users."""
    options = {"log_level": 0, **settings.kafka.options}
    return KafkaLog(settings.kafka.model_copy(update={"options": options}), client_id=client_id)


def read_topic(source: Log, topic: str) -> dict[int, list[Record]]:
    """Return all records that a topic holds now, by partition.

    Raises:
        LogError: the log does not answer, or gives fewer records than it says it has.
    """
    return {partition: read_partition(source, topic, partition) for partition in range(source.partitions(topic))}


def wait_for_range(reader: Reader, topic: str, partition: int, deadline: float) -> tuple[int, int]:
    """Return a partition's first offset and its end; ask again until `deadline`, in monotonic seconds.

    Raises:
        LogError: the partition did not answer until then.
    """
    while True:
        try:
            return reader.range(topic, partition)
        except LogError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_S)


def read_partition(source: Log, topic: str, partition: int) -> list[Record]:
    """Return all records that a partition holds now.

    Raises:
        LogError: the log does not answer, or gives fewer records than it says it has.
    """
    reader = source.reader()
    try:
        low, high = range_of(reader, topic, partition)
        return [record for some in records_between(reader, topic, partition, low, high) for record in some]
    finally:
        reader.close()


def range_of(reader: Reader, topic: str, partition: int) -> tuple[int, int]:
    """Return a partition's first offset and its end, as long as a new client may take to connect.

    Raises:
        LogError: the log does not answer.
    """
    return wait_for_range(reader, topic, partition, time.monotonic() + _CONNECT_S)


def records_between(reader: Reader, topic: str, partition: int, first: int, end: int) -> Iterator[list[Record]]:
    """Yield the records of the offsets first <= offset < end, some at a time.

    Raises:
        LogError: the log does not answer, or gives fewer records than it says it has.
    """
    reader.assign([Position(topic, partition, first)])
    at, idle = first, 0
    while at < end:
        fresh = reader.read(min(_READ_RECORDS, end - at), _READ_S)
        idle = 0 if fresh else idle + 1
        if idle == _IDLE_READS:
            raise LogError(f"{topic}/{partition}: read up to {at} only, expected {end}")
        if fresh:
            at = fresh[-1].offset + 1
            if some := [record for record in fresh if record.offset < end]:
                yield some


def offset_of_last(reader: Reader, topic: str, partition: int, held: tuple[int, int], last_us: int) -> int:
    """Return the offset of the first record that was appended at most so long before the last one, by bisection.

    Args:
        held: the first offset that there is, and the end; there is at least one record.
        last_us: so long, in microseconds.

    Raises:
        LogError: the log does not answer.
    """
    return offset_from(
        reader, topic, partition, held, _appended_us(reader, topic, partition, held[1] - 1, held[1]) - last_us
    )


def offset_from(reader: Reader, topic: str, partition: int, held: tuple[int, int], from_us: int) -> int:
    """Return the offset of a record before which none was appended at a time or later, by bisection.

    Args:
        held: the first offset that there is, and the end; there is at least one record.
        from_us: the time, in microseconds since 1970.

    Raises:
        LogError: the log does not answer.
    """
    low, high = held
    end = high
    while low < high - 1:
        middle = (low + high) // 2
        if _appended_us(reader, topic, partition, middle, end) < from_us:
            low = middle
        else:
            high = middle
    return low


def _appended_us(reader: Reader, topic: str, partition: int, offset: int, end: int) -> int:
    """Return when the record at an offset, or the next one that is there, was appended."""
    for records in records_between(reader, topic, partition, offset, end):
        return records[0].appended_us
    raise LogError(f"{topic}/{partition}: found no record from {offset} on, expected some below {end}")
