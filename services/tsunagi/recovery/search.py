"""The search for the structure of a model: what errs least on edges hidden from history it was not fitted to.

A coordinate search on the last third of the history finds the best of each kind. These finalists are then tried on
other parts as well, each with a model of all the rest: one part of a history is often not like what comes.
"""

from __future__ import annotations

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
"""Weights of independent sensors in the covariance that are tried."""
HOLD = Structure("innovation", 0.9, 1.0, 1)
"""Nearly that each sensor stands still, by steps of its own: the last value, which is hard to beat in a random walk."""
PERSISTENCES = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.995, 0.999)
"""Values of a diagonal F that are tried: how much of a deviation is left a step later."""
LAGS = (1, 3, 10)
"""Steps apart of two rows whose difference tells the innovations, where a model is made of those."""
HARMONICS = (3, 24)
"""Of a profile: smooth, or with the teeth that a day within a week has."""
FULL_AT_MOST = 1500
"""Sensors up to which a full F is tried: its joint takes 32 n^2 bytes, and its filter n^2 operations a step."""
ROWS_A_SENSOR = 1.5
"""Rows of history a sensor for shrinkage of nearly nothing to be tried; the trial tells whether that was too few."""
FOLDS = 3
"""Parts of the history that the finalists are tried on."""
MUCH_WORSE = 0.25
"""A finalist whose score is further than this behind the best is none: 1.3 times its error."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A structure that may become a slot's model.

    Attributes:
        structure: how the model is made of moments.
        profiled: whether around the profile that the fit found.
        squares: mean squared error in its trials with one edge out, by length of outage, shortest first; in units of
            scale squared.
        half: the same with half of the edges out; whole: with all, in the shortest outages alone, since all are seldom
            out together for longer. Empty = not tried.
    """

    structure: Structure
    profiled: bool
    squares: tuple[float, ...]
    half: tuple[float, ...] = ()
    whole: tuple[float, ...] = ()

    @property
    def score(self) -> float:
        """See `trial.score_of`; with one edge out."""
        return float(score_of(np.array(self.squares)))

    def written(self) -> dict[str, Any]:
        """Return it as a model file's `about` has it."""
        return {
            **asdict(self.structure),
            "profiled": self.profiled,
            "squares": list(self.squares),
            "half": list(self.half),
            "whole": list(self.whole),
        }

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> list[Candidate]:
        """Read the candidates of a fitted model from its `about`; none in files of before there were any.

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
class Part:
    """A stretch of history, with the moments every structure is made of.

    Attributes:
        base: names, mean, scale and profile.
        moments: around these, in units of scale.
    """

    base: Model
    moments: Moments

    @classmethod
    def of(cls, rows: Floats, base: Model, profile: tuple[int, ...], first_step: int) -> Part:
        """Standardise rows, float64[T, n], by the scale of `base` around their own mean and profile."""
        count = np.isfinite(rows).sum(axis=0)
        total = np.nansum(rows, axis=0)
        mean = np.divide(total, count, out=base.mean.copy(), where=count > 0)
        standard = (rows - mean) / base.scale
        base = replace(base, mean=mean)
        if profile:
            period, harmonics = profile
            waves = profile_of(standard, period, harmonics, first_step)
            base = replace(base, profile=waves)
            standard = standard - waves[(first_step + np.arange(len(rows))) % period]
        return cls(base, Moments(standard))

    def model(self, structure: Structure) -> Model:
        """Return the model of this structure, without calibration."""
        return self.moments.model(structure, self.base)


class Search:
    """The search for the structure with the best trial.

    Args:
        rows: float64[T, n], sensor units; NaN = no reading.
        split: rows from here on are the last third.
        base: names, mean and scale.
        groups: sensors that fail together.
        halves: sensors of half of the edges, some choices of them: what finalists are tried on as well, and on an
            outage of all. Empty = on neither.
        first_step: the step that row 0 is.
        fleet: sensors that the model will have, of which these are some; None = these are all.
        tried: is called after each model that was tried.

    Attributes:
        best, trial: found so far; the trial is that on the last third.
        profile: (period, harmonics) of it; empty = none.
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
        self._part = Part.of(rows[:split], base, (), first_step)
        self._tried: dict[Structure, float] = {}
        self._plain: dict[Structure, float] = {}  # the same without a profile, once there is one
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
        self._each([HOLD])
        if self._full:
            self._each(Structure("full", weight, 0.0, 1) for weight in self._shrinkages(twice=True))

    def try_profiles(self, period: int) -> None:
        """Search again with profiles, if the history shows the period twice; keep what is better."""
        if 2 * period > self._split:
            return
        plain = self.best
        for harmonics in sorted({min(count, period // 2) for count in HARMONICS}):
            part = Part.of(self._rows[: self._split], self._base, (period, harmonics), self._first_step)
            trial = self._try(part, plain)
            if trial.score < self.trial.score:
                self._part, self.trial, self.best = part, trial, plain
                self.profile = (period, harmonics)
        if self.profile:
            self._plain, self._tried = self._tried, {}
            self.run()

    def decide(self) -> list[Candidate]:
        """Try the best of each kind on every part of the history; return them, the best first, which is `best`."""
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
                    part = Part.of(rest, self._base, self.profile if profiled else (), self._first_step)
                    begin = max(0, first - 1)
                    for structure in mine:
                        squares = self._tried_out(part.model(structure), begin, end)
                        trials.setdefault((structure, profiled), []).append(squares)
        for (structure, profiled), of_parts in trials.items():
            found.append(Candidate(structure, profiled, *(_mean_squares(of) for of in zip(*of_parts, strict=True))))
        found.sort(key=lambda candidate: candidate.score)
        return found

    def _tried_out(self, model: Model, begin: int, end: int) -> list[Floats]:
        """Return mean squared errors by length of outage, of one edge, and perhaps of half of them and of all."""
        kinds: list[tuple[list[Edges], Sequence[int]]] = [(self._groups, OUTAGES)]
        if self._halves:
            kinds += [(self._halves, OUTAGES), ([np.arange(len(model))], OUTAGES[:1])]
        rows, first = self._rows[begin:end], self._first_step + begin
        found = [run_trial(model, rows, groups, first, lengths).squares for groups, lengths in kinds]
        self._told()
        return found

    def _finalists(self) -> list[tuple[Structure, bool]]:
        """Return the paper's, and unless hopeless `HOLD` and the best of each kind with and without the profile."""
        pools = [(self._tried, bool(self.profile))] + ([(self._plain, False)] if self.profile else [])
        found: dict[tuple[Structure, bool], float] = {}
        for tried, profiled in pools:
            for kind in ("diagonal", "innovation", "full"):
                of_kind = {structure: score for structure, score in tried.items() if structure.transition == kind}
                if of_kind:
                    structure = min(of_kind, key=of_kind.__getitem__)
                    found[structure, profiled] = of_kind[structure]
        plain = self._plain if self.profile else self._tried
        published = Structure("full", self._shrinkages(twice=True)[0], 0.0, 1)
        for structure in (published, HOLD):
            if structure in plain:
                found[structure, False] = plain[structure]
        least = min(found.values())
        # The published one always: what it is worth with many edges down at once, trials of single ones do not tell.
        return [key for key, score in found.items() if score < least + MUCH_WORSE or key == (published, False)]

    def _shrinkages(self, *, twice: bool = False) -> tuple[float, ...]:
        """Return weights that leave a covariance that can be inverted: with few rows, not the least."""
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

    def _try(self, part: Part, candidate: Structure) -> Trial:
        model = part.model(candidate)
        # With the step before, which the outages start from.
        trial = run_trial(model, self._rows[self._split - 1 :], self._groups, self._first_step + self._split - 1)
        self._told()
        return trial


def _mean_squares(of_parts: Sequence[Floats]) -> tuple[float, ...]:
    """Return mean squared errors by length of outage over the parts of a history, each of which counts alike."""
    lengths = min(len(squares) for squares in of_parts)
    mean = np.exp(np.mean([np.log(squares[:lengths] + LEAST_ERROR**2) for squares in of_parts], axis=0))
    return tuple(mean.tolist())
