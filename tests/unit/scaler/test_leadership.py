"""Of several scalers one acts."""

from __future__ import annotations

import pytest
import structlog

from tsunagi.runtime import log as topics
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.heartbeat import ReplacedError
from tsunagi.runtime.messages import Heartbeat
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import ScalerSettings, Settings
from tsunagi.runtime.testing import MemoryLog
from tsunagi.scaler.leadership import LISTEN_S, Leadership
from tsunagi.scaler.scaler import Scaler

DEAD_S = 2.0


def beat(incarnation: int, *, leaving: bool = False) -> Heartbeat:
    return Heartbeat(node="scaler", role="scaler", incarnation=incarnation, leaving=leaving)


def listening(incarnation: int = 5) -> Leadership:
    rivals = Leadership("scaler", incarnation, DEAD_S)
    rivals.on_heartbeat(beat(incarnation), 10.0)
    return rivals


def test_one_alone_acts_after_it_has_listened_for_a_while() -> None:
    rivals = Leadership("scaler", 5, DEAD_S)
    assert not rivals.leads(100.0)
    rivals.on_heartbeat(beat(5), 100.0)
    assert not rivals.leads(100.0 + LISTEN_S / 2)
    assert rivals.leads(100.0 + LISTEN_S)


def test_the_one_started_last_acts_and_the_others_when_it_is_gone() -> None:
    first, second, third = listening(1), listening(2), listening(3)
    for rivals in (first, second, third):
        for incarnation in (1, 2, 3):
            rivals.on_heartbeat(beat(incarnation), 11.5)
    assert [rivals.leads(12.0) for rivals in (first, second, third)] == [False, False, True]
    for rivals in (first, second):
        for incarnation in (1, 2):
            rivals.on_heartbeat(beat(incarnation), 13.0)
    assert [rivals.leads(11.5 + DEAD_S) for rivals in (first, second)] == [False, True]


def test_one_that_leaves_is_not_waited_for() -> None:
    rivals = listening(5)
    rivals.on_heartbeat(beat(9), 11.0)
    assert not rivals.leads(11.1)
    rivals.on_heartbeat(beat(9, leaving=True), 11.2)
    assert rivals.leads(11.3)


def test_workers_and_edges_of_that_name_are_no_rivals() -> None:
    rivals = listening(5)
    rivals.on_heartbeat(Heartbeat(node="scaler", role="edge", incarnation=9), 11.0)
    rivals.on_heartbeat(Heartbeat(node="other", role="scaler", incarnation=9), 11.0)
    assert rivals.leads(11.1)


def test_the_older_scaler_ends_and_the_newer_goes_on() -> None:
    clock = ManualClock()
    log = MemoryLog(clock, dict.fromkeys(topics.TOPICS, 2))
    settings = Settings(scaler=ScalerSettings(launcher="none"))
    table = SensorTable((Sensor(0, "a", "edge"), Sensor(1, "b", "edge")))
    silent = structlog.wrap_logger(structlog.ReturnLogger(), processors=[lambda *_: ((), {})])
    older = Scaler(settings, table, log.client("one"), clock, silent)
    older.heartbeats.send()
    older.step()
    clock.advance(0.001)
    newer = Scaler(settings, table, log.client("two"), clock, silent)
    newer.heartbeats.send()
    newer.heartbeats.send()
    with pytest.raises(ReplacedError, match="scaler: another scaler of this name began later"):
        older.step()
    older.close()
    for _ in range(20):
        clock.advance(0.1)
        newer.heartbeats.send()
        newer.step()
    assert newer.rivals.leads(clock.monotonic())
