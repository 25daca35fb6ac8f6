"""An edge whose sensors table changes while it runs: sensors that stay notice nothing, new ones begin with a window."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.edge.worlds import (
    DISORDER_US,
    INTERVAL_S,
    SLIDE_US,
    SLOTS,
    WINDOW,
    WINDOW_US,
    FileWorld,
    LiveWorld,
    MemoryWorld,
    steps_of,
)
from tsunagi.edge.service import EdgeService
from tsunagi.runtime.columns import floats, pack_sensors, sensors
from tsunagi.runtime.fleet_table import pack_table
from tsunagi.runtime.log import PLAN
from tsunagi.runtime.messages import VERSION, FleetTable, Placement, Plan
from tsunagi.runtime.sensors import Sensor, SensorTable, place, read_sensors

AHEAD_US = 1_000_000
"""A table comes into force so long after it was written, in microseconds."""
SETTLED_US = AHEAD_US + DISORDER_US + 2 * SLIDE_US
"""So long after a table was written, in microseconds, every edge goes by it."""
NAMES = [f"s{number}" for number in range(6)]
"""The sensors of a `FileWorld`'s file."""


class Fleet:
    """Writes tables in force, and the placements for them, into the plan of a world."""

    def __init__(self, world: MemoryWorld, seed: int = 0) -> None:
        self.world = world
        self.draw = random.Random(seed)
        self.sensors = list(read_sensors(world.path / "sensors.csv").sensors)
        self.slots = place(SensorTable(tuple(self.sensors)), SLOTS).tolist()
        self.serial = 1
        self.history: list[tuple[int, list[Sensor]]] = [(-1, [*self.sensors])]

    def edit(self, sensor: int, **fields: Any) -> None:
        old = self.sensors[sensor]
        if "edge" in fields:
            fields["before"] = old.edge or old.before
        self.sensors[sensor] = replace(old, **fields)

    def add(self, name: str, edge: str) -> None:
        self.slots.append(len(self.sensors) % SLOTS)
        self.sensors.append(Sensor(len(self.sensors), name, edge))

    def write_table(self, ahead_us: int = AHEAD_US) -> int:
        self.serial += 1
        from_us = self.world.clock.now_us() + ahead_us
        self.history.append((from_us, [*self.sensors]))
        table = pack_table(SensorTable(tuple(self.sensors)), by="a test", from_us=from_us)
        self.world.log.append(
            PLAN, 0, b"table", Plan(version=VERSION, serial=self.serial, table=table).SerializeToString()
        )
        return from_us

    def write_placement(self) -> None:
        self.serial += 1
        digest = SensorTable(tuple(self.sensors)).digest()
        placement = Placement(serial=self.serial, slots=SLOTS, slot=pack_sensors(self.slots), table_sha256=digest)
        self.world.log.append(PLAN, 0, b"placement", Plan(version=VERSION, placement=placement).SerializeToString())

    def change(self) -> None:
        """Add, remove, move, rename or limit a sensor or two, but neither the first nor the third one."""
        for _ in range(self.draw.randint(1, 2)):
            sensor = self.draw.choice([1, *range(3, len(self.sensors))])
            match self.draw.choice(["add", "edge", "edge", "name", "limits"]):
                case "add" if len(self.sensors) < 9:
                    self.add(f"s{len(self.sensors)}", self.draw.choice("ab"))
                case "name":
                    found = self.sensors[self.draw.choice([0, 2, sensor])]
                    self.edit(found.id, name=f"{found.key}x{self.serial}", was=found.key)
                case "limits":
                    self.edit(self.draw.choice([0, sensor]), minimum=-1000.0, max_age_s=math.nan)
                case _:
                    self.edit(sensor, edge=self.draw.choice(["a", "b", ""]))

    def at(self, end_us: int) -> tuple[int, list[Sensor]]:
        """Return the table by which the step with this end goes, and since when it is in force."""
        return next((from_us, table) for from_us, table in reversed(self.history) if from_us < end_us)

    def called(self, sensor: int, now_us: int) -> str:
        """Return the name by which a device calls itself."""
        from_us, _ = self.history[-1]
        known = self.history[-1][1]
        if sensor >= len(known):
            return f"s{sensor}"
        return known[sensor].name if now_us > from_us + SETTLED_US else known[sensor].key


def values(world: MemoryWorld) -> dict[int, dict[int, tuple[float, int]]]:
    """Return step -> sensor -> (value, readings) of edge a; no sensor is in a step twice."""
    found: dict[int, dict[int, tuple[float, int]]] = {}
    seen: set[tuple[int, int]] = set()
    for slot, batch in world.batches():
        assert (slot, batch.step) not in seen
        seen.add((slot, batch.step))
        columns = (sensors(batch.sensor).tolist(), floats(batch.value).tolist(), sensors(batch.count).tolist())
        for sensor, value, count in zip(*columns, strict=True):
            assert sensor not in found.setdefault(batch.step, {})
            found[batch.step][sensor] = value, count
    return found


def check_sensors(fleet: Fleet, found: dict[int, dict[int, tuple[float, int]]], late_us: int) -> None:
    """Each step has the sensors of the table by which it goes; a new one may be missing for a window and `late_us`."""
    for step, values_of in found.items():
        from_us, table = fleet.at(step * SLIDE_US)
        mine = {sensor.id for sensor in table if sensor.edge == "a"}
        assert set(values_of) <= mine, step
        _, before = fleet.at(from_us) if from_us > 0 else (0, table)
        stayed = {sensor.id for sensor in before if sensor.edge == "a"}
        settled = step * SLIDE_US > from_us + WINDOW_US + late_us
        if settled or from_us < 0:
            assert set(values_of) == mine, step
        elif len(fleet.history) < 3:
            assert mine & stayed <= set(values_of), step


def live_run(path: Path, seed: int, *, changes: bool) -> tuple[Fleet, dict[int, dict[int, tuple[float, int]]], Any]:
    path.mkdir()
    world = LiveWorld(path)
    (path / "sensors.csv").write_text("sensor,edge,max_age_s\ns0,a,\ns1,b,\ns2,a,2\ns3,a,\ns4,a,\n")
    fleet = Fleet(world, seed)
    fleet.write_placement()
    world.table = read_sensors(path / "sensors.csv")
    edge = world.edge()
    feed, draw = world.feed, random.Random(seed)
    sent: dict[int, list[tuple[int, float]]] = {}
    pending: list[tuple[int, int, int, float]] = []
    for turn in range(300):
        now_us = world.clock.now_us()
        if changes and turn % 60 == 50:
            fleet.change()
            fleet.write_table()
            fleet.write_placement()
        for sensor in range(10):
            value = round(draw.uniform(0, 100), 2)
            if sensor != 2 or turn % 40 < 5:
                sent.setdefault(sensor, []).append((now_us, value))
                pending.append((now_us + draw.randint(0, 400_000), sensor, now_us, value))
        for item in [item for item in pending if item[0] <= now_us]:
            pending.remove(item)
            _, sensor, time_us, value = item
            feed.say(fleet.called(sensor, now_us), time_us, value)
        world.run(edge, 0.05)
    assert world.feed is feed  # the connection is kept
    assert not set(edge.dead_letters.counts) - {
        "foreign-sensor",
        "removed-sensor",
        "unknown-sensor",
        "before-first-window",
    }
    edge.close()
    return fleet, values(world), sent


@pytest.mark.parametrize("seed", range(6))
def test_on_a_live_source_sensors_that_stay_do_not_notice_changes(tmp_path: Path, seed: int) -> None:
    _, without, _ = live_run(tmp_path / "without", seed, changes=False)
    fleet, found, sent = live_run(tmp_path / "with", seed, changes=True)
    assert list(found) == list(without) == list(range(min(found), max(found) + 1))
    for step, values_of in found.items():
        end_us = step * SLIDE_US
        for sensor in (0, 2):
            assert values_of[sensor] == without[step][sensor], step
        for sensor, (value, count) in values_of.items():
            inside = [one for time_us, one in sent[sensor] if end_us - WINDOW_US < time_us <= end_us]
            assert count == len(inside), (step, sensor)
            assert not inside or value == pytest.approx(sum(inside) / count)
    check_sensors(fleet, found, DISORDER_US + 3 * SLIDE_US)
    assert len(fleet.history) == 6


def file_world(path: Path, layout: str, rows: int = 200) -> FileWorld:
    path.mkdir()
    world = FileWorld(path)
    world.values = np.round(np.random.default_rng(7).normal(20, 5, (rows, 9)), 3)
    names = [f"s{sensor}" for sensor in range(9)]
    world.header, world.cells = names, [[str(value) for value in row] for row in world.values]
    world.write()
    if layout == "long":
        shuffled = random.Random(1)
        lines = ["time,sensor,value"]
        for number, row in enumerate(world.cells):
            pairs = list(zip(names, row, strict=True))
            shuffled.shuffle(pairs)
            time = f"2020-01-01T00:{number // 600:02}:{number // 10 % 60:02}.{number % 10}Z"
            lines += [f"{time},{name},{cell}" for name, cell in pairs]
        (path / "data.csv").write_text("\n".join(lines) + "\n")
    return world


@pytest.mark.parametrize("kills", [False, True])
@pytest.mark.parametrize("layout", ["wide", "long"])
@pytest.mark.parametrize("seed", range(3))
def test_on_a_file_sensors_that_stay_do_not_notice_changes(
    tmp_path: Path, layout: str, seed: int, *, kills: bool
) -> None:
    world = file_world(tmp_path / "world", layout)
    world.source = {"when_behind": "send"}
    fleet = Fleet(world, seed)
    fleet.write_placement()
    edge = world.edge("a")
    for turn in range(480):
        if turn % 50 == 40 and turn < 350:
            fleet.change()
            fleet.write_table()
            fleet.write_placement()
        if kills and turn % 50 == 10 and not edge.done:
            world.kill(edge)
            edge = world.edge("a")
        world.run(0.05)
    assert edge.done
    edge.close()
    found = values(world)
    assert list(found) == list(range(min(found), max(found) + 1))
    assert len(found) == (200 - 1 - WINDOW) // 2 + 1
    for step, values_of in found.items():
        last = round((step * SLIDE_US - world.origin_us()) / (INTERVAL_S * 1e6))
        assert {0, 2} <= set(values_of)
        for sensor, (value, count) in values_of.items():
            assert count == WINDOW
            assert value == pytest.approx(world.values[last - WINDOW + 1 : last + 1, sensor].mean(), rel=1e-9)
    if not kills:
        check_sensors(fleet, found, 3 * SLIDE_US)


@pytest.fixture
def world(tmp_path: Path) -> LiveWorld:
    return LiveWorld(tmp_path)  # s0, s2 and s3 are of edge a, s1 is of edge b


def say_all(world: LiveWorld, edge: EdgeService, seconds: float, *names: str) -> None:
    for _ in range(round(seconds / 0.05)):
        for name in names or NAMES if edge._source is not None else ():
            world.feed.say(name, world.clock.now_us(), 5.0)
        world.run(edge, 0.05)


def last_sensors(world: LiveWorld) -> set[int]:
    found = values(world)
    return set(found[max(found)])


def test_a_table_in_plan_rules_from_the_start_over_the_file(world: LiveWorld) -> None:
    fleet = Fleet(world)
    fleet.edit(2, edge="b")
    fleet.edit(1, edge="a", name="one", was="s1")
    fleet.write_table(ahead_us=-AHEAD_US)
    edge = world.edge()
    say_all(world, edge, 3, "s0", "one", "s2", "s3")
    assert {sensor for step in values(world).values() for sensor in step} == {0, 1, 3}
    assert edge.ready() == (True, "")
    edge.close()


def test_an_edge_that_the_file_does_not_know_begins_with_the_table_that_does(world: LiveWorld) -> None:
    fleet = Fleet(world)
    fleet.write_table(ahead_us=-AHEAD_US)
    edge = world.edge(name="z")
    say_all(world, edge, 1)
    assert edge.ready() == (False, "the sensors table in force has no sensor of edge 'z'")
    assert not edge.done
    fleet.add("s4", "z")
    from_us = fleet.write_table()
    say_all(world, edge, 2)
    assert edge.ready()[0] is False  # it has no place yet
    fleet.write_placement()
    say_all(world, edge, 3)
    found = values(world)
    assert {sensor for step in found.values() for sensor in step} == {4}
    assert min(found) * SLIDE_US > from_us
    assert edge.ready() == (True, "")
    edge.close()


def test_an_edge_that_loses_all_sensors_sends_nothing_until_it_has_one_again(world: LiveWorld) -> None:
    fleet, edge = Fleet(world), world.edge()
    say_all(world, edge, 3)
    before = steps_of(world.batches())
    world.log.stop()
    say_all(world, edge, 1)
    assert edge.publisher.depth > 0
    world.log.start()
    for sensor in (0, 2, 3):
        fleet.edit(sensor, edge="")
    from_us = fleet.write_table()
    say_all(world, edge, 4)
    assert steps_of(world.batches()) == list(range(before[0], from_us // SLIDE_US + 1))
    assert edge.publisher.depth == 0
    assert edge.ready() == (False, "the sensors table in force has no sensor of edge 'a'")
    assert not edge.done
    fleet.edit(3, edge="a")
    back_us = fleet.write_table()
    say_all(world, edge, 4)
    later = [step for step in steps_of(world.batches()) if step * SLIDE_US > from_us]
    assert later == list(range(back_us // SLIDE_US + 1, later[-1] + 1))
    assert last_sensors(world) == {3}
    assert edge.ready() == (True, "")
    edge.close()


def test_a_change_waits_for_the_places_of_all_new_sensors(world: LiveWorld) -> None:
    fleet, edge = Fleet(world), world.edge()
    say_all(world, edge, 3)
    fleet.add("s4", "a")
    fleet.edit(0, edge="b")
    fleet.write_table()
    say_all(world, edge, 4)
    assert last_sensors(world) == {0, 2, 3}
    fleet.write_placement()
    say_all(world, edge, 2)
    assert last_sensors(world) == {2, 3, 4}
    assert edge.publisher.unplaced_values == 0
    edge.close()


def test_a_placement_of_more_sensors_than_the_table_is_kept_until_the_table_comes(world: LiveWorld) -> None:
    fleet = Fleet(world)
    fleet.write_table(ahead_us=-AHEAD_US)
    edge = world.edge()
    fleet.add("s4", "a")
    fleet.write_placement()
    say_all(world, edge, 3)
    assert edge._placements.current is not None
    assert len(edge._placements.current.slot) == 16
    fleet.write_table()
    say_all(world, edge, 4)
    assert last_sensors(world) == {0, 2, 3, 4}
    edge.close()


def test_a_table_that_cannot_be_used_is_left_out(world: LiveWorld) -> None:
    edge = world.edge()
    other = SensorTable((Sensor(0, "another", "a"),))
    for serial, table in enumerate([FleetTable(csv=b"?", from_us=1), pack_table(other, by="a test")], start=5):
        plan = Plan(version=VERSION, serial=serial, table=table)
        world.log.append(PLAN, 0, b"table", plan.SerializeToString())
    say_all(world, edge, 3)
    assert last_sensors(world) == {0, 2, 3}
    edge.close()


def test_a_repeated_delivery_is_known_across_a_change(world: LiveWorld) -> None:
    fleet, edge = Fleet(world), world.edge()
    world.run(edge, 2)
    fleet.edit(0, edge="b")
    fleet.write_table(ahead_us=0)
    said_us = world.clock.now_us()
    world.feed.say("s2", said_us, 7.0)
    world.run(edge, 0.75)
    assert [sensor.id for sensor in edge._own] == [2, 3]
    world.feed.say("s2", said_us, 7.0, repeated=True)
    world.run(edge, 0.05)
    assert edge.dead_letters.counts["repeated"] == 1
    edge.close()


def test_a_file_without_a_column_for_a_new_sensor_goes_on_and_the_lack_is_said(tmp_path: Path) -> None:
    world = FileWorld(tmp_path).write()
    world.place()
    fleet, edge = Fleet(world), world.edge("a")
    world.run(4)
    fleet.add("other", "a")
    fleet.write_table(ahead_us=0)
    fleet.write_placement()
    world.run(2)
    assert edge.ready() == (True, f"{tmp_path / 'data.csv'}: no column for 'other'")
    world.run(6)
    assert edge.done
    assert all(set(step) == {0, 2, 4} for step in values(world).values())
    edge.close()


def test_a_file_goes_on_while_its_edge_has_no_sensors(tmp_path: Path) -> None:
    world = file_world(tmp_path / "world", "long")
    fleet = Fleet(world)
    fleet.write_placement()
    edge = world.edge("a")
    world.run(5)
    for sensor in (0, 2, 4):
        fleet.edit(sensor, edge="b")
    gone_us = fleet.write_table(ahead_us=0)
    world.run(5)
    fleet.edit(4, edge="a")
    back_us = fleet.write_table(ahead_us=0)
    world.run(15)
    assert edge.done
    edge.close()
    found = values(world)
    assert {sensor for values_of in found.values() for sensor in values_of} == {0, 2, 4}
    assert not [step for step in found if gone_us < step * SLIDE_US <= back_us + WINDOW_US - SLIDE_US]
    for step in [step for step in found if step * SLIDE_US > back_us]:
        last = round((step * SLIDE_US - world.origin_us()) / (INTERVAL_S * 1e6))
        value, count = found[step][4]
        assert count == WINDOW
        assert value == pytest.approx(world.values[last - WINDOW + 1 : last + 1, 4].mean())
    assert max(found) * SLIDE_US > back_us + 5_000_000


def test_a_placement_that_comes_long_before_its_table_is_not_compared_with_the_file(world: LiveWorld) -> None:
    fleet = Fleet(world)
    (world.path / "sensors.csv").write_text("sensor,edge\nother,a\ns1,b\n")
    for _ in range(1001):
        fleet.write_placement()
    fleet.write_table(ahead_us=-AHEAD_US)
    edge = world.edge()
    say_all(world, edge, 3)
    assert last_sensors(world) == {0, 2, 3}
    edge.close()


def test_where_rows_are_passed_on_a_change_lies_between_two(tmp_path: Path) -> None:
    world = file_world(tmp_path / "world", "wide", rows=80)
    fleet = Fleet(world)
    fleet.write_placement()
    query = world.settings.query.model_copy(update={"mode": "tuples"})
    settings = world.settings.model_copy(update={"query": query})
    edge = EdgeService(settings, "a", world.log.client("a"), world.clock, world.logger)
    world.edges.append(edge)
    world.run(4)
    fleet.edit(0, edge="b")
    fleet.edit(3, edge="a")
    from_us = fleet.write_table(ahead_us=540_000)
    while not edge.done:  # several rows are due in a turn
        edge.step()
        world.clock.advance(0.35)
    rows = values(world)
    for number in range(80):
        time_us = world.origin_us() + round(number * INTERVAL_S * 1e6)
        mine = [0, 2, 4] if time_us <= from_us else [2, 3, 4]
        assert rows[time_us] == {sensor: (world.values[number, sensor], 1) for sensor in mine}
    edge.close()
