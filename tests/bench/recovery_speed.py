"""Recovery: how long does a step take, how much faster than the equations as they stand, how good the splits?

    python -m tests.bench.recovery_speed --sensors 5000 --out out/recovery-speed.json

One core (it starts itself again with one BLAS thread); milliseconds are CPU, so that others here count little.
The missing set changes at every step. One JSON object comes out:

    step_ms       by kind of F and share missing: {min, p50, wall_p50} over the steps, and `held_to`
    make_s        by kind of F: seconds that the filter's matrices take, once
    literal       at 1000 sensors, 10 %, by kind of F: milliseconds a step of the equations taken literally, of
                  statsmodels' Kalman filter and of ours, their ratios, and greatest differences in standard deviations
    exact         the differences to the literal equations with all sensors (minutes; only when asked for)
    small_slots   slot-steps a second of slots of 50 sensors, a tenth missing, all stepped at once
    partition     by field: seconds, objective over the paper's greedy, sizes
    helpers       by field and edges down: ms a decision, helpers, satisfiable values satisfied; by the paper's list too
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from statsmodels.tsa.statespace.kalman_filter import KalmanFilter

from tests.bench import outcome
from tests.bench.recovery.batch import RecoveryBatch
from tests.bench.recovery.list_order import ListOrder
from tests.bench.recovery.splits import split
from tests.unit.recovery.fields import paper_field, spatial_field
from tests.unit.recovery.literal import literal
from tsunagi.recovery.filter import Recovery
from tsunagi.recovery.helpers import choose_helpers, variance_threshold
from tsunagi.recovery.model import Model, half_width
from tsunagi.recovery.partition import objective, partition
from tsunagi.runtime.columns import Floats

STEP_MS = {0.01: 0.5, 0.05: 8.0, 0.10: 25.0, 0.50: 1500.0}
"""Held to with 5000 sensors, by share missing."""
KINDS = ("diagonal", "dense")
RATIOS = {"literal": 400, "statsmodels": 500}
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
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


def steps_ms(made: Recovery, share: float) -> dict[str, float]:
    """Step a filter that has not stepped yet."""
    steps = 7 if share >= 0.3 else 40
    cpu, wall = _taken_ms(made.fork(), patterns(len(made.model), share, steps))
    return {"min": round(min(cpu), 3), "p50": round(_median(cpu), 3), "wall_p50": round(_median(wall), 3)}


def _taken_ms(recovery: Recovery, values: Floats) -> tuple[list[float], list[float]]:
    """Return the milliseconds of each step but the first: CPU, and wall."""
    cpu, wall = [], []
    for row in values:
        begun = time.process_time(), time.perf_counter()
        recovery.step(row)
        cpu.append(1000 * (time.process_time() - begun[0]))
        wall.append(1000 * (time.perf_counter() - begun[1]))
    return cpu[1:], wall[1:]


def _median(values: list[float]) -> float:
    return float(np.median(values))


def every_step(n: int) -> tuple[dict[str, Any], dict[str, float]]:
    """Return milliseconds a step and seconds to make the filter, by kind of F."""
    found: dict[str, Any] = {}
    make: dict[str, float] = {}
    for kind in KINDS:
        _say(f"a model of {n} sensors, {kind} F")
        model = model_of(n, dense=kind == "dense")
        begun = time.process_time()
        made = Recovery(model)
        make[kind] = round(time.process_time() - begun, 1)
        found[kind] = {}
        for share, bound in STEP_MS.items():
            _say(f"{kind} F, {share:.0%} missing")
            found[kind][str(share)] = steps_ms(made, share) | ({"held_to": bound} if n == 5000 else {})
    return found, make


def against_literal(n: int, *, dense: bool) -> dict[str, Any]:
    """Run the same steps by the equations as they stand, and by statsmodels."""
    model = model_of(n, dense=dense)
    made = Recovery(model)
    values = patterns(n, 0.10, 6)
    _say(f"the literal equations, {n} sensors")
    means, sds, literal_ms = _literal(model, values)
    _say(f"statsmodels, {n} sensors")
    kalman_means, kalman_sds, kalman_ms = _kalman(model, values)
    ours = _median([ms for _ in range(5) for ms in _taken_ms(made.fork(), values)[0]])
    return {
        "sensors": n,
        "ours_ms": round(ours, 3),
        "literal": {"ms": round(literal_ms, 1), "ratio": round(literal_ms / ours), "held_to": RATIOS["literal"]},
        "statsmodels": {"ms": round(kalman_ms, 1), "ratio": round(kalman_ms / ours), "held_to": RATIOS["statsmodels"]},
        "off": {
            "literal": _off(made.fork(), values, means, sds),
            "statsmodels": _off(made.fork(), values, kalman_means, kalman_sds),
        },
    }


def exact(n: int) -> dict[str, Any]:
    """Compare with the literal equations alone, with few and with many missing."""
    model = model_of(n, dense=True)
    made, found = Recovery(model), {}
    for share in (0.01, 0.50):
        values = patterns(n, share, 2)
        _say(f"the literal equations, {n} sensors, {share:.0%} missing")
        means, sds, literal_ms = _literal(model, values)
        found[str(share)] = {"literal_ms": round(literal_ms), "off": _off(made.fork(), values, means, sds)}
    return found


def _off(recovery: Recovery, values: Floats, means: Floats, sds: Floats) -> dict[str, float]:
    """Return by how much mean, standard deviation and bound of a missing value are off at most, in units of scale."""
    off = {"mean": 0.0, "sd": 0.0, "bound": 0.0}
    for row, mean, sd in zip(values, means, sds, strict=True):
        found, gone = recovery.step(row), np.isnan(row)
        right = {"mean": mean, "sd": sd, "bound": half_width(DELTA) * sd}
        off = {name: max(off[name], float(np.abs(getattr(found, name) - right[name])[gone].max())) for name in off}
    return {name: float(f"{value:.2g}") for name, value in off.items()}


def _literal(model: Model, values: Floats) -> tuple[Floats, Floats, float]:
    """Return means, standard deviations and milliseconds a step."""
    mean, joint = model.joint()
    begun = time.process_time()
    means, sds = literal(mean, joint, values)
    return means, sds, 1000 * (time.process_time() - begun) / len(values)


def _kalman(model: Model, values: Floats) -> tuple[Floats, Floats, float]:
    n = len(model)
    other = KalmanFilter(k_endog=n, k_states=n)
    other["design"], other["transition"], other["selection"] = np.eye(n), model.F, np.eye(n)
    other["state_cov"] = model.Q
    other.initialize_known(np.zeros(n), model.prior)
    other.bind(values)
    begun = time.process_time()
    found = other.filter()
    taken = 1000 * (time.process_time() - begun) / len(values)
    variance = np.diagonal(found.filtered_state_cov, axis1=0, axis2=1)
    return found.filtered_state.T, np.sqrt(np.maximum(variance, 0.0)), taken


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
        greedy = objective(correlation, edges, split(correlation, edges, slots, "proposed"))
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
        # A threshold that slots miss without helpers, and that two values in five can meet with some to spare.
        best = np.concatenate([_least(precision, lost) for lost in (np.flatnonzero(edges == e) for e in set(edges))])
        threshold = max(variance_threshold(EPS, DELTA), 1.1 * float(np.quantile(best, 0.4)))
        order = ListOrder(correlation, edges, of, threshold, cap=100 + SLOT)
        for down in (1, 2, 3):
            taken, count, satisfied, reachable, listed, by_list = [], [], 0, 0, [], 0
            for _ in range(decisions):
                gone = draws.choice(int(edges.max()) + 1, down, replace=False)
                lost = np.flatnonzero(np.isin(edges, gone))
                slot = int(of[draws.choice(lost)])
                members = np.flatnonzero(of == slot)
                begun = time.process_time()
                chosen = choose_helpers(correlation, members, lost, threshold, precision=precision)
                taken.append(1000 * (time.process_time() - begun))
                count.append(len(chosen.chosen))
                can = _least(precision, lost)[np.searchsorted(lost, chosen.targets)] <= threshold
                reachable += int(can.sum())
                satisfied += int((chosen.satisfied & can).sum())
                paper = order.choose(slot, gone.tolist())
                listed.append(len(paper.chosen))
                by_list += int((paper.satisfied & can).sum())
            found[f"{name}, {down} down"] = {
                "ms": {"p50": round(float(np.median(taken)), 3), "max": round(max(taken), 3)},
                "helpers": round(float(np.mean(count)), 2),
                "threshold": round(threshold, 4),
                "satisfiable": reachable,
                "satisfied": satisfied,
                "list_helpers": round(float(np.mean(listed)), 2),
                "list_satisfied": by_list,
            }
    return found


def _least(precision: Floats, lost: Any) -> Floats:
    """Return the variances of what is lost if all the rest were read."""
    return np.asarray(np.diag(np.linalg.inv(precision[np.ix_(lost, lost)])))


def _say(what: str) -> None:
    sys.stderr.write(f"recovery_speed: {what}\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sensors", type=int, default=5000)
    parser.add_argument("--only", default="filter,literal,small,partition,helpers")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | ONE_THREAD)  # it is read at import
    only = set(options.only.split(","))
    n = options.sensors
    found: dict[str, Any] = {"bench": "recovery_speed", "sensors": n}
    if "filter" in only:
        found["step_ms"], found["make_s"] = every_step(n)
    if "literal" in only:
        found["literal"] = {kind: against_literal(min(n, 1000), dense=kind == "dense") for kind in KINDS}
    if "exact" in only:
        found["exact"] = exact(n)
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
