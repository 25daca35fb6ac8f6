"""The scaler's own loop on the log in memory."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import structlog

from tsunagi.runtime import log as topics
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.log import HEARTBEATS
from tsunagi.runtime.messages import Heartbeat, Workers
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import ScalerSettings, Settings
from tsunagi.runtime.testing import MemoryLog
from tsunagi.scaler.scaler import Scaler

_silent = structlog.wrap_logger(structlog.ReturnLogger(), processors=[lambda *_: ((), {})])


@pytest.mark.parametrize("jump_s", [-3600, -2, 2, 3600])
def test_a_clock_that_jumps_neither_holds_decisions_up_nor_hurries_them(
    monkeypatch: pytest.MonkeyPatch, jump_s: int
) -> None:
    clock = ManualClock()
    start_s = clock.now_us() / 1e6
    log = MemoryLog(clock, dict.fromkeys(topics.TOPICS, 1))
    settings = Settings(scaler=ScalerSettings(launcher="none"))
    scaler = Scaler(settings, SensorTable((Sensor(0, "a", "edge"),)), log, clock, _silent)
    asked: list[float] = []

    def ask(alive: Mapping[str, Heartbeat], now_s: float) -> Workers | None:
        del alive
        asked.append(now_s - start_s - clock.monotonic())
        return None

    monkeypatch.setattr(scaler.elastic, "ask", ask)
    for turn in range(100):
        clock.advance(0.1)
        clock.skew_us = jump_s * 1_000_000 if turn > 50 else 0
        scaler.heartbeats.send()
        scaler.step()
    assert len(asked) > 80
    assert max(map(abs, asked)) < 1e-3
    assert log.records(HEARTBEATS)
