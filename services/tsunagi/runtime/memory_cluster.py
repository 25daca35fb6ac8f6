"""A broker in memory under a virtual clock: its partitions, and the records on the way to them.

`tsunagi.runtime.memory_clients` has its clients, and what they do when the network fails.
"""

from __future__ import annotations

import heapq
import random
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Protocol

from tsunagi.runtime.clock import Clock
from tsunagi.runtime.log import Delivered, LogError, Record

Range = tuple[float, float]
"""The least and the greatest delay, in seconds. Delays are drawn evenly between the two."""


@dataclass(frozen=True, slots=True)
class Network:
    """The delays and faults between the clients and the log.

    Attributes:
        produce_s: the delay from `send` to the append.
        ack_s: the delay from the append to the delivery callback.
        fetch_s: the delay from the append to the moment when a reader sees the record.
        reconnect_s: the delay from `heal` or `start` to the first request of a client.
        ghost: the probability that a record of a producer that is not durable, which was on the way when
            `partition_client` cut its producer off, is appended after `heal`, long after the producer gave it up.
        queue_records: how many records the queue of a producer holds before it raises a BufferError.
        produce_to_s: the `produce_s` of single topics, because the leader of one partition alone may be slow.
    """

    produce_s: Range = (0.0, 0.0)
    ack_s: Range = (0.0, 0.0)
    fetch_s: Range = (0.0, 0.0)
    reconnect_s: Range = (0.0, 0.0)
    ghost: float = 0.0
    queue_records: int = 1_000_000
    produce_to_s: Mapping[str, Range] = field(default_factory=dict)


class Partition:
    """A partition. Its offsets rise from `first` on, with gaps where compaction has removed records."""

    __slots__ = ("first", "records")

    def __init__(self) -> None:
        self.first = 0
        self.records: list[Record] = []

    @property
    def end(self) -> int:
        return self.records[-1].offset + 1 if self.records else self.first

    def index(self, offset: int) -> int:
        """Return the index in `records` of the first record whose offset is this or a later one."""
        if len(self.records) == self.end - self.first:  # no gaps
            return min(max(0, offset - self.first), len(self.records))
        return bisect_left(self.records, offset, key=attrgetter("offset"))


class Connection:
    """The connection of a client to the broker. `horizon` is the latest moment of which the client can know."""

    __slots__ = ("back_s", "cut_s", "up")

    def __init__(self, now_s: float, *, up: bool) -> None:
        self.up = up
        self.cut_s = now_s
        self.back_s = now_s

    def reachable(self, now_s: float) -> bool:
        return self.up and now_s >= self.back_s

    def horizon(self, now_s: float) -> float:
        return now_s if self.reachable(now_s) else self.cut_s

    def cut(self, now_s: float) -> None:
        if self.reachable(now_s):
            self.cut_s = now_s
        self.up = False

    def mend(self, back_s: float) -> None:
        self.up = True
        self.back_s = back_s


class Client(Protocol):
    """A producer or a reader, as the broker knows it."""

    connection: Connection

    def cut(self, now_s: float, *, survives: bool) -> None:
        """Break the connection. If the broker `survives`, it may still append the records that are on the wire."""

    def mend(self, back_s: float) -> None:
        """Restore the connection from that time on."""

    def crash(self) -> None:
        """Kill the process of the client."""


class ProducerClient(Client, Protocol):
    """A producer, as the broker knows it."""

    def appended(self, lane: Lane, item: PendingRecord, at_s: float, offset: int) -> None:
        """Note that the log has appended the first record of a lane."""


@dataclass(slots=True)
class PendingRecord:
    """A record on its way to the log."""

    key: bytes | None
    value: bytes | None
    delivered: Delivered | None
    sent_s: float
    due_s: float = 0.0


class Lane:
    """The records that a producer has queued for a partition, in order. The first one may be on the wire."""

    __slots__ = ("last_ack_s", "last_due_s", "place", "producer", "queue", "ticket")

    def __init__(self, producer: ProducerClient, place: tuple[str, int]) -> None:
        self.producer = producer
        self.place = place
        self.queue: deque[PendingRecord] = deque()
        self.last_due_s = 0.0
        self.last_ack_s = 0.0
        self.ticket = 0  # entries of the heap with another ticket are out of date


class Cluster:
    """A broker, which may also stand for a cluster of several.

    Args:
        clock: the clock whose monotonic reading is the time of the log.
        partitions: the number of partitions of each topic.
        network: the delays and faults of the network; by default there are none.
        rng: the generator of all random choices, so that a run can be repeated from its seed.

    Attributes:
        muted: pairs of (client, topic). What such a client sends to the topic is lost, and nobody is told.
    """

    def __init__(
        self,
        clock: Clock,
        partitions: Mapping[str, int],
        *,
        network: Network | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.lock = threading.RLock()  # a service's heartbeat thread sends beside its loop
        self.layout = dict(partitions)
        self.topic_ids = {topic: f"{topic}-1" for topic in partitions}
        self.network = network or Network()
        self.rng = rng or random.Random(0)
        self._clock = clock
        self._zero_us = clock.now_us() - round(clock.monotonic() * 1e6)
        self._stored = {(topic, number): Partition() for topic, count in partitions.items() for number in range(count)}
        self._heap: list[tuple[float, float, int, Lane, int]] = []
        self._clients: dict[str, list[Client]] = {}
        self._cut: set[str] = set()
        self.muted: set[tuple[str, str]] = set()
        self._ghosts: dict[str, list[tuple[tuple[str, int], PendingRecord]]] = {}
        self._running = True
        self._counter = 0

    # ---- what a test or the simulator does ----

    def partition_client(self, client_id: str) -> None:
        """Cut a node off from the log."""
        with self.lock:
            self.settle()
            self._cut.add(client_id)
            self._break([client_id], survives=True)

    def heal(self, client_id: str) -> None:
        """Connect a node to the log again."""
        with self.lock:
            self.settle()
            self._cut.discard(client_id)
            for place, item in self._ghosts.pop(client_id, ()):
                self._append(place, item.key, item.value, self.now_s())
            self._join([client_id])

    def stop(self) -> None:
        """Stop the broker. The records that it has appended stay."""
        with self.lock:
            self.settle()
            self._running = False
            self._break(list(self._clients), survives=False)

    def start(self) -> None:
        """Start the broker again."""
        with self.lock:
            self.settle()
            self._running = True
            self._join([client_id for client_id in self._clients if client_id not in self._cut])

    def truncate(self, topic: str, partition: int, first: int) -> list[Record]:
        """Drop and return the records before the offset `first`, as retention does."""
        with self.lock:
            self.settle()
            stored = self.stored(topic, partition)
            kept = min(max(first, stored.first), stored.end)
            count = stored.index(kept)
            dropped = stored.records[:count]
            del stored.records[:count]
            stored.first = kept
            return dropped

    def compact(self, topic: str, partition: int, upto: int) -> list[Record]:
        """Drop and return each record below the offset `upto` whose key a later record below it has.

        So a broker's log cleaner does with the segments that it has closed. A topic without keys would keep nothing.
        """
        with self.lock:
            self.settle()
            stored = self.stored(topic, partition)
            closed = stored.records[: stored.index(upto)]
            last = {record.key: record.offset for record in closed}
            dropped = [record for record in closed if last[record.key] != record.offset]
            gone = {record.offset for record in dropped}
            stored.records[: len(closed)] = [record for record in closed if record.offset not in gone]
            return dropped

    def lose_end(self, topic: str, partition: int, end: int) -> None:
        """Lose the records from the offset `end` on, as after an unclean election of a leader."""
        with self.lock:
            self.settle()
            stored = self.stored(topic, partition)
            del stored.records[stored.index(end) :]

    def make_anew(self, topic: str) -> None:
        """Delete a topic and make it anew. It is then empty, its offsets begin at 0, and it has another id."""
        with self.lock:
            self.settle()
            for partition in range(self.layout[topic]):
                stored = self.stored(topic, partition)
                stored.records.clear()
                stored.first = 0
            name, _, count = self.topic_ids[topic].rpartition("-")
            self.topic_ids[topic] = f"{name}-{int(count) + 1}"

    def append(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> int:
        """Append a record at once, without a producer, and return its offset."""
        with self.lock:
            self.settle()
            return self._append((topic, partition), key, value, self.now_s())

    def records(self, topic: str, partition: int | None = None) -> list[Record]:
        """Return the present records of a partition; None returns those of all partitions, one after the other."""
        with self.lock:
            self.settle()
            numbers = range(self.layout[topic]) if partition is None else (partition,)
            return [record for number in numbers for record in self.stored(topic, number).records]

    # ---- what the clients call, under the lock ----

    def now_s(self) -> float:
        """Return the log's time."""
        return self._clock.monotonic()

    def to_us(self, at_s: float) -> int:
        """Return the log's time in microseconds since the epoch."""
        return self._zero_us + round(at_s * 1e6)

    def draw(self, between: Range) -> float:
        """Return a random delay, in seconds."""
        low, high = between
        return low if low == high else self.rng.uniform(low, high)

    def count(self) -> int:
        """Return a number that is greater than all numbers before."""
        self._counter += 1
        return self._counter

    def clients(self, client_id: str) -> list[Client]:
        """Return the living clients of a node."""
        return self._clients.setdefault(client_id, [])

    def forget(self, made: Client) -> None:
        """Forget a producer or reader that was closed, or whose process was killed."""
        for living in self._clients.values():
            if made in living:
                living.remove(made)

    def reaches(self, client_id: str) -> bool:
        """Return whether a node can speak to the log."""
        return self._running and client_id not in self._cut

    def stored(self, topic: str, partition: int) -> Partition:
        """Return a partition.

        Raises:
            LogError: there is none.
        """
        found = self._stored.get((topic, partition))
        if found is None:
            raise LogError(f"{topic}/{partition}: no such partition")
        return found

    def schedule(self, lane: Lane) -> None:
        """Put the first record of a lane on the wire. Those that are due at the same time are appended in any order."""
        if lane.queue and lane.producer.connection.up:
            lane.ticket += 1
            heapq.heappush(self._heap, (lane.queue[0].due_s, self.rng.random(), self.count(), lane, lane.ticket))

    def settle(self) -> None:
        """Append all records that have arrived by now, in the order of arrival."""
        heap = self._heap
        if not heap:
            return
        now_s = self._clock.monotonic()
        while heap and heap[0][0] <= now_s:
            due_s, _, _, lane, ticket = heapq.heappop(heap)
            if lane.ticket == ticket:
                self.take(lane, due_s)
                self.schedule(lane)

    def take(self, lane: Lane, at_s: float) -> None:
        """Append the first record of a lane."""
        item = lane.queue.popleft()
        lane.producer.appended(lane, item, at_s, self._append(lane.place, item.key, item.value, at_s))

    def haunt(self, client_id: str, place: tuple[str, int], item: PendingRecord) -> None:
        """Append a record when its node is healed, although its producer has given it up."""
        self._ghosts.setdefault(client_id, []).append((place, item))

    def _append(self, place: tuple[str, int], key: bytes | None, value: bytes | None, at_s: float) -> int:
        stored = self.stored(*place)
        appended_us = self.to_us(at_s) // 1000 * 1000  # the broker keeps milliseconds
        stored.records.append(Record(*place, stored.end, appended_us, key, value))
        return stored.end - 1

    def _break(self, client_ids: list[str], *, survives: bool) -> None:
        for client_id in client_ids:
            for made in self.clients(client_id):
                made.cut(self.now_s(), survives=survives)

    def _join(self, client_ids: list[str]) -> None:
        for client_id in client_ids:
            if not self.reaches(client_id):
                continue
            for made in self.clients(client_id):
                if made.connection.up:
                    continue
                made.mend(self.now_s() + self.draw(self.network.reconnect_s))
        self.settle()
