"""A record that kills whoever processes it; and, in a slot without contexts, a log that begins too late."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.poison import ARMED
from tests.e2e.stream import PLAYED, SENSORS, STEPS, write_inputs
from tests.e2e.system import Rig
from tests.e2e.verdict import validate
from tsunagi.broker.broker import Broker
from tsunagi.local.status import read_status
from tsunagi.local.up import unready
from tsunagi.replay.slots import replay_slots
from tsunagi.runtime.columns import pack_floats, pack_sensors
from tsunagi.runtime.log import TUPLES, Position, Producer
from tsunagi.runtime.messages import VERSION, LogRecord, TupleBatch
from tsunagi.system import processes

LOGGER = logging.getLogger(__name__)
MARKER = -12345.5
INCARNATION = 1
SLOT = 0  # that of the played edge's sensor
AHEAD = 10  # steps: a batch stands in the log by then, as a rule


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory, broker: Broker) -> Iterator[Rig]:
    directory: Path = tmp_path_factory.mktemp("poison")
    inputs = write_inputs(directory, played=True)
    system = Rig(
        directory,
        inputs,
        servers=broker.servers,
        prefix="poison.",
        changes={
            "query": {"operators": [{"use": "recover"}, {"use": "tests.e2e.poison:KillOn", "marker": MARKER}]},
            # The played edge is waited for, so that its record is the one that closes its step.
            "steps": {"grace_s": 8.0},
            "standby": {"context_s": 1e6},
            "scaler": {"workers": 4, "launcher": "local"},
        },
    )
    os.environ[ARMED] = "1"
    try:
        system.start(edges=[edge for edge in inputs.table.edges if edge != PLAYED])
        yield system
    finally:
        del os.environ[ARMED]
        system.close()


@pytest.mark.parametrize("early", [False, True], ids=["it-closes-its-step", "it-waits-in-its-step"])
def test_a_record_that_kills_its_worker_is_quarantined_and_the_slot_goes_on(rig: Rig, early: bool) -> None:
    rig.wait_protected()
    epoch, follower = rig.watches[SLOT].epoch, Follower(rig)
    producer = rig.log.producer()
    joined = join(rig, follower, producer)
    before = follower.buried()
    if early:  # its step is so far ahead that no other edge's batch of it is there
        step = follower.last() + AHEAD
    else:  # all but the marked value are there: it is the one that closes the step
        step = joined + 1
        rig.wait(lambda: follower.reached(step), "the others' batches of the step")
    send(producer, step, MARKER)
    producer.close()
    rig.wait(lambda: follower.buried() > before, "a Quarantine")
    rig.wait_protected()
    rig.advance()
    verdict = validate(rig, ignore=lambda batch: batch.edge == PLAYED, gone=[PLAYED])
    marked = [letter for letter in verdict.skipped if letter.batch.sensor][-1]
    assert marked.batch.step == step
    assert verdict.asides[SLOT, marked.offset].reason == "quarantined"
    quarantined = follower.buried()
    follower.close()
    assert len(quarantined - before) == 1
    assert (marked.offset in quarantined) != early
    owners = [owner.node for owner in verdict.checked.logs[SLOT].owners if owner.epoch >= epoch]
    died = [node for node in owners if not processes.alive(rig.process(node))]
    LOGGER.info("owners of the slot: %s; died: %s", owners, died)
    verdict.tell()
    assert 2 <= len(died) <= 4
    # It says so before it does it, and after deaths in a row it waits: two workers alone protect both slots meanwhile.
    rig.wait(lambda: bool(launched(rig) & rig.fleet.fresh("worker").keys()), "a worker that the scaler has launched")


def test_a_replay_passes_over_the_quarantined_record_too(rig: Rig) -> None:
    said: list[str] = []
    del os.environ[ARMED]
    try:
        assert replay_slots(rig.settings, (), said.append) == 0, "\n".join(said)
    finally:
        os.environ[ARMED] = "1"


def test_a_standby_that_retention_has_passed_says_so_and_the_primary_goes_on(rig: Rig) -> None:
    rig.wait_protected()
    slot = 1
    owner = rig.watches[slot].owner
    standby = rig.fleet.standby_ready(slot, owner)
    rig.signal("scaler", signal.SIGSTOP)  # it would find another secondary in time
    rig.signal(standby, signal.SIGSTOP)
    rig.watches[slot].catch_up()
    end = rig.watches[slot].end
    rig.wait(lambda: rig.fleet.acked(slot, owner) > end, "the primary to go on")
    rig.log.delete_records([Position(TUPLES, slot, rig.fleet.acked(slot, owner))])
    rig.signal(standby, signal.SIGCONT)

    def why() -> str:
        found = rig.fleet.of_slot(slot, "standby")
        return "" if found is None else found[1].reason

    rig.wait(
        lambda: "retention has passed the resume point" in why(), "a secondary to say that retention has passed it"
    )
    port = rig.fleet.beats[standby].message.metrics_port
    assert "retention has passed the resume point" in unready("127.0.0.1", port)
    said: list[dict[str, Any]] = []

    def told() -> bool:
        said[:] = [item for item in read_status(rig.settings)["slots"] if item["slot"] == slot]
        return any(item["secondary_reason"] for item in said)  # none of a node that is not heard just now

    rig.wait(told, "a reason in the status")
    (status,) = said
    assert not status["secondary_ready"]
    assert "retention has passed the resume point" in status["secondary_reason"]
    rig.advance()
    assert rig.watches[slot].owner == owner
    rig.wait(lambda: rig.fleet.of_slot(slot, "primary") is not None, "the primary to be heard")


def launched(rig: Rig) -> set[str]:
    """Return the workers that the scaler says it launches."""
    return {line["node"] for line in rig.lines("scaler") if line.get("event") == "launching a worker"}


def join(rig: Rig, follower: Follower, producer: Producer) -> int:
    """Let the played edge in: every step after the one returned waits for it.

    Its first batch must be there before the step closes. On a busy machine it may not be, and another step is tried.
    """
    while True:
        rig.wait(follower.caught_up, "the end of the log")
        step = follower.last() + AHEAD
        send(producer, step, None)
        rig.wait(lambda step=step: follower.reached(step), "the others' batches of the step")  # type: ignore[misc]
        if follower.first(step):
            return step


class Follower:
    """Reads the slot's log as it grows."""

    def __init__(self, rig: Rig) -> None:
        self._quarantined: set[int] = set()
        self._rig = rig
        self._others = {edge for edge in rig.inputs.table.edges if edge != PLAYED}
        self._end = 0
        self._newest: dict[str, int] = {}
        self._order: dict[int, list[str]] = {}  # step -> whose batches of it stand in the log
        self._reader = rig.log.reader()
        self._reader.assign([Position(TUPLES, SLOT, 0)])

    def read(self) -> None:
        """Read on."""
        for record in self._reader.read(5000, 0.05):
            self._end = record.offset + 1
            message = LogRecord.FromString(record.value or b"")
            if message.WhichOneof("body") == "batch":
                self._newest[message.batch.edge] = message.batch.step
                self._order.setdefault(message.batch.step, []).append(message.batch.edge)
            elif message.WhichOneof("body") == "quarantine":
                self._quarantined.add(message.quarantine.offset)

    def caught_up(self) -> bool:
        """Read on; return whether every edge was heard and nothing was left to read."""
        self.read()
        return self._newest.keys() >= self._others and self._end >= self._rig.watches[SLOT].end

    def last(self) -> int:
        """Read on; return the newest step of all."""
        self.read()
        return max(self._newest.values())

    def reached(self, step: int) -> bool:
        """Read on; return whether all other edges have sent that step or a later one."""
        self.read()
        return all(self._newest[edge] >= step for edge in self._others)

    def buried(self) -> set[int]:
        """Read on; return the offsets that a Quarantine names."""
        self.read()
        return set(self._quarantined)

    def first(self, step: int) -> bool:
        """Return whether the played edge's batch of a step came before all others."""
        return self._order[step][0] == PLAYED

    def close(self) -> None:
        """Let go of the connection."""
        self._reader.close()


def send(producer: Producer, step: int, value: float | None) -> None:
    """Append a batch of the played edge."""
    batch = TupleBatch(edge=PLAYED, incarnation=INCARNATION, step=step, event_time_us=step * STEPS.slide_us)
    if value is not None:  # its sensor is the table's last
        batch.sensor, batch.value, batch.count = pack_sensors([SENSORS]), pack_floats([value]), pack_sensors([10])
    producer.send(TUPLES, SLOT, PLAYED.encode(), LogRecord(version=VERSION, batch=batch).SerializeToString())
    assert producer.flush(30) == 0
