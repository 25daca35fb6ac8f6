"""The edge's own loop on the log in memory, under a clock that the test moves."""

from __future__ import annotations

import errno
import os
import random
import re
import socket
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog

from tsunagi.edge.service import Edge, run
from tsunagi.edge.source import SourceError
from tsunagi.edge.spool import RETRY_S, Item
from tsunagi.runtime.clock import ManualClock, SystemClock
from tsunagi.runtime.columns import floats, pack_sensors, sensors
from tsunagi.runtime.heartbeat import ReplacedError
from tsunagi.runtime.log import DEAD_LETTERS, HEARTBEATS, PLAN, TUPLES, LogError
from tsunagi.runtime.messages import (
    VERSION,
    DeadLetter,
    Heartbeat,
    HelperRequest,
    LogRecord,
    Placement,
    Plan,
    System,
    TupleBatch,
)
from tsunagi.runtime.sensors import SensorsError, place, read_sensors
from tsunagi.runtime.settings import ConfigError, Settings
from tsunagi.runtime.testing import MemoryLog, Network

SLOTS = 2
ROWS = 60
WINDOW, SLIDE = 10, 2
INTERVAL_S = 0.1


class World:
    """A directory with data and a table, a log, a clock."""

    def __init__(self, path: Path, network: Network | None = None, **source: Any) -> None:
        generator = np.random.default_rng(5)
        self.path = path
        self.values = np.round(generator.normal(20, 5, (ROWS, 6)), 3)
        self.cells = [[str(value) for value in row] for row in self.values]
        self.header = [f"s{number}" for number in range(6)]
        self.table_rows = [f"s{number},{'ab'[number % 2]}" for number in range(6)]
        self.columns = "sensor,edge"
        self.source = source
        self.clock = ManualClock()
        self.log = MemoryLog(
            self.clock, {TUPLES: SLOTS, PLAN: 1, DEAD_LETTERS: 1, HEARTBEATS: 1}, network=network, rng=random.Random(3)
        )
        self.logger = structlog.stdlib.get_logger("test")
        self.edges: list[Edge] = []
        self.nodes: dict[int, str] = {}
        self.number = 0

    @property
    def settings(self) -> Settings:
        return Settings(
            state=self.path / "run",
            sensors=self.path / "sensors.csv",
            steps={"interval_s": INTERVAL_S, "window": WINDOW, "slide": SLIDE},
            source={"path": self.path / "data.csv", **self.source},
        )

    def write(self) -> World:
        lines = [",".join(row) for row in [self.header, *self.cells]]
        (self.path / "data.csv").write_text("\n".join(lines) + "\n")
        (self.path / "sensors.csv").write_text("\n".join([self.columns, *self.table_rows]) + "\n")
        return self

    def place(self, serial: int = 1, count: int | None = None) -> None:
        table = read_sensors(self.path / "sensors.csv")
        slots = place(table, SLOTS)[:count]
        placement = Placement(
            serial=serial, slots=SLOTS, slot=pack_sensors(slots), table_sha256=table.digest(len(slots))
        )
        self.log.append(PLAN, 0, b"placement", Plan(version=VERSION, placement=placement).SerializeToString())

    def edge(self, name: str = "a", **options: Any) -> Edge:
        self.number += 1
        edge = Edge(self.settings, name, self.log.client(f"{name}-{self.number}"), self.clock, self.logger, **options)
        self.nodes[id(edge)] = f"{name}-{self.number}"
        self.edges.append(edge)
        return edge

    def run(self, seconds: float, *edges: Edge) -> None:
        """Take turns until the time is over or all are done."""
        for _ in range(round(seconds / 0.05)):
            for edge in edges or self.edges:
                while not edge.done and edge.step() == 0.0:
                    pass
            self.clock.advance(0.05)

    def kill(self, edge: Edge) -> None:
        self.log.client(self.nodes[id(edge)]).crash()
        self.edges.remove(edge)
        edge.publisher.spool.close()
        (edge._source or edge._opener).close()

    def batches(self) -> list[tuple[int, TupleBatch]]:
        found = []
        for record in self.log.records(TUPLES):
            message = LogRecord.FromString(record.value or b"")
            assert message.version == VERSION
            assert record.key == message.batch.edge.encode()
            found.append((record.partition, message.batch))
        return found

    def letters(self) -> list[DeadLetter]:
        return [DeadLetter.FromString(record.value or b"") for record in self.log.records(DEAD_LETTERS)]

    def origin_us(self) -> int:
        return int((self.path / "run" / "origin").read_text())

    def expected(self, batch: TupleBatch, sensor: int) -> float:
        """The window computed on its own: the rows (end - 10, end] of the CSV."""
        last = round((batch.step * SLIDE * INTERVAL_S * 1e6 - self.origin_us()) / (INTERVAL_S * 1e6))
        return float(np.mean(self.values[last - WINDOW + 1 : last + 1, sensor]))

    def check(self, batches: list[tuple[int, TupleBatch]], *, whole: bool = True) -> None:
        """Each (edge, step, slot) once, in order, at its slot, with the right values."""
        slots = place(read_sensors(self.path / "sensors.csv"), SLOTS)
        seen = Counter((batch.edge, batch.step, slot) for slot, batch in batches)
        assert set(seen.values()) <= {1}
        for slot in range(SLOTS):
            for edge in "ab":
                steps = [batch.step for at, batch in batches if at == slot and batch.edge == edge]
                assert steps == sorted(steps)
        for slot, batch in batches:
            assert batch.event_time_us == batch.step * round(SLIDE * INTERVAL_S * 1e6)
            ids = sensors(batch.sensor).tolist()
            assert ids == sorted(ids)
            assert all(slots[sensor] == slot for sensor in ids)
            if whole:
                assert ids == [n for n in range(6) if "ab"[n % 2] == batch.edge and slots[n] == slot]
                assert sensors(batch.count).tolist() == [WINDOW] * len(ids)
            for sensor, value in zip(ids, floats(batch.value).tolist(), strict=True):
                assert value == pytest.approx(self.expected(batch, sensor), rel=1e-9)


@pytest.fixture
def make(tmp_path):
    worlds = []

    def make(network=None, **source):
        worlds.append(World(tmp_path, network, **source))
        return worlds[-1]

    yield make
    for world in worlds:
        for edge in world.edges:
            edge.close()


def steps_of(batches: list[tuple[int, TupleBatch]], edge: str = "a") -> list[int]:
    return sorted({batch.step for _, batch in batches if batch.edge == edge})


def test_two_edges_publish_every_whole_window_once_and_end(make):
    world = make().write()
    world.place()
    world.edge("a")
    world.edge("b")
    world.run(12)
    assert all(edge.done for edge in world.edges)
    batches = world.batches()
    world.check(batches)
    first = world.origin_us() // 200_000 + WINDOW // SLIDE
    expected = list(range(first, first + (ROWS - 1 - WINDOW) // SLIDE + 1))
    assert steps_of(batches, "a") == steps_of(batches, "b") == expected
    assert len(batches) == 2 * SLOTS * len(expected)
    assert world.letters() == []


def test_a_step_is_published_only_when_its_time_is_over(make):
    world = make().write()
    world.place()
    edge = world.edge("a")
    for _ in range(200):
        world.run(0.05)
        for _, batch in world.batches():
            assert batch.event_time_us <= world.clock.now_us()
        assert edge.publisher.last_step is None or edge.publisher.last_step * 200_000 <= world.clock.now_us()


def test_nothing_is_read_before_there_is_a_placement(make):
    world = make().write()
    edge = world.edge("a")
    world.run(3)
    assert edge.ready() == (False, "no placement in the plan yet")
    assert not (world.path / "run" / "origin").exists()
    world.place()
    world.run(12)
    assert edge.ready() == (True, "")
    assert edge.done
    world.check(world.batches())


def test_a_broker_that_is_away_from_the_start_is_waited_for(make):
    world = make().write()
    world.place()
    world.log.stop()
    edge = world.edge("a")
    world.run(3)
    assert edge.ready()[1].startswith("the plan cannot be read")
    world.log.start()
    world.run(12)
    assert edge.done
    world.check(world.batches())


@pytest.mark.parametrize("network", [None, Network((0.0, 0.2), (0.0, 0.1), (0.0, 0.2), (0.0, 0.2))])
def test_an_outage_of_the_broker_costs_nothing(make, network):
    world = make(network).write()
    world.place()
    world.edge("a")
    world.edge("b")
    world.run(4)
    world.log.stop()
    world.run(3)
    assert max(edge.publisher.depth for edge in world.edges) > 10
    world.log.start()
    world.run(8)
    assert all(edge.done for edge in world.edges)
    world.check(world.batches())
    assert len(world.batches()) == 2 * SLOTS * 25


def test_what_an_edge_kept_for_an_outage_is_sent_by_its_next_incarnation(make):
    world = make(when_behind="send").write()
    world.place()
    first = world.edge("a")
    world.run(4)
    had = len(steps_of(world.batches()))
    world.log.stop()
    world.run(3)
    kept = first.publisher.depth
    assert kept > 10
    world.kill(first)
    world.log.start()
    world.edge("a")
    world.run(8)
    batches = world.batches()
    world.check(batches)
    steps = steps_of(batches)
    assert steps == list(range(steps[0], steps[0] + 25))
    of_first = {batch.step for _, batch in batches if batch.incarnation == first.incarnation}
    assert len(of_first) >= had + kept // SLOTS


def test_a_full_queue_drops_nothing(make):
    world = make(Network(queue_records=3)).write()
    world.place()
    edge = world.edge("a")
    world.run(4)
    world.log.stop()
    world.run(3)
    world.log.start()
    world.run(6)
    assert edge.done
    world.check(world.batches())
    assert len(world.batches()) == SLOTS * 25


def test_a_killed_edge_goes_on_where_its_source_is_now(make):
    world = make().write()
    world.place()
    first = world.edge("a")
    world.run(5.02)
    world.kill(first)
    before = steps_of(world.batches())
    world.run(0.8)
    second = world.edge("a")
    assert second.incarnation > first.incarnation
    world.run(8)
    assert second.done
    batches = world.batches()
    world.check(batches)
    after = [step for step in steps_of(batches) if step > before[-1]]
    assert len(after) > 3
    # whole windows again only `window` readings after the restart
    assert after[0] - before[-1] >= (WINDOW + 8) // SLIDE
    assert {batch.incarnation for _, batch in batches} == {first.incarnation, second.incarnation}


def test_an_edge_that_may_send_late_loses_no_step_over_a_kill(make):
    world = make(when_behind="send").write()
    world.place()
    for seconds in (4.0, 0.5, 1.3):
        edge = world.edge("a")
        world.run(seconds)
        world.kill(edge)
        world.clock.advance(0.35)
    world.edge("a")
    world.run(8)
    batches = world.batches()
    world.check(batches)
    steps = steps_of(batches)
    assert steps == list(range(steps[0], steps[0] + 25))


def test_kills_at_any_moment_never_repeat_a_step(make):
    chance = random.Random(11)
    network = Network((0.0, 0.1), (0.0, 0.1), (0.0, 0.1), (0.0, 0.1))
    for behind in ("skip", "send"):
        world = make(network, when_behind=behind, origin_us=0).write()
        world.place()
        while world.clock.monotonic() < 9:
            edge = world.edge("a")
            world.run(chance.uniform(0.05, 2.5))
            world.kill(edge)
            world.clock.advance(chance.uniform(0.0, 0.5))
        world.clock.advance(1)
        world.check(world.batches())
        assert len(world.batches()) > 10
        for file in ("run/origin", "run/edges/a/position.json"):
            (world.path / file).unlink()


def test_a_clock_that_is_ten_minutes_off_moves_the_steps_and_not_the_rhythm(make):
    world = make().write()
    world.place()
    right, fast = world.edge("a"), world.edge("b", clock_offset_s=600.0)
    world.run(5)
    assert right.publisher.last_step is not None
    assert fast.publisher.last_step == right.publisher.last_step + 3000
    values = {
        (batch.edge, batch.step - (3000 if batch.edge == "b" else 0)): batch.value for slot, batch in world.batches()
    }
    assert {step for edge, step in values if edge == "a"} == {step for edge, step in values if edge == "b"}


def test_a_clock_set_back_does_not_silence_the_edge(make):
    world = make().write()
    world.place()
    edge = world.edge("a", clock_offset_s=600.0)
    world.run(4)
    ahead = edge.publisher.last_step
    world.kill(edge)
    edge = world.edge("a")
    world.run(3)
    assert edge.publisher.last_step is not None
    assert edge.publisher.last_step < ahead


def test_readings_that_cannot_be_used_are_counted_and_shown(make):
    world = make()
    world.columns = "sensor,edge,min,max"
    world.table_rows = [f"{row},0,100" for row in world.table_rows]
    world.cells[20][0] = "nan"
    world.cells[21][2] = "1000"
    world.cells[22][4] = ""
    world.header.append("new")
    for number, row in enumerate(world.cells):
        row.append(str(number) if number >= 30 else "")
    world.write().place()
    edge = world.edge("a")
    world.run(12)
    assert edge.done
    assert dict(edge.dead_letters.counts) == {
        "before-first-window": 3,  # the first row's, at the very time at which the first window begins
        "not-a-number": 1,
        "out-of-range": 1,
        "unknown-sensor": 30,
    }
    letters = world.letters()
    assert [(letter.reason, letter.offset, letter.key) for letter in letters] == [
        ("not-a-number", 20, b"a/20/s0"),
        ("out-of-range", 21, b"a/21/s2"),
        ("unknown-sensor", 30, b"a/30/new"),
    ]
    assert "found 1000.0, expected 0.0 to 100.0" in letters[1].detail
    counts = Counter(count for _, batch in world.batches() for count in sensors(batch.count).tolist())
    assert counts[WINDOW - 1] == 3 * WINDOW // SLIDE


def test_dead_letters_come_at_a_bounded_rate_and_all_are_counted(make):
    world = make()
    world.cells = [["nan"] * 6 for _ in range(ROWS)]
    world.write().place()
    edge = world.edge("a")
    world.run(12)
    assert edge.dead_letters.counts["not-a-number"] == 3 * ROWS
    assert 100 <= len(world.letters()) < 3 * ROWS
    assert len(world.letters()) + edge.dead_letters.unwritten == 3 * ROWS
    batches = world.batches()
    assert len(batches) == SLOTS * 25  # without a value, but there
    assert {batch.sensor for _, batch in batches} == {b""}


def test_a_sensor_without_a_place_is_counted_and_sent_once_it_has_one(make):
    world = make().write()
    world.place(serial=1, count=4)
    edge = world.edge("a")
    world.run(5)
    assert edge.publisher.unplaced_values > 0
    assert 4 not in {sensor for _, batch in world.batches() for sensor in sensors(batch.sensor).tolist()}
    unplaced = edge.publisher.unplaced_values
    world.place(serial=2)
    world.place(serial=1, count=4)  # an older one changes nothing
    world.run(0.5)
    known = edge.publisher.unplaced_values
    world.run(8)
    assert edge.publisher.unplaced_values == known
    assert known - unplaced <= 3
    assert 4 in {sensor for _, batch in world.batches() for sensor in sensors(batch.sensor).tolist()}
    world.check(world.batches(), whole=False)


def test_a_table_that_contradicts_the_placement_is_refused(make):
    world = make().write()
    world.place()
    world.table_rows[1] = "other,b"
    world.header[1] = "other"
    world.write()
    edge = world.edge("a")
    with pytest.raises(SensorsError, match="contradicts the placement 1"):
        edge.step()


def test_sensors_that_another_slot_asks_for_go_there_as_well(make):
    world = make().write()
    world.place()
    edge = world.edge("a")  # sensors 0, 4 in slot 0; 2 in slot 1
    seen: set[tuple[int, int]] = set()

    def ask(slot: int, epoch: int, *wanted: int) -> None:
        plan = Plan(version=VERSION, helpers=HelperRequest(slot=slot, epoch=epoch, sensor=pack_sensors(list(wanted))))
        world.log.append(PLAN, 0, f"helpers/{slot}".encode(), plan.SerializeToString())

    def lent_in(seconds: float) -> list[tuple[int, TupleBatch]]:
        world.run(seconds)
        new = [(slot, batch) for slot, batch in world.batches() if (slot, batch.step) not in seen]
        assert new
        seen.update((slot, batch.step) for slot, batch in new)
        return [(slot, batch) for slot, batch in new if batch.helper]

    assert lent_in(3.5) == []
    ask(1, 3, 0, 1, 2)
    found = lent_in(1.0)
    values = {batch.step: floats(batch.value)[0] for slot, batch in world.batches() if slot == 0}
    assert len(found) >= 3
    for slot, batch in found:
        assert (slot, sensors(batch.sensor).tolist(), sensors(batch.helper).tolist()) == (1, [2], [0])
        assert floats(batch.helper_value).tolist() == [values[batch.step]]
    assert edge.publisher.lent_values == len(found)
    ask(1, 2, 4)  # of an owner that has been deposed since
    assert {tuple(sensors(batch.helper)) for _, batch in lent_in(0.6)} == {(0,)}
    ask(1, 3)
    lent_in(0.4)
    assert lent_in(0.6) == []


def test_an_unreadable_plan_is_passed_over(make):
    world = make().write()
    world.log.append(PLAN, 0, b"placement", b"\xff\xff")
    world.log.append(PLAN, 0, b"placement", Plan(version=9).SerializeToString())
    world.log.append(PLAN, 0, b"assignment/0", b"\xff")
    world.place()
    edge = world.edge("a")
    edge.step()
    assert edge.ready() == (True, "")


def test_an_edge_that_the_table_does_not_know_is_refused(make):
    with pytest.raises(SensorsError, match="no sensor of edge 'z'; found the edges a, b"):
        make().write().edge("z")


def test_a_position_in_another_file_or_replay_is_refused(make):
    world = make().write()
    world.place()
    first = world.edge("a")
    world.run(5)
    world.kill(first)
    (world.path / "run" / "origin").write_text("5\n")
    edge = world.edge("a")
    with pytest.raises(SourceError, match="it belongs to a replay that began at"):
        edge.step()
    world.header.append("more")
    for row in world.cells:
        row.append("1")
    world.write()
    with pytest.raises(SourceError, match=r"position in 'data\.csv' with another header"):
        world.edge("a")


def test_malformed_rows_stop_the_edge_by_name(make):
    world = make()
    world.cells[30][2] = "broken"
    world.write().place()
    edge = world.edge("a")
    with pytest.raises(SourceError, match="line 32, column 's2': found 'broken', expected a number"):
        world.run(12)
    assert edge.publisher.last_step is not None


def test_a_delivery_that_fails_for_good_stops_the_edge(make):
    world = make().write()
    world.place()
    edge = world.edge("a")
    world.run(4)
    edge.publisher._heard(Item(0, b"", 0.0), LogError("fenced"), -1)
    with pytest.raises(LogError, match="fenced"):
        edge.step()


def test_a_pause_is_taken_for_absence(make):
    world = make().write()
    world.cells *= 3
    world.values = np.concatenate([world.values] * 3)
    world.write().place()
    edge = world.edge("a")
    world.run(5)
    before = steps_of(world.batches())
    world.clock.advance(6)
    world.run(5)
    batches = world.batches()
    world.check(batches)
    after = [step for step in steps_of(batches) if step > before[-1]]
    assert after[0] - before[-1] >= (60 + WINDOW) // SLIDE
    assert edge._source.skipped_rows >= 59


def test_a_full_disk_costs_no_step_and_is_said(make, monkeypatch):
    world = make().write()
    world.place()
    edge = world.edge("a")
    world.run(4)
    before = len(steps_of(world.batches()))

    def full(path: Path, *args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        patched.setattr(Path, "open", full)
        world.log.stop()
        world.run(2)
        ready, reason = edge.ready()
        assert ready
        assert "position cannot be written: No space left on device" in reason
        assert "spool is kept in memory alone: No space left on device" in reason
        assert edge._counts._disk._value.get() == 1
        world.log.start()
        world.run(1)
    world.run(6)
    assert edge.done
    world.clock.advance(RETRY_S)
    edge.step()
    assert edge.ready() == (True, "")
    assert edge._counts._disk._value.get() == 0
    world.check(world.batches())
    steps = steps_of(world.batches())
    assert steps == list(range(steps[0], steps[0] + len(steps)))
    assert len(steps) > before


def beat(edge: str, incarnation: int, sequence: int, **fields: Any) -> bytes:
    return Heartbeat(
        version=VERSION, node=edge, role="edge", incarnation=incarnation, sequence=sequence, pid=7, **fields
    ).SerializeToString()


def test_an_edge_ends_when_a_newer_process_of_its_name_lives_elsewhere(make):
    world = make().write()
    world.place()
    edge = world.edge("a")
    own = edge.incarnation
    harmless = [
        beat("a", own, 1),
        beat("a", own - 1, 9),
        beat("a", own + 1, 1, leaving=True),
        beat("a", own + 1, 2, leaving=True),
        beat("a", own + 1, 5),
        beat("a", own + 1, 5),  # a repetition is no sign of life
        b"\xff",
    ]
    for number in range(600):
        world.log.append(HEARTBEATS, 0, b"b", beat("b", own + 5, number))
    for _ in range(400):
        for value in harmless:
            world.log.append(HEARTBEATS, 0, b"a", value)
        world.clock.advance(0.05)
        edge.step()
    found = ""
    for number in range(400):
        world.log.append(HEARTBEATS, 0, b"a", beat("a", own + 1, 6 + number))
        try:
            world.clock.advance(0.05)
            edge.step()
        except ReplacedError as error:
            found = str(error)
            break
    assert re.fullmatch(
        f"edge 'a': a newer process of it has taken over.* pid 7, incarnation {own + 1}; .* {own}", found
    )


def test_of_two_processes_of_one_edge_the_newer_goes_on_and_the_older_says_why_it_ends(make):
    world = make(when_behind="send").write()
    world.place()
    clock = SystemClock()
    log = MemoryLog(clock, {TUPLES: SLOTS, PLAN: 1, DEAD_LETTERS: 1, HEARTBEATS: 1})
    log.append(PLAN, 0, b"placement", world.log.records(PLAN)[0].value)
    ended: dict[str, object] = {}

    def process(name: str) -> None:
        try:
            ended[name] = run(world.settings, "a", log=log.client(name), clock=clock)
        except ReplacedError as error:
            ended[name] = error

    threads = [threading.Thread(target=process, args=(name,)) for name in ("older", "newer")]
    threads[0].start()
    deadline = time.monotonic() + 30
    while not log.records(TUPLES) and time.monotonic() < deadline:
        time.sleep(0.02)
    threads[1].start()
    for thread in threads:
        thread.join(30)
    assert isinstance(ended["older"], ReplacedError)
    assert f"host {socket.gethostname()}, pid {os.getpid()}" in str(ended["older"])
    assert ended["newer"] == 0
    batches = [(record.partition, LogRecord.FromString(record.value or b"").batch) for record in log.records(TUPLES)]
    first, second = sorted({batch.incarnation for _, batch in batches})
    steps = steps_of(batches)
    assert steps == list(range(steps[0], steps[0] + 25))
    assert {batch.step for _, batch in batches if batch.incarnation == second}
    beats = [Heartbeat.FromString(record.value or b"") for record in log.records(HEARTBEATS)]
    assert {beat.incarnation for beat in beats if beat.leaving} == {second}, "the edge lives on when the older ends"
    assert first in {beat.incarnation for beat in beats}


@pytest.mark.parametrize("kept", ["", "mine", "another"])
def test_an_edge_of_one_system_does_not_publish_to_anothers_log(make, kept):
    ids = {"mine": "0a929205-ac9d-4cbe-85f1-3af74795f7f9", "another": "75f2fedc-26b4-4e09-8c58-71ed484c64e3"}
    world = make().write()
    for whose in ("mine", "another"):  # the first word counts
        plan = Plan(version=VERSION, system=System(id=ids[whose]))
        world.log.append(PLAN, 0, f"system/{ids[whose]}".encode(), plan.SerializeToString())
    world.place()
    if kept:
        (world.path / "run").mkdir()
        (world.path / "run" / "system").write_text(ids[kept])
    edge = world.edge()
    if kept == "another":
        with pytest.raises(ConfigError, match=rf"is of another system: {ids['mine']}"):
            world.run(1.0, edge)
        assert not world.batches()
    else:
        world.run(10.0, edge)
        assert world.batches()
