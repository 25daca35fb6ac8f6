"""Recovery from end to end: an edge of 20 sensors among 500 is killed. When do its values come, and how good are they?

    python -m tests.bench.recovery_system --kills 20 --out out/recovery-system.json

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

from services.local import processes
from services.local.fleet import Fleet
from services.local.topics import read_partition, tool_log
from services.recovery.estimation import estimate
from services.recovery.model import Model
from services.recovery.windows import windows
from services.runtime.columns import Floats, floats, octets, sensors
from services.runtime.log import RECOVERED, TUPLES
from services.runtime.messages import BOUNDED, EXACT, LogRecord, Recovered
from services.runtime.settings import Settings, Steps
from tests.bench import outcome
from tests.bench.system import running, say, spread
from tests.e2e.system import to_toml

EDGES, SENSORS = 25, 500
STEP_S, INTERVAL_S, WINDOW = 0.2, 0.1, 10
STEPS = Steps(interval_s=INTERVAL_S, window=WINDOW, slide=round(STEP_S / INTERVAL_S))
ROWS, FIT_ROWS = 4000, 2000
WAVES, NOISE = 12, 0.3
DEAD_S, BACK_S, BEFORE_S = 4.0, 4.0, 5.0
DELTA = 0.9


@dataclass(frozen=True)
class Fleet500:
    """What the system is to do.

    Attributes:
        slots: that the sensors are spread over.
        eps: tolerated error, in standard deviations.
    """

    slots: int
    eps: float

    def write(self, work: Path, port: int) -> Path:
        """Write data, sensors table, model and configuration; return the configuration's file."""
        names = [f"s{number:03d}" for number in range(SENSORS)]
        values = np.round(_signals(np.random.default_rng(7)), 4)
        (work / "data.csv").write_text(
            "\n".join([",".join(names), *(",".join(map(str, row)) for row in values.tolist())]) + "\n"
        )
        rows = [f"{name},edge-{number * EDGES // SENSORS + 1:02d}" for number, name in enumerate(names)]
        (work / "sensors.csv").write_text("\n".join(["sensor,edge", *rows]) + "\n")
        _model(names, values[:FIT_ROWS]).save(work / "model.bin")
        config = work / "tsunagi.toml"
        config.write_text(
            to_toml(
                {
                    "state": str(work / "run"),
                    "sensors": str(work / "sensors.csv"),
                    "kafka": {"servers": f"127.0.0.1:{port}"},
                    "steps": {"interval_s": INTERVAL_S, "window": WINDOW, "slide": round(STEP_S / INTERVAL_S)},
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


def _signals(chance: np.random.Generator) -> Floats:
    """Return float64[ROWS, SENSORS]: mixtures of slow waves, and noise of each sensor's own; it may be repeated."""
    seconds = np.arange(ROWS) * INTERVAL_S
    turns = chance.choice(np.arange(6, 60), WAVES, replace=False)  # whole ones in the file
    waves = np.sin(2 * np.pi * (turns * seconds[:, None] / (ROWS * INTERVAL_S) + chance.uniform(size=WAVES)))
    mixed = waves @ chance.normal(size=(WAVES, SENSORS))
    return np.asarray(20.0 + mixed + NOISE * chance.normal(size=mixed.shape))


def _model(names: list[str], values: Floats) -> Model:
    """Return a model of the windows of these rows."""
    edges = [str(number * EDGES // SENSORS) for number in range(SENSORS)]
    return estimate(windows(values, STEPS), names, edges=edges)[0]


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
    counts: Counter[str] = field(default_factory=Counter)


def kill_edges(settings: Settings, config: Path, kills: int, chance: random.Random) -> list[Outage]:
    """Kill one edge after the other, and start it again."""
    outages: list[Outage] = []
    fleet = Fleet(tool_log(settings, "bench"))
    for number in range(kills):
        edge = f"edge-{chance.randrange(EDGES) + 1:02d}"
        process = processes.find(settings.state, edge)
        if process is None:
            raise RuntimeError(f"{edge}: no such process")
        time.sleep(BEFORE_S + chance.random())
        outage = Outage(edge, time.time_ns() // 1000)
        processes.kill(process)
        processes.forget(settings.state, edge)
        time.sleep(DEAD_S)
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


def truths(settings: Settings, work: Path) -> tuple[Floats, int]:
    """Return the true windows, float64[steps, n] from the step of the second element on."""
    values = np.loadtxt(work / "data.csv", delimiter=",", skiprows=1)
    origin_us = int((settings.state / "origin").read_text())
    true = windows(np.vstack([values, values[:WINDOW]]), STEPS)[: ROWS // STEPS.slide]
    return true, -(-origin_us // STEPS.slide_us) + WINDOW // STEPS.slide


@dataclass(frozen=True)
class Delivered:
    """One step of a slot, as it came."""

    message: Recovered
    appended_us: int

    @property
    def taken_s(self) -> float:
        """From the end of the step to `recovered`."""
        return (self.appended_us - self.message.event_time_us) / 1e6


def judge(settings: Settings, outages: Sequence[Outage], work: Path) -> Tally:
    """Go through `recovered`."""
    log, tally = tool_log(settings, "bench"), Tally()
    scale = Model.load(work / "model.bin").scale
    true, first_step = truths(settings, work)
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
            judge_outage(tally, steps, outage, true, first_step, scale)
    return tally


def judge_outage(
    tally: Tally, steps: Sequence[Delivered], outage: Outage, true: Floats, first_step: int, scale: Floats
) -> None:
    """Judge one slot's steps of one outage."""
    before = (outage.killed_us - BEFORE_S * 1e6, outage.killed_us - 1e6)
    calm = [item.taken_s for item in steps if before[0] < item.message.event_time_us < before[1]]
    usual = float(np.median(calm))
    tally.usual.append(usual)
    tally.before += [taken - usual for taken in calm]
    everyone = sensors(steps[-1].message.sensor)
    mine = everyone[everyone * EDGES // SENSORS == int(outage.edge[5:]) - 1]
    came_us = 0
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
        truth = true[(message.step - first_step) % len(true), ids[own]]
        off = np.abs(floats(message.mean)[own] - truth)
        tally.errors += (off / scale[ids[own]]).tolist()
        for name, count in (
            ("values", len(mine)),
            ("missing", len(mine) - own.sum()),
            ("untagged", (quality == EXACT).sum()),
            ("bounded", (quality == BOUNDED).sum()),
            ("within", (off <= floats(message.bound)[own]).sum()),
        ):
            tally.counts[name] += int(count)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--eps", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--port", type=int, default=29292)
    parser.add_argument("--work", type=Path, default=Path("out/bench"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with running(options.work, options.port, Fleet500(options.slots, options.eps)) as (settings, config):
        time.sleep(10.0)
        outages = kill_edges(settings, config, options.kills, random.Random(options.seed))
        tally = judge(settings, outages, options.work.resolve())
    counts = tally.counts
    found: dict[str, Any] = {
        "bench": "recovery_system",
        "edges": EDGES,
        "sensors": SENSORS,
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
        "bounded": round(counts["bounded"] / max(1, counts["values"]), 4),
        "helped": round(counts["helped"] / max(1, counts["outages"]), 4),
    }
    outcome.write(found, options.out)
    say(json.dumps(found))
    return 1 if counts["gaps"] or counts["missing"] or counts["untagged"] else 0


if __name__ == "__main__":
    sys.exit(main())
