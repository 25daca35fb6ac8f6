"""Sensors that fail alone, on real series: how often is a sound one accused, and how soon is a bad one found?

    python -m tests.bench.recovery_suspects --data temperature.txt --out out/recovery-suspects.json

The first half of the series is fitted to; the filter and its judge (`tsunagi.recovery.suspects`) go through the rest,
once as it is, and once for each fault and trial with one sensor, drawn at random, that is wrong from a step on: stuck
(the same reading again and again), offset (by so many of its standard deviations), jumping (to and fro by as many) or
dead (0 standard deviations from its mean, with a little noise). One JSON object comes out:

    false_alarms        accusations of sensors that were well, and how many that is for each step of a sensor
    sensors_accused     how many sensors they were
    out_share           share of all sensors' steps in which one that was well was not believed
    faults              by kind: share `found`, `steps` until then {p50, max}, `bystanders`: others accused meanwhile

Files are as tests.bench.recovery_data has them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench import outcome
from tests.bench.recovery_data import read
from tsunagi.recovery.estimation import estimate
from tsunagi.recovery.filter import Recovery
from tsunagi.recovery.model import Model
from tsunagi.recovery.suspects import WARM_STEPS, Suspects
from tsunagi.runtime.columns import Floats

FIT_SHARE = 0.5
SIZE = 6.0
"""Of an offset or jump, in the sensor's standard deviations."""
LASTS = 200
"""Steps for which a fault lasts."""

Fault = Callable[[Floats, float, np.random.Generator], Floats]


def _stuck(values: Floats, scale: float, draw: np.random.Generator) -> Floats:
    del scale, draw
    return np.full(len(values), values[0])


def _offset(values: Floats, scale: float, draw: np.random.Generator) -> Floats:
    return np.asarray(values + draw.choice((-1, 1)) * SIZE * scale)


def _jumping(values: Floats, scale: float, draw: np.random.Generator) -> Floats:
    return np.asarray(values + draw.choice((-1, 1), size=len(values)) * SIZE * scale)


def _dead(values: Floats, scale: float, draw: np.random.Generator) -> Floats:
    return np.asarray(np.full(len(values), float(values[0])) + 1e-3 * scale * draw.normal(size=len(values)))


FAULTS: dict[str, Fault] = {"stuck": _stuck, "offset": _offset, "jumping": _jumping, "dead": _dead}


def watch(model: Model, values: Floats, first_step: int) -> tuple[list[tuple[int, int]], float]:
    """Go through values, float64[T, n]; return (step, sensor) of each accusation, and the share not believed."""
    recovery, suspects = Recovery(model), Suspects(model)
    accused: list[tuple[int, int]] = []
    out = 0
    for number, row in enumerate(values):
        found = recovery.step(row, first_step + number)
        for verdict in suspects.observe(first_step + number, row, found.mean):
            recovery.distrust(verdict.sensor, out=verdict.out)
            if verdict.out:
                accused.append((number, verdict.sensor))
        out += int(suspects.out.sum())
    return accused, out / values.size


def trials(model: Model, values: Floats, first_step: int, count: int, seed: int) -> dict[str, Any]:
    """Let one sensor fail at a time."""
    draw = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    for kind, fault in FAULTS.items():
        steps: list[int] = []
        bystanders = 0
        for _ in range(count):
            sensor = int(draw.integers(values.shape[1]))
            at = int(draw.integers(WARM_STEPS, len(values) - LASTS))
            begin = max(0, at - 3 * WARM_STEPS)
            part = values[begin : at + LASTS].copy()
            before = {who for _, who in watch(model, part, first_step + begin)[0]}
            part[at - begin :, sensor] = fault(part[at - begin :, sensor], float(model.scale[sensor]), draw)
            accused, _ = watch(model, part, first_step + begin)
            own = [number - (at - begin) for number, who in accused if who == sensor and number >= at - begin]
            steps += own[:1]
            bystanders += len({who for _, who in accused} - before - {sensor})
        found[kind] = {
            "trials": count,
            "found": round(len(steps) / count, 3),
            "steps": {"p50": float(np.median(steps)), "max": max(steps)} if steps else None,
            "bystanders": bystanders,
        }
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--axis", choices=("auto", "lines", "columns"), default="auto")
    parser.add_argument("--steps", type=int, default=6000, help="of the series, at most")
    parser.add_argument("--trials", type=int, default=40, help="of each fault")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    values = read(options.data, options.axis)[: options.steps]
    split = round(FIT_SHARE * len(values))
    model, _ = estimate(values[:split], [f"s{number}" for number in range(values.shape[1])])
    rest = values[split:]
    accused, out = watch(model, rest, split)
    judged = max(1, len(rest) - WARM_STEPS) * values.shape[1]
    found: dict[str, Any] = {
        "bench": "recovery_suspects",
        "data": options.data.name,
        "sensors": values.shape[1],
        "steps": len(rest),
        "false_alarms": len(accused),
        "false_alarms_per_sensor_step": len(accused) / judged,
        "sensors_accused": len({sensor for _, sensor in accused}),
        "out_share": round(out, 5),
        "faults": trials(model, rest, split, options.trials, options.seed) if len(rest) > LASTS + WARM_STEPS else {},
    }
    outcome.write(found, options.out)
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
