"""Recovery from end to end: an edge of 20 sensors among 500 is killed. When do its values come, and how good are they?

    python -m tests.bench.recovery_system --kills 20 --out out/recovery-system.json
    python -m tests.bench.recovery_system --data traffic.txt --edges 5 --kills 20 --out out/recovery-traffic.json

Starts a system of its own (broker, workers, 25 edges, Spark), kills one edge after the other with SIGKILL and lets each
come back. A value is late by how much longer than usual it took from the end of its step to `recovered`, usual being
the median of the 5 s before the kill. One JSON object comes out:

    usual_s      what it usually takes
    first_s      lateness of the first step that was filled in, {p50, p99, max} over kills and slots
    after_s      lateness of the steps that ended after that first one had come; `before_s`: of those before the kill
    gaps         steps that a slot left out; `untagged`: values of the dead edge that claim to be measured
    missing      values of the dead edge that did not come at all
    error_sd     root mean square error of what was filled in, in standard deviations of each sensor
    within       share of truths within the bound; `delta`: what it should be
    worst_level, worst_sensor, coverage_by: the same of the worst fifth of the estimates by how high they are, of the
                 worst sensor, and by level and steps since the kill
    bounded      share of values that met eps; `helped`: share of outages in which a slot had helpers
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.bench import outcome, recovery_data
from tests.bench.system import running, say, spread
from tsunagi.local.fleet import Fleet
from tsunagi.recovery.coverage import Coverage, worst_fifth
from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.estimation import estimate
from tsunagi.recovery.factors import Traits
from tsunagi.recovery.model import Model
from tsunagi.recovery.windows import windows
from tsunagi.runtime.columns import Floats, floats, octets, sensors
from tsunagi.runtime.log import RECOVERED, TUPLES
from tsunagi.runtime.messages import BOUNDED, EXACT, LogRecord, Recovered
from tsunagi.runtime.settings import Settings, StepsSettings
from tsunagi.runtime.toml_text import to_toml
from tsunagi.system import processes
from tsunagi.system.topics import read_partition, tool_log

EDGES, SENSORS = 25, 500
STEP_S = 0.2
ROWS, FIT_ROWS = 4000, 2000
WAVES, NOISE = 12, 0.3
DEAD_S, BACK_S, BEFORE_S = 4.0, 4.0, 5.0
DELTA = 0.9
LEAST_PLAYED_S = 60.0
"""Time that a series must last for, from the end of what is fitted to."""


@dataclass(frozen=True)
class Series:
    """What the sensors read, and what the model knows of it beforehand.

    Attributes:
        played: float64[rows, n], what the edges play, again and again.
        fitted: float64[rows, n], what the model is fitted to.
        steps: window and slide.
        edges: how many there are; neighbouring sensors have one.
    """

    played: Floats
    fitted: Floats
    steps: StepsSettings
    edges: int

    @classmethod
    def made(cls) -> Series:
        """Return mixtures of slow waves, and noise of each sensor's own; they go on from the end with the beginning."""
        chance = np.random.default_rng(7)
        steps = StepsSettings(interval_s=0.1, window=10, slide=round(STEP_S / 0.1))
        seconds = np.arange(ROWS) * steps.interval_s
        turns = chance.choice(np.arange(6, 60), WAVES, replace=False)  # whole ones in the file
        turned = turns * seconds[:, None] / (ROWS * steps.interval_s) + chance.uniform(size=WAVES)
        mixed = np.sin(2 * np.pi * turned) @ chance.normal(size=(WAVES, SENSORS))
        values = np.round(20.0 + mixed + NOISE * chance.normal(size=mixed.shape), 4)
        return cls(values, values[:FIT_ROWS], steps, EDGES)

    @classmethod
    def read(cls, path: Path, axis: str, edges: int, rows: int | None) -> Series:
        """Read a series (`recovery_data.read`): the first half is fitted to, the second is played, a row a step.

        Raises:
            ModelError: it cannot be read, or is too short.
        """
        values = recovery_data.read(path, axis)[:rows]
        half = len(values) // 2
        if (len(values) - half) * STEP_S < LEAST_PLAYED_S:
            raise ModelError(f"{path}: found {len(values)} rows, expected {2 * LEAST_PLAYED_S / STEP_S:.0f} or more")
        return cls(values[half:], values[:half], StepsSettings(interval_s=STEP_S, window=1, slide=1), edges)

    @property
    def sensors(self) -> int:
        """How many there are."""
        return len(self.played[0])

    def edge_of(self, sensor: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the edges' numbers of sensors, from 0 on."""
        return np.asarray(sensor * self.edges // self.sensors)


@dataclass(frozen=True)
class FleetUnderTest:
    """What the system is to do.

    Attributes:
        slots: that the sensors are spread over.
        eps: tolerated error, in standard deviations.
    """

    series: Series
    slots: int
    eps: float

    def write(self, work: Path, port: int) -> Path:
        """Write data, sensors table, model and configuration; return the configuration's file."""
        series = self.series
        names = [f"s{number:03d}" for number in range(series.sensors)]
        edges = [f"edge-{number + 1:02d}" for number in series.edge_of(np.arange(series.sensors)).tolist()]
        rows = [",".join("" if np.isnan(value) else repr(value) for value in row) for row in series.played.tolist()]
        (work / "data.csv").write_text("\n".join([",".join(names), *rows]) + "\n")
        table = [f"{name},{edge}" for name, edge in zip(names, edges, strict=True)]
        (work / "sensors.csv").write_text("\n".join(["sensor,edge", *table]) + "\n")
        estimate(windows(series.fitted, series.steps), names, edges=edges)[0].save(work / "model.bin")
        steps = series.steps
        config = work / "tsunagi.toml"
        config.write_text(
            to_toml(
                {
                    "state": str(work / "run"),
                    "sensors": str(work / "sensors.csv"),
                    "kafka": {"servers": f"127.0.0.1:{port}"},
                    "steps": {"interval_s": steps.interval_s, "window": steps.window, "slide": steps.slide},
                    "slots": {"count": self.slots},
                    "source": {"path": str(work / "data.csv"), "repeat": True},
                    "recovery": {
                        "model": str(work / "model.bin"),
                        "store": str(work / "models"),
                        "eps": self.eps,
                        "delta": DELTA,
                    },
                    "spark": {"checkpoint": str(work / "checkpoint")},
                    "scaler": {"workers": 3},
                }
            )
        )
        return config


@dataclass
class Outage:
    """An edge that was away, microseconds."""

    edge: str
    killed_us: int
    back_us: int = 0


@dataclass
class Tally:
    """What was found over all outages."""

    usual: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    before: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    within: list[bool] = field(default_factory=list)
    level: list[float] = field(default_factory=list)
    age: list[float] = field(default_factory=list)
    sensor: list[int] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


def kill_edges(
    settings: Settings, config: Path, edges: int, kills: int, dead_s: float, chance: random.Random
) -> list[Outage]:
    """Kill one edge after the other, and start it again."""
    outages: list[Outage] = []
    fleet = Fleet(tool_log(settings, "bench"))
    for number in range(kills):
        edge = f"edge-{chance.randrange(edges) + 1:02d}"
        process = processes.find(settings.state, edge)
        if process is None:
            raise RuntimeError(f"{edge}: no such process")
        time.sleep(BEFORE_S + chance.random())
        outage = Outage(edge, time.time_ns() // 1000)
        processes.kill(process)
        processes.forget(settings.state, edge)
        time.sleep(dead_s)
        outage.back_us = time.time_ns() // 1000
        processes.start(settings, config, edge, "edge", ["edge", "run", "--edge", edge])
        until = time.monotonic() + 60.0
        while (beat := fleet.fresh("edge").get(edge)) is None or beat.step * STEP_S * 1e6 < outage.back_us:
            fleet.update(0.1)
            if time.monotonic() > until:
                raise RuntimeError(f"{edge} did not come back")
        time.sleep(BACK_S)
        outages.append(outage)
        say(f"{number + 1}/{kills}: {edge} was away for {(outage.back_us - outage.killed_us) / 1e6:.1f} s")
    fleet.close()
    return outages


def truths(settings: Settings, series: Series) -> tuple[Floats, int]:
    """Return the true windows, float64[steps, n] from the step of the second element on."""
    steps, played = series.steps, series.played
    origin_us = int((settings.state / "origin").read_text())
    true = windows(np.vstack([played, played[: steps.window]]), steps)[: len(played) // steps.slide]
    return true, -(-origin_us // steps.slide_us) + steps.window // steps.slide


@dataclass(frozen=True)
class Delivered:
    """One step of a slot, as it came."""

    message: Recovered
    appended_us: int

    @property
    def taken_s(self) -> float:
        """From the end of the step to `recovered`."""
        return (self.appended_us - self.message.event_time_us) / 1e6


def judge(settings: Settings, outages: Sequence[Outage], work: Path, series: Series) -> Tally:
    """Go through `recovered`."""
    log, tally = tool_log(settings, "bench"), Tally()
    true, first_step = truths(settings, series)
    judging = Judging(series, Model.load(work / "model.bin"), true, first_step)
    for slot in range(settings.slots.count):
        steps = [
            Delivered(Recovered.FromString(record.value or b""), record.appended_us)
            for record in read_partition(log, RECOVERED, slot)
        ]
        tally.counts["gaps"] += sum(b.message.step != a.message.step + 1 for a, b in pairwise(steps))
        helped = [
            record.appended_us
            for record in read_partition(log, TUPLES, slot)
            if LogRecord.FromString(record.value or b"").helpers.sensor
        ]
        for outage in outages:
            tally.counts["outages"] += 1
            tally.counts["helped"] += any(outage.killed_us < at < outage.back_us for at in helped)
            judge_outage(tally, steps, outage, judging)
    return tally


@dataclass(frozen=True)
class Judging:
    """What outages are judged by: the true windows, float64[steps, n], are those from `first_step` on."""

    series: Series
    model: Model
    true: Floats
    first_step: int


def judge_outage(tally: Tally, steps: Sequence[Delivered], outage: Outage, by: Judging) -> None:
    """Judge one slot's steps of one outage."""
    before = (outage.killed_us - BEFORE_S * 1e6, outage.killed_us - 1e6)
    calm = [item.taken_s for item in steps if before[0] < item.message.event_time_us < before[1]]
    usual = float(np.median(calm))
    tally.usual.append(usual)
    tally.before += [taken - usual for taken in calm]
    everyone = sensors(steps[-1].message.sensor)
    mine = everyone[by.series.edge_of(everyone) == int(outage.edge[5:]) - 1]
    came_us, age = 0, 0
    for item in steps:
        message = item.message
        # The first step may still have been sent before the kill, the last ones be the returning edge's.
        if not outage.killed_us + 3e5 < message.event_time_us <= outage.back_us - 2e5:
            continue
        if not came_us:
            came_us = item.appended_us
            tally.first.append(item.taken_s - usual)
        elif message.event_time_us > came_us:
            tally.after.append(item.taken_s - usual)
        ids = sensors(message.sensor)
        own = np.isin(ids, mine)
        quality = octets(message.quality)[own]
        truth = by.true[(message.step - by.first_step) % len(by.true), ids[own]]
        mean, scale = floats(message.mean)[own], by.model.scale[ids[own]]
        off, known = np.abs(mean - truth), np.isfinite(truth)
        within = off <= floats(message.bound)[own]
        age += 1
        tally.errors += (off / scale)[known].tolist()
        tally.within += within[known].tolist()
        tally.level += ((mean - by.model.mean[ids[own]]) / scale)[known].tolist()
        tally.age += [float(age)] * int(known.sum())
        tally.sensor += ids[own][known].tolist()
        for name, count in (
            ("values", len(mine)),
            ("missing", len(mine) - own.sum()),
            ("untagged", (quality == EXACT).sum()),
            ("bounded", (quality == BOUNDED).sum()),
            ("within", within[known].sum()),
        ):
            tally.counts[name] += int(count)


def coverages(tally: Tally, sensors: int, missing: float) -> dict[str, Any]:
    """Return the share of truths within the bound by what the estimate was like, and of the worst."""
    within, level = np.array(tally.within), np.array(tally.level)
    places, age = np.array(tally.sensor, dtype=np.intp), np.array(tally.age)
    coverage = Coverage(1, sensors)
    coverage.add(places, np.zeros(len(places), dtype=np.intp), within, Traits(level, np.ones(len(age)), age), missing)
    worst = coverage.worst_sensor()
    return {
        "worst_level": round(worst_fifth(level, within), 4),
        "worst_sensor": None if worst is None else round(worst[1], 4),
        "coverage_by": coverage.shares(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--eps", type=float, default=0.1)
    parser.add_argument("--dead-s", type=float, default=DEAD_S, help="how long each edge is away")
    parser.add_argument(
        "--data", type=Path, help="a series in place of the made one: half is fitted to, half is played"
    )
    parser.add_argument("--axis", choices=("auto", "lines", "columns"), default="auto", help="that its time runs along")
    parser.add_argument("--edges", type=int, default=5, help="of its sensors")
    parser.add_argument("--rows", type=int, help="of it, from its start")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--port", type=int, default=29292)
    parser.add_argument("--work", type=Path, default=Path("out/bench"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        series = (
            Series.made()
            if options.data is None
            else Series.read(options.data, options.axis, options.edges, options.rows)
        )
    except ModelError as error:
        parser.error(str(error))
    fleet = FleetUnderTest(series, options.slots, options.eps)
    with running(options.work, options.port, fleet) as (settings, config):
        time.sleep(10.0)
        chance = random.Random(options.seed)
        outages = kill_edges(settings, config, series.edges, options.kills, options.dead_s, chance)
        tally = judge(settings, outages, options.work.resolve(), series)
    counts = tally.counts
    found: dict[str, Any] = {
        "bench": "recovery_system",
        "data": "made" if options.data is None else options.data.name,
        "edges": series.edges,
        "sensors": series.sensors,
        "slots": options.slots,
        "kills": len(outages),
        "eps": options.eps,
        "delta": DELTA,
        "usual_s": spread(tally.usual),
        "first_s": spread(tally.first),
        "after_s": spread(tally.after),
        "before_s": spread(tally.before),
        "values": counts["values"],
        "gaps": counts["gaps"],
        "missing": counts["missing"],
        "untagged": counts["untagged"],
        "error_sd": round(float(np.sqrt(np.mean(np.square(tally.errors)))), 4),
        "within": round(counts["within"] / max(1, len(tally.errors)), 4),
        **coverages(tally, series.sensors, 1 / series.edges),
        "bounded": round(counts["bounded"] / max(1, counts["values"]), 4),
        "helped": round(counts["helped"] / max(1, counts["outages"]), 4),
    }
    outcome.write(found, options.out)
    say(json.dumps(found))
    return 1 if counts["gaps"] or counts["missing"] or counts["untagged"] else 0


if __name__ == "__main__":
    sys.exit(main())
