"""A worker as a process: of two of one name the newer goes on; models in force are kept in the store."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import structlog

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.model import Model
from tsunagi.runtime import log as topics
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.columns import pack_sensors
from tsunagi.runtime.heartbeat import ReplacedError
from tsunagi.runtime.log import ACKS, CONTEXTS, HEARTBEATS, PLAN, RECOVERED, TUPLES
from tsunagi.runtime.messages import (
    VERSION,
    Ack,
    Assignment,
    Context,
    Heartbeat,
    Level0Ack,
    LogRecord,
    ModelTarget,
    Placement,
    Plan,
    Recovered,
)
from tsunagi.runtime.names import Name, pack_key
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import Settings
from tsunagi.runtime.testing import MemoryLog
from tsunagi.standby.stages.base import ReplicaStage
from tsunagi.worker.host import ReplicaHost
from tsunagi.worker.shelf import RENEW_S
from tsunagi.worker.slot_reader import STRAGGLERS
from tsunagi.worker.writer import ContextReceipt

_silent = structlog.wrap_logger(structlog.ReturnLogger(), processors=[lambda *_: ((), {})])


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.log = MemoryLog(self.clock, dict.fromkeys(topics.TOPICS, 1))
        self.table = SensorTable((Sensor(0, "a", "edge"),))

    def host(self) -> ReplicaHost:
        return ReplicaHost(Settings(), "gw-1", self.table, self.log.client("gw-1"), self.clock, _silent)

    def assign(self) -> None:
        """The plan gives the worker its slot."""
        placement = Placement(serial=1, slots=1, slot=pack_sensors([0]), table_sha256=self.table.digest(1))
        assignment = Assignment(slot=0, owner="gw-1", secondary="gw-2", serial=1)
        for plan in (Plan(version=VERSION, placement=placement), Plan(version=VERSION, assignment=assignment)):
            self.log.append(PLAN, 0, b"plan", plan.SerializeToString())

    def ack(self, epoch: int, offset: int, node: str = "gw-2") -> None:
        level0 = Level0Ack(slot=0, node=node, epoch=epoch, offset=offset)
        self.log.append(ACKS, 0, b"0", Ack(version=VERSION, level0=level0).SerializeToString())

    def beat(self, incarnation: int, sequence: int) -> None:
        beat = Heartbeat(version=VERSION, node="gw-1", role="worker", incarnation=incarnation, sequence=sequence, pid=7)
        self.log.append(HEARTBEATS, 0, b"gw-1", beat.SerializeToString())


def test_a_worker_ends_when_a_newer_process_of_its_name_lives_and_not_by_what_dead_ones_said() -> None:
    world = World()
    for sequence in range(9):
        world.beat(1 << 62, sequence)  # of one whose clock was fast
    host = world.host()
    host.step()
    world.beat(host.incarnation, 1)
    world.beat(host.incarnation - 1, 90)
    world.beat(host.incarnation - 1, 91)
    world.beat(host.incarnation + 1, 1)
    host.step()
    world.beat(host.incarnation + 1, 2)
    with pytest.raises(
        ReplacedError, match=rf"gw-1: another worker .* later.*: pid 7, incarnation {host.incarnation + 1}"
    ):
        host.step()
    host.close()
    said = [Heartbeat.FromString(record.value or b"") for record in world.log.records(HEARTBEATS)]
    assert not any(beat.leaving for beat in said), "whoever reads it would take it for the newer one's"


@pytest.mark.parametrize(("died", "last"), [(False, [True]), (True, [])], ids=["in good order", "of an exception"])
def test_only_who_ends_in_good_order_says_that_it_leaves(died: bool, last: list[bool]) -> None:
    world = World()
    host = world.host()
    host.step()
    host.close(died=died)
    said = [Heartbeat.FromString(record.value or b"") for record in world.log.records(HEARTBEATS)]
    assert [beat.leaving for beat in said if beat.node == "gw-1"] == last


def test_the_store_hears_every_minute_which_models_are_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    heard: list[list[str]] = []
    monkeypatch.setattr("tsunagi.worker.shelf.renew_refits", lambda _, in_force: heard.append(list(in_force)))
    host = world.host()
    for _ in range(10):
        host.step()
        world.clock.advance(RENEW_S / 5)
    assert len(heard) == 2


def test_an_owner_puts_a_model_in_force_only_once_it_has_it_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the record on the slot stands still until the model is there, which others would take for a stall."""
    read, asked = threading.Event(), threading.Event()

    def load(_store: Path, sha256: str) -> Model:
        asked.set()
        read.wait(20.0)
        raise ModelError(sha256)

    monkeypatch.setattr("tsunagi.worker.host.load_from_store", load)
    monkeypatch.setattr("tsunagi.worker.plan_book.has_model", lambda *_: True)
    world = World()
    world.assign()
    host = world.host()

    def models(seconds: float) -> list[str]:
        for _ in range(round(seconds / 0.05)):
            host.heartbeats.send()
            host.step()
            world.clock.advance(0.05)
        said = [LogRecord.FromString(record.value or b"") for record in world.log.records(TUPLES)]
        return [record.model.sha256 for record in said if record.WhichOneof("body") == "model"]

    assert models(5.0) == []
    assert host.replicas[0].stage is ReplicaStage.OWN
    model = Plan(version=VERSION, model=ModelTarget(sha256="a" * 64, by="user"), serial=1)
    world.log.append(PLAN, 0, b"model", model.SerializeToString())
    assert models(5.0) == []
    assert asked.is_set()
    away = Assignment(slot=0, owner="gw-2", secondary="gw-3", serial=2)
    world.log.append(PLAN, 0, b"plan", Plan(version=VERSION, assignment=away).SerializeToString())
    assert models(5.0) == [], "nor while the slot is to go to another worker"
    read.set()
    deadline = time.monotonic() + 20.0
    while not models(1.0) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert set(models(0.1)) == {"a" * 64}
    host.close()


def test_only_an_edge_that_says_that_it_leaves_is_taken_for_one_that_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.assign()
    host = world.host()
    host.step()
    left: list[tuple[str, int, int]] = []
    monkeypatch.setattr(host.replicas[0], "on_leaving", lambda *what: left.append(what))
    for number, (node, role, leaving) in enumerate(
        [("edge", "edge", False), ("gw-2", "worker", True), ("edge", "edge", True)], 1
    ):
        beat = Heartbeat(
            version=VERSION, node=node, role=role, leaving=leaving, incarnation=5, sequence=number, step=9 + number
        )
        world.log.append(HEARTBEATS, 0, node.encode(), beat.SerializeToString())
    host.step()
    assert left == [("edge", 5, 12)]


def test_acknowledgements_of_earlier_terms_and_of_readers_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.assign()
    host = world.host()
    host.step()
    heard: list[tuple[int, int]] = []
    monkeypatch.setattr(
        host.replicas[0], "on_ack", lambda ack, _now: heard.append((ack.level0.epoch, ack.level0.offset))
    )
    world.ack(2, 5)
    world.ack(1, 9)
    world.ack(2, 4)
    world.ack(9, 9, node="spark")
    world.ack(2, 6)
    host.step()
    assert heard == [(2, 5), (2, 6)]


def test_a_slot_that_is_taken_up_knows_the_log_and_what_was_acknowledged_before() -> None:
    world = World()
    world.ack(3, 7)
    host = world.host()
    host.step()
    world.assign()
    host.step()
    replica = host.replicas[0]
    assert (replica.epoch, replica.owner) == (3, "gw-2")
    assert replica.trust.topic_id == host._topic_id != ""


@pytest.mark.parametrize(
    ("places", "expected"),
    [([7, 9], [7]), ([7, 10], [-1]), ([9, 8], [-1])],
    ids=["in a row", "another record among them", "the log lost its end meanwhile"],
)
def test_a_context_whose_parts_do_not_stand_in_a_row_is_none(places: list[int], expected: list[int]) -> None:
    found: list[int] = []
    receipt = ContextReceipt(3, found.append)
    receipt.first(places[0])
    receipt.last(places[1])
    assert found == expected


def test_a_context_of_one_part_stands_where_that_does() -> None:
    found: list[int] = []
    ContextReceipt(1, found.append).first(7)
    assert found == [7]


def test_of_recovered_it_is_told_what_stands_where_and_what_comes_before() -> None:
    world = World()
    reader = world.host()._reader
    for offset in (3, 5, 9):
        name = Name(offset, 0)
        message = Recovered(version=VERSION, slot=0, generation=7, offset=offset, appended_us=offset)
        world.log.append(RECOVERED, 0, pack_key(7, 0, name), message.SerializeToString())
    world.log.truncate(RECOVERED, 0, 1)
    world.clock.advance(1.0)
    assert reader.stands(0, Name(5, 0), 1)
    assert not reader.stands(0, Name(5, 0), 2)  # another stands there
    assert not reader.stands(0, Name(5, 0), 3)  # the log ends before
    assert reader.stands(0, Name(3, 0), 0)  # retention has taken it, and it stood there
    assert reader.tail(0, 7) == (7, Name(9, 0), 9)
    assert reader.tail(0, 7, 2) == (7, Name(5, 0), 5)
    assert reader.tail(0, 7, 9, Name(9, 0)) == (7, Name(5, 0), 5)


@pytest.mark.parametrize(("stragglers", "generation"), [(0, 8), (3, 8), (STRAGGLERS - 1, 8), (3 * STRAGGLERS, 7)])
def test_outputs_of_an_earlier_generation_that_came_late_do_not_hide_the_last_one(
    stragglers: int, generation: int
) -> None:
    world = World()
    reader = world.host()._reader
    for number, written in enumerate([8, *[7] * stragglers]):
        name = Name(9 if written == 8 else 20 + number, 0)
        message = Recovered(version=VERSION, slot=0, generation=written, offset=name.offset, appended_us=name.offset)
        world.log.append(RECOVERED, 0, pack_key(written, 0, name), message.SerializeToString())
    world.clock.advance(1.0)
    found, name, _ = reader.tail(0, 8)
    assert (found, name.offset) == (generation, 9 if generation == 8 else 20 + stragglers)


@pytest.mark.parametrize("parts", [3, 2**32 - 1])
def test_a_context_is_looked_for_no_further_than_its_parts_stand(parts: int) -> None:
    """It says of itself how many they are, and anybody may have written it."""
    world = World()
    reader = world.host()._reader
    for number in range(2):
        part = Context(version=VERSION, owner="x", offset=5, part=number, parts=parts, piece=b"x")
        world.log.append(CONTEXTS, 0, b"x", part.SerializeToString())
    assert reader.context(0, 0) is None
    assert reader.find_context(0, None, 9) is None
