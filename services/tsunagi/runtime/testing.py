"""The log in memory under a virtual clock, for tests and for the simulator; the same services run on it.

What makes a simulated log worth having is what real clients do and a list in memory does not
(`tsunagi.runtime.memory_clients`): records wait in producers' queues and drain after a reconnect in any order between
producers; requests in flight when a connection breaks may or may not have been appended; fetches lag behind the end.
All of it is off until `Network` says otherwise, and all of it hangs on one seeded generator and one clock, so that a
run replays from its seed. Nothing ever sleeps: a call returns at once with what is there at the present virtual time.
"""

from __future__ import annotations

import heapq
import random
import threading
from collections.abc import Mapping

from tsunagi.runtime.clock import Clock
from tsunagi.runtime.log import LogError, Record
from tsunagi.runtime.memory_clients import Item, Lane, MemoryProducer, MemoryReader, Network, Partition, Range

__all__ = ["MemoryClient", "MemoryLog", "MemoryProducer", "MemoryReader", "Network"]


class MemoryClient:
    """The log as one node sees it: `tsunagi.runtime.log.Log`."""

    def __init__(self, log: MemoryLog, client_id: str) -> None:
        self._log = log
        self.client_id = client_id

    def producer(self, *, durable: bool = True) -> MemoryProducer:
        made = MemoryProducer(self._log, self.client_id, durable=durable)
        self._log.clients(self.client_id).append(made)
        return made

    def reader(self, *, wait_s: float = 0.1, measured: bool = False) -> MemoryReader:
        del wait_s  # virtual time does not pass in a call
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
        """Kill the node's process, its producers and readers with it; a new one may use the same client again."""
        for made in list(self._log.clients(self.client_id)):
            if isinstance(made, MemoryProducer):
                made.crash()
            else:
                made.close()


class MemoryLog(MemoryClient):
    """The cluster; itself the view of a client named "test".

    Args:
        clock: whose monotonic reading is the log's time.
        partitions: number of partitions by topic.
        network: delays and chances, all off by default.
        rng: where every chance comes from; a run replays from its seed.

    Attributes:
        muted: (client, topic): what that client sends to the topic gets lost, and nobody is told.
    """

    def __init__(
        self,
        clock: Clock,
        partitions: Mapping[str, int],
        *,
        network: Network | None = None,
        rng: random.Random | None = None,
    ) -> None:
        super().__init__(self, "test")
        self.lock = threading.RLock()  # a service's heartbeat thread sends beside its loop
        self.layout = dict(partitions)
        self.topic_ids = {topic: f"{topic}-1" for topic in partitions}
        self.network = network or Network()
        self.rng = rng or random.Random(0)
        self._clock = clock
        self._zero_us = clock.now_us() - round(clock.monotonic() * 1e6)
        self._stored = {(topic, number): Partition() for topic, count in partitions.items() for number in range(count)}
        self._heap: list[tuple[float, float, int, Lane, int]] = []
        self._clients: dict[str, list[MemoryProducer | MemoryReader]] = {}
        self._cut: set[str] = set()
        self.muted: set[tuple[str, str]] = set()
        self._ghosts: dict[str, list[tuple[tuple[str, int], Item]]] = {}
        self._running = True
        self._counter = 0

    # ---- what a test or the simulator does ----

    def client(self, client_id: str) -> MemoryClient:
        """Return the log as that node sees it, so that it can be cut off alone."""
        return MemoryClient(self, client_id)

    def partition_client(self, client_id: str) -> None:
        """Cut one node off."""
        with self.lock:
            self.settle()
            self._cut.add(client_id)
            self._break([client_id], survives=True)

    def heal(self, client_id: str) -> None:
        """Join it again."""
        with self.lock:
            self.settle()
            self._cut.discard(client_id)
            for place, item in self._ghosts.pop(client_id, ()):
                self._append(place, item.key, item.value, self.now_s())
            self._join([client_id])

    def stop(self) -> None:
        """Stop the broker; what it has appended stays."""
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
        """Retention: drop what stands before the offset `first`; return it."""
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
        """Drop each record below the offset `upto` whose key a later one of them has; return what was dropped.

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
        """Lose the log's end, as after an unclean election: nothing stands from the offset `end` on."""
        with self.lock:
            self.settle()
            stored = self.stored(topic, partition)
            del stored.records[stored.index(end) :]

    def make_anew(self, topic: str) -> None:
        """Delete a topic and make it again: it is empty, its offsets begin at 0, and it has another id."""
        with self.lock:
            self.settle()
            for partition in range(self.layout[topic]):
                stored = self.stored(topic, partition)
                stored.records.clear()
                stored.first = 0
            name, _, count = self.topic_ids[topic].rpartition("-")
            self.topic_ids[topic] = f"{name}-{int(count) + 1}"

    def append(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> int:
        """Append a record at once, past all producers; return its offset."""
        with self.lock:
            self.settle()
            return self._append((topic, partition), key, value, self.now_s())

    def records(self, topic: str, partition: int | None = None) -> list[Record]:
        """Return what stands in a partition now (None: in all of them, one after another)."""
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
        """Return a delay, seconds."""
        low, high = between
        return low if low == high else self.rng.uniform(low, high)

    def count(self) -> int:
        """Return a number greater than all before."""
        self._counter += 1
        return self._counter

    def clients(self, client_id: str) -> list[MemoryProducer | MemoryReader]:
        """Return the living clients of a node."""
        return self._clients.setdefault(client_id, [])

    def forget(self, made: MemoryProducer | MemoryReader) -> None:
        """Drop a client that is no more."""
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
        """Put the head of a lane on the wire; heads due at the same time are appended in any order."""
        if lane.queue and lane.producer.connection.up:
            lane.ticket += 1
            heapq.heappush(self._heap, (lane.queue[0].due_s, self.rng.random(), self.count(), lane, lane.ticket))

    def settle(self) -> None:
        """Append all that has arrived by now, in the order of arrival."""
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
        """Append the head of a lane."""
        item = lane.queue.popleft()
        lane.producer.appended(lane, item, at_s, self._append(lane.place, item.key, item.value, at_s))

    def haunt(self, client_id: str, place: tuple[str, int], item: Item) -> None:
        """Append it when the node is healed, although its producer has given it up."""
        self._ghosts.setdefault(client_id, []).append((place, item))

    def _append(self, place: tuple[str, int], key: bytes | None, value: bytes | None, at_s: float) -> int:
        stored = self.stored(*place)
        appended_us = self.to_us(at_s) // 1000 * 1000  # the broker keeps milliseconds
        stored.records.append(Record(*place, stored.end, appended_us, key, value))
        return stored.end - 1

    def _break(self, client_ids: list[str], *, survives: bool) -> None:
        for client_id in client_ids:
            for made in self.clients(client_id):
                if isinstance(made, MemoryProducer):
                    made.cut(self.now_s(), survives=survives)
                else:
                    made.connection.cut(self.now_s())

    def _join(self, client_ids: list[str]) -> None:
        for client_id in client_ids:
            if not self.reaches(client_id):
                continue
            for made in self.clients(client_id):
                if made.connection.up:
                    continue
                back_s = self.now_s() + self.draw(self.network.reconnect_s)
                if isinstance(made, MemoryProducer):
                    made.mend(back_s)
                else:
                    made.connection.mend(back_s)
        self.settle()
