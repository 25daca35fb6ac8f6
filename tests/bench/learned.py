"""How good a learned model is: error and coverage of what is estimated for an edge that dies again and again.

    python -m tests.bench.learned --steps 200 --out out/learned.json

The series are those of `examples/plant.py`: 36 sensors in three halls, each an edge. A model is fitted to the first
steps, as the learner does. Then the slot's filter goes on with it, its owner measures bounds on shadow failures, and
one edge after the other dies for a while, at random. Virtual time: no broker, no processes.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from examples.plant import HALLS, Plant
from tests.bench import outcome
from tests.bench.system import say
from tsunagi.owner.calibrator import Calibrator
from tsunagi.recovery.estimation import estimate
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.messages import BOUNDED
from tsunagi.runtime.settings import Settings
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.controls import FactorsControl
from tsunagi.slot.frames import Frame
from tsunagi.slot.recover import Recover

SETTLE = 300
"""Steps before the first outage, in which the owner measures bounds."""
APART = 40
"""Steps between two outages."""
INTERVAL_S = 0.5


def series(steps: int, seed: int) -> tuple[list[str], list[str], Floats]:
    """Return the names and edges of the sensors, and their means in steps of a second, float64[steps, sensors]."""
    plant, rows, names, edges = Plant(INTERVAL_S, seed), [], list[str](), list[str]()
    for at in range(2 * steps):
        found = [
            (f"{topic}.{name}", topic.split("/")[1], value)
            for topic, _, values in plant.messages(at * INTERVAL_S)
            for name, value in values.items()
            if name != "light"
        ]
        names, edges = [item[0] for item in found], [item[1] for item in found]
        rows.append([item[2] for item in found])
    return names, edges, np.array(rows).reshape(steps, 2, -1).mean(axis=1)


def measure(learned: int, steps: int, delta: float, seed: int) -> dict[str, Any]:
    """Return error and coverage of one run."""
    names, edges, truth = series(learned + SETTLE + steps, seed)
    model, report = estimate(truth[:learned], names, edges=edges)
    settings = Settings.model_validate({"recovery": {"delta": delta}})
    config = SlotConfig(
        slot=0, sensors=tuple(range(len(names))), names=tuple(names), edges=tuple(edges), slide_us=1_000_000,
        max_ahead_us=1, max_skew_steps=1, max_gap_steps=1, operators=({"use": "recover"},), eps=settings.recovery.eps,
        delta=delta,
    )  # fmt: skip
    recover = Recover(config, model=model)
    assert recover.recovery is not None
    calibrator = Calibrator(recover, recover.recovery, config, edges)
    recover.watch(calibrator, calibrator.observe)
    draw = np.random.default_rng(seed)
    lost, left, pause = "", 0, SETTLE
    within, errors, naive, bounded, width = [], [], [], [], []
    sensor, nothing = np.arange(len(names), dtype=np.uint32), np.zeros(len(names))
    last = truth[learned - 1].copy()
    for at in range(learned, len(truth)):
        if left == 0 and lost:
            lost, pause = "", APART
        elif not lost and pause == 0:
            lost, left = HALLS[int(draw.integers(len(HALLS)))], int(draw.choice([3, 10, 30]))
        pause, left = max(0, pause - 1), max(0, left - 1)
        out = np.array([edge == lost for edge in edges])
        values = np.where(out, np.nan, truth[at])
        (frame,) = recover.process(
            Frame(at, at * 1_000_000, sensor, values, nothing, nothing.astype(np.uint8), nothing)
        )
        if (factors := calibrator.factors()) is not None:
            recover.on_control(FactorsControl(factors))
        if lost:
            error = np.abs(frame.mean - truth[at])[out]
            within += (error <= frame.bound[out]).tolist()
            errors += (error / model.scale[out]).tolist()
            naive += (np.abs(last - truth[at])[out] / model.scale[out]).tolist()
            bounded += (frame.quality[out] == BOUNDED).tolist()
            width += (frame.bound[out] / model.scale[out]).tolist()
        last = np.where(out, last, truth[at])
    return {
        "coverage": float(np.mean(within)),
        "error": float(np.sqrt(np.mean(np.square(errors)))),
        "last_value": float(np.sqrt(np.mean(np.square(naive)))),
        "bounded": float(np.mean(bounded)),
        "bound": float(np.median(width)),
        "trial_error": report.nrmse,
        "estimates": len(within),
    }


def main() -> int:
    """Run it with several seeds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, nargs="+", default=[60, 200, 800], help="steps that are learned from")
    parser.add_argument("--outages", type=int, default=6000, help="steps with outages, in each run")
    parser.add_argument("--delta", type=float, default=0.9)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("out/learned.json"))
    given = parser.parse_args()
    found: dict[str, Any] = {"delta": given.delta}
    for learned in given.steps:
        runs = [measure(learned, given.outages, given.delta, seed) for seed in range(given.seeds)]
        found[str(learned)] = {name: [round(run[name], 3) for run in runs] for name in runs[0]}
        say(json.dumps({learned: found[str(learned)]}))
    outcome.write(found, given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
