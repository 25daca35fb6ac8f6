"""Simulated edges: they publish as `tsunagi.edge` does, and follow clocks by the rules of its service."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from tests.simulation.fleet import SLOTS
from tests.simulation.nodes import NodeClock
from tsunagi.query.form import table_columns
from tsunagi.query.values import Kind
from tsunagi.runtime import log as topics
from tsunagi.runtime.beat_routes import CellRoutes
from tsunagi.runtime.cells import ONE, Cells
from tsunagi.runtime.clock import SteadyClock
from tsunagi.runtime.columns import pack_floats, pack_sensors, sensors
from tsunagi.runtime.door import UnusableError, decode
from tsunagi.runtime.log import Producer
from tsunagi.runtime.messages import VERSION, Heartbeat, HelperRequest, LogRecord, Plan, TupleBatch
from tsunagi.runtime.moving import SensorSlots
from tsunagi.runtime.plan import Words
from tsunagi.runtime.settings import Settings
from tsunagi.runtime.testing import MemoryClient, MemoryLog

HEARD_S = 0.5
"""An edge that has been up for so long knows the log's time from the answers to its batches."""


def value(sensor: int, step: int) -> float:
    """What a sensor reads."""
    return 10.0 * sensor + math.sin(step / 7 + sensor)


class Asked:
    """What slots have asked for of the sensors of others, as far as `plan` was read; all edges read it as one."""

    def __init__(self, log: MemoryLog, words: Words) -> None:
        self._log = log
        self._words = words
        self._read = 0
        self._requests: dict[int, HelperRequest] = {}

    def of(self, own: set[int]) -> dict[int, list[int]]:
        """Read on; return which of these sensors are asked for, by the slot that asks."""
        records = self._log.stored(topics.PLAN, 0).records
        for record in records[self._read :]:
            if not (record.key or b"").startswith(b"helpers/"):
                continue
            try:
                plan = decode(Plan, record.value)
            except UnusableError:
                continue
            if plan.helpers.slot < SLOTS and self._words.take(plan, record.offset):
                self._requests[plan.helpers.slot] = plan.helpers
        self._read = len(records)
        found = {slot: sorted(own & set(sensors(request.sensor).tolist())) for slot, request in self._requests.items()}
        return {slot: ids for slot, ids in found.items() if ids}


EVERY = 3
"""An edge sends an event at every third step."""
KINDS = {"time": Kind.TIMESTAMP, "by": Kind.TEXT, "weight": Kind.DOUBLE}
"""The columns of events."""


@dataclass
class SimEdge:
    """Publishes one batch a step and slot, in order, as `tsunagi.edge` does.

    Attributes:
        sensors: by slot.
        clock: the machine's; `steady`: the process's, which goes on past its jumps as the real edge's does.
        was_right: the machine's clock was, when this process began.
        sent: (slot, incarnation, event time) -> when it was handed over.
        died: incarnation -> when.
        anew: incarnations that began anew at a lower step, since their clock had been too fast.
        routes: the slots of sensors before and after a move; None = none has moved: they are where `sensors` says.
        goes_by_at: when it goes by the table that was put in force last; infinite = it does already.
        poison: a reading of its next step will be this value; None = what the sensor reads.
    """

    name: str
    log: MemoryLog
    client: MemoryClient
    settings: Settings
    sensors: dict[int, list[int]]
    clock: NodeClock
    steady: SteadyClock = field(init=False)
    was_right: bool = True
    producer: Producer | None = None
    beats: Producer | None = None
    beat_at: float = 0.0
    beats_sent: int = 0
    next_step: int = 0
    incarnation: int = 0
    alive_from: float = 0.0
    paused: bool = False
    repeats: bool = False
    goes_by_at: float = math.inf
    routes: SensorSlots | None = None
    poison: float | None = None
    sent: dict[tuple[int, int, int], float] = field(default_factory=dict)
    died: dict[int, float] = field(default_factory=dict)
    anew: set[int] = field(default_factory=set)
    cells: Cells = ONE

    def __post_init__(self) -> None:
        self._routes = CellRoutes(self.cells, self.settings.standby.edge_heartbeat_s)
        self.steady = SteadyClock(self.clock)

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    @property
    def step_over(self) -> int:
        """The last step that is over by the edge's own clock."""
        return self.steady.now_us() // self.settings.steps.slide_us

    def turn(self, asked: Asked, rng: random.Random) -> None:
        """Start if nobody runs, publish each step that is over, and beat."""
        if self.now < self.alive_from or self.paused:
            return
        if self.producer is None or self.beats is None:
            self.producer = self.client.producer()
            self.beats = self.client.producer(durable=False)
            self._begin(rng)
        self._follow_clock()
        until = self.step_over
        own = {sensor for ids in self.sensors.values() for sensor in ids}
        lent = asked.of(own) if self.next_step <= until else {}
        while self.next_step <= until:
            placed = self._placed(self.next_step * self.settings.steps.slide_us)
            for slot in sorted({*placed, *lent}):
                ids = placed.get(slot, [])
                self._publish(self.producer, slot, ids, [sensor for sensor in lent.get(slot, []) if sensor not in ids])
            self.next_step += 1
        if self.now - self.beat_at >= self.settings.standby.edge_heartbeat_s:
            self.beat_at = self.now
            self.beat()

    def beat(self, *, leaving: bool = False) -> None:
        """Send a heartbeat, if the process runs."""
        if self.beats is None:
            return
        self.beats_sent += 1
        beat = Heartbeat(
            version=VERSION,
            node=self.name,
            role="edge",
            incarnation=self.incarnation,
            sequence=self.beats_sent,
            leaving=leaving,
            step=self.next_step - 1,
        )
        for partition, value in self._routes.split(beat, self.sensors):
            self.beats.send(topics.HEARTBEATS, partition, self.name.encode(), value)
        self.beats.poll()

    def _begin(self, rng: random.Random) -> None:
        """Go on with the present, or from the note of where the edge was, which is a little old."""
        self.steady, self.was_right = SteadyClock(self.clock), self.clock.right
        self.incarnation = max(self.steady.now_us() * 1000, self.incarnation + 1)
        present = self.step_over
        noted = max(self.next_step - rng.choice((1, 2)), present - 20)
        self.next_step = noted if self.repeats else max(present + 1, self.next_step)
        ahead_steps = round(self.settings.steps.max_ahead_s / self.settings.steps.slide_s)
        if self.next_step > present + ahead_steps:  # the note is of a time to come: the clock was set back
            self.next_step = present + 1

    def _follow_clock(self) -> None:
        """Go on past a jump of the machine's clock, or follow it, by the rules of `tsunagi.edge.service`."""
        if self.log.reaches(self.name) and self.now - self.alive_from > HEARD_S:
            self.steady.hear(self.clock.base.now_us(), self.now)
        moved_us = self.steady.look()
        if moved_us < -self.settings.steps.max_ahead_s * 1e6:
            self.next_step = self.step_over + 1  # the slots refused what it sent: it begins anew
            self.anew.add(self.incarnation)
        elif moved_us > self.settings.steps.max_ahead_s * 1e6:
            self.next_step = self.step_over  # there is no reading of the time between

    def _placed(self, event_time_us: int) -> dict[int, list[int]]:
        """Return the sensors by slot, for a step that ends then."""
        if self.routes is None:
            return self.sensors
        slots = self.routes.sending[event_time_us > self.routes.from_us]
        found: dict[int, list[int]] = {}
        for sensor in sorted(sensor for ids in self.sensors.values() for sensor in ids if sensor < len(slots)):
            found.setdefault(int(slots[sensor]), []).append(sensor)
        return found

    def _publish(self, producer: Producer, slot: int, ids: list[int], helpers: list[int]) -> None:
        """Send a slot its batch of the next step, with what its `helpers` read."""
        step = self.next_step
        batch = TupleBatch(
            edge=self.name,
            incarnation=self.incarnation,
            step=step * self.settings.steps.slide_us // self.settings.slide_us,
            event_time_us=step * self.settings.steps.slide_us,
            sensor=pack_sensors(ids),
            value=pack_floats([value(sensor, step) for sensor in ids]),
            count=pack_sensors([10] * len(ids)),
            helper=pack_sensors(helpers),
            helper_value=pack_floats([value(sensor, step) for sensor in helpers]),
        )
        if ids and step % EVERY == 0 and self.settings.query.mode == "steps":
            cells = [{"time": batch.event_time_us, "by": self.name, "weight": None}]
            batch.events.add(stream="doors", rows=1, column=table_columns(cells, KINDS))
        if ids and self.poison is not None:
            batch.value = pack_floats([self.poison] * len(ids))
            self.poison = None
        if ids:
            self.sent[slot, self.incarnation, batch.event_time_us] = self.now
        record = LogRecord(version=VERSION, batch=batch)
        producer.send(topics.TUPLES, slot, self.name.encode(), record.SerializeToString())
