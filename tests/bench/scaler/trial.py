"""One scenario on a real broker: the scaler launches workers as processes, the curve comes in, and all is watched."""

from __future__ import annotations

import argparse
import csv
import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tests.bench.launched import Load, Watch, judge, running, wait_outputs
from tests.bench.scaler import known
from tests.bench.scaler.arrangement import (
    BOOT_S,
    HOUR_S,
    LIMITS,
    LOCALS,
    MOST,
    PRICES,
    SLOT_S,
    SLOTS,
    TOLD,
    Scenario,
)
from tests.bench.scaler.curve import MINUTE_S, Curve, like
from tests.bench.scaler.score import Life
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.settings import Settings
from tsunagi.scaler.by_hand import ask
from tsunagi.scaler.launcher import LocalLauncher
from tsunagi.system import processes

TURN_S = 0.1
LOOK_S = 0.5
BOOT_LEAST_S = 10.0
"""A process of this machine takes some seconds to boot, whatever the clock; after that it counts as given up."""
HISTORY = 20
"""Curves that a policy which forecasts by itself has seen before."""

SCALER = """\
workers = {locals}
policy = "{policy}"
billing = "{billing}"
slot_s = {slot_s}
slo_s = {slo_s}
forecast = "{forecast}"
history = "{history}"
[paper]
hour_s = {hour_s}
"""


@dataclass(frozen=True)
class Seen:
    """How the system stood at a moment, seconds since the curve's beginning.

    Attributes:
        rate: tuples/s that came in.
        ready: type -> workers that have reported.
    """

    at_s: float
    rate: float
    ready: Mapping[str, int]


@dataclass(frozen=True)
class Outcome:
    """What came of a scenario; times are seconds since the curve's beginning.

    Attributes:
        lives: of all workers' processes.
        arrived: when each output's input had come.
        latency: of each output, seconds.
        wrong: what was lost, doubled, reordered.
    """

    scenario: Scenario
    seconds: float
    lives: list[Life]
    seen: list[Seen]
    arrived: Floats
    latency: Floats
    wrong: Mapping[str, int]
    unsent: int
    load_average: float

    def late_share(self, slo_s: float, since_s: float = 0.0, until_s: float = np.inf) -> float:
        """Return the share of the outputs that were later than promised, of inputs of a time."""
        part = self.latency[(self.arrived >= since_s) & (self.arrived < until_s)]
        return float((part > slo_s).mean()) if len(part) else 0.0

    def most_s(self, since_s: float = 0.0, until_s: float = np.inf) -> float:
        """Return the longest latency of inputs of a time."""
        return float(self.latency[(self.arrived >= since_s) & (self.arrived < until_s)].max(initial=0.0))


class Lives:
    """Follows the workers' processes."""

    def __init__(self, settings: Settings) -> None:
        self._launcher = LocalLauncher(settings, None)
        self._found: dict[str, Life] = {}

    def look(self, at_s: float) -> None:
        """Take in who runs now."""
        for name, kind in self._launcher.running().items():
            first = self._found.get(name)
            self._found[name] = Life(kind, at_s if first is None else first.since_s, at_s + LOOK_S)

    def all(self) -> list[Life]:
        """Return everybody so far."""
        return sorted(self._found.values(), key=lambda life: life.since_s)


def configuration(scenario: Scenario, options: argparse.Namespace) -> str:
    """Return [scaler] of a scenario, on the compressed clock."""
    forecast = history = ""
    if scenario.elastic and options.forecast == "told":
        forecast = f"{known.Known.__module__}:Known"
    elif scenario.elastic:
        history = str(options.out / "history.csv")
    lines = [
        SCALER.format(
            locals=LOCALS,
            policy=scenario.policy,
            billing=options.billing,
            slot_s=SLOT_S / options.speed,
            hour_s=HOUR_S / options.speed,
            slo_s=options.slo,
            forecast=forecast,
            history=history,
        )
    ]
    for kind, limit in LIMITS.items():
        most = limit * options.factor
        lines.append(f"[scaler.sizes.{kind}]\nrate = {TOLD * most}\nlimit = {most}\n")
        if kind in PRICES:
            lines.append(
                f"price_h = {PRICES[kind]}\nmost = {MOST}\nboot_s = {max(BOOT_S / options.speed, BOOT_LEAST_S)}\n"
            )
    return "".join(lines)


def write_history(options: argparse.Namespace) -> None:
    """Write the rates that a policy which forecasts by itself has seen, a row a second of the system's clock."""
    curves = like(options.curve, HISTORY)
    rates = np.concatenate([curve.steps(options.speed) for curve in curves]) * options.factor
    with (options.out / "history.csv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["t_s", "rate_per_s"])
        rows.writerows((second, f"{rate:.2f}") for second, rate in enumerate(rates))


def run(scenario: Scenario, options: argparse.Namespace) -> Outcome:
    """Run a scenario."""
    curve: Curve = options.curve
    file = options.out / "told.json"
    os.environ[known.VARIABLE] = str(file)
    known.tell(file, curve, options.speed, options.factor, None)
    with running(options.work, options.port, SLOTS, configuration(scenario, options)) as settings:
        watch = Watch(settings)
        wanted = {"local": LOCALS, **scenario.cloud}
        watch.wait({"local": LOCALS})
        if scenario.cloud:
            ask(settings, None, [f"{kind}={count}" for kind, count in wanted.items()], lambda _line: None)
            watch.wait(wanted)
        source = Load(settings, options.factor * curve.at(0.0))
        source.start()
        try:
            time.sleep(SLOT_S / options.speed)
            if scenario.elastic:
                wait_decision(settings, 2 * SLOT_S / options.speed)
            began_s = time.time()
            known.tell(file, curve, options.speed, options.factor, began_s)
            lives, seen = drive(settings, watch, source, curve, options)
        finally:
            source.end()
            watch.close()
        wait_outputs(settings, source.sent)
        wrong, late = judge(settings, source.sent)
        latency = np.array([value for _, value in late])
        arrived = np.array([at for at, _ in late]) / 1e6 - latency - began_s
        seconds = curve.minutes * MINUTE_S / options.speed
        during = (arrived >= 0) & (arrived < seconds)
        return Outcome(
            scenario,
            seconds,
            lives,
            seen,
            arrived[during],
            latency[during],
            wrong,
            source.failed,
            os.getloadavg()[0],
        )


def wait_decision(settings: Settings, patience_s: float) -> None:
    """Wait for the beginning of a TimeSlot, so that the curve's and the system's are the same."""

    def count() -> int:
        return sum(line.get("kind") == "slot" for line in processes.logged(settings.state, "scaling decision"))

    before, began = count(), time.monotonic()
    while count() == before and time.monotonic() - began < patience_s:
        time.sleep(TURN_S)


def drive(
    settings: Settings, watch: Watch, source: Load, curve: Curve, options: argparse.Namespace
) -> tuple[list[Life], list[Seen]]:
    """Let the curve come in; return who was there meanwhile."""
    lives, seen = Lives(settings), []
    began, look_s = time.monotonic(), 0.0
    seconds = curve.minutes * MINUTE_S / options.speed
    while (at_s := time.monotonic() - began) < seconds:
        source.rate = options.factor * curve.at(at_s * options.speed / MINUTE_S)
        if at_s >= look_s:
            look_s = at_s + LOOK_S
            lives.look(at_s)
            seen.append(Seen(at_s, source.rate, Counter(watch.workers())))
        time.sleep(TURN_S)
    return lives.all(), seen
