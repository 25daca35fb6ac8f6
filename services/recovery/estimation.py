"""Fitting a recovery model to history: shrinkage, structure and calibration chosen by masking edges that were alive.

A history is short beside its sensors (100 windows, 200 sensors), its windows overlap and its level drifts, so formulas
for independent rows (Ledoit and Wolf 2004; Chen et al. 2010) shrink far too little. What the model is for can be tried
instead: fit the first part of the history, hide one edge after another in the rest, and see how wrong the filter is.
That picks structure (`moments`), shrinkage, persistence and profile. How sure it is of itself does not count (the
density it gives to the truth chose worse on six of seven series): the same hidden truths then calibrate its bounds, a
split-conformal factor a level.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from services.recovery.forms import State, choose_form
from services.recovery.model import Model, ModelError, half_width
from services.recovery.moments import Moments, Structure, detect_period, profile_of
from services.runtime.columns import Floats

LEAST_ERROR = 1e-9
"""Of a history that repeats itself exactly, in units of scale."""
LEAST_STEPS = 12
LEAST_READINGS = 4
"""A sensor with fewer windows than this is left out: nothing is known of its spread."""
MASKED_SHARE = 1 / 3
OUTAGES = (3, 10, 30)
"""Lengths of the trial outages, in steps; what a filter still knows after 30 it mostly knows for good."""
OUTAGES_OF_A_LENGTH = 40
"""Trial outages of one length at most, evenly taken."""
MASKED_EDGES = 8
"""Edges tried at most, evenly taken."""
SHRINKAGES = (0.0, 0.002, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9)
PERSISTENCES = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.995, 0.999)
LAGS = (1, 3, 10)
HARMONICS = (3, 24)
"""Of a profile: smooth, or with the teeth that a day within a week has."""
FULL_AT_MOST = 1500
"""Sensors up to which a full F is tried: its joint takes 32 n^2 bytes, and its filter n^2 operations a step."""
LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)
REPORTED_DELTA = 0.9
CONSTANT = 1e-9
"""A standard deviation below this share of the mean is rounding."""
FLOOR_SHARE = 0.01
"""Scale given to a constant sensor, as a share of its mean, or of the median sensor's scale where the mean is zero."""

Edges = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class FitReport:
    """What was done, and how well it did on the masked last part of the history.

    Attributes:
        steps, sensors: size of the history that was used.
        missing_share: of its cells.
        left_out: sensors with too few readings; the model does not know them.
        constant: sensors that never changed; their scale is a floor, their bounds a guess.
        duplicated: groups of sensors that always read the same; together they tell no more than one of them.
        transition: "diagonal", "innovation" or "full" (`moments`).
        persistence: the diagonal; mean of the diagonal where F is full.
        shrinkage: weight of the target (independent sensors) in the covariance.
        lag: of the innovations; 0 where there are none.
        profile: [period, harmonics] of the profile; empty = none.
        condition: condition number of Q and prior, infinite where singular; nugget: what the filter adds to them.
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
    duplicated: tuple[tuple[str, ...], ...]
    transition: str
    persistence: float
    shrinkage: float
    lag: int
    profile: tuple[int, ...]
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
class Whole:
    """What a history has in all.

    Attributes:
        base: names, mean, scale and profile.
        moments: around these, in units of scale.
    """

    base: Model
    moments: Moments

    def __len__(self) -> int:
        return len(self.base)

    def model(self, structure: Structure) -> Model:
        """Return the model of this structure, without calibration."""
        return self.moments.model(structure, self.base)


@dataclass(frozen=True, slots=True)
class _Trial:
    """Errors at the hidden truths, float64[k] each, in units of scale.

    `score` is the logarithm of their root mean square, the mean over the lengths of outages; the lower the better.
    """

    error: Floats
    sd: Floats
    last_value: Floats
    mean: Floats
    score: float


def estimate(
    history: npt.ArrayLike,
    names: Sequence[str],
    *,
    edges: Sequence[str] | None = None,
    period: int | Literal["auto"] | None = None,
    first_step: int = 0,
    whole: Callable[[tuple[int, ...], tuple[int, ...]], Whole] | None = None,
) -> tuple[Model, FitReport]:
    """Fit a model.

    Args:
        history: float64[T, n], one row a step, sensor units; NaN or infinite = no reading.
        names: the n sensors.
        edges: each sensor's edge, length n; None = four made up, every fourth sensor each.
        period: steps after which a day (or whatever repeats) begins again; "auto" = looked for in the history; None =
            no profile. A profile is only kept if the trial is better for it.
        first_step: the step that row 0 is; a profile's phase is step % period.
        whole: returns what there is in all, of which `history` is then a sample (of the steps, and perhaps of the
            sensors), given the lags whose moments are wanted, and [period, harmonics] of the profile (empty = none);
            None = `history` is all.

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
    if not (period in (None, "auto") or (isinstance(period, int) and period > 1)):
        raise ModelError(f"history: period: found {period!r}, expected a number of steps above 1, auto or none")
    if len(given) < LEAST_STEPS:
        raise ModelError(f"history: found {len(given)} steps, expected at least {LEAST_STEPS}")
    seen = np.isfinite(given)
    keep = read_often(given)
    if not keep:
        raise ModelError(f"history: no sensor has {LEAST_READINGS} readings or more")
    rows, seen = np.where(seen, given, np.nan)[:, keep], seen[:, keep]
    kept = tuple(names[place] for place in keep)
    mean, scale, constant = _scales(rows)
    groups = _groups([edges[place] for place in keep] if edges is not None else None, len(keep))

    split = len(rows) - max(LEAST_STEPS // 3, round(MASKED_SHARE * len(rows)))
    base = _base(kept, mean, scale)
    search = _Search(rows, split, base, groups, first_step)
    search.run()
    if period == "auto":
        period = detect_period((rows[:split] - mean) / scale)
    if period is not None:
        search.try_profiles(period)
    structure, trial = search.best, search.trial
    calibration = _calibration(trial)

    if whole is None:
        part: Whole | _Part = _Part(rows, base, search.profile, first_step)
    else:
        part = whole((structure.lag,), search.profile)
    model = replace(part.model(structure), calibration=calibration)
    checked = choose_form(model)
    multiple = half_width(REPORTED_DELTA)
    report = FitReport(
        steps=len(rows),
        sensors=len(kept),
        missing_share=round(float(1 - seen.mean()), 6),
        left_out=tuple(name for name in names if name not in set(kept)),
        constant=tuple(name for name, stands in zip(kept, constant, strict=True) if stands),
        duplicated=duplicates(rows, kept, constant),
        transition=structure.transition,
        persistence=float(np.mean(np.diag(model.F))),
        shrinkage=structure.shrinkage,
        lag=structure.lag,
        profile=search.profile,
        condition=checked.condition,
        nugget=checked.nugget,
        masked_steps=len(rows) - split,
        masked_values=len(trial.error),
        nrmse=_rms(trial.error),
        last_value_nrmse=_rms(trial.last_value),
        mean_nrmse=_rms(trial.mean),
        coverage_raw=float(np.mean(np.abs(trial.error) <= multiple * trial.sd)) if len(trial.error) else 0.0,
        inflation=model.inflation(REPORTED_DELTA),
    )
    return replace(model, about=about_of(report) | {"structure": asdict(structure)}), report


def read_often(history: Floats) -> list[int]:
    """Return the places of the sensors with `LEAST_READINGS` or more."""
    return [int(place) for place in np.flatnonzero(np.isfinite(history).sum(axis=0) >= LEAST_READINGS)]


def base_of(names: tuple[str, ...], rows: Floats, profile: tuple[int, ...], first_step: int) -> Model:
    """Return a model with names, means, scales and profile of rows, float64[T, n]; the rest of it says nothing."""
    mean, scale, _ = _scales(rows)
    return _Part(rows, _base(names, mean, scale), profile, first_step).base


def about_of(report: FitReport) -> dict[str, Any]:
    """Return a report as a model's `about`, JSON values; the condition number of a singular matrix is null."""
    found: dict[str, Any] = json.loads(json.dumps(asdict(report)))
    return found | {"condition": report.condition if np.isfinite(report.condition) else None}


def _base(names: tuple[str, ...], mean: Floats, scale: Floats) -> Model:
    n = len(names)
    return Model(names, mean, scale, np.zeros(n), np.eye(n), np.eye(n), np.zeros(n))


class _Part:
    """A stretch of history, standardised, with the moments every structure is made of."""

    def __init__(self, rows: Floats, base: Model, profile: tuple[int, ...], first_step: int) -> None:
        count = np.isfinite(rows).sum(axis=0)
        total = np.nansum(rows, axis=0)
        mean = np.divide(total, count, out=base.mean.copy(), where=count > 0)
        standard = (rows - mean) / base.scale
        self.base = replace(base, mean=mean)
        if profile:
            period, harmonics = profile
            waves = profile_of(standard, period, harmonics, first_step)
            self.base = replace(self.base, profile=waves)
            standard = standard - waves[(first_step + np.arange(len(rows))) % period]
        self._moments = Moments(standard)

    def model(self, structure: Structure) -> Model:
        """Return the model of this structure, without calibration."""
        return self._moments.model(structure, self.base)


class _Search:
    """The search for the structure with the best trial.

    Attributes:
        best, trial: found so far.
        profile: (period, harmonics) of it; empty = none.
    """

    def __init__(self, rows: Floats, split: int, base: Model, groups: list[Edges], first_step: int) -> None:
        self._rows, self._split, self._base, self._groups = rows, split, base, groups
        self._first_step = first_step
        self._full = len(base) <= FULL_AT_MOST
        self._part = _Part(rows[:split], base, (), first_step)
        self._tried: set[Structure] = set()
        self.profile: tuple[int, ...] = ()
        self.best = Structure("diagonal", 0.3, 0.9)
        self.trial = self._try(self._part, self.best)

    def run(self) -> None:
        """Search coordinate by coordinate: how far, how much, and in which way."""
        self._persistences()
        self._each(replace(self.best, shrinkage=weight) for weight in self._shrinkages())
        self._persistences()
        start = self.best
        self._each(replace(start, transition="innovation", lag=lag) for lag in LAGS if 4 * lag < self._split)
        if self.best.transition == "innovation":
            self._each(replace(self.best, shrinkage=weight) for weight in self._shrinkages())
            self._persistences()
        if self._full:
            self._each(Structure("full", weight, 0.0, 1) for weight in self._shrinkages(twice=True))

    def try_profiles(self, period: int) -> None:
        """Search again with profiles, if the history shows the period twice; keep what is better."""
        if 2 * period > self._split:
            return
        plain = self.best
        for harmonics in sorted({min(count, period // 2) for count in HARMONICS}):
            part = _Part(self._rows[: self._split], self._base, (period, harmonics), self._first_step)
            trial = self._try(part, plain)
            if trial.score < self.trial.score:
                self._part, self.trial, self.best = part, trial, plain
                self.profile = (period, harmonics)
        if self.profile:
            self._tried = set()
            self.run()

    def _shrinkages(self, *, twice: bool = False) -> tuple[float, ...]:
        """Return weights that leave a covariance that can be inverted: with fewer rows than sensors, not the least."""
        sensors = len(self._base) * (2 if twice else 1)
        return tuple(weight for weight in SHRINKAGES if weight >= 0.05 or self._split > 10 * sensors)

    def _persistences(self) -> None:
        self._each(replace(self.best, persistence=value) for value in PERSISTENCES)

    def _each(self, candidates: Iterable[Structure]) -> None:
        for candidate in list(candidates):
            if candidate in self._tried:
                continue
            self._tried.add(candidate)
            trial = self._try(self._part, candidate)
            if trial.score < self.trial.score:
                self.best, self.trial = candidate, trial

    def _try(self, part: _Part, candidate: Structure) -> _Trial:
        model = part.model(candidate)
        # With the step before, which the outages start from.
        return _try(model, self._rows[self._split - 1 :], self._groups, self._first_step + self._split - 1)


def _scales(rows: Floats) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
    """Return each sensor's mean and standard deviation, and which sensors are constant (their scale is a floor)."""
    mean, sd = np.nanmean(rows, axis=0), np.nanstd(rows, axis=0, ddof=1)
    return mean, *units_of(mean, sd)


def units_of(mean: Floats, sd: Floats) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Return each sensor's scale, and which sensors are constant, given means and standard deviations."""
    constant = sd <= CONSTANT * np.abs(mean)
    typical = float(np.median(sd[~constant])) if not constant.all() else 1.0
    floor = FLOOR_SHARE * np.where(mean == 0, typical, np.abs(mean))
    return np.where(constant, floor, sd), constant


def duplicates(rows: Floats, names: tuple[str, ...], constant: npt.NDArray[np.bool_]) -> tuple[tuple[str, ...], ...]:
    """Return groups of sensors, none of them constant, whose columns are equal, gaps too."""
    groups: dict[bytes, list[str]] = {}
    for place, name in enumerate(names):
        if not constant[place]:
            column = rows[:, place] + 0.0  # no negative zero
            groups.setdefault(hashlib.sha256(column.tobytes()).digest(), []).append(name)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


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


def _try(model: Model, masked: Floats, groups: list[Edges], first_step: int = 0) -> _Trial:
    """Hide each group in turn, for outages of each length that begin one step after another ended.

    Outages of a group have the same missing sets, so all run side by side: a step's matrices are made once for all.
    """
    means = np.stack([model.mean_at(first_step + row) for row in range(len(masked))])
    truth = ((masked - means) / model.scale).T  # float64[n, steps]
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
        estimates, variances = np.empty((len(group), *at.shape)), np.empty((len(group), len(since), 1))
        for row, columns in enumerate(at):
            readings = filled[:, columns]
            readings[group] = 0.0
            state = form.following(state, readings, group)
            estimates[:, row], variances[:, row, 0] = state.x[group], state.variance
        hidden, before = truth[group][:, at], filled[group][:, None, starts]
        scored = lasts & seen[group][:, at]
        sd = np.broadcast_to(np.sqrt(variances), scored.shape)
        length = np.broadcast_to(lengths, scored.shape)
        naive = (hidden - before)[scored]
        parts.append(((hidden - estimates)[scored], sd[scored], naive, hidden[scored], length[scored]))
    error, sd, last_value, mean = (np.concatenate([part[i] for part in parts]) for i in range(4))
    length = np.concatenate([part[4] for part in parts])
    scores = [float(np.log(_rms(error[length == value]) + LEAST_ERROR)) for value in np.unique(length)]
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
        gaussian = half_width(delta)
        table.append((delta, max(1.0, round(float(ratios[rank - 1]) / gaussian, 6))))
    return tuple(table)


def _rms(errors: Floats) -> float:
    return float(np.sqrt(np.mean(errors**2))) if len(errors) else 0.0
