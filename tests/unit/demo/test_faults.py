"""A kill is sent to the owner that the slot's log names, at the moment that a batch comes in."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from tsunagi.demo import faults
from tsunagi.demo.faults import FaultError, SlotWatch
from tsunagi.local.fleet import Fleet
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.log import ACKS, TOPICS, TUPLES
from tsunagi.runtime.messages import Ack, Level0Ack, LogRecord, Ownership, TupleBatch
from tsunagi.runtime.testing import MemoryLog
from tsunagi.system import processes

SLEEP = (sys.executable, "-c", "import time; time.sleep(60)")


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog(ManualClock(time.time_ns() // 1000), dict.fromkeys(TOPICS, 1))


def write(log: MemoryLog, *messages: LogRecord) -> None:
    producer = log.producer()
    for message in messages:
        producer.send(TUPLES, 0, b"", message.SerializeToString())
    producer.flush(1.0)


def own(epoch: int, node: str) -> LogRecord:
    return LogRecord(version=1, ownership=Ownership(epoch=epoch, node=node))


BATCH = LogRecord(version=1, batch=TupleBatch(edge="e", step=1))


def test_the_watch_judges_ownership_as_everybody_does(log: MemoryLog) -> None:
    watch = SlotWatch(log, 0)
    write(log, own(1, "a"), BATCH, own(3, "zombie"), own(2, "b"), own(2, "late"))
    watch.catch_up()
    assert (watch.owner, watch.epoch, watch.end, watch.batches) == ("b", 2, 5, 1)
    watch.close()


class Feeder(SlotWatch):
    """Stands for edges that go on sending: a batch comes while somebody waits for one."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log, 0)
        self.log = log

    def update(self, timeout_s: float = 0.0) -> None:
        if timeout_s == 0.05:
            write(self.log, BATCH)
        super().update(timeout_s)


def test_the_owner_is_killed_with_the_evidence_noted(log: MemoryLog, tmp_path: Path) -> None:
    process = processes.spawn(tmp_path, "b", "worker", SLEEP, dict(os.environ))
    write(log, own(1, "a"), BATCH, own(2, "b"))
    producer = log.producer()
    ack = Ack(version=1, level0=Level0Ack(slot=0, node="b", epoch=2, offset=3))
    producer.send(ACKS, 0, b"0/level0/b", ack.SerializeToString())
    producer.flush(1.0)
    watch, fleet = Feeder(log), Fleet(log)
    kill = faults.kill_owner(tmp_path, watch, fleet, 0)
    assert (kill.what, kill.node, kill.owner, kill.pid, kill.epoch) == ("owner", "b", "b", process.pid, 2)
    assert (kill.log_end, kill.acked) == (4, 3)
    while processes.alive(process):
        time.sleep(0.01)
    watch.close()
    fleet.close()


def test_an_owner_that_is_no_process_of_ours_is_not_killed(log: MemoryLog, tmp_path: Path) -> None:
    write(log, own(1, "elsewhere"))
    watch, fleet = Feeder(log), Fleet(log)
    with pytest.raises(FaultError, match="names elsewhere as the owner"):
        faults.kill_owner(tmp_path, watch, fleet, 0)
    watch.close()
    fleet.close()


def test_an_edge_that_does_not_run_cannot_be_killed(tmp_path: Path) -> None:
    with pytest.raises(FaultError, match="edge-1: no process"):
        faults.kill_edge(tmp_path, "edge-1")
