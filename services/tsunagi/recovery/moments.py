"""Second moments of a fleet's history, and models of different structure that are made from them.

Everything is in units of scale around the mean (and profile). A structure says from which second moments the noise of a
step is made, how far they are shrunk towards independent sensors, and how fast the past is forgotten:

- "diagonal": F = persistence x I, Q = (1 - persistence^2) x the shrunk covariance: the steps of the sensors are
correlated as their values are.
- "innovation": F = persistence x I, Q from the covariance of the changes over `lag` steps: the steps of the sensors are
correlated in another way than their values.
- "full": F and Q from the shrunk joint of neighbouring steps (the paper's N(mu'', Sigma'')).

Covariances of the first two kinds may be of low rank (`low_rank`) instead of shrunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.low_rank import LEAST_VARIANCE, LowRank, Spectrum, filled, lifted, of_matrix
from tsunagi.recovery.model import LowRankModel, Model
from tsunagi.runtime.columns import Floats

LEAST_PAIRS = 4
"""Two sensors must have this many rows in common, or their covariance counts as zero."""
MOST_CAUSES = 256
"""Most shared causes in a covariance of low rank."""
LEAST_REPEAT = 0.2
"""Least autocorrelation of a period that counts."""
AS_GOOD = 0.9
"""A peak with this share of the best one counts as equally good: the difference is noise."""

Transition = Literal["diagonal", "innovation", "full"]


@dataclass(frozen=True, slots=True)
class Structure:
    """How a model is made from moments.

    Attributes:
        transition: see the text of the module.
        shrinkage: weight of the target (independent sensors), 0 to 1.
        persistence: the diagonal of F; not used if F is full.
        lag: steps over which changes are taken; 1 for "full", 0 for "diagonal".
        rank: most shared causes in covariances of low rank, which are not shrunk; 0 means that they have no such form.
    """

    transition: Transition
    shrinkage: float
    persistence: float
    lag: int = 0
    rank: int = 0

    @property
    def noise_share(self) -> float:
        """Share of one step in the variance that `lag` steps add; those add the one step's, times 1 + f^2 + f^4 ..."""
        squared = self.persistence**2
        return 1 / self.lag if squared == 1 else (1 - squared) / (1 - squared**self.lag)

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> Structure:
        """Read the structure of a fitted model from its `about`.

        Raises:
            ModelError: `estimation.estimate` has not made this model.
        """
        found = about.get("structure")
        if not isinstance(found, Mapping) or found.get("transition") not in get_args(Transition):
            raise ModelError(f"model: about: found structure {found!r}, expected that of a fitted model")
        numbers = float(found["shrinkage"]), float(found["persistence"]), int(found["lag"]), int(found.get("rank", 0))
        return cls(found["transition"], *numbers)


class Moments:
    """Second moments of standardised rows.

    Attributes:
        rows: float64[T, n], standardised; NaN = no reading.
    """

    def __init__(self, rows: Floats) -> None:
        self.rows = rows
        self._found: dict[int, Floats] = {}
        self._filled: tuple[Floats, Floats] | None = None
        self._spectra: dict[tuple[int, float], Spectrum] = {}  # by lag and persistence; lag 0: of the rows themselves

    def covariance(self) -> Floats:
        """Return the covariance of the rows, float64[n, n]."""
        if 0 not in self._found:
            self._found[0] = covariance(self.rows[_any(self.rows)])
        return self._found[0]

    def joint(self, lag: int) -> Floats:
        """Return the covariance of rows `lag` steps apart, float64[2n, 2n], the later row first."""
        if lag not in self._found:
            later, earlier = self.rows[lag:], self.rows[:-lag]
            whole = _any(later) & _any(earlier)  # a row without any reading tells nothing
            self._found[lag] = covariance(np.hstack([later[whole], earlier[whole]]))
        return self._found[lag]

    def model(self, structure: Structure, base: Model) -> Model:
        """Return a model of this structure, with names, mean, scale and profile of `base`."""
        if structure.rank:
            return self.low_rank(structure, base)
        if structure.transition == "diagonal":
            return of_covariance(self.covariance(), structure, base)
        return of_joint(self.joint(structure.lag), structure, base)

    def low_rank(self, structure: Structure, base: Model) -> Model:
        """Return a model of this structure, of low rank: it is made from the rows, without any n by n matrix."""
        known = self._spectrum(0, 0.0).covariance(structure.rank)
        if structure.transition == "diagonal":
            noise = known.times(1 - structure.persistence**2)
        else:
            changes = self._spectrum(structure.lag, structure.persistence)
            noise = changes.covariance(structure.rank).times(structure.noise_share)
        return _of_low_rank(noise, known, structure, base)

    def _spectrum(self, lag: int, persistence: float) -> Spectrum:
        if (lag, persistence) not in self._spectra:
            if self._filled is None:
                self._filled = filled(self.rows)
            rows, variances = self._filled
            if lag:
                changes = rows[lag:] - persistence**lag * rows[:-lag]
                self._spectra[lag, persistence] = Spectrum(changes, MOST_CAUSES)
            else:
                self._spectra[lag, persistence] = Spectrum(rows, MOST_CAUSES, variances)
        return self._spectra[lag, persistence]


class GivenMoments(Moments):
    """Second moments that were computed elsewhere.

    Args:
        found: by lag: float64[2n, 2n] as of `joint`; for lag 0 float64[n, n] as of `covariance`.
    """

    def __init__(self, found: Mapping[int, Floats]) -> None:
        super().__init__(np.empty((0, 0)))
        self._found = dict(found)

    def covariance(self) -> Floats:
        return self._found[0]

    def joint(self, lag: int) -> Floats:
        return self._found[lag]

    def low_rank(self, structure: Structure, base: Model) -> Model:
        made = of_covariance if structure.transition == "diagonal" else of_joint
        return made(self._found[structure.lag], structure, base)


def _any(rows: Floats) -> npt.NDArray[np.bool_]:
    return np.asarray(np.isfinite(rows).any(axis=1))


def of_covariance(moments: Floats, structure: Structure, base: Model) -> Model:
    """Return a "diagonal" model of a covariance, float64[n, n]."""
    if structure.rank:
        known = of_matrix(moments, structure.rank)
        return _of_low_rank(known.times(1 - structure.persistence**2), known, structure, base).usual()
    prior = shrunk(moments, structure.shrinkage)
    transition = np.full(len(prior), structure.persistence)
    return base.with_matrices(transition=transition, Q=(1 - structure.persistence**2) * prior, prior=prior)


def of_joint(joint: Floats, structure: Structure, base: Model) -> Model:
    """Return an "innovation" or "full" model of a joint covariance, float64[2n, 2n], the later row first."""
    n = len(joint) // 2
    if structure.transition == "full":
        # The target keeps what each sensor tells about itself: independent autoregressions.
        own = np.tile(np.eye(n, dtype=bool), (2, 2))
        kept = np.where(own, joint, (1 - structure.shrinkage) * joint)
        model = Model.from_joint(np.zeros(2 * n), kept, base.names)
        # Back to the scale of `base`: `from_joint` has put the variance of block B into it.
        return base.with_matrices(
            transition=_rescaled(model),
            Q=_covered(model.Q, model.scale),
            prior=_covered(model.prior, model.scale),
        )
    ahead, cross, behind = joint[:n, :n], joint[:n, n:], joint[n:, n:]
    forgotten = structure.persistence**structure.lag
    added = ahead - forgotten * (cross + cross.T) + forgotten**2 * behind
    if structure.rank:
        noise, known = of_matrix(structure.noise_share * added, structure.rank), of_matrix(behind, structure.rank)
        return _of_low_rank(noise, known, structure, base).usual()
    return base.with_matrices(
        transition=np.full(n, structure.persistence),
        Q=shrunk(structure.noise_share * added, structure.shrinkage),
        prior=shrunk(behind, structure.shrinkage),
    )


def _of_low_rank(noise: LowRank, known: LowRank, structure: Structure, base: Model) -> LowRankModel:
    return base.with_low_rank(transition=np.full(len(base), structure.persistence), noise=noise, known=known)


def _covered(matrix: Floats, scale: Floats) -> Floats:
    return np.asarray(matrix * np.outer(scale, scale))


def _rescaled(model: Model) -> Floats:
    return np.asarray(model.F * np.outer(model.scale, 1 / model.scale))


def shrunk(matrix: Floats, weight: float) -> Floats:
    """Return (1 - weight) matrix + weight its diagonal."""
    found = (1 - weight) * matrix
    found[np.diag_indices_from(found)] += weight * np.diag(matrix)
    return np.asarray(found)


def covariance(rows: Floats) -> Floats:
    """Return the second moments of standardised rows over the cells that two sensors share, as a covariance."""
    seen = np.isfinite(rows)
    filled = np.where(seen, rows, 0.0)
    if seen.all():
        return covariance_of(filled.T @ filled, float(len(rows)))
    counts = seen.astype(np.float64)
    return covariance_of(filled.T @ filled, counts.T @ counts)


def covariance_of(products: Floats, pairs: Floats | float) -> Floats:
    """Return a covariance, float64[n, n], from sums of products and the numbers of cells; one number means no gaps."""
    if isinstance(pairs, float):
        found = products / max(pairs, 1.0)
    else:
        found = np.divide(products, pairs, out=np.zeros_like(pairs), where=pairs >= LEAST_PAIRS)
        found = nearest(found)  # each element has other rows, so the whole need not be a covariance
    variances = np.diag(found)
    lift = lifted(variances) - variances
    lift[variances < LEAST_VARIANCE**2] = 1.0
    found = found + found.T
    found /= 2
    found[np.diag_indices_from(found)] += lift
    return np.asarray(found)


def nearest(matrix: Floats) -> Floats:
    """Return the matrix without its negative eigenvalues; the variances are kept."""
    values, vectors = np.linalg.eigh(matrix)
    variances = np.diag(matrix).copy()
    positive = (vectors * np.maximum(values, 0.0)) @ vectors.T
    ratio = np.sqrt(np.divide(variances, np.diag(positive), out=np.zeros(len(variances)), where=variances > 0))
    return np.asarray(positive * np.outer(ratio, ratio))


def profile_of(rows: Floats, period: int, harmonics: int, first_step: int = 0) -> Floats:
    """Return the mean of standardised rows by phase, float64[period, n], smoothed to some harmonics of the period.

    Args:
        rows: float64[T, n]; NaN means no reading. Row 0 is step `first_step`.
        harmonics: number of sines and cosines that are kept; a phase that was never seen has the mean.
    """
    phase = (first_step + np.arange(len(rows))) % period
    seen = np.isfinite(rows)
    total, count = np.zeros((period, rows.shape[1])), np.zeros((period, rows.shape[1]))
    np.add.at(total, phase, np.where(seen, rows, 0.0))
    np.add.at(count, phase, seen)
    mean = np.divide(total, count, out=np.zeros_like(total), where=count > 0)
    waves = np.fft.rfft(mean, axis=0)
    waves[0] = 0.0
    waves[harmonics + 1 :] = 0.0
    return np.asarray(np.fft.irfft(waves, n=period, axis=0))


def detect_period(rows: Floats) -> int | None:
    """Return the period with which standardised rows repeat, in steps; None if nothing repeats.

    The autocorrelation of all sensors together must have a peak of `LEAST_REPEAT`, and there must be three cycles.
    """
    filled = np.where(np.isfinite(rows), rows, 0.0)
    steps = len(filled)
    transformed = np.fft.rfft(filled - filled.mean(axis=0), n=2 * steps, axis=0)
    power = np.fft.irfft((np.abs(transformed) ** 2).sum(axis=1))[: steps // 3]
    if len(power) < 8 or power[0] <= 0:
        return None
    like: Floats = power / power[0] * steps / (steps - np.arange(len(power)))
    fallen = np.flatnonzero(like < like.max() / 4)  # behind the first fall: smoothness alone is not a period
    if not len(fallen):
        return None
    rest = like[fallen[0] :]
    best = int(rest.argmax())
    if rest[best] < LEAST_REPEAT or best in (0, len(rest) - 1):
        return None
    # Two periods are a period as well, so the first peak is taken that is as good as the best, but for noise.
    peaks = np.flatnonzero((rest[1:-1] >= rest[:-2]) & (rest[1:-1] >= rest[2:])) + 1
    first = int(fallen[0] + peaks[rest[peaks] >= AS_GOOD * rest[best]][0])
    near = range(max(2, first - first // 10), min(first + first // 10 + 1, len(like)))
    # The multiples of a period determine it more exactly than it does itself.
    return max(near, key=lambda period: float(like[period::period].mean()))
