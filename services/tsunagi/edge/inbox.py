"""The bounded queue between the thread of a live source, which puts messages, and the edge's loop, which takes them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from tsunagi.runtime.clock import SystemClock

MAX_BYTES = 16 << 20
"""Most bytes of messages that may wait. It bounds the memory that a source of large messages takes, whatever `[source]
queue` allows in messages."""
SYSTEM = SystemClock()
"""Clock that stamps arrivals where a test or an edge does not give its own."""
_OVERHEAD_BYTES = 200
"""Memory that a message takes beside its payload, in bytes, roughly: without it empty messages would be free."""


class Message(NamedTuple):
    """A message as it arrived, before anybody has decoded it.

    Attributes:
        payload: the body, cut to 64 KiB.
        place: where it came from, for people: the MQTT topic, the client's address.
        arrived_us: time of arrival, in microseconds since 1970.
        sensor: the sensor that the topic or the record's key names; None where it names none.
        partition, offset: place in a Kafka topic; for other sources 0 and a serial number.
        stored: the broker had kept it (a retained MQTT message), so that its arrival says nothing about its time.
        repeated: it may have been delivered before.
        again: an earlier incarnation of the edge has read it.
        fault: (reason, detail) where the message cannot be used as it arrived; None where it may be.
        topic: the MQTT or Kafka topic; "" for other sources.
        digest: of a Kafka record, the result of `tsunagi.runtime.marks.digest_of`; 0 for other sources.
    """

    payload: bytes
    place: str
    arrived_us: int
    sensor: str | None = None
    partition: int = 0
    offset: int = 0
    stored: bool = False
    repeated: bool = False
    again: bool = False
    fault: tuple[str, str] | None = None
    digest: int = 0
    topic: str = ""


class Begun(NamedTuple):
    """Says that partitions of a Kafka topic are read from here on.

    Attributes:
        starts: for each partition, the offset of the first record that is read.
        behind: the partitions that hold records which are not read yet; `CaughtUp` follows for each of them.
        topic_id: the id that the cluster gave the topic; "" where it is not known.
        fault: how the topic contradicts what was read of it before; "" where it does not.
    """

    starts: dict[int, int]
    behind: frozenset[int]
    topic_id: str = ""
    fault: str = ""


class CaughtUp(NamedTuple):
    """Says that a partition has been read up to the end that it had when reading began."""

    partition: int


Item = Message | Begun | CaughtUp


class Inbox:
    """A bounded queue. Threads of the source put messages, the edge's loop takes them.

    Args:
        max_messages: how many may wait.
        now_us: the edge's clock, which stamps arrivals, in microseconds since 1970.

    Attributes:
        dropped: how many messages `offer` found no room for.
    """

    def __init__(
        self, max_messages: int, max_bytes: int = MAX_BYTES, now_us: Callable[[], int] = SYSTEM.now_us
    ) -> None:
        self.dropped = 0
        self.now_us = now_us
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._items: deque[Item] = deque()
        self._bytes = 0
        self._blocked = 0
        self._closed = False
        self._failure: Exception | None = None
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Item) -> bool:
        """Append an item, after waiting for room as long as it takes; return False if the queue was closed."""
        with self._changed:
            self._blocked += 1
            try:
                while not self._closed and not self._has_room():
                    self._changed.wait()
            finally:
                self._blocked -= 1
            if not self._closed:
                self._append(item)
            return not self._closed

    def offer(self, item: Item) -> bool:
        """Append an item if there is room, and return whether there was; without room, count it as dropped."""
        with self._changed:
            if self._closed or not self._has_room():
                self.dropped += 1
                return False
            self._append(item)
            return True

    def take(self, most: int) -> tuple[list[Item], bool]:
        """Return the oldest items, and whether these are all: no more wait, and no thread waits for room.

        Raises:
            Exception: the error that ended a thread of the source; a dead source must not look like a silent one.
        """
        with self._changed:
            if self._failure is not None:
                raise self._failure
            found = [self._items.popleft() for _ in range(min(most, len(self._items)))]
            self._bytes -= sum(_size(item) for item in found)
            everything = not self._items and self._blocked == 0
            self._changed.notify_all()
            return found, everything

    def guard(self, run: Callable[[Inbox], None]) -> None:
        """Run a source's thread; `take` raises what ended it."""
        try:
            run(self)
        except Exception as error:  # noqa: BLE001 - whatever it was, the loop must hear of it
            self._failure = error

    def close(self) -> None:
        """Wake every thread that waits for room; what is put from now on is dropped."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _has_room(self) -> bool:
        return len(self._items) < self._max_messages and self._bytes < self._max_bytes

    def _append(self, item: Item) -> None:
        self._items.append(item)
        self._bytes += _size(item)


def _size(item: Item) -> int:
    return _OVERHEAD_BYTES + (len(item.payload) if isinstance(item, Message) else 0)
