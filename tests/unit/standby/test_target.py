"""What somebody asks a slot's secondary to aim at while it runs."""

from __future__ import annotations

import math

import structlog

from tsunagi.runtime.messages import StandbyTarget
from tsunagi.runtime.settings import StandbySettings
from tsunagi.standby.target import read_target

SETTINGS = StandbySettings(batch_size=100, max_recovery_s=1.0, slots={1: {"batch_size": 7}})


def test_what_is_not_asked_is_as_the_slots_settings_say() -> None:
    found = read_target(
        StandbyTarget(slot=1, max_bandwidth=5000.0, priority="bandwidth"), SETTINGS, structlog.get_logger()
    )
    assert found is not None
    assert (found.batch_tuples, found.max_bandwidth, found.priority) == (7.0, 5000.0, "bandwidth")
    assert found.max_recovery_s == 1.0


def test_a_batch_size_is_asked_in_tuples_and_0_is_infinity() -> None:
    sizes = [read_target(StandbyTarget(batch_size=size), SETTINGS, structlog.get_logger()) for size in (30, 0)]
    assert [found and found.batch_tuples for found in sizes] == [30.0, math.inf]


def test_as_configured_and_what_cannot_be_count_as_nothing_asked() -> None:
    assert read_target(StandbyTarget(as_configured=True, batch_size=30), SETTINGS, structlog.get_logger()) is None
    assert read_target(StandbyTarget(max_recovery_s=-1.0), SETTINGS, structlog.get_logger()) is None
