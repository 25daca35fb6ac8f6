"""The control plane of a large fleet in virtual time: what a worker reads of the others, how soon deaths are noticed.

    python -m tests.bench.fleet_virtual --workers 400 --slots 8000 --edges 4000 --seconds 20 --kill 20 --out FILE

The real worker hosts and the real scaler run on the log in memory; edges are their heartbeats' bytes. Each slot
that has sensors gets a record of one reading each second, and its owner acknowledges it. Workers die one by one, then
many at once. The file gets one JSON object:

- read_kb_s: bytes of control that a worker read in a second; told without a death, and over the whole run. Control is
  heartbeats, `plan`, acknowledgements and the control records of slots' logs. What standbys read of readings and
  contexts is not: its limit is the user's.
- core_share: CPU seconds for each virtual second in which a worker took in control and wrote its heartbeats, of every
  fourth worker. It is measured on this machine, with all workers in one process: the caches are cold for each of them.
- detect_s: from the death of an owner until the log has another one's claim, of deaths one by one.
- together_s: after many deaths at once, until the last of their slots is owned again.
- suspected: claims of slots whose owner lived and that the plan did not move.
"""

from __future__ import annotations

import argparse
import gc
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from tests.bench import outcome
from tests.bench.system import say
from tsunagi.runtime import log as topics
from tsunagi.runtime.beat_routes import CellRoutes
from tsunagi.runtime.cells import Cells, cells_for, partitions_for
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.log import Record
from tsunagi.runtime.memory_clients import MemoryClient, MemoryReader
from tsunagi.runtime.message_reading import read_message
from tsunagi.runtime.messages import VERSION, Heartbeat, LogRecord, Plan, TupleBatch
from tsunagi.runtime.plan import MOVE
from tsunagi.runtime.sensors import Sensor, SensorTable, place
from tsunagi.runtime.settings import QuerySettings, ScalerSettings, Settings, SlotsSettings, StandbySettings
from tsunagi.runtime.testing import MemoryLog, Network
from tsunagi.scaler.scaler import Scaler
from tsunagi.slot.parsing import parse
from tsunagi.worker import host as worker_host
from tsunagi.worker.host import ANNOUNCE_S, ReplicaHost

TICK_S = 0.01
"""Shortest time between two turns of anybody, seconds."""
TURN_S = 0.1
"""A worker takes a turn so often, seconds. A real one takes one each 0.02 s at least, and notices deaths earlier."""
SCALER_TURN_S = 0.05
SCALER_TURNS = 5
"""The scaler takes so many turns at once: a real one takes the next one without a pause if there is more to read."""
CONTROL = (topics.HEARTBEATS, topics.PLAN, topics.ACKS)
"""Topics that have control alone. Of slots' logs the records whose key begins with an exclamation mark count."""
NETWORK = Network(produce_s=(0.001, 0.004), ack_s=(0.001, 0.002), fetch_s=(0.002, 0.02))
READING_S = 1.0
"""A slot gets a record so often, seconds."""
KEPT_S = 5.0
"""Heartbeats that are older are dropped from the log in memory, seconds."""
SETTLE_S = 3.0
"""Seconds from the moment when all slots are owned and protected until figures are taken."""
TIMED = 4
"""One worker in this number is timed. To time all would take long: a look at the clock costs as much as a heartbeat."""
PROTECT_S = 6.0
"""Seconds after the last death until it is looked at whether all slots have a secondary again. Those of the dead are
planned anew once the scaler has not heard of them for two seconds."""
BOOT_S = 90.0
APART_S = 4.0
"""Seconds between two deaths one by one. By then the slots of the first have secondaries again."""

_silent = structlog.wrap_logger(
    structlog.PrintLogger(), processors=[lambda *_: (_ for _ in ()).throw(structlog.DropEvent)]
)


@lru_cache(maxsize=100_000)
def _plan_of(value: bytes) -> Plan:
    return Plan.FromString(value)


def _shared_plans() -> None:
    """Let all workers share the messages of `plan`: a thousand copies of a plan for many slots fill a machine."""

    def shared(kind: Any, record: Record, logger: Any) -> Any:
        if kind is Plan and record.value is not None:
            return _plan_of(record.value)
        return read_message(kind, record, logger)

    vars(worker_host)["read_message"] = shared


class CountingClient(MemoryClient):
    """The log as one worker sees it; it counts the bytes of what the worker reads, by topic."""

    def __init__(self, cluster: MemoryLog, client_id: str) -> None:
        super().__init__(cluster, client_id)
        self.bytes: Counter[str] = Counter()

    def reader(self, *, wait_s: float = 0.1, least_bytes: int = 1, measured: bool = False) -> MemoryReader:
        made = super().reader(wait_s=wait_s, least_bytes=least_bytes, measured=measured)
        read = made.read

        def counted(max_records: int, timeout_s: float, *, gather_s: float | None = None) -> list[Record]:
            found = read(max_records, timeout_s, gather_s=gather_s)
            for record in found:
                if record.topic in CONTROL or (record.key or b"").startswith(b"!"):
                    self.bytes[record.topic] += len(record.value or b"") + len(record.key or b"")
            return found

        made.read = counted  # type: ignore[method-assign]
        return made


class Worker:
    """One worker: its host, what it read, and for how long it was busy with that, seconds.

    Args:
        timed: whether it is measured how long it is busy.
    """

    def __init__(
        self, name: str, settings: Settings, table: SensorTable, log: MemoryLog, clock: ManualClock, *, timed: bool
    ) -> None:
        self.name = name
        self.client = CountingClient(log, name)
        self.busy_s = 0.0
        self._clock = clock
        self.host = ReplicaHost(settings, name, table, self.client, clock, _silent, threads=False)
        self._take_in = self.host._dispatch
        self.timed = timed
        if timed:
            self.host._dispatch = self._dispatch  # type: ignore[method-assign]
        self.host._announce = self._announce  # type: ignore[method-assign]
        self.host._gauges.due = lambda now: now < 0.0  # type: ignore[method-assign]
        self.announced_by = 0.0

    def _dispatch(self, record: Record) -> None:
        began = time.thread_time()
        self._take_in(record)
        self.busy_s += time.thread_time() - began

    def _announce(self) -> bool:
        """Announce, and wait until the log has it: virtual time does not pass in a call."""
        self.beat()
        self.announced_by = self._clock.monotonic() + ANNOUNCE_S
        return True

    def step(self) -> None:
        """Take a turn, unless it waits for an announcement."""
        if self.announced_by:
            waits: bool = self.host.heartbeats._producer.queued > 0  # type: ignore[attr-defined]
            if waits and self._clock.monotonic() < self.announced_by:
                return
            self.announced_by = 0.0
            if waits:
                for replica in self.host.replicas.values():
                    replica.on_unannounced()
        self.host.step()

    def beat(self) -> None:
        """Send a heartbeat."""
        if not self.timed:
            self.host.heartbeats.send()
            return
        began = time.thread_time()
        self.host.heartbeats.send()
        self.busy_s += time.thread_time() - began


Taken = dict[str, tuple[Counter[str], float]]
"""What each worker did so far, by its name: (bytes of control that it read, by topic; seconds that this took it)."""


class VirtualFleet:
    """Workers, scaler and edges on the log in memory, in virtual time."""

    def __init__(self, workers: int, slots: int, edges: int, *, seed: int = 1, cells: int = 0) -> None:
        self.clock = ManualClock()
        self.rng = random.Random(seed)
        self.slots = slots
        self.cells = Cells(cells_for(slots, cells))
        layout = dict.fromkeys(topics.TOPICS, 1) | dict.fromkeys(
            (topics.TUPLES, topics.RECOVERED, topics.CONTEXTS), slots
        )
        layout[topics.HEARTBEATS], layout[topics.ACKS] = partitions_for(self.cells.count), self.cells.count
        self.log = MemoryLog(self.clock, layout, network=NETWORK, rng=random.Random(seed + 1))
        self.settings = Settings(
            slots=SlotsSettings(count=slots),
            standby=StandbySettings(cells=self.cells.count),
            scaler=ScalerSettings(workers=min(workers, 10_000), launcher="none"),
            query=QuerySettings(mode="tuples", operators=()),
        )
        each = max(self.settings.slots.per_edge, -(-slots // edges))
        names = [f"e{number}" for number in range(edges)]
        table = SensorTable(tuple(Sensor(i, f"s{i}", names[i // each]) for i in range(edges * each)))
        placed = place(table, slots, cells=self.cells.count)
        first = {slot: i for i, slot in reversed(list(enumerate(placed.tolist())))}
        self._senders = [first.get(slot, -1) for slot in range(slots)]  # of each slot, a sensor; -1 = it has none
        self._routes = [
            (name, CellRoutes(self.cells, self.settings.standby.edge_heartbeat_s), set(placed[n * each :][:each]))
            for n, name in enumerate(names)
        ]
        self.workers = {
            name: Worker(name, self.settings, table, self.log, self.clock, timed=number % TIMED == 0)
            for number, name in enumerate(f"worker-{number}" for number in range(workers))
        }
        self.scaler = Scaler(self.settings, table, self.log.client("scaler"), self.clock, _silent)
        self.scaler_s = 0.0
        self._ticks = 0
        self._edge_beats = 0
        self._table = table
        self._edge_producer = self.log.client("edges").producer(durable=False)
        self._readings = self.log.client("edges").producer()
        self._claims = [0] * slots  # how far each slot's log was looked at
        self._owner: dict[int, str] = {}
        self.claimed: list[tuple[int, str, str, float]] = []  # slot, owner before, owner, when; of changes alone

    @property
    def slots_with_readings(self) -> int:
        return sum(sensor >= 0 for sensor in self._senders)

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        while self.now < until - 1e-9:
            self.clock.advance(TICK_S)
            self._tick()

    def _tick(self) -> None:
        self._ticks += 1
        beats, turns = (round(time_s / TICK_S) for time_s in (self.settings.standby.heartbeat_s, TURN_S))
        self._beat_edges()
        self._send_readings()
        for number, worker in enumerate(list(self.workers.values())):
            if (self._ticks + number) % beats == 0:
                worker.beat()
            if (self._ticks + number + turns // 2) % turns == 0:  # a heartbeat has arrived by then
                worker.step()
        began = time.thread_time()
        if self._ticks % beats == 0:
            self.scaler.heartbeats.send()
        if self._ticks % round(SCALER_TURN_S / TICK_S) == 0:
            for _ in range(SCALER_TURNS):
                self.scaler.step()
        self.scaler_s += time.thread_time() - began
        if self._ticks % round(1 / TICK_S) == 0:
            self._forget()

    def _beat_edges(self) -> None:
        """Let each edge's heartbeat come once in its interval, spread over the ticks."""
        every = round(self.settings.standby.edge_heartbeat_s / TICK_S)
        for name, routes, slots in self._routes[self._ticks % every :: every]:
            self._edge_beats += 1
            beat = Heartbeat(
                version=VERSION,
                node=name,
                role="edge",
                incarnation=1,
                sequence=self._ticks,
                sent_us=self.clock.now_us(),
                metrics_port=9000,
                metrics_host=f"{name}.example.com",
                pid=1,
                step=self._ticks,
            )
            for partition, value in routes.split(beat, slots):
                self._edge_producer.send(topics.HEARTBEATS, partition, name.encode(), value)
        self._edge_producer.poll(0)

    def _send_readings(self) -> None:
        """Let each slot get a record each second, spread over the ticks."""
        every = round(READING_S / TICK_S)
        for slot in range(self._ticks % every, self.slots, every):
            sensor = self._senders[slot]
            if sensor < 0:
                continue
            edge = self._table.sensors[sensor].edge
            batch = TupleBatch(
                edge=edge,
                incarnation=1,
                step=self._ticks // every,
                event_time_us=self.clock.now_us(),
                sensor=np.array([sensor], dtype="<u4").tobytes(),
                value=np.array([1.0], dtype="<f8").tobytes(),
                count=np.array([1], dtype="<u4").tobytes(),
            )
            value = LogRecord(version=VERSION, batch=batch).SerializeToString()
            self._readings.send(topics.TUPLES, slot, edge.encode(), value)
        self._readings.poll(0)

    def _forget(self) -> None:
        before_us = self.clock.now_us() - round(KEPT_S * 1e6)
        for partition in range(partitions_for(self.cells.count)):
            records = self.log.stored(topics.HEARTBEATS, partition).records
            keep = next((record.offset for record in records if record.appended_us >= before_us), None)
            if keep is not None:
                self.log.truncate(topics.HEARTBEATS, partition, keep)

    def look(self) -> None:
        """Follow who owns the slots, by their logs."""
        for slot in range(self.slots):
            stored = self.log.stored(topics.TUPLES, slot)
            if stored.end == self._claims[slot]:
                continue
            for record in stored.records[stored.index(self._claims[slot]) :]:
                message, _, kind = parse(record)
                if message is not None and kind == "ownership":
                    before, owner = self._owner.get(slot, ""), message.ownership.node
                    if before and owner != before:
                        self.claimed.append((slot, before, owner, record.appended_us / 1e6))
                    self._owner[slot] = owner
            self._claims[slot] = stored.end

    def unowned(self) -> list[int]:
        """Return the slots that no living worker owns, by their logs."""
        self.look()
        return [slot for slot in range(self.slots) if self._owner.get(slot) not in self.workers]

    def ready(self) -> set[int]:
        """Return the slots that have a ready secondary on a living worker."""
        return {
            slot
            for worker in self.workers.values()
            for slot, replica in worker.host.replicas.items()
            if replica.role == "standby" and not replica.unready()
        }

    def start(self) -> None:
        """Run until each slot is owned and protected.

        Raises:
            TimeoutError: that took longer than `BOOT_S`.
        """
        while self.unowned() or len(self.ready()) < self.slots:
            if self.now > BOOT_S:
                raise TimeoutError(
                    f"{len(self.unowned())} slots have no owner, {self.slots - len(self.ready())} no secondary"
                )
            self.run(0.5)
            say(f"{self.now:.1f} s: {len(self.unowned())} slots without an owner, {len(self.ready())} protected")

    def kill(self, name: str) -> set[int]:
        """Kill a worker; return the slots that it owned."""
        self.look()
        self.workers.pop(name).client.crash()
        return {slot for slot, owner in self._owner.items() if owner == name}

    def back(self, slots: set[int], within_s: float) -> dict[int, float]:
        """Wait until these slots are owned again; return after how many seconds each was, infinite = not in time."""
        began, began_s = self.now, self.clock.now_us() / 1e6
        while self.now - began < within_s and any(self._owner.get(slot) not in self.workers for slot in slots):
            self.run(0.1)
            self.look()
        claimed = [item for item in self.claimed if item[3] >= began_s and item[2] in self.workers]
        at = {slot: when - began_s for slot, _, _, when in claimed}
        return {slot: at.get(slot, float("inf")) for slot in slots}

    def moves(self) -> set[tuple[int, str]]:
        """Return (slot, target) of each move that the plan ever wished."""
        plans = [Plan.FromString(record.value or b"").assignment for record in self.log.records(topics.PLAN)]
        return {(wish.slot, wish.owner) for wish in plans if wish.reason == MOVE}

    def take(self) -> Taken:
        """Return of each worker the bytes that it read, and how long it was busy (0 = not timed), since the start."""
        return {name: (worker.client.bytes.copy(), worker.busy_s) for name, worker in self.workers.items()}


def spread(values: Iterable[float], digits: int = 2) -> dict[str, float]:
    """Return median, 99th percentile and maximum."""
    found = np.array(list(values), dtype=float)
    p50, p99 = np.percentile(found, (50, 99))
    return {"p50": round(p50, digits), "p99": round(p99, digits), "max": round(found.max(), digits)}


def figures(before: Taken, after: Taken, seconds: float) -> dict[str, Any]:
    """Return what the workers that lived read, and how busy they were, between two looks."""
    lived = before.keys() & after.keys()
    read = [(after[name][0].total() - before[name][0].total()) / seconds / 1e3 for name in lived]
    busy = [(after[name][1] - before[name][1]) / seconds for name in lived if after[name][1]]
    by_topic: Counter[str] = Counter()
    for name in lived:
        by_topic.update(after[name][0])
        by_topic.subtract(before[name][0])
    return {
        "read_kb_s": spread(read),
        "read_kb_s_by_topic": {at: round(count / len(lived) / seconds / 1e3, 2) for at, count in by_topic.items()},
        "core_share": spread(busy, 4),
    }


def bench(workers: int, slots: int, edges: int, seconds: float, kill: int, seed: int = 1) -> dict[str, Any]:
    """Run a fleet; return its figures."""
    _shared_plans()
    began = time.perf_counter()
    fleet = VirtualFleet(workers, slots, edges, seed=seed)
    gc.collect()
    gc.disable()  # else looking for cycles in all workers' objects would count for whoever is at work just then
    fleet.start()
    started, boot_s = fleet.now, time.perf_counter() - began
    say("all slots are owned and protected")
    fleet.run(SETTLE_S)
    scaler_s, before, at = fleet.scaler_s, fleet.take(), fleet.now
    fleet.run(seconds)
    calm = figures(before, fleet.take(), fleet.now - at)
    calm["scaler_core_share"] = round((fleet.scaler_s - scaler_s) / (fleet.now - at), 3)
    held = [len({fleet.cells.of(slot) for slot in worker.host.replicas}) for worker in fleet.workers.values()]
    calm["cells_of_a_worker"] = spread(held)
    dead: set[str] = set()
    single: list[float] = []
    for _ in range(round(seconds)):
        fleet.run(fleet.rng.uniform(0, 0.3))  # anywhere between two heartbeats
        name = fleet.rng.choice(sorted(fleet.workers))
        dead.add(name)
        single += fleet.back(fleet.kill(name), 10.0).values()
        fleet.run(APART_S)
        say(f"{fleet.now:.1f} s: {len(dead)} of {round(seconds)} died one by one")
    fleet.run(SETTLE_S)
    names = fleet.rng.sample(sorted(fleet.workers), kill)
    dead.update(names)
    lost: set[int] = set()
    for name in names:
        lost |= fleet.kill(name)
    both = len(lost - fleet.ready())
    together = fleet.back(lost, 30.0)
    fleet.run(PROTECT_S)
    whole = figures(before, fleet.take(), fleet.now - at)
    moves = fleet.moves()
    suspected = [
        (slot, before, owner)
        for slot, before, owner, _ in fleet.claimed
        if before not in dead and (slot, owner) not in moves
    ]
    return {
        "bench": "fleet_virtual",
        "workers": workers,
        "slots": slots,
        "edges": edges,
        "cells": fleet.cells.count,
        "slots_with_readings": fleet.slots_with_readings,
        "virtual_s": round(fleet.now, 1),
        "wall_s": round(time.perf_counter() - began, 1),
        "boot_wall_s": round(boot_s, 1),
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "owned_and_protected_after_s": round(started, 1),
        "calm": calm,
        "with_deaths": whole,
        "single_deaths": round(seconds),
        "detect_s": spread(single),
        "killed_together": kill,
        "slots_lost_together": len(lost),
        "slots_without_a_secondary": both,
        "together_s": spread(together.values()),
        "suspected": len(suspected),
        "moved": sum((slot, owner) in moves for slot, _, owner, _ in fleet.claimed),
        "unowned_at_the_end": len(fleet.unowned()),
        "unprotected_at_the_end": slots - len(fleet.ready()),
        "bounds": {"read_kb_s": 100, "core_share": 0.02, "detect_p99_s": 1.0, "together_s": 5.0, "suspected": 0},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=20_000)
    parser.add_argument("--edges", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=20.0, help="time without a death, and as many single deaths")
    parser.add_argument("--kill", type=int, default=50, help="workers that die at once")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    found = bench(options.workers, options.slots, options.edges, options.seconds, options.kill, options.seed)
    outcome.write(found, options.out)
    sys.stdout.write(options.out.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
