"""Changes the sensors table of a running system by `tsunagi apply`, and judges what became of all other sensors."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from tests.e2e.stream import Inputs
from tests.e2e.system import PATIENCE_S, Rig
from tsunagi.local.apply import apply_table
from tsunagi.runtime import columns
from tsunagi.runtime.csv_text import row_writer
from tsunagi.runtime.fleet_table import unpack_table
from tsunagi.runtime.messages import EXACT
from tsunagi.runtime.results import ResultsReader
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import StepsSettings
from tsunagi.system.fleet_table import table_record

KINDS = ("add", "remove", "move", "rename")
"""The kinds of changes."""


@dataclass
class Changes:
    """The user's table of a rig, and how it is changed.

    Attributes:
        file: the user's table; `left_out`: its rows that no sensor has at first.
        steady: names of sensors that no change touches.
        touched: what was done to each other sensor.
    """

    file: Path
    rows: dict[str, list[str]]
    steady: tuple[str, ...]
    left_out: list[str] = field(default_factory=list)
    touched: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    said: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, inputs: Inputs, directory: Path, *, left_out: int) -> tuple[Changes, Inputs]:
        """Return a table without the last sensors of the stream, and the rig's inputs with it."""
        header, *lines = inputs.sensors.read_text(encoding="utf-8").splitlines()
        assert header.startswith("sensor,edge,group,")
        rows = {line.split(",")[0]: line.split(",")[:3] for line in lines}
        names = list(rows)
        directory.mkdir(parents=True, exist_ok=True)
        found = cls(directory / "sensors.csv", rows, tuple(names[::2]), names[len(names) - left_out :])
        found.steady = tuple(name for name in found.steady if name not in found.left_out)
        found.write()
        return found, replace(inputs, sensors=found.file)

    @property
    def present(self) -> list[str]:
        """Names of the sensors that the user's table has, by which the stream knows them."""
        return [name for name in self.rows if name not in self.left_out]

    def write(self) -> None:
        """Write the user's table."""
        with self.file.open("w", encoding="utf-8", newline="") as file:
            write = row_writer(file)
            write(("sensor", "edge", "group", "was"))
            for name in self.present:
                now, edge, group = self.rows[name]
                write((now, edge, group, name if now != name else ""))

    def change(self, kind: str, name: str, *, edge: str = "", now: str = "") -> None:
        """Change a row of the user's table: its edge, its name, or whether it is there."""
        assert name not in self.steady
        self.touched[name].append(kind)
        if kind == "add":
            self.left_out.remove(name)
        elif kind == "remove":
            self.left_out.append(name)
        elif kind == "rename":
            self.rows[name][0] = now or name
        if edge:
            self.rows[name][1] = edge
        self.write()

    def draw(self, chance: random.Random, edges: list[str]) -> str:
        """Make a random change; return what it is."""
        others = [name for name in self.present if name not in self.steady]
        kind = chance.choice(KINDS)
        if kind == "add" and not self.left_out:
            kind = "remove"
        if kind == "remove" and len(others) < 4:
            kind = "move"
        name = chance.choice(self.left_out if kind == "add" else others)
        edge = chance.choice(edges) if kind in ("add", "move") else ""
        self.change(kind, name, edge=edge, now=f"{name}-{chance.randrange(1000)}" if kind == "rename" else "")
        return f"{kind} {name}" + (f" to {edge}" if edge else "")

    def apply(self, rig: Rig) -> None:
        """Put the user's table in force, as the command does."""
        assert apply_table(rig.settings, self.said.append, agreed=lambda: True, timeout_s=PATIENCE_S), "nothing differs"


def table_of(rig: Rig) -> SensorTable:
    """Return the table in force."""
    record = table_record(rig.log)
    assert record is not None
    return unpack_table(record)


@dataclass
class Judged:
    """What the results say of the sensors that no change touched.

    Attributes:
        rows: how many rows they have; `exact`: how many of these are measured.
        late: how many others are estimates of living edges, whose values came when the step had closed and stand in
            the topic `late`: time that an overloaded machine took.
        wrong: what does not hold.
        series: sensor -> [(step, value, whether it is measured)], of all sensors.
    """

    rows: int
    exact: int
    late: int
    wrong: list[str]
    series: dict[str, list[tuple[int, float, bool]]]


def judge(rig: Rig, changes: Changes, *, away: frozenset[str] = frozenset()) -> Judged:
    """Compare the results with the stream: each step of a steady sensor once, in order, with its value.

    Args:
        away: edges that were killed: values of theirs may be estimates.
    """
    table = table_of(rig)
    names = {sensor.id: sensor.key for sensor in table.sensors}
    series: dict[str, list[tuple[int, float, bool]]] = defaultdict(list)
    with ResultsReader(rig.log, rig.settings) as results:
        for block in results.blocks():
            rows = zip(block.sensor.tolist(), block.mean.tolist(), block.quality.tolist(), strict=True)
            for sensor, mean, quality in rows:
                series[names[sensor]].append((block.step, mean, quality == EXACT))
    header, *lines = rig.inputs.data.read_text(encoding="utf-8").splitlines()
    stream = dict(zip(header.split(","), np.array([line.split(",") for line in lines], dtype=float).T, strict=True))
    wrong: list[str] = []
    last = min(series[name][-1][0] for name in changes.steady)
    measured = late = 0
    aside = {(names[sensor], batch.step) for batch in rig.late() for sensor in columns.sensors(batch.sensor).tolist()}
    for name in changes.steady:
        steps = [step for step, _, _ in series[name] if step <= last]
        if steps != list(range(steps[0], last + 1)):
            wrong.append(f"{name}: steps lost, doubled or out of order")
        begin = next(step for step, _, exact in series[name] if exact)  # edges do not all begin with the same step
        for step, value, exact in series[name]:
            measured += exact
            if exact and abs(value - mean_at(stream[name], step, rig.origin_us, rig.inputs.steps)) > 1e-9:
                wrong.append(f"{name}: another value at step {step}")
            elif not exact and (name, step) in aside:
                late += 1
            elif not exact and step > begin and changes.rows[name][1] not in away:
                wrong.append(f"{name}: no measured value at step {step}, although its edge lived")
    return Judged(sum(len(series[name]) for name in changes.steady), measured, late, wrong, series)


def mean_at(stream: np.ndarray, step: int, origin_us: int, steps: StepsSettings) -> float:
    """Return the mean of the rows in a step's window."""
    end_us, every_us = step * steps.slide_us - origin_us, round(steps.interval_s * 1e6)
    first = (end_us - steps.window_us) // every_us + 1
    return float(np.mean(stream[first : end_us // every_us + 1]))
