"""What models of low rank are worth beside whole covariances: errors, bounds, size and time, on the same failures.

    python -m tests.bench.low_rank --out out/low-rank.json

The series are those of `tests.bench.slots_of_an_edge`, and two larger generated fleets, one of which has few common
causes. The first half of each is fitted to, once as small fleets are and once as if the fleet were too large for whole
matrices. In the second half whole edges fail for 10 steps, now this, now that one. One JSON object comes out: by series
and kind, root mean squared error and interval score of the bounds of 0.9 (in units of each sensor's standard
deviation), their coverage, and the structure, the size of the model file, seconds of the fit and of a step; and for
both scores the ratio of low rank to whole.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from tests.bench import outcome
from tests.bench.recovery_data import SCORED_LEVEL, Mask, failures, interval_scores
from tests.bench.slots_of_an_edge import GENERATED, MISSING, SECTIONS, generated
from tests.bench.system import say
from tsunagi.recovery import estimation
from tsunagi.recovery.estimation import estimate
from tsunagi.recovery.filter import Recovery
from tsunagi.recovery.fit import read_history
from tsunagi.recovery.model import Model
from tsunagi.runtime.columns import Floats

LARGE = {"edges": 100, "an_edge": 12, "steps": 2000}
SHARED = {"sensors": 1000, "an_edge": 20, "steps": 1000, "causes": 12}
AS_IF_LARGE = {"SEARCHED": 0, "WHOLE_CHOSEN": 0, "MOMENTS_AT_MOST": 0}


def shared(sensors: int, steps: int, causes: int, seed: int = 5) -> Floats:
    """Return float64[steps, sensors]: a few slow causes that all sensors share, and each one's own noise."""
    draw = np.random.default_rng(seed)
    found = np.zeros((steps, causes))
    for step in range(1, steps):
        found[step] = 0.95 * found[step - 1] + 0.3 * draw.normal(size=causes)
    values: Floats = found @ draw.normal(size=(causes, sensors)) + draw.normal(size=(steps, sensors))
    return values


def series() -> Iterator[tuple[str, Floats, int]]:
    """Yield names, values, float64[T, n], and sensors an edge."""
    yield "traffic", read_history(Path("data/guangzhou.csv")).values, SECTIONS
    yield "generated 600", generated(**GENERATED), GENERATED["an_edge"]
    yield "generated 1200", generated(**LARGE), LARGE["an_edge"]
    yield "shared 1000", shared(SHARED["sensors"], SHARED["steps"], SHARED["causes"]), SHARED["an_edge"]


def judged(model: Model, values: Floats, hidden: Mask, unit: Floats) -> dict[str, float]:
    """Return the scores of a filter over all hidden values, and the median time of a step in milliseconds."""
    recovery, off, halves, taken = Recovery(model, delta=SCORED_LEVEL), [], [], []
    for step, row in enumerate(values):
        lost = hidden[step]
        given = np.where(lost, np.nan, row)
        began = time.process_time()
        found = recovery.step(given, step)
        taken.append(time.process_time() - began)
        scored = lost & np.isfinite(row)
        off.append(np.abs(found.mean - row)[scored] / unit[scored])
        halves.append(found.bound[scored] / unit[scored])
    error, half = np.concatenate(off), np.concatenate(halves)
    return {
        "nrmse": round(float(np.sqrt(np.mean(error**2))), 4),
        "interval_score": round(float(np.mean(interval_scores(error, half))), 4),
        "coverage": round(float(np.mean(error <= half)), 4),
        "step_ms": round(1000 * float(np.median(taken)), 2),
    }


def run(values: Floats, an_edge: int) -> dict[str, Any]:
    """Return what is found for one series."""
    n, half = values.shape[1], len(values) // 2
    names, edges = [f"s{place}" for place in range(n)], [f"e{place // an_edge:03d}" for place in range(n)]
    hidden = failures(len(values) - half, np.arange(n) // an_edge, MISSING, seed=7)
    unit = np.nanstd(values, axis=0)
    found: dict[str, Any] = {}
    for kind, constants in (("whole", {}), ("low rank", AS_IF_LARGE)):
        began = time.process_time()
        with patch.multiple(estimation, **({"SEARCHED": n, "WHOLE_CHOSEN": n} | constants)):
            model, report = estimate(values[:half], names, edges=edges)
        fit_s = time.process_time() - began
        found[kind] = judged(model, values[half:], hidden, unit) | {
            "structure": f"{report.transition}, persistence {report.persistence:.3f}, lag {report.lag}",
            "rank": report.rank,
            "file_mb": round(len(model.to_bytes()) / 1e6, 2),
            "fit_cpu_s": round(fit_s, 1),
        }
    for score in ("nrmse", "interval_score"):
        found[f"{score}_ratio"] = round(found["low rank"][score] / found["whole"][score], 4)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("out/low-rank.json"))
    given = parser.parse_args()
    found: dict[str, Any] = {"bench": "low_rank"}
    for name, values, an_edge in series():
        found[name] = {"shape": list(values.shape), **run(values, an_edge)}
        say(f"{name}: {found[name]}")
    outcome.write(found, given.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
