"""What `tsunagi up` starts, and what it says when something is missing."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
from rich.console import Console

from tsunagi.local.fleet import Fleet
from tsunagi.local.status import print_status
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


def test_the_status_table(settings: Settings) -> None:
    slot = {
        "slot": 0, "owner": "gw-1", "epoch": 3, "position": 10, "end": 12, "lag": 2, "step": 5, "secondary": "",
        "batch_size": 0, "secondary_ready": False, "secondary_reason": "nobody stands by", "secondary_lag": 12,
        "recovered_end": 4, "spark_lag": 1, "declared": "generation 7 begins at offset 9",
    }  # fmt: skip
    node = {
        "node": "gw-1",
        "role": "worker",
        "pid": 7,
        "age_s": 0.1,
        "leaving": False,
        "metrics_port": 99,
        "slots": {"0": "primary"},
    }
    status = {
        "slots": [slot],
        "spark": {
            "batch": 7,
            "batch_s": 0.31,
            "latency_s": 0.42,
            "frontier": 12,
            "newest": 17,
            "behind_s": 10.0,
            "held_by": [1],
            "left_behind": [2],
            "carried": 40,
            "order": "optimised",
            "cut": 1,
            "fault": "recovered/1: the topic was made anew",
        },
        "nodes": [node],
        "processes": [{"node": "gw-1", "alive": True}, {"node": "spark", "alive": False}],
        "results": {"0": 5},
        "late": 0,
        "dead_letters": 1,
    }
    output = io.StringIO()
    print_status(status, Console(file=output, width=160))
    text = output.getvalue()
    assert "gw-1" in text
    assert "none" in text
    assert "no heartbeat yet: spark (dead)" in text
    assert "dead letters: 1" in text
    words = " ".join(text.split())
    assert "batch 7 took 0.31 s, results 0.42 s after their input; order optimised (1 groups cut)" in words
    assert "frontier at step 12, 10 s behind the newest slot (40 rows wait); waiting for slot 1" in words
    assert "left behind: slot 2; not the log that it knew: recovered/1: the topic was made anew" in words
    print_status(status | {"spark": {}}, Console(file=output, width=160))
