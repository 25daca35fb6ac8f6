"""A slot's model while it runs: the average of several, each weighing by how little it errs now.

A fit cannot settle from its history which structure is best: that depends on how much has been seen since, on what
fails together, and on how the data change. So the best structures of each kind that the fit found go on with the data
(`refit.FadingMoments`). Living edges fail for all of them alike (shadow failures, as in `calibration.Shadow`), each
time from the state that the slot's filter has at that moment. Their errors, which fade, give weights as of an
exponentially weighted forecaster (Cesa-Bianchi and Lugosi 2006, chapter 2). The parameters of the models are averaged,
so that one model results. On short series it is better than the best candidate alone, since nobody can tell well which
one that is. Nothing is random: the same steps give the same model.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import asdict, replace

import numpy as np
import numpy.typing as npt
from scipy import linalg

from tsunagi.recovery.calibration import SHADOW_STEPS, Turns
from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.factors import Places
from tsunagi.recovery.filter import Recovery
from tsunagi.recovery.model import Model
from tsunagi.recovery.moments import Structure
from tsunagi.recovery.refit import FadingMoments, moments_of, refitted, steps_of
from tsunagi.recovery.scores import Scores
from tsunagi.recovery.search import Candidate
from tsunagi.runtime.columns import Floats

SOFTNESS = 0.03
"""A candidate whose score is worse by this (about 3 % more error) weighs less by the factor e, after a fit to
`SOFT_STEPS` steps. With more steps errors are known better, so the value falls with the fourth root of their number."""
SOFT_STEPS = 500.0
"""Number of steps of a fit for which `SOFTNESS` holds as it stands."""
MEMORY = 1000.0
"""Longest half-life of an error, in steps: how much is missing changes faster than how sensors move, and a candidate
that erred before its moments had followed the data may be the best one now."""
LEAST_WEIGHT = 0.02
"""A candidate whose weight is below this share of the best one's weight is left out."""
TRIAL_WEIGHT = 0.5
"""Weight of the fit's trials, as a share of the weight of as many steps of shadow failures."""
SCORED_SENSORS = 100
"""In a slot with up to this many sensors there is a shadow failure at every step; in larger slots it is at a share of
the steps, because it takes time."""
LARGEST = 100.0
"""An error counts as this at most, in units of scale: a larger one says that a model broke, and nothing more by its
size."""


class ModelAverage:
    """The candidates for a slot's model, with their moments, errors and weights.

    Args:
        model: made by `estimation.estimate`, or by `best` of another average, from which this one then goes on. A model
            without candidates and moments has its own structure as the only candidate.
        recovery: the filter of the slot; a shadow failure begins with its state.
        edge_of: the edge of each sensor.
        half_life: of a row, and of an error up to `MEMORY`, in steps; None means the number of steps of the model's
            fit.

    Attributes:
        passed_over: number of models that could not be made from their moments; the earlier ones stayed in use.
    """

    def __init__(
        self, model: Model, recovery: Recovery, edge_of: Sequence[Hashable], *, half_life: float | None = None
    ) -> None:
        model = _whole_profile(model)
        profiled = model.profile is not None
        self._base = replace(model, moments={})
        self._bases = {profiled: self._base, False: replace(self._base, profile=None)}
        self._recovery = recovery
        self._steps = steps_of(model)
        self._half_life = half_life or self._steps
        self._memory = min(MEMORY, self._half_life)
        self._softness = SOFTNESS * min(1.0, SOFT_STEPS / self._steps) ** 0.25
        self._turns = Turns(edge_of)
        self._candidates, starts = _candidates(model)
        self._moments: dict[tuple[int, bool], FadingMoments] = {}
        self._bank: list[tuple[int, bool]] = []
        for candidate in self._candidates:
            lag, own = candidate.structure.lag or min(starts), candidate.profiled
            self._bank.append((lag, own))
            if (lag, own) not in self._moments:
                start = _with_profile(starts[lag], model, lag, profiled=own)
                bank = FadingMoments(start, steps=self._steps, half_life=self._half_life, lag=lag)
                self._moments[lag, own] = bank
        self._models = [self._made(number) for number in range(len(self._candidates))]
        self._filters = [Recovery(each) for each in self._models] if len(self._models) > 1 else []
        self._turn = 0
        self.passed_over = 0
        # Number of values that shadow failures see in as many steps as the fit had.
        seen = min(self._steps, self._memory) * len(model) / self._turns.edges
        self._scores = Scores(self._candidates, self._turns.edges, TRIAL_WEIGHT * seen)
        self._shadows: list[Recovery] = []
        self._masked: Places | None = None
        self._length = 0
        self._until = self._free_from = 0

    @property
    def operations(self) -> float:
        """Most multiplications that a step may need: at a step that folds rows into the moments."""
        return sum(bank.operations for bank in self._moments.values())

    def observe(self, values: Floats, step: int) -> None:
        """Follow a step that the slot's filter has just taken: float64[n], sensor units; NaN = missing."""
        for (_, profiled), moments in self._moments.items():
            base = self._bases[profiled]
            moments.observe((values - base.mean_at(step)) / base.scale)
        if len(self._candidates) == 1:
            return
        seen = np.isfinite(values)
        missing = 1 - float(seen.mean())
        self._scores.saw_missing(missing)
        sensors = self._masked
        if sensors is None or step >= self._until:
            self._masked = None
            if step >= self._free_from:
                self._choose(seen, step)
            return
        masked = values.copy()
        masked[sensors] = np.nan
        known = sensors[seen[sensors]]
        scale = self._base.scale[known]
        errors = [(shadow.step(masked, step).mean[known] - values[known]) / scale for shadow in self._shadows]
        squares = np.square(np.minimum(np.abs(errors), LARGEST)).sum(axis=1)
        self._scores.add(self._length, missing + len(known) / len(values), squares, len(known))

    def best(self) -> Model:
        """Return the average of the candidates' models, made from the moments as they are now.

        It holds what another average needs to go on from here: the candidates with their errors, and the moments.
        """
        weights = self.weights()
        self._turn = (self._turn + 1) % len(self._candidates)
        for number in range(len(self._candidates)):
            if weights[number] > 0 or number == self._turn:
                try:
                    self._models[number] = self._made(number)
                except (ModelError, linalg.LinAlgError):
                    self.passed_over += 1
        if self._filters:  # one filter is made anew at each call, because it takes time
            self._filters[self._turn] = Recovery(self._models[self._turn])
        profiled = [each.profiled for each in self._candidates]
        share = float(weights[profiled].sum())
        profile = None if self._base.profile is None or not share else share * self._base.profile
        candidates = [each for each in self.candidates() if profile is not None or not each.profiled]
        about = {
            **self._base.about,
            "structure": asdict(self._candidates[int(np.argmax(weights))].structure),
            "candidates": [each.written() for each in candidates],
            "profile_share": share,
        }
        kept = {lag: bank.found()[1] for (lag, mine), bank in self._moments.items() if mine == (profile is not None)}
        model = _averaged([(float(w), self._models[i]) for i, w in enumerate(weights.tolist()) if w > 0])
        return replace(model, profile=profile, about=about, moments=kept)

    def scores(self) -> Floats:
        """Return the score of each candidate for the share missing lately, float64[candidates]; lower is better."""
        return self._scores.now()

    def weights(self) -> Floats:
        """Return the weight of each candidate, float64[candidates]; the sum is 1."""
        scores = self.scores()
        weights = np.exp((scores.min() - scores) / self._softness)
        weights[weights < LEAST_WEIGHT] = 0.0
        return np.asarray(weights / weights.sum())

    def candidates(self) -> list[Candidate]:
        """Return the candidates with their present mean squared errors."""
        means = self._scores.means().tolist()
        return [
            replace(candidate, squares=tuple(one), half=tuple(half), whole=tuple(whole))
            for candidate, one, half, whole in zip(self._candidates, *means, strict=True)
        ]

    def _choose(self, seen: npt.NDArray[np.bool_], step: int) -> None:
        """Begin a shadow failure of the next edge that is alive."""
        turn = self._turns.take(seen)
        self._masked, self._length = turn or (None, SHADOW_STEPS[0])
        rest = max(1.0, len(self._base) / SCORED_SENSORS)
        self._until = step + 1 + self._length
        self._free_from = step + round(rest * (1 + self._length))
        self._scores.fade(0.5 ** ((self._free_from - step) / self._memory))
        self._shadows = []
        for filter_ in self._filters if self._masked is not None else ():
            shadow = filter_.fork()
            shadow.adopt(self._recovery, step)
            self._shadows.append(shadow)

    def _made(self, number: int) -> Model:
        candidate = self._candidates[number]
        base = self._bases[candidate.profiled]
        return refitted(base, candidate.structure, *self._moments[self._bank[number]].found())


def _averaged(weighted: list[tuple[float, Model]]) -> Model:
    """Return the model whose mean, F, Q and prior are the weighted means of those of the models."""
    if len(weighted) == 1:
        return weighted[0][1]
    models = [model for _, model in weighted]
    parameters = {
        key: np.sum([weight * getattr(model, key) for weight, model in weighted], axis=0)
        for key in ("mean", "Q", "prior")
    }
    key = "transition" if all(model.diagonal for model in models) else "F"
    transition = np.sum([weight * getattr(model, key) for weight, model in weighted], axis=0)
    return replace(models[0], transition=transition, **parameters)


def _candidates(model: Model) -> tuple[list[Candidate], dict[int, Floats]]:
    """Return the candidates of a model whose moments it keeps, and the moments by lag."""
    profiled = model.profile is not None
    found = [
        candidate
        for candidate in Candidate.of(model.about)
        if model.moments and (candidate.structure.lag or min(model.moments)) in model.moments
        if profiled or not candidate.profiled
    ]
    if found:
        return found, dict(model.moments)
    own = Structure.of(model.about)
    return [Candidate(own, profiled, (1.0,) * len(SHADOW_STEPS))], {own.lag: moments_of(model, own)}


def _whole_profile(model: Model) -> Model:
    """Return a model with its whole profile, of which an average had taken a share."""
    share = float(model.about.get("profile_share", 1.0))
    if model.profile is None or share in (0.0, 1.0):
        return model
    return replace(model, profile=model.profile / share)


def _with_profile(moments: Floats, model: Model, lag: int, *, profiled: bool) -> Floats:
    """Return moments around the profile as they are; for a model without it, add what the profile explains."""
    if profiled or model.profile is None:
        return moments
    now = model.profile - model.profile.mean(axis=0)
    if lag:
        now = np.hstack([now, np.roll(now, lag, axis=0)])
    return np.asarray(moments + now.T @ now / len(now))
