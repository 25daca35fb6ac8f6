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
from services.local.topics import read_partition
from services.local.up import unready
from services.replay import replay_slots
from services.runtime.columns import pack_floats, pack_sensors
from services.runtime.log import TUPLES, Position, Producer
from services.runtime.messages import VERSION, LogRecord, TupleBatch
from tests.e2e.poison import ARMED
from tests.e2e.stream import MARKED, PLAYED, STEPS, write_inputs
from tests.e2e.system import Rig
from tests.e2e.verdict import batches, validate

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
            "steps": {"grace_s": 3.0},
            "standby": {"context_bytes": 1},
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


def test_a_record_that_kills_its_worker_is_quarantined_and_the_slot_goes_on(rig: Rig) -> None:
    rig.wait_protected()
    others = {edge for edge in rig.inputs.table.edges if edge != PLAYED}
    newest = dict.fromkeys(others, 0)
    for letter in batches(SLOT, read_partition(rig.log, TUPLES, SLOT)):
        newest[letter.batch.edge] = letter.batch.step
    step = max(newest.values()) + 5
    producer = rig.log.producer()
    send(producer, step, None)  # from here on its steps are waited for

    def delivered(step: int) -> bool:
        found = {
            letter.batch.edge
            for letter in batches(SLOT, read_partition(rig.log, TUPLES, SLOT))
            if letter.batch.step == step
        }
        return found >= others

    rig.wait(lambda: delivered(step + 1), "the others' batches of the step")
    before = {item.node: item for item in processes.list_processes(rig.settings.state) if item.role == "worker"}
    send(producer, step + 1, MARKER)
    producer.close()

    def quarantines() -> list[int]:
        found = []
        for record in read_partition(rig.log, TUPLES, SLOT):
            message = LogRecord.FromString(record.value or b"")
            if message.WhichOneof("body") == "quarantine":
                found.append(message.quarantine.offset)
        return found

    rig.wait(lambda: bool(quarantines()), "a Quarantine")
    rig.wait_protected()
    rig.advance()
    is_marked = lambda batch: batch.edge == PLAYED and len(batch.value) > 0  # noqa: E731
    verdict = validate(rig, ignore=is_marked, gone=[PLAYED])
    (marked,) = verdict.skipped
    assert set(quarantines()) == {marked.offset}
    assert verdict.asides[SLOT, marked.offset].reason == "quarantined"
    dead = [node for node, item in before.items() if not processes.alive(item)]
    owners = [owner.node for owner in verdict.checked.logs[SLOT].owners]
    LOGGER.info("died: %s; owners of the slot: %s", dead, owners)
    verdict.tell()
    died = [node for node in owners if not processes.alive(rig.process(node))]
    assert 2 <= len(died) <= 4
    launched = [line["node"] for line in rig.lines("scaler") if line.get("event") == "launching a worker"]
    assert launched
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
    rig.signal(standby, signal.SIGSTOP)
    end = rig.watches[slot].end
    rig.wait(lambda: rig.watches[slot].end > end + 100 and rig.fleet.acked(slot, owner) > end + 50, "the log to go on")
    rig.log.delete_records([Position(TUPLES, slot, end + 50)])
    rig.signal(standby, signal.SIGCONT)

    def why() -> str:
        found = rig.fleet.of_slot(slot, "standby") or rig.fleet.of_slot(slot, "rebuilding")
        return "" if found is None else f"{found[0]} {found[1].reason}"

    rig.wait(
        lambda: "retention has passed the resume point" in why(), "a secondary to say that retention has passed it"
    )
    node = why().split()[0]
    port = rig.fleet.beats[node].message.metrics_port
    assert "retention has passed the resume point" in unready("127.0.0.1", port)
    (status,) = [item for item in read_status(rig.settings)["slots"] if item["slot"] == slot]
    assert not status["secondary_ready"]
    assert "retention has passed the resume point" in status["secondary_reason"]
    rig.advance()
    assert rig.watches[slot].owner == owner
    assert rig.fleet.of_slot(slot, "primary") is not None


def send(producer: Producer, step: int, value: float | None) -> None:
    """Append a batch of the played edge."""
    batch = TupleBatch(edge=PLAYED, incarnation=INCARNATION, step=step, event_time_us=step * STEPS.slide_us)
    if value is not None:
        batch.sensor, batch.value, batch.count = pack_sensors([marked_id()]), pack_floats([value]), pack_sensors([10])
    producer.send(TUPLES, SLOT, PLAYED.encode(), LogRecord(version=VERSION, batch=batch).SerializeToString())
    assert producer.flush(30) == 0


def marked_id() -> int:
    """Return the id of the played edge's sensor: the table's last."""
    from tests.e2e.stream import SENSORS

    assert MARKED
    return SENSORS
