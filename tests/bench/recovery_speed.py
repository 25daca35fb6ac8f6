"""Recovery: how long does a step take, how much faster than the equations as they stand, and how good are the splits?

    python -m tests.bench.recovery_speed --sensors 5000 --out out/recovery-speed.json

One core. The missing set changes at every step. One JSON object comes out:

    step_ms       by share missing and kind of F: {p50, max} over the steps
    agreement     greatest difference to the equations taken literally, in standard deviations, at 1000 sensors
    ratio         literal form's time over ours, at 1000 sensors and 10 %; `statsmodels` the same, where it is installed
    small_slots   slot-steps a second of slots of 50 sensors, a tenth missing, all stepped at once
    partition     by field: seconds, objective over the paper's greedy, sizes
    helpers       by field and edges down: ms a decision, helpers, satisfiable values satisfied; by the paper's list too
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from services.recovery.batch import RecoveryBatch
from services.recovery.filter import Recovery
from services.recovery.helpers import ListOrder, choose_helpers, variance_threshold
from services.recovery.model import Model
from services.recovery.partition import objective, partition
from services.runtime.columns import Floats
from tests.bench import outcome
from tests.unit.recovery.fields import paper_field, spatial_field
from tests.unit.recovery.literal import literal

SHARES = (0.01, 0.05, 0.10, 0.50)
EDGE = 20
SLOT = 50
EPS, DELTA = 0.25, 0.9


def model_of(n: int, *, dense: bool) -> Model:
    """Return a model over the paper's kind of field; `dense`: neighbours pull at each other, so F has no zeros."""
    draw = np.random.default_rng(1)
    correlation, _ = paper_field(n, draw)
    names = tuple(f"s{place}" for place in range(n))
    if not dense:
        return Model(names, np.zeros(n), np.ones(n), np.full(n, 0.9), 0.19 * correlation, correlation, np.zeros(n))
    transition = 0.7 * np.eye(n) + 0.2 * np.exp(-np.abs(np.arange(n)[:, None] - np.arange(n)) / 3.0) / 6.0
    transition += draw.normal(size=(n, n)) * 1e-4
    return Model(names, np.zeros(n), np.ones(n), transition, 0.3 * correlation, correlation, np.zeros(n))


def patterns(n: int, share: float, steps: int) -> Floats:
    """Return readings with another share missing at every step."""
    draw = np.random.default_rng(2)
    values = draw.normal(size=(steps, n))
    for row in values:
        row[draw.permutation(n)[: round(share * n)]] = np.nan
    return values


def steps_ms(model: Model, share: float) -> dict[str, Any]:
    steps = 5 if share >= 0.3 else 30
    recovery, taken = Recovery(model), []
    for values in patterns(len(model), share, steps):
        begun = time.perf_counter()
        recovery.step(values)
        taken.append(1000 * (time.perf_counter() - begun))
    return {"p50": round(float(np.median(taken[2:])), 3), "max": round(max(taken[2:]), 3), "form": recovery.form}


def against_literal(n: int) -> dict[str, Any]:
    """Run the same steps by the equations as they stand."""
    model = model_of(n, dense=True)
    values = patterns(n, 0.10, 6)
    mean, joint = model.joint()
    begun = time.perf_counter()
    means, sds = literal(mean, joint, values)
    slow = (time.perf_counter() - begun) / len(values)
    recovery, off, taken = Recovery(model), 0.0, []
    for row, mean_row, sd_row in zip(values, means, sds, strict=True):
        begun = time.perf_counter()
        found = recovery.step(row)
        taken.append(time.perf_counter() - begun)
        gone = np.isnan(row)
        off = max(off, float(np.abs(found.mean - mean_row)[gone].max()), float(np.abs(found.sd - sd_row)[gone].max()))
    ours = float(np.median(taken[1:]))
    result: dict[str, Any] = {"agreement": off, "literal_ms": round(1000 * slow, 1), "ours_ms": round(1000 * ours, 3)}
    result["ratio"] = round(slow / ours)
    try:
        result["statsmodels_ratio"] = round(_statsmodels(model, values) / ours)
    except ImportError:
        result["statsmodels_ratio"] = None
    return result


def _statsmodels(model: Model, values: Floats) -> float:
    """Return seconds a step of statsmodels' Kalman filter."""
    from statsmodels.tsa.statespace.kalman_filter import KalmanFilter  # type: ignore[import-not-found]

    n = len(model)
    filter_ = KalmanFilter(k_endog=n, k_states=n)
    filter_["design"], filter_["transition"], filter_["selection"] = np.eye(n), model.F, np.eye(n)
    filter_["state_cov"] = model.Q
    filter_.initialize_known(np.zeros(n), model.prior)
    filter_.bind(np.asfortranarray(values.T))
    begun = time.perf_counter()
    filter_.filter()
    return (time.perf_counter() - begun) / len(values)


def small_slots(slots: int = 200) -> dict[str, Any]:
    models = []
    for seed in range(slots):
        correlation, _ = paper_field(SLOT, np.random.default_rng(seed), edge_size=5)
        names = tuple(f"s{place}" for place in range(SLOT))
        zeros = np.zeros(SLOT)
        models.append(Model(names, zeros, zeros + 1, zeros + 0.9, 0.19 * correlation, correlation, zeros))
    batch, draw = RecoveryBatch(models), np.random.default_rng(3)
    taken = []
    for _ in range(60):
        values = draw.normal(size=(slots, SLOT))
        values[draw.random(values.shape) < 0.1] = np.nan
        begun = time.perf_counter()
        batch.step(values)
        taken.append(time.perf_counter() - begun)
    return {"slots": slots, "sensors": SLOT, "slot_steps_per_s": round(slots / float(np.median(taken[5:])))}


def splits(n: int) -> dict[str, Any]:
    slots = n // SLOT
    found: dict[str, Any] = {}
    draws = np.random.default_rng(4)
    fields = {"paper": paper_field(n, draws), "spatial": spatial_field(n, draws, regions=n // EDGE)}
    for name, (correlation, edges) in fields.items():
        begun = time.perf_counter()
        ours = partition(correlation, edges, slots)
        taken = time.perf_counter() - begun
        greedy = objective(correlation, edges, partition(correlation, edges, slots, "proposed"))
        found[name] = {
            "s": round(taken, 2),
            "objective_ratio": round(objective(correlation, edges, ours) / greedy, 4),
            "sizes": sorted(set(np.bincount(ours).tolist())),
        }
    return found


def help_(n: int, decisions: int = 60) -> dict[str, Any]:
    """Let 1 to 3 edges die, and choose helpers for a slot that lost sensors."""
    found: dict[str, Any] = {}
    draws = np.random.default_rng(5)
    fields = {"paper": paper_field(n, draws), "spatial": spatial_field(n, draws, regions=n // EDGE)}
    for name, (correlation, edges) in fields.items():
        of = partition(correlation, edges, n // SLOT)
        precision = np.asarray(np.linalg.inv(correlation), dtype=np.float64)
        # A threshold that slots miss without helpers and most values can meet: the median of what can be had, and more.
        threshold = variance_threshold(EPS, DELTA)
        best = 1 / np.diag(precision)
        threshold = max(threshold, float(np.quantile(best, 0.9)) * 1.2)
        order = ListOrder(correlation, edges, of, threshold, cap=100 + SLOT)
        for down in (1, 2, 3):
            taken, count, satisfied, reachable, listed, by_list = [], [], 0, 0, [], 0
            for _ in range(decisions):
                gone = draws.choice(int(edges.max()) + 1, down, replace=False)
                lost = np.flatnonzero(np.isin(edges, gone))
                slot = int(of[draws.choice(lost)])
                members = np.flatnonzero(of == slot)
                begun = time.perf_counter()
                chosen = choose_helpers(correlation, members, lost, threshold, precision=precision)
                taken.append(1000 * (time.perf_counter() - begun))
                count.append(len(chosen.chosen))
                can = _reachable(precision, lost, chosen.targets, threshold)
                reachable += int(can.sum())
                satisfied += int((chosen.satisfied & can).sum())
                paper = order.choose(slot, gone.tolist())
                listed.append(len(paper.chosen))
                by_list += int((paper.satisfied & can).sum())
            found[f"{name}, {down} down"] = {
                "ms": {"p50": round(float(np.median(taken)), 3), "max": round(max(taken), 3)},
                "helpers": round(float(np.mean(count)), 2),
                "satisfiable": reachable,
                "satisfied": satisfied,
                "list_helpers": round(float(np.mean(listed)), 2),
                "list_satisfied": by_list,
            }
    return found


def _reachable(precision: Floats, lost: Any, targets: Any, threshold: float) -> Any:
    spread = np.linalg.inv(precision[np.ix_(lost, lost)])
    return np.diag(spread)[np.searchsorted(lost, targets)] <= threshold


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sensors", type=int, default=5000)
    parser.add_argument("--only", default="filter,literal,small,partition,helpers")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    only = set(options.only.split(","))
    n = options.sensors
    found: dict[str, Any] = {"bench": "recovery_speed", "sensors": n}
    if "filter" in only:
        found["step_ms"] = {}
        for kind in ("diagonal", "dense"):
            model = model_of(n, dense=kind == "dense")
            found["step_ms"][kind] = {str(share): steps_ms(model, share) for share in SHARES}
            del model
    if "literal" in only:
        found |= against_literal(min(n, 1000))
    if "small" in only:
        found["small_slots"] = small_slots()
    if "partition" in only:
        found["partition"] = splits(n)
    if "helpers" in only:
        found["helpers"] = help_(n)
    outcome.write(found, options.out)
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
