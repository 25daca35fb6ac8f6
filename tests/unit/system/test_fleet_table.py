"""Who follows the sensors table in force sees the newest one of `plan`, and the file's until there is one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.fleet_table import pack_table
from tsunagi.runtime.log import PLAN
from tsunagi.runtime.messages import VERSION, FleetTable, Plan
from tsunagi.runtime.sensors import Sensor, SensorTable, read_sensors
from tsunagi.runtime.settings import Settings
from tsunagi.runtime.testing import MemoryLog
from tsunagi.system.fleet_table import TableFollower, sensors_in_force

FILE = "sensor,edge\nof-file,e1\n"


class Place:
    def __init__(self, path: Path) -> None:
        self.settings = Settings(sensors=path / "sensors.csv")
        self.settings.sensors.write_text(FILE)
        self.log = MemoryLog(ManualClock(), {PLAN: 1})

    def put(self, serial: int, *names: str) -> None:
        table = SensorTable(tuple(Sensor(number, name, "e1") for number, name in enumerate(names)))
        self.append(serial, pack_table(table, by="test"))

    def append(self, serial: int, body: FleetTable) -> None:
        self.log.append(PLAN, 0, b"table", Plan(version=VERSION, serial=serial, table=body).SerializeToString())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def names(table: SensorTable) -> list[str]:
    return [sensor.name for sensor in table.sensors]


def test_the_file_rules_until_plan_has_a_table_and_never_again(place: Place) -> None:
    with TableFollower(place.log, place.settings) as followed:
        assert names(followed.table) == ["of-file"]
        place.settings.sensors.write_text(FILE + "second,e1\n")
        os.utime(place.settings.sensors, (1, 1))
        assert names(followed.poll()) == ["of-file", "second"]
        place.settings.sensors.write_text("half a l")
        os.utime(place.settings.sensors, (2, 2))
        assert names(followed.poll()) == ["of-file", "second"]
        place.put(1, "a")
        assert names(followed.poll()) == names(followed.table) == ["a"]
        place.settings.sensors.unlink()
        place.put(3, "a", "c")
        place.put(2, "a", "b")
        assert names(followed.poll()) == ["a", "c"]
        assert names(sensors_in_force(place.log, place.settings)) == ["a", "c"]
    with TableFollower(place.log, place.settings) as late:
        assert names(late.table) == ["a", "c"]


def test_a_record_that_is_no_table_changes_nothing(place: Place) -> None:
    place.put(1, "a")
    with TableFollower(place.log, place.settings) as followed:
        place.append(2, FleetTable(csv=b"none"))
        place.log.append(PLAN, 0, b"table", b"nor a record")
        assert names(followed.poll()) == ["a"]
        place.put(3, "a", "b")
        assert names(followed.poll()) == ["a", "b"]


def test_a_log_without_plan_leaves_the_file(place: Place) -> None:
    log = MemoryLog(ManualClock(), {})
    assert names(sensors_in_force(log, place.settings)) == ["of-file"]
    with TableFollower(log, place.settings) as followed:
        assert followed.poll() == read_sensors(place.settings.sensors)
