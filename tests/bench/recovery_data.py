"""Recovery on real series: how wrong are the values filled in for dead edges, and how often do their bounds hold?

    python -m tests.bench.recovery_data --data temperature.txt --edges 5 --missing 0.09 --out out/recovery-data.json

The first half of the series is fitted to, the next 14 % calibrates, the rest tests: whole edges fail for 10 steps, now
this, now that one, until a share of all values is missing. An edge has neighbouring columns, so neighbours are lost
together (`--layout spread` deals columns out in turn). Every method sees the same failures. Errors are in units of each
sensor's standard deviation over the whole series. One JSON object comes out:

    left_out        sensors that had too few readings before the test to be fitted to
    nrmse           root mean squared error
    coverage        share of truths within the bound, by the bound's probability, all sensors together
    worst_coverage  the same, of the worst sensor
    worst_level     the same, of the worst fifth of the estimates by how high they are, in units of each sensor
    coverage_by     of bounds of 0.9, by level, steps since the sensor was read, and share missing
    interval_score  width of the bounds of 0.9 + 20 times what a truth is off them, on average (Gneiting, Raftery 2007)
    step_ms         time of a step: filter, calibration and refit together
    baselines       the same for others; "offline" ones see the whole series, the future too

Files are CSV (a header of names; a first column `time` is left out) or plain numbers, a line a step or a line a sensor.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.bench import imputers, outcome
from tsunagi.recovery.averaging import ModelAverage
from tsunagi.recovery.calibration import Calibration, Shadow
from tsunagi.recovery.coverage import Coverage, levels, worst_fifth
from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.estimation import estimate, read_often
from tsunagi.recovery.filter import Recovery
from tsunagi.recovery.fit import read_history
from tsunagi.recovery.model import Model
from tsunagi.runtime.columns import Floats

FIT_SHARE, CALIBRATE_SHARE = 0.5, 0.14
OUTAGE_STEPS = 10
LEVELS = (0.8, 0.9, 0.95, 0.99)
SCORED_LEVEL = 0.9
SHADOWS = 2
REFITS = 50
"""Refits in the time that the fit's own history took."""
LEAST_EVERY = 10
"""Steps between two refits at least."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Trial:
    """A series and what is hidden of it.

    Attributes:
        values: float64[T, n]; NaN = it never had one.
        fit, test: rows before `fit` may be fitted to; from `test` on values are hidden.
        hidden: bool[T, n].
        edge_of: each sensor's edge.
        unit: float64[n], each sensor's standard deviation over the whole series.
        period: for a profile.
    """

    values: Floats
    fit: int
    test: int
    hidden: Mask
    edge_of: npt.NDArray[np.intp]
    unit: Floats
    period: int | str | None


@dataclass(slots=True)
class Found:
    """A method's answers: float64[T, n] means, and half widths by probability (none: the method states no bounds)."""

    mean: Floats
    bounds: dict[float, Floats]
    step_ms: float | None = None
    note: str = ""


def read(path: Path, axis: str) -> Floats:
    """Read a series, float64[T, n]; without a header, time runs along `axis`: lines, columns or auto.

    Raises:
        ModelError: naming the file and what was found.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from None
    first = next((line for line in text.splitlines() if line.strip()), "")
    try:
        cells = [float(cell) for cell in first.replace(",", " ").split()]
    except ValueError:
        if "," in first:
            return read_history(path).values
        cells, text = [0.0], text.split(first, 1)[1]  # names between blanks: numbers follow
    if not cells:
        raise ModelError(f"{path}: found nothing in it, expected a series")
    try:
        rows = [
            [float(cell) if cell else np.nan for cell in (line.split(",") if "," in line else line.split())]
            for line in text.splitlines()
            if line.strip()
        ]
        values = np.array(rows, dtype=np.float64)
    except ValueError as error:
        raise ModelError(f"{path}: {error}") from None
    if axis == "auto":
        # More sensors than steps are rare; where there may be, time is the axis whose neighbours are more alike.
        tall = values.shape[0] >= values.shape[1]
        axis = "lines" if tall or _alike(values) >= _alike(values.T) else "columns"
    return values if axis == "lines" else values.T


def _alike(values: Floats) -> float:
    centred = values - np.nanmean(values, axis=0)
    centred = centred / np.nanstd(centred, axis=0).clip(1e-12)
    moved = np.nanmean(np.square(np.diff(centred, axis=0)), axis=0)
    return float(-np.nanmedian(moved))


def failures(steps: int, edge_of: npt.NDArray[np.intp], share: float, seed: int) -> Mask:
    """Return what whole edges lose, bool[steps, n]: outages of `OUTAGE_STEPS` at random until the share is reached."""
    draw = np.random.default_rng(seed)
    edges = int(edge_of.max()) + 1
    sizes = np.bincount(edge_of)
    down = np.zeros((steps, edges), dtype=bool)
    wanted, missing = share * steps * len(edge_of), 0
    free = [(edge, first) for edge in range(edges) for first in range(max(1, steps - OUTAGE_STEPS + 1))]
    for at in draw.permutation(len(free)).tolist():
        if missing >= wanted:
            break
        edge, first = free[at]
        span = slice(first, first + OUTAGE_STEPS)
        if not down[span, edge].any():
            down[span, edge] = True
            missing += int(sizes[edge]) * len(down[span])
    # Where gaps shorter than an outage are all that is left, outages are allowed to touch and grow.
    for at in draw.permutation(len(free)).tolist():
        if missing >= wanted:
            break
        edge, first = free[at]
        span = slice(first, first + OUTAGE_STEPS)
        missing += int(sizes[edge]) * int((~down[span, edge]).sum())
        down[span, edge] = True
    return down[:, edge_of]


def recover(trial: Trial) -> Found:
    """Run the filter as it runs in a gateway: shadow failures calibrate it, and it is refitted as it goes."""
    names = [f"s{place}" for place in range(trial.values.shape[1])]
    edges = [str(edge) for edge in trial.edge_of]
    period: Any = trial.period
    model, report = estimate(trial.values[: trial.fit], names, edges=edges, period=period)
    kept = np.array([names.index(name) for name in model.names])
    calibration = Calibration(model)
    recovery = Recovery(model, delta=SCORED_LEVEL, calibration=calibration)
    groups = trial.edge_of[kept]
    shadows = [Shadow(recovery, groups.tolist(), offset=place) for place in range(min(SHADOWS, len(set(groups))))]
    average = ModelAverage(model, recovery, groups.tolist())
    every = max(LEAST_EVERY, trial.fit // REFITS)
    mean = trial.values.copy()
    bounds = {level: np.zeros_like(mean) for level in LEVELS}
    taken = 0.0
    for step in range(trial.fit, len(trial.values)):
        values = np.where(trial.hidden[step], np.nan, trial.values[step])[kept]
        begun = time.perf_counter()
        mean[step, kept] = recovery.step(values, step).mean
        for shadow in shadows:
            calibration.observe(step, *shadow.observe(values, step))
        average.observe(values, step)
        if (step - trial.fit) % every == every - 1:
            recovery.follow(average.best(), step)
        taken += time.perf_counter() - begun
        for level in LEVELS:
            bounds[level][step, kept] = recovery.half_widths(level)
    note = (
        f"{report.transition}, shrinkage {report.shrinkage:g}, persistence {report.persistence:.3f}, lag {report.lag}"
    )
    if report.profile:
        note += f", profile of {report.profile[0]} steps"
    return Found(mean, bounds, 1000 * taken / max(1, len(trial.values) - trial.fit), note)


def last_value(trial: Trial) -> Found:
    """Hold what was last seen; its bounds are those that held on the rows before the test, by steps since."""
    values, hidden = trial.values, trial.hidden
    mean, age = values.copy(), np.zeros(values.shape, dtype=np.intp)
    for step in range(1, len(values)):
        gone = hidden[step] | ~np.isfinite(values[step])
        mean[step, gone], age[step, gone] = mean[step - 1, gone], age[step - 1, gone] + 1
    seen = values[: trial.test]
    bounds = {level: np.zeros_like(mean) for level in LEVELS}
    for steps in np.unique(age[hidden]).tolist():
        moved = np.abs(seen[steps:] - seen[: len(seen) - steps])
        rows, columns = np.nonzero(hidden & (age == steps))
        for level in LEVELS:
            bounds[level][rows, columns] = np.nanquantile(moved, level, axis=0)[columns]
    return Found(mean, bounds)


def climatology(trial: Trial) -> Found:
    """Give each sensor's mean (by phase, if a period is given) and the spread around it."""
    seen = trial.values[: trial.test]
    period = trial.period if isinstance(trial.period, int) else 1
    phases = np.arange(len(trial.values)) % period
    usual = np.stack([np.nanmean(seen[phases[: trial.test] == phase], axis=0) for phase in range(period)])
    off = np.abs(seen - usual[phases[: trial.test]])
    mean = usual[phases]
    return Found(mean, {level: np.broadcast_to(np.nanquantile(off, level, axis=0), mean.shape) for level in LEVELS})


def spatial(trial: Trial) -> Found:
    """Condition the sample mean and covariance on what is seen at the step: no time."""
    seen = trial.values[: trial.test]
    mean, scale = np.nanmean(seen, axis=0), np.nanstd(seen, axis=0).clip(1e-12)
    standard = np.where(np.isfinite(seen), (seen - mean) / scale, 0.0)
    n = seen.shape[1]
    covariance = np.cov(standard.T) + 1e-8 * np.eye(n)
    names = tuple(f"s{place}" for place in range(n))
    return _gaussian(Model(names, mean, scale, np.zeros(n), covariance, covariance, np.zeros(n)), trial)


def published(trial: Trial) -> Found:
    """The paper's filter with the sample joint of neighbouring steps and Gaussian bounds, as they stand."""
    seen = trial.values[: trial.test]
    n = seen.shape[1]
    mean = np.nanmean(seen, axis=0)
    filled = np.where(np.isfinite(seen), seen, mean)
    joint = np.cov(np.hstack([filled[1:], filled[:-1]]).T)
    size = np.sqrt(np.diag(joint)).clip(1e-12)
    joint += 1e-8 * np.diag(size**2)  # else sensors that tell the same cannot be inverted
    return _gaussian(Model.from_joint(mean, joint, [f"s{place}" for place in range(n)]), trial)


def _gaussian(model: Model, trial: Trial) -> Found:
    recovery = Recovery(model)
    mean = trial.values.copy()
    bounds = {level: np.zeros_like(mean) for level in LEVELS}
    begun = time.perf_counter()
    for step in range(trial.fit, len(mean)):
        mean[step] = recovery.step(np.where(trial.hidden[step], np.nan, trial.values[step]), step).mean
        for level in LEVELS:
            bounds[level][step] = recovery.half_widths(level)
    return Found(mean, bounds, 1000 * (time.perf_counter() - begun) / (len(mean) - trial.fit))


def offline(trial: Trial, name: str) -> Found:
    """Impute the whole series by an algorithm that sees the future.

    Raises:
        ModelError: its package is not there.
    """
    return Found(imputers.impute(name, np.where(trial.hidden, np.nan, trial.values)), {})


CAUSAL: dict[str, Callable[[Trial], Found]] = {
    "last value": last_value,
    "climatology": climatology,
    "spatial Gaussian": spatial,
    "published": published,
}


def interval_scores(error: Floats, half: Floats) -> Floats:
    """Return the interval scores of bounds of `SCORED_LEVEL` (Gneiting and Raftery 2007), for absolute errors."""
    return np.asarray(2 * half + 2 / (1 - SCORED_LEVEL) * np.maximum(error - half, 0.0))


def judge(found: Found, trial: Trial) -> dict[str, Any]:
    """Return a method's figures."""
    scored = trial.hidden & np.isfinite(trial.values)
    off = np.abs(found.mean - trial.values) / trial.unit
    result: dict[str, Any] = {"nrmse": round(float(np.sqrt(np.mean(off[scored] ** 2))), 4)}
    if found.bounds:
        within = {level: (off <= bound / trial.unit) & scored for level, bound in found.bounds.items()}
        counts = scored.sum(axis=0)
        result["coverage"] = {
            str(level): round(float(inside.sum() / scored.sum()), 4) for level, inside in within.items()
        }
        result["worst_coverage"] = {
            str(level): round(float((inside.sum(axis=0)[counts > 0] / counts[counts > 0]).min()), 4)
            for level, inside in within.items()
        }
        high = levels(found.mean, trial.values, trial.unit)
        result["worst_level"] = {
            str(level): round(worst_fifth(high[scored], inside[scored]), 4) for level, inside in within.items()
        }
        coverage = Coverage(1, trial.values.shape[1])
        coverage.add_table(trial.hidden | ~np.isfinite(trial.values), scored, within[SCORED_LEVEL], high)
        result["coverage_by"] = coverage.shares()
        half = found.bounds[SCORED_LEVEL] / trial.unit
        result["interval_score"] = round(float(interval_scores(off, half)[scored].mean()), 4)
    if found.step_ms is not None:
        result["step_ms"] = round(found.step_ms, 4)
    if found.note:
        result["note"] = found.note
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--edges", type=int, required=True)
    parser.add_argument("--missing", type=float, required=True, help="share of the test's values, 0 to 1")
    parser.add_argument("--layout", choices=("blocks", "spread"), default="blocks", help="which columns an edge has")
    parser.add_argument("--axis", choices=("auto", "lines", "columns"), default="auto", help="that time runs along")
    parser.add_argument("--period", default="auto", help="steps of a profile, auto or none")
    parser.add_argument("--rows", type=int, help="of the series, from its start")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--offline", action="store_true", help="also CDRec (of ImputeGAP) and IterativeSVD")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        values = read(options.data, options.axis)[: options.rows]
    except ModelError as error:
        parser.error(str(error))
    steps, n = values.shape
    if not 1 <= options.edges <= n:
        parser.error(f"--edges: found {options.edges}, expected 1 to {n}, the sensors of {options.data}")
    if not 0 < options.missing < 1:
        parser.error(f"--missing: found {options.missing}, expected a share between 0 and 1")
    fit, test = int(FIT_SHARE * steps), int((FIT_SHARE + CALIBRATE_SHARE) * steps)
    places = np.arange(n)
    edge_of = places * options.edges // n if options.layout == "blocks" else places % options.edges
    # Nothing can be said of a sensor that was silent for all that may be fitted to: no method is asked for it.
    known = read_often(values[:fit])
    values, edge_of, left_out = values[:, known], edge_of[known], n - len(known)
    hidden = np.zeros(values.shape, dtype=bool)
    hidden[test:] = failures(steps - test, edge_of, options.missing, options.seed)
    period = {"auto": "auto", "none": None}.get(options.period, options.period)
    if isinstance(period, str) and period != "auto":
        period = int(period)
    unit = np.nanstd(values, axis=0).clip(1e-12)
    trial = Trial(values, fit, test, hidden, edge_of, unit, period)
    beyond: dict[str, Any] = {}
    for name in imputers.NAMES if options.offline else ():
        try:
            beyond[f"{name} (offline)"] = judge(offline(trial, name), trial)
        except ModelError as error:
            parser.error(str(error))
    figures = judge(recover(trial), trial)
    baselines = {name: judge(method(trial), trial) for name, method in CAUSAL.items()} | beyond
    found = {
        "bench": "recovery_data",
        "data": options.data.name,
        "steps": steps,
        "sensors": n - left_out,
        "left_out": left_out,
        "edges": options.edges,
        "layout": options.layout,
        "missing": round(float(hidden[test:].mean()), 4),
        "seed": options.seed,
        **figures,
        "baselines": baselines,
    }
    outcome.write(found, options.out)
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
