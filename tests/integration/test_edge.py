"""Edges as processes against a real broker: killed in mid-stream, started again, and what then stands in the log."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.integration.edges import INTERVAL_US, EdgeProcesses, until
from tsunagi.broker.broker import Broker
from tsunagi.broker.checks import free_port
from tsunagi.runtime.columns import floats, sensors
from tsunagi.runtime.log import HEARTBEATS
from tsunagi.runtime.messages import Heartbeat, TupleBatch
from tsunagi.runtime.settings import KafkaSettings

SLOTS, SENSORS, ROWS = 3, 12, 220
WINDOW, SLIDE = 10, 2
EDGES = ("a", "b")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("broker"), free_port())
    broker.start()
    try:
        broker.wait_ready(60)
        yield broker
    finally:
        broker.stop()


class World(EdgeProcesses):
    """Topics of its own on the broker, data, and edge processes."""

    def __init__(self, path: Path, broker: Broker, name: str, rows: int) -> None:
        names = [f"s{number}" for number in range(SENSORS)]
        table = [f"{name},{EDGES[number % 2]}" for number, name in enumerate(names)]
        kafka = KafkaSettings(servers=broker.servers, prefix=f"{name}.")
        super().__init__(path, kafka, table, SLOTS, TSUNAGI_SOURCE__PATH=str(path / "data.csv"))
        self.sources: dict[str, dict[str, str]] = {}
        self.values = np.round(np.random.default_rng(8).normal(1000, 10, (rows, SENSORS)), 4)
        lines = [",".join(names), *(",".join(str(value) for value in row) for row in self.values)]
        (path / "data.csv").write_text("\n".join(lines) + "\n")

    def make_long(self) -> None:
        """Give edge a the same readings as a long CSV, and edge b as a long Parquet file."""
        names = [f"s{number}" for number in range(SENSORS)]
        times_us = [row * INTERVAL_US for row in range(len(self.values)) for _ in names]
        sensor, value = names * len(self.values), self.values.ravel().tolist()
        lines = [f"{time},{name},{found}" for time, name, found in zip(times_us, sensor, value, strict=True)]
        (self.path / "a.csv").write_text("\n".join(["time,sensor,value", *lines]) + "\n")
        times = pa.array(times_us, pa.timestamp("us", tz="UTC"))
        columns = {"time": times, "sensor": sensor, "value": value}
        parquet.write_table(pa.table(columns), self.path / "b.parquet", row_group_size=500)
        self.sources = {
            "a": {"PATH": str(self.path / "a.csv"), "TABLE__TIME_UNIT": "us"},
            "b": {"PATH": str(self.path / "b.parquet"), "KIND": "parquet"},
        }

    def start(self, edge: str = "a", *, stdin: int | None = None) -> subprocess.Popen[bytes]:
        environment = self.environment
        own = {f"TSUNAGI_SOURCE__{name}": text for name, text in self.sources.get(edge, {}).items()}
        self.environment = environment | own
        try:
            return super().start(edge, stdin=stdin)
        finally:
            self.environment = environment

    def origin_us(self) -> int:
        return int((self.path / "run" / "origin").read_text())

    def check(self, batches: list[tuple[int, TupleBatch]]) -> None:
        """Each (edge, step, slot) once and in order; every value is the mean of its ten rows of the CSV."""
        assert set(Counter((batch.edge, batch.step, slot) for slot, batch in batches).values()) == {1}
        by_step = Counter((batch.edge, batch.step) for _, batch in batches)
        for slot in range(SLOTS):
            for edge in EDGES:
                steps = [batch.step for at, batch in batches if (at, batch.edge) == (slot, edge)]
                assert steps == sorted(steps)
        origin_us = self.origin_us()
        for slot, batch in batches:
            expected = [number for number in range(EDGES.index(batch.edge), SENSORS, 2) if self.slots[number] == slot]
            assert sensors(batch.sensor).tolist() == expected
            assert set(sensors(batch.count).tolist()) == {WINDOW}
            last = (batch.event_time_us - origin_us) // INTERVAL_US
            mean = np.mean(self.values[last - WINDOW + 1 : last + 1, expected], axis=0)
            np.testing.assert_allclose(floats(batch.value), mean, rtol=1e-9)
        assert set(by_step.values()) <= {1, 2, SLOTS}


@pytest.fixture
def make(tmp_path: Path, broker: Broker, request: pytest.FixtureRequest) -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def make(rows: int = ROWS) -> World:
        worlds.append(World(tmp_path, broker, re.sub(r"\W", "-", request.node.name.replace("test_", ""))[-60:], rows))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


@pytest.mark.parametrize("layout", ["wide", "long"])
def test_a_killed_edge_repeats_no_step_and_every_value_is_its_windows_mean(
    make: Callable[..., World], layout: str
) -> None:
    world = make()
    if layout == "long":
        world.make_long()
    world.prepare()
    steady, killed = world.start("a"), world.start("b")
    until(lambda: len({batch.step for _, batch in world.batches() if batch.edge == "b"}) >= 6)
    killed.send_signal(signal.SIGKILL)
    killed.wait(10)
    again = world.start("b")
    assert steady.wait(60) == 0
    assert again.wait(60) == 0
    batches = world.batches()
    world.check(batches)
    first = world.origin_us() // (SLIDE * INTERVAL_US) + WINDOW // SLIDE
    whole = list(range(first, first + (ROWS - 1 - WINDOW) // SLIDE + 1))
    assert sorted({batch.step for _, batch in batches if batch.edge == "a"}) == whole
    steps = sorted({batch.step for _, batch in batches if batch.edge == "b"})
    assert set(steps) < set(whole)
    assert steps[-1] == whole[-1]
    assert len({batch.incarnation for _, batch in batches if batch.edge == "b"}) == 2
    beats = [Heartbeat.FromString(record.value or b"") for record in world.read(HEARTBEATS)]
    for edge in EDGES:
        own = [beat for beat in beats if beat.node == edge]
        assert {beat.role for beat in own} == {"edge"}
        assert own[-1].leaving
        assert own[-1].step == whole[-1]
        assert own[-1].metrics_port > 0
    assert sum(beat.leaving for beat in beats) == 2  # the killed one had no time to say so


def test_an_edge_waits_for_the_broker_and_stops_on_a_signal(make: Callable[..., World], broker: Broker) -> None:
    world = make(rows=20_000)  # more than it will ever read, however slowly the broker comes back
    process = world.start("a")  # neither topics nor a placement are there yet
    until(lambda: "waiting for the placement" in (world.path / "a.log").read_text())
    assert process.poll() is None
    world.prepare()
    until(lambda: len(world.batches()) >= 2 * SLOTS)
    broker.kill()
    time.sleep(1.0)
    broker.start()
    broker.wait_ready(60)
    before = len(world.batches())
    until(lambda: len(world.batches()) > before + 3 * SLOTS)
    process.terminate()
    assert process.wait(30) == 0
    batches = world.batches()
    world.check(batches)
    steps = sorted({batch.step for _, batch in batches})
    assert steps == list(range(steps[0], steps[-1] + 1))


def test_input_that_cannot_be_used_ends_the_process_with_one_line(make: Callable[..., World]) -> None:
    world = make()
    world.prepare()
    data = (world.path / "data.csv").read_text()
    for change, message in (
        (data.replace("s0,", "s0x,", 1), "the sensors table contradicts the data: no column for 's0'"),
        (data.replace("\n", "\nbroken", 1), "line 2, column 's0': found 'broken"),
        ("", "empty; expected a header"),
    ):
        (world.path / "data.csv").write_text(change)
        (world.path / "a.log").unlink(missing_ok=True)
        assert world.start("a").wait(60) == 2
        said = (world.path / "a.log").read_text()
        assert message in said
        assert "Traceback" not in said
    assert world.batches() == []


def test_readings_that_cannot_be_used_stand_in_dead_letters(make: Callable[..., World]) -> None:
    world = make()
    lines = (world.path / "data.csv").read_text().splitlines()[:31]
    lines[3] = "nan" + lines[3][lines[3].index(",") :]
    (world.path / "data.csv").write_text("\n".join(lines) + "\n")
    world.prepare()
    assert world.start("a").wait(60) == 0
    (letter,) = world.letters()
    assert (letter.reason, letter.offset, letter.value, letter.key) == ("not-a-number", 2, b"nan", b"a/2/s0")
    counts = [count for _, batch in world.batches() for count in sensors(batch.count).tolist()]
    assert WINDOW - 1 in counts
