"""Outages that leave few edges, or none: how often do bounds hold then that shadow failures of one edge have made?

    python -m tests.bench.all_out --data data/guangzhou.csv --edges 4 --out out/all-out.json

A model is fitted to the first part of the series. Its filter then goes through the windows of the series, twice over,
with two shadows, as a slot's owner does. At every third step a copy of it loses some edges for ten steps. Columns are
dealt out to the edges in turn. One JSON object comes out; `by_edges_out` has, by how many edges were out, for the first
1, 3 and 10 steps of an outage:

    coverage        share of truths within the bounds of 0.9
    lowest          the same, of the outage in which it is lowest
    together        correlation between sensors of whether their bounds hold
    interval_score  width of the bounds + 20 times what a truth is off them, on average, in units of each sensor's scale
"""

from __future__ import annotations

import argparse
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench import outcome
from tests.bench.recovery_data import SCORED_LEVEL, SHADOWS, interval_scores, read
from tsunagi.recovery.calibration import Calibration, Shadow
from tsunagi.recovery.estimation import estimate
from tsunagi.recovery.filter import Recovery
from tsunagi.recovery.model import Model
from tsunagi.runtime.columns import Floats

WARM_STEPS, EVERY = 20, 3
LENGTHS = (1, 3, 10)


def windows(rows: Floats, size: int, slide: int) -> Floats:
    """Return the means of windows over the rows twice over, float64[T, n]."""
    doubled = np.concatenate([rows, rows])
    return np.stack([np.nanmean(doubled[at : at + size], axis=0) for at in range(0, len(doubled) - size + 1, slide)])


def tried(model: Model, steps: Floats, edges: int, out: int) -> dict[str, Any]:
    """Return the figures with so many edges out."""
    edge_of = np.arange(len(model)) % edges
    hidden = edge_of < out
    calibration = Calibration(model)
    recovery = Recovery(model, delta=SCORED_LEVEL, calibration=calibration)
    shadows = [Shadow(recovery, edge_of.tolist(), offset=place) for place in range(min(SHADOWS, edges))]
    held, score = [], []
    for step, values in enumerate(steps[: -max(LENGTHS)]):
        recovery.step(values, step)
        for shadow in shadows:
            calibration.observe(step, *shadow.observe(values, step))
        if step < WARM_STEPS or step % EVERY:
            continue
        other = deepcopy(recovery)
        within, scores = [], []
        for ahead in range(1, max(LENGTHS) + 1):
            truth = steps[step + ahead]
            found = other.step(np.where(hidden, np.nan, truth), step + ahead)
            off = np.abs(found.mean - truth)[hidden]
            within.append(off <= found.bound[hidden])
            scores.append(interval_scores(off, found.bound[hidden]) / model.scale[hidden])
        held.append(within)
        score.append(scores)
    return {str(length): _figures(np.array(held)[:, :length], np.array(score)[:, :length]) for length in LENGTHS}


def _figures(held: Floats, score: Floats) -> dict[str, float]:
    """Return the figures of outages, [outages, steps, sensors]."""
    shares = held.mean(axis=(1, 2))
    share, count = float(shares.mean()), held.shape[2]
    effect = float(shares.var()) / max(share * (1 - share), 1e-12) * count  # a design effect (Kish 1965)
    return {
        "coverage": round(share, 4),
        "lowest": round(float(shares.min()), 4),
        "together": round((effect - 1) / max(count - 1, 1), 4),
        "interval_score": round(float(score.mean()), 4),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--edges", type=int, default=4)
    parser.add_argument("--fit", type=float, default=0.4, help="share of the rows that the model is fitted to")
    parser.add_argument("--window", type=int, default=10, help="rows of a window")
    parser.add_argument("--slide", type=int, default=2, help="rows from one window to the next")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rows = read(options.data, "auto")
    steps = windows(rows, options.window, options.slide)
    history = steps[: int(options.fit * len(rows) - options.window) // options.slide + 1]
    names = [f"s{place}" for place in range(rows.shape[1])]
    model, report = estimate(history, names, edges=[str(place % options.edges) for place in range(len(names))])
    found = {
        "bench": "all_out",
        "data": options.data.name,
        "edges": options.edges,
        "model": f"{report.transition}, shrinkage {report.shrinkage:g}, persistence {report.persistence:.3f}",
        "fits_factor": round(model.inflation(SCORED_LEVEL), 4),
        "by_edges_out": {out: tried(model, steps, options.edges, out) for out in range(1, options.edges + 1)},
    }
    outcome.write(found, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
