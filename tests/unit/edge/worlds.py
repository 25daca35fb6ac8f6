"""Worlds of the edge's unit tests: directories, logs, clocks and sources that a test moves by hand."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import structlog

from tsunagi.edge.decode import Decoder
from tsunagi.edge.fields import with_fields
from tsunagi.edge.inbox import Inbox, Message
from tsunagi.edge.live import LiveRules, LiveSource
from tsunagi.edge.service import EdgeService
from tsunagi.edge.source import LiveProgress, SourceRow
from tsunagi.edge.sources import LiveOpener
from tsunagi.edge.tuple_form import streams_of
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.columns import floats, pack_sensors, sensors
from tsunagi.runtime.log import DEAD_LETTERS, HEARTBEATS, PLAN, TUPLES
from tsunagi.runtime.messages import (
    VERSION,
    DeadLetter,
    LogRecord,
    Placement,
    Plan,
    TupleBatch,
)
from tsunagi.runtime.sensors import Sensor, SensorTable, place, read_sensors
from tsunagi.runtime.settings import Settings, SourceSettings, StepsSettings
from tsunagi.runtime.testing import MemoryLog, Network

AnyWorld = TypeVar("AnyWorld", bound="FileWorld")
INTERVAL_S, WINDOW, SLIDE = 0.1, 10, 2
STEPS = StepsSettings(interval_s=INTERVAL_S, window=WINDOW, slide=SLIDE)
SLIDE_US, WINDOW_US = STEPS.slide_us, STEPS.window_us
START_US = 1_700_000_000_000_000
DISORDER_US = 500_000
TABLE = SensorTable((Sensor(0, "s0", "a"), Sensor(1, "s1", "b"), Sensor(2, "s2", "a", max_age_s=60.0)))
TURN_US = 50_000
"""Time from one turn of a loop to the next."""
SLOTS = 2
ROWS = 60
"""Rows of the CSV of a `FileWorld`."""


class FakeFeed:
    def __init__(self, scheme: str = "mqtt") -> None:
        self.scheme = scheme
        self.has_positions = scheme.startswith("kafka")
        self.may_repeat = scheme == "mqtt"
        self.trouble = ""
        self.ended = False
        self.inbox = Inbox(1)
        self.resume: LiveProgress | None = None
        self.numbers = 0

    def start(self, inbox: Inbox, resume: LiveProgress | None) -> None:
        self.inbox, self.resume = inbox, resume

    def close(self) -> None:
        self.ended = True

    def say(self, sensor: str, time_us: int, value: float = 1.0, **more: Any) -> None:
        body = json.dumps({"sensor": sensor, "time": time_us, "value": value}).encode()
        self.raw(body, time_us, **more)

    def raw(self, body: bytes, arrived_us: int, *, offset: int | None = None, **more: Any) -> None:
        number = self.numbers if offset is None else offset
        self.numbers = number + 1
        self.inbox.put(Message(body, "here", arrived_us, offset=number, **more))


class Rig:
    """A source and its feed; the clock goes on in turns, as a loop would."""

    def __init__(
        self, scheme: str = "mqtt", resume: LiveProgress | None = None, until_us: int = 0, **more: Any
    ) -> None:
        settings = SourceSettings.model_validate({"time_unit": "us"} | more)
        self.feed = FakeFeed(scheme)
        self.now_us = START_US
        self.source = LiveSource(
            self.feed,
            Inbox(settings.queue),
            with_fields(Decoder(TABLE, TABLE.of_edge("a"), settings, key_first=True), settings),
            LiveRules.of(settings),
            STEPS,
            TABLE.of_edge("a"),
            self.now_us,
            resume=resume,
            until_us=until_us,
            run=77,
        )

    def turn(self, most: int = 100) -> list[SourceRow]:
        return self.source.due(self.now_us, most)

    def go(self, seconds: float) -> list[SourceRow]:
        rows = []
        end_us = self.now_us + round(seconds * 1e6)
        while self.now_us < end_us:
            self.now_us = min(end_us, self.now_us + TURN_US)
            rows += self.turn()
        return rows

    def complete_us(self) -> int:
        return self.source.complete_until_us(self.now_us) - START_US

    def reasons(self) -> list[str]:
        return [item.reason for item in self.source.unusable()]


class MemoryWorld:
    """A log in memory with a placement of the sensors, and a clock that the test moves."""

    def __init__(self, path: Path, topics: dict[str, int], network: Network | None = None, seed: int = 1) -> None:
        self.path = path
        self.clock = ManualClock()
        self.log = MemoryLog(self.clock, topics, network=network, rng=random.Random(seed))
        self.logger = structlog.stdlib.get_logger("test")

    def place(self, serial: int = 1, count: int | None = None) -> None:
        """Write the placement of the first `count` sensors of the table, or of all, into the plan."""
        table = read_sensors(self.path / "sensors.csv")
        slots = place(table, SLOTS)[:count]
        placement = Placement(
            serial=serial, slots=SLOTS, slot=pack_sensors(slots), table_sha256=table.digest(len(slots))
        )
        self.log.append(PLAN, 0, b"placement", Plan(version=VERSION, placement=placement).SerializeToString())

    def batches(self) -> list[tuple[int, TupleBatch]]:
        """Return (slot, batch) of all that stands in `tuples`."""
        found = []
        for record in self.log.records(TUPLES):
            message = LogRecord.FromString(record.value or b"")
            assert message.version == VERSION
            assert record.key == message.batch.edge.encode()
            found.append((record.partition, message.batch))
        return found

    def letters(self) -> list[DeadLetter]:
        return [DeadLetter.FromString(record.value or b"") for record in self.log.records(DEAD_LETTERS)]


class LiveWorld(MemoryWorld):
    """A directory with a sensors table, and edges on a source that the test feeds.

    Args:
        statements: what `[query] files` say.
    """

    def __init__(self, path, statements: str = "", **source: Any) -> None:
        super().__init__(path, {TUPLES: SLOTS, PLAN: 1, DEAD_LETTERS: 1})
        (path / "sensors.csv").write_text(
            "sensor,edge,min,max,max_age_s\ns0,a,0,100,\ns1,b,0,100,\ns2,a,0,100,\ns3,a,0,100,3\n"
        )
        self.settings = Settings(
            state=path / "run",
            sensors=path / "sensors.csv",
            steps=STEPS.model_dump(),
            source={"kind": "mqtt", "time_unit": "us"} | source,
            query={"files": [path / "statements.sql"]} if statements else {},
        )
        (path / "statements.sql").write_text(statements)
        self.table = read_sensors(path / "sensors.csv")
        self.place()
        self.feed = FakeFeed()
        self.runs = 0

    def edge(self, scheme: str = "mqtt", name: str = "a") -> EdgeService:
        self.runs += 1
        self.feed = FakeFeed(scheme)
        own, streams = self.table.of_edge(name), streams_of(self.settings)
        opener = LiveOpener(self.feed, self.settings, self.table, own, key_first=True, streams=streams)
        edge = EdgeService(
            self.settings, name, self.log.client(f"a-{self.runs}"), self.clock, self.logger, opener=opener
        )
        edge.step()
        return edge

    def run(self, edge: EdgeService, seconds: float, every_s: float = 0.05) -> None:
        for _ in range(round(seconds / every_s)):
            self.clock.advance(every_s)
            while edge.step() == 0.0:
                pass

    def values(self, step: int) -> dict[int, tuple[float, int]]:
        """sensor -> (value, readings) of a step."""
        found: dict[int, tuple[float, int]] = {}
        for _, batch in self.batches():
            if batch.step == step:
                columns = (sensors(batch.sensor).tolist(), floats(batch.value).tolist(), sensors(batch.count).tolist())
                found |= {sensor: (value, count) for sensor, value, count in zip(*columns, strict=True)}
        return found


def live_steps(world: LiveWorld) -> list[int]:
    return sorted({batch.step for _, batch in world.batches()})


class FileWorld(MemoryWorld):
    """A directory with data and a table, a log, a clock."""

    def __init__(self, path: Path, network: Network | None = None, **source: Any) -> None:
        super().__init__(path, {TUPLES: SLOTS, PLAN: 1, DEAD_LETTERS: 1, HEARTBEATS: 1}, network, seed=3)
        generator = np.random.default_rng(5)
        self.values = np.round(generator.normal(20, 5, (ROWS, 6)), 3)
        self.cells = [[str(value) for value in row] for row in self.values]
        self.header = [f"s{number}" for number in range(6)]
        self.table_rows = [f"s{number},{'ab'[number % 2]}" for number in range(6)]
        self.columns = "sensor,edge"
        self.source = source
        self.statements = ""
        self.edges: list[EdgeService] = []
        self.nodes: dict[int, str] = {}
        self.number = 0

    @property
    def settings(self) -> Settings:
        return Settings(
            state=self.path / "run",
            sensors=self.path / "sensors.csv",
            steps=STEPS.model_dump(),
            source={"path": self.path / "data.csv", **self.source},
            query={"files": [self.path / "statements.sql"]} if self.statements else {},
        )

    def write(self) -> FileWorld:
        lines = [",".join(row) for row in [self.header, *self.cells]]
        (self.path / "data.csv").write_text("\n".join(lines) + "\n")
        (self.path / "sensors.csv").write_text("\n".join([self.columns, *self.table_rows]) + "\n")
        (self.path / "statements.sql").write_text(self.statements)
        return self

    def edge(self, name: str = "a", **options: Any) -> EdgeService:
        self.number += 1
        edge = EdgeService(
            self.settings, name, self.log.client(f"{name}-{self.number}"), self.clock, self.logger, **options
        )
        self.nodes[id(edge)] = f"{name}-{self.number}"
        self.edges.append(edge)
        return edge

    def run(self, seconds: float, *edges: EdgeService) -> None:
        """Take turns until the time is over or all are done."""
        for _ in range(round(seconds / 0.05)):
            for edge in edges or self.edges:
                while not edge.done and edge.step() == 0.0:
                    pass
            self.clock.advance(0.05)

    def kill(self, edge: EdgeService) -> None:
        self.log.client(self.nodes[id(edge)]).crash()
        self.edges.remove(edge)
        edge.publisher.spool.close()
        (edge._source or edge._opener).close()

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


def steps_of(batches: list[tuple[int, TupleBatch]], edge: str = "a") -> list[int]:
    return sorted({batch.step for _, batch in batches if batch.edge == edge})


def made(kind: type[AnyWorld], path: Path) -> Iterator[Callable[..., AnyWorld]]:
    """Yield a function that makes worlds of a kind; close their edges in the end: the body of a fixture."""
    worlds: list[AnyWorld] = []

    def make(network: Network | None = None, **source: Any) -> AnyWorld:
        worlds.append(kind(path, network, **source))
        return worlds[-1]

    yield make
    for world in worlds:
        for edge in world.edges:
            edge.close()
