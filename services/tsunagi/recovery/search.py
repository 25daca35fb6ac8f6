"""The search for a model's structure: the one that errs least on hidden edges of history that it was not fitted to.

A coordinate search on the last third of the history finds the best structure of each kind. These finalists are then
tried on other parts too, each with a model of all the rest: one part of a history is often unlike what comes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.model import Model
from tsunagi.recovery.moments import Moments, Structure, profile_of
from tsunagi.recovery.trial import LEAST_ERROR, OUTAGES, Edges, Trial, run_trial, score_of
from tsunagi.runtime.columns import Floats

SHRINKAGES = (0.0, 0.002, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9)
"""Weights of independent sensors in the covariance (shrinkage) that are tried."""
HOLD = Structure("innovation", 0.9, 1.0, 1)
"""A structure that nearly keeps the last value of each sensor, which is hard to beat in a random walk."""
PERSISTENCES = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.995, 0.999)
"""Values of a diagonal F that are tried: the share of a deviation that is left one step later."""
LAGS = (1, 3, 10)
"""Numbers of steps over which changes are taken for a model that is made from changes."""
HARMONICS = (3, 24)
"""Numbers of harmonics of a profile that are tried: smooth, or with the peaks that days have within a week."""
FULL_AT_MOST = 1500
"""A full F is tried with up to this many sensors: its joint takes 32 n^2 bytes, and its filter n^2 operations a
step."""
RANKS = (8, 16, 32, 64, 128, 256)
"""Numbers of shared causes that are tried where a covariance may be of low rank."""
ROWS_A_CAUSE = 3
"""Least number of rows of history for each shared cause."""
ROWS_A_SENSOR = 1.5
"""Rows of history for each sensor from which on a shrinkage of nearly 0 is tried; the trial tells whether they are
enough."""
FOLDS = 3
"""Number of parts of the history on which the finalists are tried."""
MUCH_WORSE = 0.25
"""A structure whose score is worse than the best by more than this (1.3 times its error) is not a finalist."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A structure that may become a slot's model.

    Attributes:
        structure: how the model is made from moments.
        profiled: whether the moments are around the profile that the fit found.
        squares: mean squared error in trials with one edge out, by length of outage, shortest first; in units of scale
            squared.
        half: the same with half of the edges out; whole: the same with all of them out, in the shortest outages alone,
            since all edges are seldom out for longer. Empty if not tried.
    """

    structure: Structure
    profiled: bool
    squares: tuple[float, ...]
    half: tuple[float, ...] = ()
    whole: tuple[float, ...] = ()

    @property
    def score(self) -> float:
        """The score of `trial.score_of`, with one edge out."""
        return float(score_of(np.array(self.squares)))

    def written(self) -> dict[str, Any]:
        """Return the candidate as JSON values for a model file's `about`."""
        return {
            **asdict(self.structure),
            "profiled": self.profiled,
            "squares": list(self.squares),
            "half": list(self.half),
            "whole": list(self.whole),
        }

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> list[Candidate]:
        """Read the candidates of a fitted model from its `about`; files of earlier versions have none.

        Raises:
            ModelError: they are not what a fit writes.
        """
        try:
            return [
                cls(
                    Structure.of({"structure": item}),
                    bool(item["profiled"]),
                    tuple(float(square) for square in item["squares"]),
                    tuple(float(square) for square in item.get("half", ())),
                    tuple(float(square) for square in item.get("whole", ())),
                )
                for item in about.get("candidates", [])
            ]
        except (TypeError, KeyError, ValueError) as error:
            raise ModelError(f"model: about: candidates: found {error!r}, expected those of a fitted model") from None


@dataclass(frozen=True, slots=True)
class HistoryPart:
    """A part of the history, with the moments from which each structure is made.

    Attributes:
        base: names, mean, scale and profile.
        moments: second moments around the mean and profile, in units of scale.
    """

    base: Model
    moments: Moments

    @classmethod
    def of(cls, rows: Floats, base: Model, profile: tuple[int, ...], first_step: int) -> HistoryPart:
        """Return rows, float64[T, n], in units of the scale of `base` around their own mean and profile."""
        count = np.isfinite(rows).sum(axis=0)
        total = np.nansum(rows, axis=0)
        mean = np.divide(total, count, out=base.mean.copy(), where=count > 0)
        standard = (rows - mean) / base.scale
        waves: Floats | None = None
        if profile:
            period, harmonics = profile
            waves = profile_of(standard, period, harmonics, first_step)
            standard = standard - waves[(first_step + np.arange(len(rows))) % period]
        return cls(base.around(mean, waves), Moments(standard))

    def model(self, structure: Structure) -> Model:
        """Return the model of this structure, without calibration."""
        return self.moments.model(structure, self.base)


class StructureSearch:
    """The search for the structure with the best trial.

    Args:
        rows: float64[T, n], sensor units; NaN means no reading.
        split: number of the first row of the last third.
        base: names, mean and scale.
        groups: groups of sensors that fail together.
        halves: sensors of half of the edges, for some choices of them: the finalists are tried on these and on an
            outage of all edges too. Empty means on neither.
        first_step: number of the step of row 0.
        fleet: number of sensors that the model will have, if these are only some of them; None means that these are
            all.
        tried: called after each model that was tried.

    Attributes:
        best, trial: the best structure so far, and its trial on the last third.
        profile: (period, harmonics) of the best structure; empty if it has none.
    """

    def __init__(
        self,
        rows: Floats,
        split: int,
        base: Model,
        groups: list[Edges],
        first_step: int,
        halves: Sequence[Edges] = (),
        *,
        fleet: int | None = None,
        tried: Callable[[], None] = lambda: None,
    ) -> None:
        self._rows, self._split, self._base, self._groups = rows, split, base, groups
        self._halves = list(halves)
        self._first_step = first_step
        self._full = (fleet or len(base)) <= FULL_AT_MOST
        self._told = tried
        self._part = HistoryPart.of(rows[:split], base, (), first_step)
        self._tried: dict[Structure, float] = {}
        self._plain: dict[Structure, float] = {}  # scores without a profile, once there is one
        self.profile: tuple[int, ...] = ()
        self.best = Structure("diagonal", 0.3, 0.9)
        self.trial = self._try(self._part, self.best)

    def run(self) -> None:
        """Search one coordinate after the other: persistence, shrinkage, and the kind of transition with its lag."""
        self._persistences()
        self._each(replace(self.best, shrinkage=weight) for weight in self._shrinkages())
        self._persistences()
        start = self.best
        self._each(replace(start, transition="innovation", lag=lag) for lag in LAGS if 4 * lag < self._split)
        if self.best.transition == "innovation":
            self._each(replace(self.best, shrinkage=weight) for weight in self._shrinkages())
            self._persistences()
        self._each([HOLD])
        if self._full:
            self._each(Structure("full", weight, 0.0, 1) for weight in self._shrinkages(twice=True))

    def try_ranks(self) -> None:
        """Try the best of each kind with covariances of low rank, whatever the number of causes."""
        kinds = [
            min(of_kind, key=self._tried.__getitem__)
            for kind in ("diagonal", "innovation")
            if (of_kind := [structure for structure in self._tried if structure.transition == kind])
        ]
        most = min(self._split // ROWS_A_CAUSE, len(self._base) - 1)
        ranks = [rank for rank in RANKS if rank <= most] or [most]
        found = [replace(structure, rank=rank, shrinkage=0.0) for structure in kinds for rank in ranks]
        self._each(found)
        best = min(found, key=self._tried.__getitem__)
        near = sorted(PERSISTENCES, key=lambda value: abs(value - best.persistence))[:3]
        self._each(replace(best, persistence=value) for value in near)

    def try_profiles(self, period: int) -> None:
        """Search again with profiles, if the history shows the period twice; keep what is better."""
        if 2 * period > self._split:
            return
        plain = self.best
        for harmonics in sorted({min(count, period // 2) for count in HARMONICS}):
            part = HistoryPart.of(self._rows[: self._split], self._base, (period, harmonics), self._first_step)
            trial = self._try(part, plain)
            if trial.score < self.trial.score:
                self._part, self.trial, self.best = part, trial, plain
                self.profile = (period, harmonics)
        if self.profile:
            self._plain, self._tried = self._tried, {}
            self.run()

    def decide(self) -> list[Candidate]:
        """Try the best of each kind on all parts of the history; return them, the best first, and keep it as `best`."""
        parts = [(self._split, len(self._rows))]
        size = self._split // (FOLDS - 1)
        parts += [(first, first + size) for first in range(0, size * (FOLDS - 1), size)]
        found = []
        trials: dict[tuple[Structure, bool], list[list[Floats]]] = {}
        for first, end in parts:
            if end - first < 3:
                continue
            rest = self._rows.copy()
            rest[first:end] = np.nan
            for profiled in (False, True):
                mine = [structure for structure, with_profile in self._finalists() if with_profile == profiled]
                if mine:
                    part = HistoryPart.of(rest, self._base, self.profile if profiled else (), self._first_step)
                    begin = max(0, first - 1)
                    for structure in mine:
                        squares = self._tried_out(part.model(structure), begin, end)
                        trials.setdefault((structure, profiled), []).append(squares)
        for (structure, profiled), of_parts in trials.items():
            found.append(Candidate(structure, profiled, *(_mean_squares(of) for of in zip(*of_parts, strict=True))))
        found.sort(key=lambda candidate: candidate.score)
        return found

    def _tried_out(self, model: Model, begin: int, end: int) -> list[Floats]:
        """Return mean squared errors by length of outage: with one edge out, and perhaps with half of them and all."""
        kinds: list[tuple[list[Edges], Sequence[int]]] = [(self._groups, OUTAGES)]
        if self._halves:
            kinds += [(self._halves, OUTAGES), ([np.arange(len(model))], OUTAGES[:1])]
        rows, first = self._rows[begin:end], self._first_step + begin
        found = [run_trial(model, rows, groups, first, lengths).squares for groups, lengths in kinds]
        self._told()
        return found

    def _finalists(self) -> list[tuple[Structure, bool]]:
        """Return the published structure; and, unless hopeless, `HOLD` and the best of each kind.

        A kind is a transition, of low rank or not, profiled or not.
        """
        pools = [(self._tried, bool(self.profile))] + ([(self._plain, False)] if self.profile else [])
        found: dict[tuple[Structure, bool], float] = {}
        for tried, profiled in pools:
            for kind, low_rank in itertools.product(("diagonal", "innovation", "full"), (False, True)):
                of_kind = {
                    structure: score
                    for structure, score in tried.items()
                    if structure.transition == kind and bool(structure.rank) == low_rank
                }
                if of_kind:
                    structure = min(of_kind, key=of_kind.__getitem__)
                    found[structure, profiled] = of_kind[structure]
        plain = self._plain if self.profile else self._tried
        published = Structure("full", self._shrinkages(twice=True)[0], 0.0, 1)
        for structure in (published, HOLD):
            if structure in plain:
                found[structure, False] = plain[structure]
        least = min(found.values())
        # The published one always: trials of single edges do not show what it is worth with many edges down at once.
        # So is the best of low rank, where any was tried: whole matrices of a large fleet may be too large.
        return [
            key
            for key, score in found.items()
            if score < least + MUCH_WORSE or key == (published, False) or key[0].rank
        ]

    def _shrinkages(self, *, twice: bool = False) -> tuple[float, ...]:
        """Return the shrinkages that leave an invertible covariance; with few rows the smallest ones are left out."""
        sensors = len(self._base) * (2 if twice else 1)
        return tuple(weight for weight in SHRINKAGES if weight >= 0.05 or self._split > ROWS_A_SENSOR * sensors)

    def _persistences(self) -> None:
        self._each(replace(self.best, persistence=value) for value in PERSISTENCES)

    def _each(self, candidates: Iterable[Structure]) -> None:
        for candidate in list(candidates):
            if candidate in self._tried:
                continue
            trial = self._try(self._part, candidate)
            self._tried[candidate] = trial.score
            if trial.score < self.trial.score:
                self.best, self.trial = candidate, trial

    def _try(self, part: HistoryPart, candidate: Structure) -> Trial:
        model = part.model(candidate)
        # The rows begin one step earlier, with the step from which the outages start.
        trial = run_trial(model, self._rows[self._split - 1 :], self._groups, self._first_step + self._split - 1)
        self._told()
        return trial


def _mean_squares(of_parts: Sequence[Floats]) -> tuple[float, ...]:
    """Return mean squared errors by length of outage; each part of the history has the same weight."""
    lengths = min(len(squares) for squares in of_parts)
    mean = np.exp(np.mean([np.log(squares[:lengths] + LEAST_ERROR**2) for squares in of_parts], axis=0))
    return tuple(mean.tolist())
