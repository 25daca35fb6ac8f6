"""Producers and readers of a broker in memory (`memory_cluster`). They act as real ones do when the network fails.

Kafka's clients are the model. A durable producer keeps its queue over any outage, and drains it in order. Another
producer gives a record up after half a second, sometimes after it was appended. When a connection breaks, the first of
the records on the wire may have been appended although nobody was told. A reader sees the end of the log late, and
nothing new while it is cut off.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterable, Sequence

from tsunagi.runtime.log import Delivered, LogError, OffsetLostError, Position, Record, Traffic
from tsunagi.runtime.memory_cluster import Cluster, Connection, Lane, Partition, PendingRecord

Answer = tuple[float, int, Delivered, LogError | None, int]
"""A delivery callback that is due later: (when it is due, a running number, the callback, and its two arguments)."""

SHORT_TIMEOUT_S = 0.5
"""After this time a producer that is not durable gives a record up, in seconds. It is message.timeout.ms of
`tsunagi.runtime.kafka_producer.SHORT`."""


class MemoryProducer:
    """A `tsunagi.runtime.log.Producer` in memory. `MemoryClient.producer` makes it."""

    def __init__(self, cluster: Cluster, client_id: str, *, durable: bool) -> None:
        self._log = cluster
        self._client_id = client_id
        self._durable = durable
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._acks: list[Answer] = []
        self._unheard: list[tuple[Delivered, int]] = []  # appended, but the answer was lost with the connection
        self._gone = False
        self.appended_us = 0
        self.connection = Connection(cluster.now_s(), up=cluster.reaches(client_id))

    @property
    def queued(self) -> int:
        """How many records have not been appended yet."""
        with self._log.lock:
            self._log.settle()
            return sum(len(lane.queue) for lane in self._lanes.values())

    def send(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, delivered: Delivered | None = None
    ) -> None:
        with self._log.lock:
            self._check()
            self._log.settle()
            if (self._client_id, topic) in self._log.muted:
                return
            place = (topic, partition)
            lane = self._lanes.get(place)
            if lane is None:
                self._log.stored(topic, partition)
                lane = self._lanes[place] = Lane(self, place)
            now_s = self._log.now_s()
            self._expire(now_s)
            if sum(len(other.queue) for other in self._lanes.values()) >= self._log.network.queue_records:
                raise BufferError("the producer's queue is full")
            item = PendingRecord(key, value, delivered, now_s)
            lane.queue.append(item)
            if self.connection.up:
                self._put_on_wire(lane, item)
                self._log.schedule(lane)
                self._log.settle()

    def send_run(
        self, topic: str, partition: int, pairs: Sequence[tuple[bytes, bytes]], delivered: Delivered | None = None
    ) -> int:
        for place, (key, value) in enumerate(pairs):
            try:
                self.send(topic, partition, key, value, delivered if place == len(pairs) - 1 else None)
            except BufferError:
                return place
        return len(pairs)

    def poll(self, timeout_s: float = 0.0) -> int:  # virtual time does not pass here
        with self._log.lock:
            self._check()
            self._log.settle()
            now_s = self._log.now_s()
            self._expire(now_s)
            if not self._acks:
                return 0
            # Answers are those that had come in when the connection broke; the library's own timeouts need none.
            horizon_s = self.connection.horizon(now_s)
            due: list[Answer] = []
            later: list[Answer] = []
            for entry in self._acks:
                limit_s = now_s if entry[3] is not None else horizon_s
                (due if entry[0] <= limit_s else later).append(entry)
            self._acks = later
        for at_s, _, delivered, error, offset in sorted(due, key=lambda entry: entry[:2]):
            self.appended_us = 0 if error is not None else self._log.to_us(at_s)
            delivered(error, offset)
        return len(due)

    def flush(self, timeout_s: float) -> int:
        self.poll(timeout_s)
        return self.queued + len(self._acks) + len(self._unheard)

    def close(self) -> None:
        """Drop the queued records. The log may already have appended some of those on the wire."""
        if not self._gone:
            self.crash()

    def crash(self) -> None:
        """Die with the process. A random number of the records on the wire is appended, and nobody is told."""
        with self._log.lock:
            self._check()
            self._log.settle()
            if self.connection.reachable(self._log.now_s()):
                self._append_some()
            for lane in self._lanes.values():
                lane.ticket += 1
                lane.queue.clear()
            self._acks.clear()
            self._unheard.clear()
            self._gone = True
            self._log.forget(self)

    # ---- called by the log, under its lock ----

    def appended(self, lane: Lane, item: PendingRecord, at_s: float, offset: int) -> None:
        """Note that the log has appended a record, whose answer is now on its way."""
        if item.delivered is None:
            return
        lane.last_ack_s = max(lane.last_ack_s, at_s + self._log.draw(self._log.network.ack_s))
        if not self._durable and lane.last_ack_s > item.sent_s + SHORT_TIMEOUT_S:
            self._fail(item)
        else:
            heapq.heappush(self._acks, (lane.last_ack_s, self._log.count(), item.delivered, None, offset))

    def cut(self, now_s: float, *, survives: bool) -> None:
        """Lose the connection. If the broker `survives`, records on the wire may arrive when the network is healed."""
        was_reachable = self.connection.reachable(now_s)
        self.connection.cut(now_s)
        answered = self._log.count()  # the answers to what is appended now never come in
        if was_reachable:
            self._append_some()
        for lane in self._lanes.values():
            lane.ticket += 1
            if not self._durable and was_reachable:
                for item in lane.queue:
                    self._fail(item)
                    if survives and self._log.rng.random() < self._log.network.ghost:
                        self._log.haunt(self._client_id, lane.place, item)
                lane.queue.clear()
        heard: list[Answer] = []
        lost: list[Answer] = []
        for entry in sorted(self._acks, key=lambda entry: entry[:2]):  # a heap; what is told late keeps its order
            came_in = entry[0] <= self.connection.cut_s and entry[1] < answered
            (heard if entry[3] is not None or came_in else lost).append(entry)
        self._acks = heard
        heapq.heapify(self._acks)
        for _, _, delivered, _, offset in lost:
            if self._durable:
                self._unheard.append((delivered, offset))
            else:
                heapq.heappush(self._acks, (now_s, self._log.count(), delivered, LogError("connection lost"), -1))

    def mend(self, back_s: float) -> None:
        """Have the connection back at `back_s`. Queued records go on the wire then."""
        self._expire(back_s)
        self.connection.mend(back_s)
        for delivered, offset in self._unheard:
            heapq.heappush(self._acks, (back_s, self._log.count(), delivered, None, offset))
        self._unheard.clear()
        for lane in self._lanes.values():
            lane.ticket += 1
            for item in lane.queue:
                self._put_on_wire(lane, item)
            self._log.schedule(lane)

    def _put_on_wire(self, lane: Lane, item: PendingRecord) -> None:
        start_s = max(self._log.now_s(), self.connection.back_s)
        delay_s = self._log.network.produce_to_s.get(lane.place[0], self._log.network.produce_s)
        lane.last_due_s = item.due_s = max(lane.last_due_s, start_s + self._log.draw(delay_s))

    def _append_some(self) -> None:
        for lane in self._lanes.values():
            for _ in range(self._log.rng.randint(0, len(lane.queue)) if lane.queue else 0):
                self._log.take(lane, self._log.now_s())

    def _expire(self, now_s: float) -> None:
        """Give up records that are too old. Those on the wire may still be appended, and the others are dropped."""
        if self._durable:
            return
        for lane in self._lanes.values():
            for item in lane.queue:
                if item.sent_s + SHORT_TIMEOUT_S <= now_s:
                    self._fail(item)
            if not self.connection.up:
                lane.queue = deque(item for item in lane.queue if item.sent_s + SHORT_TIMEOUT_S > now_s)

    def _fail(self, item: PendingRecord) -> None:
        if item.delivered is not None:
            entry = (item.sent_s + SHORT_TIMEOUT_S, self._log.count(), item.delivered, LogError("timed out"), -1)
            heapq.heappush(self._acks, entry)
            item.delivered = None

    def _check(self) -> None:
        if self._gone:
            raise LogError("the producer is closed")


class MemoryReader:
    """A `tsunagi.runtime.log.Reader` in memory. `MemoryClient.reader` makes it."""

    def __init__(self, cluster: Cluster, client_id: str) -> None:
        self._log = cluster
        self._next: dict[tuple[str, int], int] = {}
        self._stored: dict[tuple[str, int], Partition] = {}  # of all that it was ever given
        self._lag_s = cluster.draw(cluster.network.fetch_s)
        self._turn = 0
        self._gone = False
        self.connection = Connection(cluster.now_s(), up=cluster.reaches(client_id))

    def assign(self, positions: Iterable[Position]) -> None:
        self._next = {}
        for position in positions:
            self.add(position)

    def add(self, position: Position) -> None:
        end = self.range(position.topic, position.partition)[1] if position.offset < 0 else position.offset
        self._stored[position.topic, position.partition] = self._log.stored(position.topic, position.partition)
        self._next[position.topic, position.partition] = end

    def remove(self, topic: str, partition: int) -> None:
        self._next.pop((topic, partition), None)

    def read(self, max_records: int, timeout_s: float, *, gather_s: float | None = None) -> list[Record]:
        del timeout_s, gather_s  # virtual time does not pass here
        with self._log.lock:
            self._check()
            self._log.settle()
            now_s = self._log.now_s()
            reachable = self.connection.reachable(now_s)
            newest_us = self._log.to_us(self.connection.horizon(now_s) - self._lag_s)
            found: list[Record] = []
            places = list(self._next.items())
            self._turn += 1
            begin = self._turn % len(places) if places else 0
            # Each read starts at another partition, so that no partition starves the others.
            for place, begun in places[begin:] + places[:begin]:
                stored = self._stored[place]
                end = stored.end
                if begun == end:
                    continue
                if not stored.first <= begun < end:
                    if not reachable:
                        continue
                    kept = f"the log has {stored.first}..{end}"
                    raise OffsetLostError(f"{place[0]}/{place[1]}: offset {begun} is outside the log: {kept}")
                position, index = begun, stored.index(begun)
                for record in itertools.islice(stored.records, index, index + max_records - len(found)):
                    if record.appended_us > newest_us:
                        break
                    found.append(record)
                    position = record.offset + 1
                self._next[place] = position
                if len(found) >= max_records:
                    break
            if found:
                self._lag_s = self._log.draw(self._log.network.fetch_s)
            return found

    def range(self, topic: str, partition: int) -> tuple[int, int]:
        with self._log.lock:
            self._check()
            self._log.settle()
            if not self.connection.reachable(self._log.now_s()):
                raise LogError(f"{topic}/{partition}: the broker does not answer")
            stored = self._log.stored(topic, partition)
            return stored.first, stored.end

    def traffic(self) -> Traffic:
        return Traffic()

    def close(self) -> None:
        with self._log.lock:
            self._gone = True
            self._log.forget(self)

    crash = close

    def cut(self, now_s: float, *, survives: bool) -> None:
        del survives
        self.connection.cut(now_s)

    def mend(self, back_s: float) -> None:
        self.connection.mend(back_s)

    def _check(self) -> None:
        if self._gone:
            raise LogError("the reader is closed")


class MemoryClient:
    """The log as one node sees it, a `tsunagi.runtime.log.Log`."""

    def __init__(self, cluster: Cluster, client_id: str) -> None:
        self._log = cluster
        self.client_id = client_id

    def producer(self, *, durable: bool = True) -> MemoryProducer:
        made = MemoryProducer(self._log, self.client_id, durable=durable)
        self._log.clients(self.client_id).append(made)
        return made

    def reader(self, *, wait_s: float = 0.1, least_bytes: int = 1, measured: bool = False) -> MemoryReader:
        del wait_s, least_bytes  # virtual time does not pass in a call
        made = MemoryReader(self._log, self.client_id)
        self._log.clients(self.client_id).append(made)
        return made

    def partitions(self, topic: str) -> int:
        if not self._log.reaches(self.client_id):
            raise LogError("the broker does not answer")
        return self._log.layout.get(topic, 0)

    def topic_id(self, topic: str) -> str:
        if not self._log.reaches(self.client_id):
            raise LogError("the broker does not answer")
        return self._log.topic_ids.get(topic, "")

    def crash(self) -> None:
        """Kill the node's process, with its producers and readers. A new process may use the same client again."""
        for made in list(self._log.clients(self.client_id)):
            made.crash()
