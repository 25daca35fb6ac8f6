from __future__ import annotations

import pytest

from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.columns import pack_sensors
from tsunagi.runtime.log import PLAN
from tsunagi.runtime.messages import Assignment, Placement, Plan
from tsunagi.runtime.placement import PlacementReader, read_placement
from tsunagi.runtime.testing import MemoryLog


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog(ManualClock(), {PLAN: 1})


def write(log: MemoryLog, serial: int, sensors: int, version: int = 1) -> None:
    placement = Placement(serial=serial, slots=2, slot=pack_sensors([0] * sensors))
    log.append(PLAN, 0, b"placement", Plan(version=version, placement=placement).SerializeToString())


def test_none_yet(log: MemoryLog) -> None:
    assert read_placement(log) is None
    log.append(PLAN, 0, b"assignment/0", Plan(version=1, assignment=Assignment(slot=0)).SerializeToString())
    log.append(PLAN, 0, b"placement", None)
    log.append(PLAN, 0, b"placement", b"\xff\xff")
    write(log, 9, 1, version=2)
    assert read_placement(log) is None


def test_the_greatest_serial_counts(log: MemoryLog) -> None:
    write(log, 1, 3)
    write(log, 3, 5)
    write(log, 2, 4)
    found = read_placement(log)
    assert found is not None
    assert (found.serial, len(found.slot)) == (3, 20)


def test_a_reader_follows(log: MemoryLog) -> None:
    reader = PlacementReader(log)
    assert reader.latest() is None
    for serial in (1, 2):
        write(log, serial, serial)
        found = reader.latest()
        assert found is not None
        assert found.serial == serial
    reader.close()
