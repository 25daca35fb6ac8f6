"""What `tsunagi up` starts, and what it says when something is missing."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tsunagi.local.fleet import Fleet
from tsunagi.local.up import System, died, local_broker, worker_names
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.log import ACKS, HEARTBEATS, TOPICS
from tsunagi.runtime.messages import Ack, Heartbeat, Level0Ack, SlotBeat
from tsunagi.runtime.settings import Settings
from tsunagi.runtime.testing import MemoryLog
from tsunagi.system import processes


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state=tmp_path / "run")


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog(ManualClock(time.time_ns() // 1000), dict.fromkeys(TOPICS, 1))


def beat(log: MemoryLog, node: str, slots: list[SlotBeat], role: str = "worker") -> None:
    producer = log.producer()
    producer.send(
        HEARTBEATS, 0, node.encode(), Heartbeat(version=1, node=node, role=role, slots=slots).SerializeToString()
    )
    producer.flush(1.0)


def test_every_slot_gets_a_gateway_and_a_secondary_and_one_is_idle(settings: Settings) -> None:
    assert worker_names(settings) == ["gw-1", "gw-2", "sec-1", "sec-2"]


@pytest.mark.parametrize(("slots", "cores", "workers"), [(1, 8, 3), (2, 1, 4), (16, 1, 5), (16, 2, 10), (16, 8, 18)])
def test_the_scaler_keeps_as_many_workers_as_were_started(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, slots: int, cores: int, workers: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    fleet = settings.model_copy(update={"slots": settings.slots.model_copy(update={"count": slots})})
    names = worker_names(fleet)
    assert len(names) == len(set(names)) == fleet.scaler.kept(slots) == workers
    assert sum(name.startswith("gw-") for name in names) == min(slots, workers - 2)


def test_a_number_of_workers_that_is_given_counts(settings: Settings) -> None:
    fleet = settings.model_copy(update={"scaler": settings.scaler.model_copy(update={"workers": 2})})
    assert worker_names(fleet) == ["gw-1", "sec-1"]


def test_a_broker_elsewhere_is_never_started(settings: Settings) -> None:
    elsewhere = settings.model_copy(
        update={"kafka": settings.kafka.model_copy(update={"servers": "kafka-1:9092,kafka-2:9092"})}
    )
    assert local_broker(elsewhere) is None
    local = local_broker(settings)
    assert local is not None
    assert local.port == 9092
    assert local.pid is None


def test_what_is_missing_is_named(settings: Settings, log: MemoryLog) -> None:
    system = System(settings, None, lambda _line: None)
    fleet = Fleet(log)
    fleet.update()
    assert system.missing(fleet, ["gw-1"]) == "gw-1 has not reported yet"
    beat(log, "gw-1", [SlotBeat(slot=0, role="primary", epoch=1, reason="its model is being read")])
    fleet.update()
    assert system.missing(fleet, ["gw-1"]) == "slot 0: gw-1: its model is being read"
    beat(log, "gw-1", [SlotBeat(slot=slot, role="primary", epoch=1, ready=True) for slot in (0, 1)])
    fleet.update()
    assert system.missing(fleet, ["gw-1"]) == "slot 0 has no ready secondary"
    beat(log, "sec-1", [SlotBeat(slot=slot, role="standby", epoch=1, ready=True) for slot in (0, 1)])
    fleet.update()
    assert system.missing(fleet, ["gw-1", "sec-1"]) == ""
    fleet.close()


def test_a_view_is_complete_once_it_has_read_what_was_there(log: MemoryLog) -> None:
    empty = Fleet(log)
    assert empty.caught_up
    empty.close()
    beat(log, "gw-1", [SlotBeat(slot=0, role="primary", epoch=1)])
    fleet = Fleet(log)
    assert not fleet.caught_up
    fleet.update()
    assert fleet.caught_up
    fleet.close()


def test_the_owner_of_the_latest_epoch_counts(log: MemoryLog) -> None:
    fleet = Fleet(log)
    beat(log, "zombie", [SlotBeat(slot=0, role="primary", epoch=1)])
    beat(log, "gw-2", [SlotBeat(slot=0, role="primary", epoch=2)])
    fleet.update()
    found = fleet.of_slot(0, "primary")
    assert found is not None
    assert found[0] == "gw-2"
    assert fleet.standby_ready(0) == ""
    fleet.close()


def test_the_greatest_acknowledgement_counts(log: MemoryLog) -> None:
    fleet = Fleet(log)
    producer = log.producer()
    for epoch, offset in ((1, 50), (2, 60), (1, 90), (2, 55)):
        ack = Ack(version=1, level0=Level0Ack(slot=0, node="gw-1", epoch=epoch, offset=offset))
        producer.send(ACKS, 0, b"0/level0/gw-1", ack.SerializeToString())
    producer.flush(1.0)
    fleet.update()
    assert fleet.acked(0, "gw-1") == 60
    assert fleet.acked(0, "spark") == -1
    fleet.close()


def test_a_death_is_explained_by_the_end_of_the_log(tmp_path: Path) -> None:
    file = processes.log_file(tmp_path, "gw-1")
    file.parent.mkdir()
    file.write_text('{"event": "started"}\nplain text\n{"event": "failed", "exception": "ValueError: x"}\n')
    assert died(tmp_path, "gw-1").splitlines()[1:] == ["  started", "  plain text", "  failed ValueError: x"]
