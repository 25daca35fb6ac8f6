"""Fitting a recovery model to history: shrinkage, structure and calibration chosen by masking edges that were alive.

A history is short beside its sensors (100 windows, 200 sensors), its windows overlap and its level drifts, so formulas
for independent rows (Ledoit and Wolf 2004; Chen et al. 2010) shrink far too little. What the model is for can be tried
instead: fit the first part of the history, hide one edge after another in the rest, and score the Gaussian density the
filter gives to the hidden truth. That one score weighs error against honesty of the bounds, and picks the shrinkage, F
(diagonal or full) and its size. The same hidden truths then calibrate the bounds: a split-conformal factor a level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import NormalDist
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import linalg

from services.recovery.forms import State, choose_form
from services.recovery.model import Model, ModelError
from services.runtime.columns import Floats

LEAST_STEPS = 12
LEAST_READINGS = 4
"""A sensor with fewer windows than this is left out: nothing is known of its spread."""
MASKED_SHARE = 1 / 3
OUTAGES = (5, 20, 100)
"""Lengths of the trial outages, in steps: short, middling, and so long that the filter has forgotten their start."""
OUTAGES_OF_A_LENGTH = 40
"""Trial outages of one length at most, evenly taken."""
MASKED_EDGES = 8
"""Edges tried at most, evenly taken."""
SHRINKAGES = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9)
PERSISTENCES = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.995)
LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)
REPORTED_DELTA = 0.9
CONSTANT = 1e-9
"""A standard deviation below this share of the mean is rounding."""
FLOOR_SHARE = 0.01
"""Scale given to a constant sensor, as a share of its mean, or of the median sensor's scale where the mean is zero."""
LEAST_VARIANCE = 0.01
"""Of a sensor that hardly moved in a part, in units of its whole history's variance; if it stood still, 1 is taken."""

Edges = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class FitReport:
    """What was done, and how well it did on the masked last part of the history.

    Attributes:
        steps, sensors: size of the history that was used.
        missing_share: of its cells.
        left_out: sensors with too few readings; the model does not know them.
        constant: sensors that never changed; their scale is a floor, their bounds a guess.
        transition: "diagonal" (F = persistence x I) or "full".
        persistence: the diagonal; mean of the diagonal where F is full.
        shrinkage: weight of the target (independent sensors) in the covariance.
        condition: condition number of Q and prior; nugget: what the filter adds to them.
        masked_steps, masked_values: size of the trial.
        nrmse: root mean squared error over each sensor's scale; `last_value_nrmse`, `mean_nrmse` of the two naive ways.
        coverage_raw: share of truths within the model's own bounds of probability 0.9, before calibration.
        inflation: the factor on sd at 0.9.
    """

    steps: int
    sensors: int
    missing_share: float
    left_out: tuple[str, ...]
    constant: tuple[str, ...]
    transition: str
    persistence: float
    shrinkage: float
    condition: float
    nugget: float
    masked_steps: int
    masked_values: int
    nrmse: float
    last_value_nrmse: float
    mean_nrmse: float
    coverage_raw: float
    inflation: float


@dataclass(frozen=True, slots=True)
class _Structure:
    transition: Literal["diagonal", "full"]
    shrinkage: float
    persistence: float


@dataclass(frozen=True, slots=True)
class _Trial:
    """Errors at the hidden truths, float64[k] each, in units of scale; `score` is the mean negative log density."""

    error: Floats
    sd: Floats
    last_value: Floats
    mean: Floats
    score: float


def estimate(
    history: npt.ArrayLike, names: Sequence[str], *, edges: Sequence[str] | None = None
) -> tuple[Model, FitReport]:
    """Fit a model.

    Args:
        history: float64[T, n], one row a step, sensor units; NaN or infinite = no reading.
        names: the n sensors.
        edges: each sensor's edge, length n; None = four made up, every fourth sensor each.

    Returns:
        the model (its `about` holds the report) and the report.

    Raises:
        ModelError: the history is too short, or no sensor has enough readings.
    """
    given = np.asarray(history, dtype=np.float64)
    if given.ndim != 2 or given.shape[1] != len(names):
        raise ModelError(f"history: found shape {given.shape}, expected (steps, {len(names)})")
    if len(set(names)) != len(names):
        raise ModelError("history: a sensor's name stands twice")
    if edges is not None and len(edges) != len(names):
        raise ModelError(f"history: found {len(edges)} edges for {len(names)} sensors")
    if len(given) < LEAST_STEPS:
        raise ModelError(f"history: found {len(given)} steps, expected at least {LEAST_STEPS}")
    seen = np.isfinite(given)
    keep = [int(place) for place in np.flatnonzero(seen.sum(axis=0) >= LEAST_READINGS)]
    if not keep:
        raise ModelError(f"history: no sensor has {LEAST_READINGS} readings or more")
    rows, seen = np.where(seen, given, np.nan)[:, keep], seen[:, keep]
    kept = tuple(names[place] for place in keep)
    mean, scale, constant = _scales(rows)
    groups = _groups([edges[place] for place in keep] if edges is not None else None, len(keep))

    split = len(rows) - max(LEAST_STEPS // 3, round(MASKED_SHARE * len(rows)))
    start = _Part(rows[:split], mean, scale, kept)
    masked = rows[split - 1 :]  # with the step before, which the outages start from
    structure, trial = _choose(start, masked, groups, full=split > len(keep))
    calibration = _calibration(trial)

    whole = _Part(rows, mean, scale, kept)
    model = replace(whole.model(structure), calibration=calibration)
    checked = choose_form(model)
    multiple = NormalDist().inv_cdf((1 + REPORTED_DELTA) / 2)
    report = FitReport(
        steps=len(rows),
        sensors=len(kept),
        missing_share=round(float(1 - seen.mean()), 6),
        left_out=tuple(name for name in names if name not in set(kept)),
        constant=tuple(name for name, stands in zip(kept, constant, strict=True) if stands),
        transition=structure.transition,
        persistence=float(np.mean(np.diag(model.F))),
        shrinkage=structure.shrinkage,
        condition=checked.condition,
        nugget=checked.nugget,
        masked_steps=len(masked) - 1,
        masked_values=len(trial.error),
        nrmse=_rms(trial.error),
        last_value_nrmse=_rms(trial.last_value),
        mean_nrmse=_rms(trial.mean),
        coverage_raw=float(np.mean(np.abs(trial.error) <= multiple * trial.sd)) if len(trial.error) else 0.0,
        inflation=model.inflation(REPORTED_DELTA),
    )
    about = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(report).items()}
    return replace(model, about=about), report


class _Part:
    """A stretch of history, standardised, with the moments every structure is made of."""

    def __init__(self, rows: Floats, mean: Floats, scale: Floats, names: tuple[str, ...]) -> None:
        self._names, self._scale = names, scale
        count = np.isfinite(rows).sum(axis=0)
        total = np.nansum(rows, axis=0)
        self._mean = np.divide(total, count, out=mean.copy(), where=count > 0)
        self._standard = (rows - self._mean) / scale
        self._correlation = _covariance(self._standard)
        self._joint: Floats | None = None

    def model(self, structure: _Structure) -> Model:
        """Return the model of this structure, without calibration."""
        n, weight = len(self._scale), structure.shrinkage
        if structure.transition == "diagonal":
            prior = (1 - weight) * self._correlation + weight * np.diag(np.diag(self._correlation))
            return Model(
                names=self._names,
                mean=self._mean,
                scale=self._scale,
                transition=np.full(n, structure.persistence),
                Q=(1 - structure.persistence**2) * prior,
                prior=prior,
                drift=np.zeros(n),
            )
        if self._joint is None:
            self._joint = _covariance(np.hstack([self._standard[1:], self._standard[:-1]]))
        # The target keeps what each sensor tells of itself: independent autoregressions.
        own = np.tile(np.eye(n, dtype=bool), (2, 2))
        joint = np.where(own, self._joint, (1 - weight) * self._joint)
        model = Model.from_joint(np.zeros(2 * n), joint, self._names)
        # Back to this part's own scale; `from_joint` put the variance of block B into it.
        return replace(model, mean=self._mean, scale=model.scale * self._scale)


def _scales(rows: Floats) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
    """Return each sensor's mean and standard deviation, and which sensors are constant (their scale is a floor)."""
    mean, sd = np.nanmean(rows, axis=0), np.nanstd(rows, axis=0, ddof=1)
    constant = sd <= CONSTANT * np.abs(mean)
    typical = float(np.median(sd[~constant])) if not constant.all() else 1.0
    floor = FLOOR_SHARE * np.where(mean == 0, typical, np.abs(mean))
    return mean, np.where(constant, floor, sd), constant


def _groups(edges: Sequence[str] | None, n: int) -> list[Edges]:
    """Return the sensors of each edge that is masked, in the order of the edges' names."""
    if edges is None:
        return [np.arange(first, n, 4) for first in range(min(4, n))]
    order = sorted(set(edges))
    chosen = [order[int(place)] for place in _evenly(len(order), MASKED_EDGES)]
    return [np.flatnonzero(np.array([edge == name for edge in edges])) for name in chosen]


def _evenly(count: int, most: int) -> Edges:
    """Return at most `most` of the numbers below `count`, from the first to the last."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.intp))


def _covariance(rows: Floats) -> Floats:
    """Return the second moments of standardised rows over the cells that both have, made positive semi-definite."""
    seen = np.isfinite(rows)
    filled = np.where(seen, rows, 0.0)
    counts = seen.astype(np.float64)
    pairs = counts.T @ counts
    covariance = np.divide(filled.T @ filled, pairs, out=np.zeros_like(pairs), where=pairs >= LEAST_READINGS)
    if not seen.all():  # each element over its own rows: the whole need not be a covariance
        values, vectors = linalg.eigh(covariance)
        variances = np.diag(covariance).copy()
        covariance = (vectors * np.maximum(values, 0.0)) @ vectors.T
        ratio = np.sqrt(np.divide(variances, np.diag(covariance), out=np.zeros(len(variances)), where=variances > 0))
        covariance = covariance * np.outer(ratio, ratio)
    variances = np.diag(covariance)
    lift = np.where(variances < LEAST_VARIANCE**2, 1.0, np.maximum(LEAST_VARIANCE - variances, 0.0))
    return np.asarray((covariance + covariance.T) / 2 + np.diag(lift))


def _choose(part: _Part, masked: Floats, groups: list[Edges], *, full: bool) -> tuple[_Structure, _Trial]:
    """Return the structure of the best score: coordinate by coordinate, then the full F where it can be estimated."""
    best = _Structure("diagonal", 0.3, 0.9)
    trial = _try(part.model(best), masked, groups)
    for value in PERSISTENCES:
        best, trial = _better(part, masked, groups, replace(best, persistence=value), (best, trial))
    for weight in SHRINKAGES:
        best, trial = _better(part, masked, groups, replace(best, shrinkage=weight), (best, trial))
    for value in PERSISTENCES:
        best, trial = _better(part, masked, groups, replace(best, persistence=value), (best, trial))
    if full:
        for weight in SHRINKAGES:
            best, trial = _better(part, masked, groups, _Structure("full", weight, 0.0), (best, trial))
    return best, trial


def _better(
    part: _Part, masked: Floats, groups: list[Edges], candidate: _Structure, best: tuple[_Structure, _Trial]
) -> tuple[_Structure, _Trial]:
    if candidate == best[0]:
        return best
    trial = _try(part.model(candidate), masked, groups)
    return (candidate, trial) if trial.score < best[1].score else best


def _try(model: Model, masked: Floats, groups: list[Edges]) -> _Trial:
    """Hide each group in turn, for outages of each length that begin one step after another ended.

    Outages of a group have the same missing sets, so all run side by side: a step's matrices are made once for all.
    """
    truth = ((masked - model.mean) / model.scale).T  # float64[n, steps]
    seen = np.isfinite(truth)
    filled = _hold(truth)
    starts, lengths = _outages(truth.shape[1])
    since = np.arange(1, int(lengths.max()) + 1)
    # float64[steps since, outages]; an outage that is over runs on beside the others, unscored.
    at = np.minimum(starts + since[:, None], truth.shape[1] - 1)
    lasts = (since[:, None] <= lengths) & (starts + since[:, None] < truth.shape[1])
    form = choose_form(model).form
    nobody = np.empty(0, dtype=np.intp)
    parts: list[tuple[Floats, Floats, Floats, Floats, Edges]] = []
    for group in groups:
        state = State(nobody, np.empty((0, 0)), filled[:, starts], np.empty(0))
        means, variances = np.empty((len(group), *at.shape)), np.empty((len(group), len(since), 1))
        for row, columns in enumerate(at):
            readings = filled[:, columns]
            readings[group] = 0.0
            state = form.following(state, readings, group)
            means[:, row], variances[:, row, 0] = state.x[group], state.variance
        hidden, before = truth[group][:, at], filled[group][:, None, starts]
        scored = lasts & seen[group][:, at]
        sd = np.broadcast_to(np.sqrt(variances), scored.shape)
        length = np.broadcast_to(lengths, scored.shape)
        naive = (hidden - before)[scored]
        parts.append(((hidden - means)[scored], sd[scored], naive, hidden[scored], length[scored]))
    error, sd, last_value, mean = (np.concatenate([part[i] for part in parts]) for i in range(4))
    length = np.concatenate([part[4] for part in parts])
    density = np.log(sd) + 0.5 * (error / sd) ** 2
    scores = [float(density[length == value].mean()) for value in np.unique(length)]
    return _Trial(error, sd, last_value, mean, float(np.mean(scores)) if scores else 0.0)


def _outages(steps: int) -> tuple[Edges, Edges]:
    """Return first (still observed) step and length of each trial outage."""
    starts, lengths = [], []
    for length in sorted({min(length, steps - 1) for length in OUTAGES}):
        every = np.arange(0, steps - 1, length + 1)
        chosen = every[_evenly(len(every), OUTAGES_OF_A_LENGTH)]
        starts.append(chosen)
        lengths.append(np.full(len(chosen), length))
    return np.concatenate(starts), np.concatenate(lengths)


def _hold(truth: Floats) -> Floats:
    """Fill gaps with the sensor's value before (at the start: the one after; without any: 0); they are never scored."""
    steps = np.arange(truth.shape[1])
    filled = np.zeros_like(truth)
    for row, values in enumerate(truth):
        known = np.flatnonzero(np.isfinite(values))
        if len(known):
            filled[row] = values[known[np.maximum(np.searchsorted(known, steps, side="right") - 1, 0)]]
    return filled


def _calibration(trial: _Trial) -> tuple[tuple[float, float], ...]:
    """Split conformal: the quantile of abs(error) / sd over the Gaussian's, never below 1 since the level drifts."""
    ratios = np.sort(np.abs(trial.error) / trial.sd)
    if not len(ratios):
        return ()
    table = []
    for delta in LEVELS:
        rank = min(len(ratios), int(np.ceil((len(ratios) + 1) * delta)))  # the finite-sample rank
        gaussian = NormalDist().inv_cdf((1 + delta) / 2)
        table.append((delta, max(1.0, round(float(ratios[rank - 1]) / gaussian, 6))))
    return tuple(table)


def _rms(errors: Floats) -> float:
    return float(np.sqrt(np.mean(errors**2))) if len(errors) else 0.0
