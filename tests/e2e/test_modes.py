"""Systems that run otherwise than by default: standbys that do not speculate, and queries without lock-step."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.stream import STEPS, Inputs
from tests.e2e.system import PATIENCE_S, Rig
from tests.e2e.verdict import validate
from tsunagi.broker.broker import Broker
from tsunagi.local.fleet import Fleet
from tsunagi.local.up import System
from tsunagi.replay.slots import replay_slots
from tsunagi.runtime.log import DEAD_LETTERS, LATE
from tsunagi.runtime.outputs import Outputs
from tsunagi.runtime.sensors import read_sensors
from tsunagi.runtime.settings import Settings, load
from tsunagi.runtime.toml_text import to_toml
from tsunagi.system import processes
from tsunagi.system.topics import quiet_log

LEAD_S = 20
"""The edges' first row comes so long after the start."""

KILLS = 3
ENOUGH = 2000


@pytest.fixture
def rig(tmp_path: Path, broker: Broker, inputs: Inputs) -> Iterator[Rig]:
    system = Rig(tmp_path, inputs, servers=broker.servers, prefix="sure.", changes={"standby": {"speculate": False}})
    try:
        system.start()
        yield system
    finally:
        system.close()


def test_standbys_that_do_not_speculate_lose_and_double_nothing(rig: Rig) -> None:
    for number in range(KILLS):
        rig.wait_protected()
        kill = rig.kill_owner(number % 2)
        rig.wait_owner(number % 2, kill.epoch)
        rig.advance()
    rig.wait_protected()
    rig.advance()
    validate(rig).tell()
    assert not list(processes.logged(rig.settings.state, "speculation ends"))
    said: list[str] = []
    assert replay_slots(rig.settings, (), said.append) == 0, "\n".join(said)


@pytest.fixture
def stream(tmp_path: Path, broker: Broker, inputs: Inputs) -> Iterator[System]:
    tables = {
        "state": str(tmp_path / "run"),
        "sensors": str(inputs.sensors),
        "kafka": {"servers": broker.servers, "prefix": "stream.", "group_prefix": "stream"},
        "steps": {"interval_s": STEPS.interval_s},
        "query": {"mode": "tuples", "operators": [{"use": "select"}]},
        "standby": {"batch_size": 20},
        "spark": {"checkpoint": str(tmp_path / "checkpoint")},
        "recovery": {"store": str(tmp_path / "models")},
        "scaler": {"workers": 4, "launcher": "none"},
        "source": {
            "path": str(inputs.data),
            "when_behind": "send",
            "origin_us": (time.time_ns() // 1_000_000_000 + LEAD_S) * 1_000_000,
        },
    }
    config = tmp_path / "tsunagi.toml"
    config.write_text(to_toml(tables), encoding="utf-8")
    system = System(load(config), config, lambda _line: None)
    try:
        system.make_topics()
        system.wait_ready(system.start_workers())
        system.start_edges()
        yield system
    finally:
        system.stop()


def wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not after {PATIENCE_S:g} s"
        time.sleep(0.1)


def readings(settings: Settings, inputs: Inputs) -> tuple[dict[tuple[str, int], float], int]:
    """Return (sensor, row of the CSV) -> value of all outputs, each once, and how many repeats were dropped."""
    table = read_sensors(settings.sensors)
    origin_us = settings.source.origin_us
    found: dict[tuple[str, int], float] = {}
    with Outputs(quiet_log(settings, "test"), settings, table) as outputs:
        for block in outputs.blocks():
            row = round((block.event_time_us - origin_us) / (STEPS.interval_s * 1e6))
            for sensor, value in zip(block.sensor.tolist(), block.mean.tolist(), strict=True):
                key = table.sensors[sensor].name, row
                assert key not in found, f"{key} came out twice under different names"
                found[key] = value
        assert outputs.unreadable_count == 0
        return found, outputs.duplicates


def test_without_steps_every_reading_comes_out_once_whoever_dies(stream: System, inputs: Inputs) -> None:
    settings = stream.settings
    fleet = Fleet(quiet_log(settings, "test"))

    def owner() -> str:
        fleet.update(0.1)
        alive = fleet.fresh()
        names = [
            name
            for name, beat in alive.items()
            if any(part.slot == 0 and part.role == "primary" for part in beat.slots)
        ]
        return names[0] if len(names) == 1 else ""

    try:
        wait(lambda: len(readings(settings, inputs)[0]) > ENOUGH, "outputs")
        first = owner()
        process = processes.find(settings.state, first)
        assert process is not None
        processes.kill(process)
        wait(lambda: owner() not in ("", first), "a new owner of slot 0")
        edge = processes.find(settings.state, "edge-2")
        assert edge is not None
        processes.send_signal(edge, signal.SIGKILL, session=True)
        wait(lambda: not processes.alive(edge), "the edge's death")
        stream.start_edges(["edge-2"])
        before = len(readings(settings, inputs)[0])
        wait(lambda: len(readings(settings, inputs)[0]) > before + ENOUGH, "outputs after the faults")
    finally:
        fleet.close()
    found, _ = readings(settings, inputs)
    lines = inputs.data.read_text(encoding="utf-8").splitlines()
    names = lines[0].split(",")
    for (sensor, row), value in found.items():
        assert value == float(lines[1 + row].split(",")[names.index(sensor)])
    # Of each sensor all rows came, but for those on their way when its edge died, and the newest.
    edges = dict(zip(names, (sensor.edge for sensor in read_sensors(settings.sensors).sensors), strict=True))
    for name in names:
        rows = sorted(row for sensor, row in found if sensor == name)
        missing = set(range(rows[0], rows[-1])) - set(rows)
        assert len(missing) <= (math.ceil(1.0 / STEPS.interval_s) if edges[name] == "edge-2" else 0), (name, missing)
    log = quiet_log(settings, "test")
    reader = log.reader()
    assert [reader.range(topic, 0)[1] for topic in (LATE, DEAD_LETTERS)] == [0, 0]
    reader.close()
    said: list[str] = []
    assert replay_slots(settings, (), said.append) == 0, "\n".join(said)
