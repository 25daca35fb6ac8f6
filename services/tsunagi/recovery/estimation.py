"""Fits a recovery model to history: shrinkage, structure and calibration are chosen by hiding edges that were alive.

A history is short for its number of sensors (100 windows, 200 sensors), its windows overlap and its level drifts, so
formulas for independent rows (Ledoit and Wolf 2004; Chen et al. 2010) shrink far too little. But one can try what the
model is for: fit the first part of the history, hide one edge after another in the rest, and measure how wrong the
filter is. This chooses structure (`moments`), shrinkage, persistence and profile. The density that a model gives to the
truth does not count: it chose worse on six of seven series. The same hidden truths then calibrate the bounds, with a
split-conformal factor for each level.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.forms import choose_form
from tsunagi.recovery.low_rank import LowRank
from tsunagi.recovery.model import LowRankModel, Model, half_width
from tsunagi.recovery.moments import MOST_CAUSES, Structure, detect_period
from tsunagi.recovery.progress import FitStage, ProgressReporter
from tsunagi.recovery.search import ROWS_A_CAUSE, Candidate, HistoryPart, StructureSearch
from tsunagi.recovery.trial import Edges, Trial, evenly, run_trial
from tsunagi.runtime.columns import Floats

LEAST_STEPS = 12
"""Least number of steps that a history must have."""
LEAST_READINGS = 4
"""A sensor with fewer windows than this is left out: nothing is known about its spread."""
MASKED_SHARE = 1 / 3
"""A fit to the first steps is tried on this share of the steps, the last ones."""
MASKED_EDGES = 8
"""Most edges that are hidden in trials, evenly chosen: each one takes time."""
MASKED_HALVES = 4
"""Number of choices of half of the edges that are hidden together in trials."""
TRYING, MAKING = "trying it with all sensors", "making and checking the model"
"""Names of the stages of a fit after the search, for progress lines."""
LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)
"""Probabilities for which a model's table has factors; in between they are interpolated."""
REPORTED_DELTA = 0.9
"""Probability of the bounds that the report of a fit is about."""
SEARCHED = 1000
"""Most sensors with which a structure is searched as they are."""
THINNED = 500
"""Number of sensors with which a structure is searched where there are more, evenly chosen from every edge: the search
makes and tries some seventy models. What it finds is tried once more with all sensors."""
WHOLE_AT_MOST = 5000
"""Most sensors for which a model with whole matrices is fitted: each takes 8 n^2 bytes, and its inverse 2 n^3
operations."""
WHOLE_CHOSEN = 2000
"""Most sensors for which whole matrices are chosen where low rank is possible. Those of 5,000 sensors are 200 MB for
each worker, which takes it seconds to read, and a fit of minutes, for some percent of the error at best."""
AS_GOOD = 1.02
"""A model of low rank is taken if it errs by no more than this times what the best model errs."""
TRIED_MODELS = 70
"""Number of models that a search tries, roughly, for the estimate of its time."""
TRIAL_INVERSES = 3.0
"""To make and try a model takes about as many operations as this many inverses of a matrix of its sensors (n^3
multiplications each)."""
SKETCHED = 7.0 * MOST_CAUSES
"""To find the causes of a history of low rank takes about as many operations as this many for each of its values."""
MOMENTS_AT_MOST = 500
"""A model with up to this many sensors keeps the moments from which it was made: they take 16 n^2 bytes for each
lag."""
CONSTANT = 1e-9
"""A standard deviation below this share of the mean comes from rounding: the sensor is constant."""
FLOOR_SHARE = 0.01
"""Scale of a constant sensor, as a share of its mean; where the mean is zero, as a share of the median sensor's
scale."""


@dataclass(frozen=True, slots=True)
class FitReport:
    """What a fit did, and how good it was on the hidden last part of the history.

    Attributes:
        steps, sensors: size of the history that was used.
        missing_share: share of its cells without a reading.
        left_out: sensors with too few readings; the model does not know them.
        constant: sensors that never changed; their scale is a floor, and their bounds are a guess.
        duplicated: groups of sensors that always read the same; each group tells no more than one sensor.
        transition: "diagonal", "innovation" or "full" (`moments`).
        persistence: the diagonal of F; its mean where F is full.
        shrinkage: weight of the target (independent sensors) in the covariance.
        rank: most shared causes in a covariance of low rank; 0 = it is whole, and shrunk.
        lag: steps over which innovations are taken; 0 where there are none.
        profile: [period, harmonics] of the profile; empty if there is none.
        condition: condition number of Q and prior, infinite if singular; nugget: what the filter adds to their
            diagonals.
        masked_steps, masked_values: size of the trial.
        nrmse: root mean squared error over each sensor's scale; `last_value_nrmse`, `mean_nrmse`: the same if the last
            value, or the mean, were taken instead.
        coverage_raw: share of truths within the model's own bounds of probability 0.9, before calibration.
        inflation: the factor on the standard deviation for bounds of probability 0.9.
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
    rank: int
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


def estimate(
    history: npt.ArrayLike,
    names: Sequence[str],
    *,
    edges: Sequence[str] | None = None,
    period: int | Literal["auto"] | None = None,
    first_step: int = 0,
    whole: Callable[[tuple[int, ...], tuple[int, ...]], HistoryPart] | None = None,
    progress: ProgressReporter | None = None,
) -> tuple[Model, FitReport]:
    """Fit a model.

    Args:
        history: float64[T, n], one row a step, sensor units; NaN or infinite means no reading.
        names: names of the n sensors.
        edges: the edge of each sensor; None means four made-up edges with every fourth sensor each.
        period: number of steps after which a day, or whatever repeats, begins again; "auto" finds it in the history;
            None means no profile. A profile is kept only if the trial is better with it.
        first_step: number of the step of row 0; the phase of a profile is step % period.
        whole: returns the whole history, of which `history` is then a sample (of the steps, and perhaps of the
            sensors), given the lags whose moments are wanted and [period, harmonics] of the profile (empty = none).
            None means that `history` is all there is.
        progress: reports how far the fit is; None reports nothing.

    The structure is searched with `SEARCHED` sensors at most, and with `THINNED` where there are more. The trial that
    calibrates the bounds, and the model itself, have all sensors.

    Returns:
        the model, whose `about` holds the report, and the report.

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
    edge_of = [edges[place] for place in keep] if edges is not None else [str(place % 4) for place in range(len(keep))]
    groups = _groups(edge_of)

    split = len(rows) - max(LEAST_STEPS // 3, round(MASKED_SHARE * len(rows)))
    base = unfitted(kept, mean, scale)
    some = len(keep) > SEARCHED
    tried = thinned(edge_of, THINNED if some else SEARCHED)
    edge_of_some = [edge_of[place] for place in tried]
    progress = progress or ProgressReporter()
    searching = f"searching for the structure with {len(tried)} of {len(keep)} sensors"
    each, of_all = TRIAL_INVERSES * float(len(tried)) ** 3, TRIAL_INVERSES * float(len(keep)) ** 3
    if some:
        sketched = SKETCHED * float(len(rows)) * len(keep)
        stages = (TRIED_MODELS * (each + sketched * len(tried) / len(keep) / 4), 2 * sketched, 2 * sketched)
    else:
        stages = (TRIED_MODELS * each, 1.0, of_all)
    progress.expect([FitStage(name, work) for name, work in zip((searching, TRYING, MAKING), stages, strict=True)])
    progress.begin(searching)
    search = StructureSearch(
        rows[:, tried] if some else rows,
        split,
        unfitted(tuple(kept[place] for place in tried), mean[tried], scale[tried]) if some else base,
        _groups(edge_of_some),
        first_step,
        halves(edge_of_some) if len(keep) <= MOMENTS_AT_MOST else (),
        fleet=len(keep),
        tried=_counted(progress),
    )
    search.run()
    if some:
        search.try_ranks()
    if period == "auto":
        period = detect_period(((rows[:split] - mean) / scale)[:, tried])
    if period is not None:
        search.try_profiles(period)
    candidates = preferred(search.decide(), len(keep)) if some else search.decide()
    structure, profile = candidates[0].structure, search.profile if candidates[0].profiled else ()
    trial = search.trial
    progress.begin(TRYING)
    if some or structure != search.best or profile != search.profile:
        earlier, at = HistoryPart.of(rows[:split], base, profile, first_step), first_step + split - 1
        tries = ranks_beside(structure, split) if some else [structure]
        trials = {tried: run_trial(earlier.model(tried), rows[split - 1 :], groups, at) for tried in tries}
        structure = min(trials, key=lambda tried: trials[tried].score)
        trial = trials[structure]
        del earlier
    candidates = [candidate for candidate in candidates if profile or not candidate.profiled]

    progress.begin(MAKING)
    if whole is None:
        part = HistoryPart.of(rows, base, profile, first_step)
    else:
        lags = {structure.lag} | {candidate.structure.lag for candidate in candidates if len(kept) <= MOMENTS_AT_MOST}
        part = whole(tuple(sorted(lags)), profile)
    model, moments = part.model(structure), {} if structure.rank else _moments(part, candidates)
    if moments:
        model = replace(model, moments=moments)
    checked = choose_form(model)
    multiple = half_width(REPORTED_DELTA)
    calibration, known = _calibration(trial), set(kept)
    report = FitReport(
        steps=len(rows),
        sensors=len(kept),
        missing_share=round(float(1 - seen.mean()), 6),
        left_out=tuple(name for name in names if name not in known),
        constant=tuple(name for name, stands in zip(kept, constant, strict=True) if stands),
        duplicated=duplicates(rows, kept, constant),
        transition=structure.transition,
        persistence=float(np.mean(model.transition if model.diagonal else np.diag(model.F))),
        shrinkage=structure.shrinkage,
        rank=structure.rank,
        lag=structure.lag,
        profile=profile,
        condition=checked.condition,
        nugget=checked.nugget,
        masked_steps=len(rows) - split,
        masked_values=len(trial.error),
        nrmse=_rms(trial.error),
        last_value_nrmse=_rms(trial.last_value),
        mean_nrmse=_rms(trial.mean),
        coverage_raw=float(np.mean(np.abs(trial.error) <= multiple * trial.sd)) if len(trial.error) else 0.0,
        inflation=model.with_words(about={}, calibration=calibration).inflation(REPORTED_DELTA),
    )
    written = [candidate.written() for candidate in candidates]
    about = about_of(report) | {"structure": asdict(structure), "candidates": written}
    return model.with_words(about=about, calibration=calibration), report


def preferred(candidates: list[Candidate], sensors: int) -> list[Candidate]:
    """Return candidates with the one that a fleet of many sensors takes first.

    That is the best one, unless one of low rank errs by no more than `AS_GOOD` or whole matrices would be too large.
    """
    low = next((candidate for candidate in candidates if candidate.structure.rank), None)
    best = candidates[0]
    if low is None or (sensors <= WHOLE_CHOSEN and low.score > best.score + np.log(AS_GOOD)):
        return candidates
    return [low, *(candidate for candidate in candidates if candidate is not low)]


def ranks_beside(structure: Structure, steps: int) -> list[Structure]:
    """Return what is tried with all sensors of a structure that was found with some: they may share more causes."""
    if not structure.rank:
        return [structure]
    ranks = [structure.rank * more for more in (1, 2, 4)]
    return [replace(structure, rank=rank) for rank in ranks if rank <= min(MOST_CAUSES, steps // ROWS_A_CAUSE)]


def thinned(edge_of: Sequence[str], most: int) -> list[int]:
    """Return the places of `most` sensors at most, ascending, evenly chosen from every edge.

    So about the same share of them fails with an edge as of all sensors. Some edges with one or two sensors are left
    out.
    """
    by_edge = np.argsort(np.unique(edge_of, return_inverse=True)[1], kind="stable")
    return sorted(by_edge[evenly(len(by_edge), most)].tolist())


def _counted(progress: ProgressReporter) -> Callable[[], None]:
    """Return a function that reports how far a search is; it must be called after each model that was tried."""
    count = 0

    def tried() -> None:
        nonlocal count
        count += 1
        progress.reach(count / max(TRIED_MODELS, count + 1))

    return tried


def read_often(history: Floats) -> list[int]:
    """Return the places of the sensors with `LEAST_READINGS` readings or more."""
    return [int(place) for place in np.flatnonzero(np.isfinite(history).sum(axis=0) >= LEAST_READINGS)]


def base_of(names: tuple[str, ...], rows: Floats, profile: tuple[int, ...], first_step: int) -> Model:
    """Return a model with names, means, scales and profile of rows, float64[T, n]; its other parts mean nothing."""
    mean, scale, _ = _scales(rows)
    return HistoryPart.of(rows, unfitted(names, mean, scale), profile, first_step).base


def about_of(report: FitReport) -> dict[str, Any]:
    """Return a report as a model's `about`, with JSON values; the condition number of a singular matrix is null."""
    found: dict[str, Any] = json.loads(json.dumps(asdict(report)))
    return found | {"condition": report.condition if np.isfinite(report.condition) else None}


def unfitted(names: tuple[str, ...], mean: Floats, scale: Floats) -> Model:
    """Return a model with names, means and scales; its other parts mean nothing."""
    n = len(names)
    nothing = LowRank(np.zeros((n, 0)), np.ones(n))
    return LowRankModel(names, mean=mean, scale=scale, transition=np.zeros(n), noise=nothing, known=nothing)


def _moments(part: HistoryPart, candidates: list[Candidate]) -> dict[int, Floats]:
    """Return the moments from which a model of each candidate can be made, by lag (`averaging.ModelAverage`)."""
    if len(part.base) > MOMENTS_AT_MOST:
        return {}
    lags = {candidate.structure.lag for candidate in candidates}
    if lags == {0}:
        return {0: part.moments.covariance()}
    return {lag: part.moments.joint(lag) for lag in sorted(lags - {0})}


def _scales(rows: Floats) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
    """Return the mean and standard deviation of each sensor, and which are constant (their scale is a floor)."""
    mean, sd = np.nanmean(rows, axis=0), np.nanstd(rows, axis=0, ddof=1)
    return mean, *units_of(mean, sd)


def units_of(mean: Floats, sd: Floats) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Return the scale of each sensor, and which sensors are constant, from means and standard deviations."""
    constant = sd <= CONSTANT * np.abs(mean)
    typical = float(np.median(sd[~constant])) if not constant.all() else 1.0
    floor = FLOOR_SHARE * np.where(mean == 0, typical, np.abs(mean))
    return np.where(constant, floor, sd), constant


def duplicates(rows: Floats, names: tuple[str, ...], constant: npt.NDArray[np.bool_]) -> tuple[tuple[str, ...], ...]:
    """Return the groups of sensors whose columns are equal, gaps too; constant sensors are left out."""
    groups: dict[bytes, list[str]] = {}
    for place, name in enumerate(names):
        if not constant[place]:
            column = rows[:, place] + 0.0  # turns a negative zero into zero
            groups.setdefault(hashlib.sha256(column.tobytes()).digest(), []).append(name)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def _groups(edge_of: Sequence[str]) -> list[Edges]:
    """Return the sensors of each edge that is hidden, in the order of the edges' names."""
    order, names = sorted(set(edge_of)), np.array(edge_of)
    return [np.flatnonzero(names == order[place]) for place in evenly(len(order), MASKED_EDGES).tolist()]


def halves(edge_of: Sequence[str]) -> list[Edges]:
    """Return the sensors of half of the edges, for up to `MASKED_HALVES` choices of neighbours by name."""
    order, names = sorted(set(edge_of)), np.array(edge_of)
    count = (len(order) + 1) // 2
    firsts = evenly(len(order) + 1, MASKED_HALVES + 1)[:-1]
    return [np.flatnonzero(np.isin(names, np.roll(order, -first)[:count])) for first in firsts.tolist()]


def _calibration(trial: Trial) -> tuple[tuple[float, float], ...]:
    """Return split-conformal factors: quantiles of abs(error) / sd over the Gaussian's, not below 1 due to drift."""
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
