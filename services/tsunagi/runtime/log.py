"""The interface of the durable log that the services use.

`tsunagi.runtime.kafka` keeps the log in Kafka, and `tsunagi.runtime.testing` keeps it in memory under a virtual clock.
The services see only these protocols, so tests run the same code as production.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

TUPLES = "tuples"
"""The topic of the slots' logs, one partition for each slot: batches of readings, and control records."""
RECOVERED = "recovered"
"""The topic of the slots' outputs, one partition for each slot."""
RESULTS = "results"
"""The topic of ordered results, one partition for each core of Spark."""
ACKS = "acks"
"""The topic of Level-0-Acks and Level-1-Acks."""
CONTEXTS = "contexts"
"""The topic of the slots' states at resume points, one partition for each slot."""
HEARTBEATS = "heartbeats"
"""The topic in which every process says that it lives, and what it is doing."""
PLAN = "plan"
"""The topic of wishes: who should own which slot, where sensors are placed, what the recovery aims at."""
LATE = "late"
"""The topic of readings and rows that came too late for their steps."""
DEAD_LETTERS = "dead-letters"
"""The topic of records that could not be used, with the reasons."""
TOPICS = (TUPLES, RECOVERED, RESULTS, ACKS, CONTEXTS, HEARTBEATS, PLAN, LATE, DEAD_LETTERS)
"""All topics, in the order of the documentation. `[kafka] prefix` comes before each name."""


class LogError(RuntimeError):
    """The log could not be read or written. The process must not go on as if it had been."""


class OffsetLostError(LogError):
    """The log does not have the wanted records: they were deleted, or the log has lost its end."""


class Position(NamedTuple):
    """A place in the log."""

    topic: str
    partition: int
    offset: int


@dataclass(slots=True)  # not frozen: one object is made for every record, and a frozen one costs four times as much
class Record:
    """A record as it was read. Nobody changes it.

    Attributes:
        appended_us: when the log appended it, in microseconds since 1970.
        signer: who wrote it, by its keyed hash (tsunagi.runtime.auth): "control" or "edge/NAME"; "" if the hash is not
            valid, None if it was not checked.
    """

    topic: str
    partition: int
    offset: int
    appended_us: int
    key: bytes | None
    value: bytes | None
    signer: str | None = None


Delivered = Callable[[LogError | None, int], None]
"""Called when it is known whether a record was appended: (error or None, offset in its partition or -1)."""


class Producer(Protocol):
    """Appends records. The log keeps the order in which one producer sends the records of a partition."""

    @property
    def appended_us(self) -> int:
        """When the log appended the last record that `delivered` told of, by the log's clock; 0 if it did not say."""

    def send(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, delivered: Delivered | None = None
    ) -> None:
        """Queue a record. `delivered` is called from `poll` or `flush`.

        Raises:
            BufferError: the queue is full; poll and try again.
            LogError: it is known already that the log will refuse the record.
        """

    def send_run(
        self, topic: str, partition: int, pairs: Sequence[tuple[bytes, bytes]], delivered: Delivered | None = None
    ) -> int:
        """Queue several records (key, value) of one partition; return how many of them, from the first, were queued.

        `delivered` is called for the last record, if that was queued. If the producer is durable, its answer holds for
        all of them. Many records at once cost a third of what they cost one by one.

        Raises:
            LogError: it is known already that the log will refuse the records.
        """

    def poll(self, timeout_s: float = 0.0) -> int:
        """Run the callbacks that are due, and return how many there were.

        Raises:
            LogError: a durable producer has ended. `flush` raises it as well.
        """

    def flush(self, timeout_s: float) -> int:
        """Wait until the queue is empty or the time is over, and return how many records are left."""

    def close(self) -> None:
        """Drop the queued records, and close the connection."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """How much has gone over the connections of a reader, as the client library counts it at the socket."""

    received_bytes: int = 0
    sent_bytes: int = 0
    requests: int = 0


class Reader(Protocol):
    """Reads partitions from given offsets. It is no member of a group; the caller keeps the positions."""

    def assign(self, positions: Iterable[Position]) -> None:
        """Read these partitions and no others, each from its offset. A negative offset means the present end."""

    def add(self, position: Position) -> None:
        """Read one more partition, or that partition from another offset on."""

    def remove(self, topic: str, partition: int) -> None:
        """Stop reading a partition."""

    def read(self, max_records: int, timeout_s: float, *, gather_s: float | None = None) -> list[Record]:
        """Return the records that are there, in log order within a partition.

        Args:
            timeout_s: how long to wait for the first one, in seconds.
            gather_s: how long to wait for more once there is one, in seconds; None = until `timeout_s` is over or there
                are `max_records`. Few large reads cost less than many small ones.

        Raises:
            OffsetLostError: a wanted offset is outside the log.
        """

    def range(self, topic: str, partition: int) -> tuple[int, int]:
        """Ask the log for (the first offset that it has, the offset of the next append) of a partition.

        Raises:
            LogError: the log did not answer.
        """

    def traffic(self) -> Traffic:
        """Return the traffic of this reader until about a second ago. It is 0 unless the reader is `measured`.

        Call it about once a second, because the reports of the client library wait for it.
        """

    def close(self) -> None:
        """Close the connection."""


class Log(Protocol):
    """The log: one cluster."""

    def producer(self, *, durable: bool = True) -> Producer:
        """Make a producer.

        Args:
            durable: a durable producer is idempotent, never gives up, and leaves no gap: it ends at a record that the
                log refuses, and writes no later one. This matters because readers drop what comes after a later name as
                a repeat. Its owner makes another producer, and sends again from the refused record on. Outputs, tuples,
                results and the plan need it. Otherwise the producer gives a record up after a short time. That is for
                records that are worthless when late: heartbeats and control records.
        """

    def reader(self, *, wait_s: float = 0.1, least_bytes: int = 1, measured: bool = False) -> Reader:
        """Make a reader.

        Args:
            wait_s: how long the log may hold a request that finds less than `least_bytes`, in seconds. A reader that
                follows the log saves requests by waiting. A reader of ranges needs a short time, because its next
                request would have to wait for the last, empty one.
            least_bytes: with more than 1, what comes within `wait_s` is one answer. A busy topic of small records that
                nobody waits for costs the log and the reader far less so.
            measured: whether the reader measures its traffic.
        """

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has; 0 if there is no such topic."""

    def topic_id(self, topic: str) -> str:
        """Return the id that the cluster gave a topic when it was made; "" if there is no such topic, or it has no id.

        A topic that is deleted and made anew has another id.

        Raises:
            LogError: the log did not answer.
        """
