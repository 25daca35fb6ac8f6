"""What the services need of a durable log, whoever keeps it.

`tsunagi.runtime.kafka` keeps it in Kafka, `tsunagi.runtime.testing` in memory under a virtual clock; the services see
only these protocols, so the code that runs in a test is the code that runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

TUPLES = "tuples"
RECOVERED = "recovered"
RESULTS = "results"
ACKS = "acks"
CONTEXTS = "contexts"
HEARTBEATS = "heartbeats"
PLAN = "plan"
LATE = "late"
DEAD_LETTERS = "dead-letters"
TOPICS = (TUPLES, RECOVERED, RESULTS, ACKS, CONTEXTS, HEARTBEATS, PLAN, LATE, DEAD_LETTERS)


class LogError(RuntimeError):
    """The log cannot be read or written as asked; the process must not go on as if it had been."""


class OffsetLostError(LogError):
    """The wanted records are no longer (or not yet) in the log: retention passed them, or the log lost its end."""


class Position(NamedTuple):
    """A place in the log."""

    topic: str
    partition: int
    offset: int


@dataclass(slots=True)  # not frozen: one is made for every record read, and would cost four times as much
class Record:
    """One record as read; nobody changes it.

    Attributes:
        appended_us: when the log appended it, microseconds since the epoch.
        signer: who wrote it, by its keyed hash (tsunagi.runtime.auth): "control", "edge/NAME", or "" = nobody;
            None = not checked.
    """

    topic: str
    partition: int
    offset: int
    appended_us: int
    key: bytes | None
    value: bytes | None
    signer: str | None = None


Delivered = Callable[[LogError | None, int], None]
"""Called once a record's fate is known: (error or None, offset in its partition or -1)."""


class Producer(Protocol):
    """Appends records; those of one producer and partition stand in the order in which they were sent."""

    @property
    def appended_us(self) -> int:
        """When the log appended the record reported last, by the log's clock; 0 = it did not say. For `delivered`."""

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
        """Queue records (key, value) of one partition in a row; return how many of the first fit into the queue.

        `delivered` is called for the last one, if that was queued. What it says holds for all of them where the
        producer is durable. Many at once cost a third of what each costs alone.

        Raises:
            LogError: it is known already that the log will refuse them.
        """

    def poll(self, timeout_s: float = 0.0) -> int:
        """Run the callbacks that are due; return how many.

        Raises:
            LogError: a durable producer has ended; `flush` says so as well.
        """

    def flush(self, timeout_s: float) -> int:
        """Wait until the queue is empty or the time is over; return how many records are left."""

    def close(self) -> None:
        """Drop what is queued and let go of the connection."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What has gone over a reader's connections, as the client library counts it at the socket."""

    received_bytes: int = 0
    sent_bytes: int = 0
    requests: int = 0


class Reader(Protocol):
    """Reads partitions from given offsets. Not a group member: positions are the caller's."""

    def assign(self, positions: Iterable[Position]) -> None:
        """Read these partitions and no others, each from its offset (a negative one: from its present end)."""

    def add(self, position: Position) -> None:
        """Read one more partition, or that partition from another offset on."""

    def remove(self, topic: str, partition: int) -> None:
        """Stop reading a partition."""

    def read(self, max_records: int, timeout_s: float) -> list[Record]:
        """Return what is there, in log order within a partition; wait up to `timeout_s` for the first.

        Raises:
            OffsetLostError: a wanted offset is outside the log.
        """

    def range(self, topic: str, partition: int) -> tuple[int, int]:
        """Return (first offset kept, offset of the next append), asked of the log now.

        Raises:
            LogError: the log did not answer.
        """

    def traffic(self) -> Traffic:
        """Return what has gone over its connections until about a second ago; nothing but for a `measured` reader.

        To be called about once a second: the library's reports wait for it.
        """

    def close(self) -> None:
        """Let go of the connection."""


class Log(Protocol):
    """One cluster."""

    def producer(self, *, durable: bool = True) -> Producer:
        """Make a producer.

        Args:
            durable: True: idempotent, never gives up, and gap-free: a record that the log refuses ends it, so that none
                behind it is written, for readers drop as a repeat what stands behind a later name (outputs, tuples,
                results, plan). Its owner makes another, and sends again from the refused record on. False: gives up
                after a short time, for what is worthless when late (heartbeats, control records).
        """

    def reader(self, *, wait_s: float = 0.1, measured: bool = False) -> Reader:
        """Make a reader.

        Args:
            wait_s: how long the log may hold a request that finds nothing. One that follows saves requests by waiting;
                one that pulls ranges must not find the last, empty request still in its way.
            measured: keep account of its traffic.
        """

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has, 0 = no such topic."""

    def topic_id(self, topic: str) -> str:
        """Return the id that the cluster gave the topic when it was made, "" = it keeps none or there is no such topic.

        A topic that is deleted and made anew has another id.

        Raises:
            LogError: the log did not answer.
        """
