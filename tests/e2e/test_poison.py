"""A record that kills whoever processes it; and, in a slot without contexts, a log that begins too late."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.kafka.broker import Broker
from services.local import processes
from services.local.status import read_status
from services.local.up import unready
from services.replay import replay_slots
from services.runtime.columns import pack_floats, pack_sensors
from services.runtime.log import TUPLES, Position, Producer
from services.runtime.messages import VERSION, LogRecord, TupleBatch
from tests.e2e.poison import ARMED
from tests.e2e.stream import PLAYED, SENSORS, STEPS, write_inputs
from tests.e2e.system import Rig
from tests.e2e.verdict import validate

LOGGER = logging.getLogger(__name__)
MARKER = -12345.5
INCARNATION = 1
SLOT = 0  # that of the played edge's sensor


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
    others = {edge for edge in rig.inputs.table.edges if edge != PLAYED}
    epoch, follower = rig.watches[SLOT].epoch, Follower(rig)
    rig.wait(lambda: follower.newest().keys() >= others, "batches of every edge")
    rig.wait(lambda: bool(follower.newest()) and follower.end >= rig.watches[SLOT].end, "the end of the log")
    before = set(follower.quarantined)
    step = max(follower.newest().values()) + 5
    producer = rig.log.producer()
    send(producer, step, None)  # from here on its steps are waited for
    if not early:  # by then all but the marked value are there: it is the one that closes the step
        rig.wait(
            lambda: all(newest > step for edge, newest in follower.newest().items() if edge != PLAYED),
            "the others' batches of the step",
        )
    send(producer, step + 1, MARKER)
    producer.close()
    rig.wait(lambda: bool(follower.newest()) and follower.quarantined > before, "a Quarantine")
    rig.wait_protected()
    rig.advance()
    verdict = validate(rig, ignore=lambda batch: batch.edge == PLAYED, gone=[PLAYED])
    marked = [letter for letter in verdict.skipped if letter.batch.sensor][-1]
    assert marked.batch.step == step + 1
    assert verdict.asides[SLOT, marked.offset].reason == "quarantined"
    follower.newest()
    follower.close()
    assert len(follower.quarantined - before) == 1
    assert (marked.offset in follower.quarantined) != early
    owners = [owner.node for owner in verdict.checked.logs[SLOT].owners if owner.epoch >= epoch]
    died = [node for node in owners if not processes.alive(rig.process(node))]
    LOGGER.info("owners of the slot: %s; died: %s", owners, died)
    verdict.tell()
    assert 2 <= len(died) <= 4
    launched = [line["node"] for line in rig.lines("scaler") if line.get("event") == "launching a worker"]
    assert any(processes.alive(rig.process(node)) for node in launched)


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
    (status,) = [item for item in read_status(rig.settings)["slots"] if item["slot"] == slot]
    assert not status["secondary_ready"]
    assert "retention has passed the resume point" in status["secondary_reason"]
    rig.advance()
    assert rig.watches[slot].owner == owner
    assert rig.fleet.of_slot(slot, "primary") is not None


class Follower:
    """Reads the slot's log as it grows.

    Attributes:
        quarantined: offsets that a Quarantine names.
        end: after the last record read.
    """

    def __init__(self, rig: Rig) -> None:
        self.quarantined: set[int] = set()
        self.end = 0
        self._newest: dict[str, int] = {}
        self._reader = rig.log.reader()
        self._reader.assign([Position(TUPLES, SLOT, 0)])

    def newest(self) -> dict[str, int]:
        """Read on; return each edge's newest step."""
        for record in self._reader.read(5000, 0.05):
            self.end = record.offset + 1
            message = LogRecord.FromString(record.value or b"")
            if message.WhichOneof("body") == "batch":
                self._newest[message.batch.edge] = message.batch.step
            elif message.WhichOneof("body") == "quarantine":
                self.quarantined.add(message.quarantine.offset)
        return self._newest

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
