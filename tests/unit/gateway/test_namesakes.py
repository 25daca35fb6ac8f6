"""Two workers of one name: the one that began later goes on, the other ends and names it."""

from __future__ import annotations

import os

import pytest
import structlog

from services.gateway.host import Host
from services.runtime import log as topics
from services.runtime.clock import ManualClock
from services.runtime.heartbeat import Heartbeats, ReplacedError
from services.runtime.log import HEARTBEATS
from services.runtime.messages import VERSION, Heartbeat
from services.runtime.sensors import Sensor, SensorTable
from services.runtime.settings import Settings
from services.runtime.testing import MemoryLog

TABLE = SensorTable((Sensor(0, "a", "edge"),))
_silent = structlog.wrap_logger(structlog.ReturnLogger(), processors=[lambda *_: ((), {})])


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog(ManualClock(), dict.fromkeys(topics.TOPICS, 2))


def worker(log: MemoryLog, client: str, node: str = "gw-1") -> Host:
    return Host(Settings(), node, TABLE, log.client(client), ManualClock(), _silent)


def turn(*hosts: Host) -> None:
    for host in hosts:
        host.heartbeats.send()
    for host in hosts:
        host.step()


def said(log: MemoryLog) -> list[Heartbeat]:
    return [Heartbeat.FromString(record.value or b"") for record in log.records(HEARTBEATS)]


def test_the_older_ends_and_names_the_newer_which_goes_on(log: MemoryLog) -> None:
    older = worker(log, "one")
    turn(older)
    newer = worker(log, "two")
    newer.heartbeats.metrics_host, newer.heartbeats.metrics_port = "10.0.0.7", 9100
    newer.heartbeats.send()
    with pytest.raises(ReplacedError, match=rf"gw-1: another worker .* .pid {os.getpid()}, metrics at 10.0.0.7:9100."):
        older.step()
    older.close()
    assert not any(beat.leaving for beat in said(log))  # it would be the newer that leaves, to whoever reads it
    for _ in range(3):
        turn(newer)
    newer.close()
    assert [beat.incarnation for beat in said(log) if beat.leaving] == [newer.incarnation]


def test_what_a_dead_process_of_the_name_said_is_no_reason_to_end(log: MemoryLog) -> None:
    """Its clock was fast, so it seems to have begun later."""
    dead = Heartbeats(log.client("dead"), "gw-1", "worker", 0.1, lambda _beat: None, incarnation=2**63)
    dead.send()
    living = worker(log, "one")
    for _ in range(3):
        turn(living)


@pytest.mark.parametrize(
    "other",
    [
        Heartbeat(node="gw-2", role="worker", incarnation=2**63),
        Heartbeat(node="gw-1", role="edge", incarnation=2**63),
        Heartbeat(node="gw-1", role="worker", incarnation=1),
        Heartbeat(node="gw-1", role="worker", incarnation=2**63, leaving=True),
    ],
)
def test_others_older_ones_and_one_that_leaves_are_no_reason_to_end(log: MemoryLog, other: Heartbeat) -> None:
    living = worker(log, "one")
    turn(living)
    other.version = VERSION
    producer = log.producer()
    producer.send(HEARTBEATS, 0, other.node.encode(), other.SerializeToString())
    producer.flush(1.0)
    for _ in range(3):
        turn(living)
