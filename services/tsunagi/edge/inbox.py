"""What lies between a live source's thread and the edge's loop: a queue that is bounded in messages and in bytes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from tsunagi.runtime.clock import SystemClock

MAX_BYTES = 16 << 20
SYSTEM = SystemClock()
_OVERHEAD_BYTES = 200  # of a message without its payload


class Message(NamedTuple):
    """A reading as it arrived, not looked into yet.

    Attributes:
        payload: cut to 64 KiB.
        place: for people: the MQTT topic, the client's address.
        arrived_us: microseconds since the epoch.
        sensor: as the topic or the record's key names it, None = it does not.
        partition, offset: of a Kafka topic; else 0 and a serial number.
        stored: it lay at the broker (a retained MQTT message), so that its arrival says nothing of its time.
        repeated: it may have been delivered before.
        again: an earlier incarnation has read it.
        fault: (reason, detail) if it is unusable as it came; empty = it is not.
        digest: of a Kafka record, `tsunagi.runtime.marks.digest_of` it.
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


class Begun(NamedTuple):
    """Partitions of a Kafka topic are read from here on.

    Attributes:
        starts: partition -> offset of the first record that is read.
        behind: those that hold more at present than was read; each is told of by `CaughtUp`.
        topic_id: that the cluster gave the topic; "" = not known.
        fault: how the topic contradicts what was read of it before; "" = it does not.
    """

    starts: dict[int, int]
    behind: frozenset[int]
    topic_id: str = ""
    fault: str = ""


class CaughtUp(NamedTuple):
    """A partition has been read to where its end was when reading began."""

    partition: int


Item = Message | Begun | CaughtUp


class Inbox:
    """Bounded; one thread or several put, the loop takes.

    Args:
        max_messages: that may wait.
        now_us: the edge's clock, which says when a message arrived, microseconds since the epoch.

    Attributes:
        dropped: messages that `offer` had no room for.
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
        """Append, and wait for room as long as it takes; False = the inbox was closed meanwhile."""
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
        """Append if there is room; else count it as dropped."""
        with self._changed:
            if self._closed or not self._has_room():
                self.dropped += 1
                return False
            self._append(item)
            return True

    def take(self, most: int) -> tuple[list[Item], bool]:
        """Return the oldest items, and whether that was all: none is left and nobody waits to put more.

        Raises:
            Exception: what ended a thread that puts; a source that has died must not look like one that is silent.
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
        """Run what puts, in a thread of its own; what it raises is raised by `take`."""
        try:
            run(self)
        except Exception as error:  # noqa: BLE001 - whatever it was, the loop must hear of it
            self._failure = error

    def close(self) -> None:
        """Let everybody go who waits; what is put from now on is not taken."""
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
