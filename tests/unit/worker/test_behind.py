"""Two workers, each the other's standby, that keep to a rate: what becomes of them when they have fallen behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
import structlog

from tsunagi.runtime import log as topics
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.columns import pack_floats, pack_sensors
from tsunagi.runtime.log import ACKS, PLAN, RECOVERED, TUPLES, Record
from tsunagi.runtime.messages import (
    VERSION,
    Ack,
    Assignment,
    Heartbeat,
    LogRecord,
    Placement,
    Plan,
    Recovered,
    TupleBatch,
)
from tsunagi.runtime.output_runs import outputs_of
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import OperatorSettings, QuerySettings, Settings, SlotsSettings, StandbySettings
from tsunagi.runtime.testing import MemoryLog
from tsunagi.standby import intake
from tsunagi.standby.stages.base import ReplicaStage
from tsunagi.worker import overload
from tsunagi.worker.host import ReplicaHost
from tsunagi.worker.slot_reader import MAX_RECORDS

LIMIT = 100.0
"""Tuples/s of a worker."""
RATE = 60.0
"""Tuples/s of either slot: what one worker takes, and less than it would have with the other's slot as well."""
BURST = 300
TICK_S = 0.02
TABLE = SensorTable((Sensor(0, "a", "edge"), Sensor(1, "b", "edge")))

_silent = structlog.wrap_logger(structlog.ReturnLogger(), processors=[lambda *_: ((), {})])


@dataclass
class OwnTime:
    """A worker's clock: while it rests, nobody else does."""

    base: ManualClock
    at: float = 0.0

    def monotonic(self) -> float:
        return max(self.base.monotonic(), self.at)

    def now_us(self) -> int:
        return self.base.now_us()

    def sleep(self, seconds: float) -> None:
        self.at = self.monotonic() + seconds


class Plant:
    """Both workers on one log.

    Args:
        owners: the owner of either slot. The other worker is its secondary.
    """

    def __init__(self, owners: str = "ab") -> None:
        self._owners = owners
        self.clock = ManualClock()
        layout = dict.fromkeys(topics.TOPICS, 1) | dict.fromkeys((TUPLES, RECOVERED, topics.CONTEXTS), 2)
        self.log = MemoryLog(self.clock, layout)
        settings = Settings(
            slots=SlotsSettings(count=2),
            standby=StandbySettings(batch_size=100, context_s=0.5),
            query=QuerySettings(mode="tuples", operators=(OperatorSettings(use="select"),)),
        )
        self._producer = self.log.producer()
        placement = Placement(serial=1, slots=2, slot=pack_sensors([0, 1]), table_sha256=TABLE.digest(2))
        self._plan(b"placement", Plan(version=VERSION, placement=placement))
        for slot, owner in enumerate(owners):
            secondary = "b" if owner == "a" else "a"
            wish = Assignment(slot=slot, owner=owner, secondary=secondary, serial=1, reason="test")
            self._plan(f"assignment/{slot}".encode(), Plan(version=VERSION, assignment=wish))
        self._producer.flush(1.0)
        clocks = {name: OwnTime(self.clock) for name in ("a", "b")}
        self.hosts = {
            name: ReplicaHost(settings, name, TABLE, self.log.client(name), clock, _silent, limit=LIMIT, threads=False)
            for name, clock in clocks.items()
        }
        self._clocks = clocks
        self._due = self._beat_at = 0.0
        self.sent = 0

    def _plan(self, key: bytes, plan: Plan) -> None:
        self._producer.send(PLAN, 0, key, plan.SerializeToString())

    def send(self, count: int, slots: Sequence[int] = (0, 1)) -> None:
        """Send so many tuples to each of the slots."""
        for _ in range(count):
            self.sent += 1
            step = self.clock.now_us() + self.sent
            for sensor in slots:
                batch = TupleBatch(edge="edge", incarnation=1, step=step, event_time_us=step)
                batch.sensor, batch.count = pack_sensors([sensor]), pack_sensors([1])
                batch.value = pack_floats([1.0])
                self._producer.send(
                    TUPLES, sensor, b"edge", LogRecord(version=VERSION, batch=batch).SerializeToString()
                )
        self._producer.flush(1.0)

    def run(self, seconds: float, rate: float) -> None:
        until = self.clock.monotonic() + seconds
        while self.clock.monotonic() < until:
            self.clock.advance(TICK_S)
            self._due += rate * TICK_S
            self.send(int(self._due))
            self._due -= int(self._due)
            now = self.clock.monotonic()
            if now >= self._beat_at:
                self._beat_at = now + 0.1
                for host in self.hosts.values():
                    host.heartbeats.send()
            for name, host in self.hosts.items():
                if self._clocks[name].at <= now:
                    host.step()

    def behind(self) -> list[int]:
        """Return how many records each slot's owner has not processed."""
        owners = [self.hosts[owner].replicas[slot] for slot, owner in enumerate(self._owners)]
        assert [replica.stage for replica in owners] == [ReplicaStage.OWN, ReplicaStage.OWN]
        return [self.log.stored(TUPLES, replica.slot_id).end - replica.slot.position for replica in owners]

    def outputs(self, slot: int) -> list[tuple[Record, Recovered]]:
        """Return each output of a slot with the record in which it stands."""
        return [
            (record, message)
            for record in self.log.records(RECOVERED, slot)
            for message in outputs_of(Recovered.FromString(record.value or b""))
        ]

    def resume_points(self) -> list[int]:
        """Return the newest of each slot."""
        found = [0, 0]
        for record in self.log.records(ACKS):
            level1 = Ack.FromString(record.value or b"").level1
            found[level1.slot] = max(found[level1.slot], level1.offset)
        return found


def test_workers_that_fell_behind_catch_up_although_each_is_the_others_standby() -> None:
    plant = Plant()
    plant.run(5.0, RATE)
    assert max(plant.behind()) < RATE / 4
    plant.send(BURST)
    plant.run(3.0, RATE)
    assert min(plant.behind()) > BURST / 3
    assert min(plant.resume_points()) > 6.0 * RATE  # what was done meanwhile is trimmed
    plant.run(9.0, RATE)  # LIMIT - RATE a second, less a tenth of the time for standing by
    assert max(plant.behind()) < RATE / 4
    standby = plant.hosts["a"].replicas[1]
    assert plant.log.stored(TUPLES, 1).end - standby.slot.position < 2 * RATE  # contexts took it along
    plant.run(2.0, 0.0)
    for slot in (0, 1):
        names = [(value.offset, value.index) for _, value in plant.outputs(slot)]
        assert names == sorted(set(names))
        assert len(names) == plant.sent


def test_a_full_read_alone_is_no_sign_of_being_behind() -> None:
    """At a high rate each read is full, and the worker may have time all the same."""
    plant = Plant()
    plant.run(5.0, RATE / 4)
    host = plant.hosts["a"]
    plant.send(MAX_RECORDS)
    host.step()
    assert not host._overload.behind
    plant.send(MAX_RECORDS)
    plant.clock.advance(20.0)
    host.replicas[0].intake.backlog.clear()
    host.step()
    assert host._overload.behind  # the second in a row had not to wait


def test_a_record_of_a_worker_that_keeps_to_a_rate_is_no_cheaper_while_it_need_not_rest() -> None:
    plant = Plant()
    plant.run(5.0, RATE / 4)
    assert plant.hosts["a"].replicas[0].processor.record_s >= 0.99 / LIMIT


def test_a_worker_says_for_how_long_it_has_been_overloaded_and_when_it_is_over() -> None:
    plant = Plant("aa")

    def said() -> list[float]:
        beat = Heartbeat()
        plant.hosts["a"]._fill(beat)
        return [plant.hosts["a"]._overload.seconds, beat.overloaded_ms / 1000]

    plant.run(overload.SAID_S + 3.0, LIMIT / 4)  # of each of two slots
    assert said() == [0.0, 0.0]
    plant.run(overload.SAID_S - 1.0, LIMIT)
    assert said() == [0.0, 0.0]  # a burst, or what a takeover has left
    plant.run(overload.SAID_S, LIMIT)
    assert min(said()) >= overload.SAID_S
    plant.run(20.0, 0.0)
    assert said() == [0.0, 0.0]


def test_the_oldest_records_of_all_slots_come_first_and_nobody_is_suspected_meanwhile() -> None:
    plant = Plant("aa")
    plant.run(3.0, RATE / 4)
    plant.run(1.0, 0.0)
    done = [len(plant.outputs(slot)) for slot in (0, 1)]
    plant.send(3 * BURST, slots=[0])
    plant.run(1.0, 0.0)
    plant.send(10, slots=[1])  # one slot has much to make up for, but this is no overload yet: the other one goes on
    plant.run(1.0, 0.0)
    assert len(plant.outputs(1)) == done[1] + 10
    plant.run(overload.SAID_S - 1.0, 0.0)
    plant.send(BURST // 10, slots=[1])
    plant.run(4.0 * BURST / LIMIT, 0.0)
    first, second = plant.outputs(0)[done[0] :], plant.outputs(1)[done[1] + 10 :]
    assert (len(first), len(second)) == (3 * BURST, BURST // 10)
    ended_us = max(record.appended_us for record, _ in first)
    turns = sorted({record.appended_us for record, _ in second if record.appended_us < ended_us})
    assert all(later - turn > 0.9e6 * overload.SILENT_S for turn, later in pairwise(turns))
    assert sum(record.appended_us < ended_us for record, _ in second) < BURST // 10
    assert all(replica.stage is ReplicaStage.WATCH for replica in plant.hosts["b"].replicas.values())
    assert [replica.epoch for replica in plant.hosts["a"].replicas.values()] == [1, 1]


def test_no_slot_is_silent_for_long_because_another_one_has_older_records() -> None:
    """Else Spark would leave it behind as one that has died, and its results would stand in `late`."""
    plant = Plant("aa")
    plant.run(3.0, RATE / 4)
    plant.send(8 * BURST, slots=[0])
    plant.run(overload.SAID_S + 1.0, RATE / 4)
    assert plant.hosts["a"]._overload.seconds
    began_us = plant.clock.now_us()
    plant.run(9.0, RATE / 4)
    assert plant.behind()[0] > BURST  # all this time it had older records
    for slot in (0, 1):
        written = [record.appended_us for record, _ in plant.outputs(slot) if record.appended_us >= began_us]
        gaps = [later - one for one, later in pairwise([began_us, *written, plant.clock.now_us()])]
        assert max(gaps) < 1e6 * (overload.SILENT_S + 1.0)


def test_however_much_the_log_holds_a_bounded_part_of_it_waits_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "HELD_BYTES", 100 * intake.KEPT_BYTES)
    plant = Plant("aa")
    plant.run(3.0, RATE / 4)
    plant.send(4 * MAX_RECORDS)
    replicas = plant.hosts["a"].replicas.values()
    for _ in range(45):
        plant.run(1.0, 0.0)
        for replica in replicas:
            left = plant.log.stored(TUPLES, replica.slot_id).end - replica.slot.position
            assert len(replica.intake.backlog) <= 100 + MAX_RECORDS
            assert abs(replica.lag - left) <= MAX_RECORDS  # the scaler counts by it
    assert max(replica.lag for replica in replicas) == 0
    for replica in replicas:
        offsets = [value.offset for _, value in plant.outputs(replica.slot_id)]
        assert len(set(offsets)) == len(offsets) == plant.sent


def test_an_owner_that_is_replaced_while_most_of_its_log_waits_reads_at_once_that_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intake, "HELD_BYTES", 100 * intake.KEPT_BYTES)
    plant = Plant("ab")
    plant.run(3.0, RATE / 4)
    plant.send(5 * MAX_RECORDS, slots=[0])
    plant.run(1.0, 0.0)
    frozen = plant.hosts.pop("a")
    assert frozen._overload._held
    plant.run(3.0, 0.0)
    assert plant.hosts["b"].replicas[0].stage is ReplicaStage.OWN
    plant.hosts["a"] = frozen
    plant.run(2.0, 0.0)
    assert frozen.replicas[0].stage is ReplicaStage.WATCH
    assert len(frozen.replicas[0].intake.backlog) <= 2 * (100 + MAX_RECORDS)
    plant.run(5.0 * MAX_RECORDS / LIMIT * 1.3, 0.0)
    names = {(message.offset, message.index) for _, message in plant.outputs(0)}
    assert len(names) == plant.sent
    assert plant.hosts["b"].replicas[0].lag == 0
