"""Second moments of a fleet's history, and the models of different structure that can be made of them.

All is in units of scale around the mean (and profile). A structure says which second moments the step's noise comes
from, how far they are shrunk towards independent sensors, and how fast the past is forgotten:

- "diagonal": F = persistence x I, Q = (1 - persistence^2) x the shrunk covariance: the sensors move together as they
  lie together.
- "innovation": F = persistence x I, Q from the covariance of what `lag` steps added: they move together otherwise than
  they lie.
- "full": F and Q from the shrunk joint of neighbouring steps (the paper's N(mu'', Sigma'')).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.model import Model
from tsunagi.runtime.columns import Floats

LEAST_PAIRS = 4
"""Cells that both sensors must have for their covariance to be anything but zero."""
LEAST_VARIANCE = 0.01
"""Of a sensor that hardly moved in a part, in units of its whole history's variance; if it stood still, 1 is taken."""
LEAST_REPEAT = 0.2
"""Autocorrelation of a period at least."""
AS_GOOD = 0.9
"""A peak of this share of the best is as good, but for noise."""

Transition = Literal["diagonal", "innovation", "full"]


@dataclass(frozen=True, slots=True)
class Structure:
    """How a model is made of moments.

    Attributes:
        transition: see the module.
        shrinkage: weight of the target (independent sensors), 0 to 1.
        persistence: the diagonal of F; not used where F is full.
        lag: steps over which innovations are taken; 1 for "full", 0 for "diagonal".
    """

    transition: Transition
    shrinkage: float
    persistence: float
    lag: int = 0

    @property
    def noise_share(self) -> float:
        """Share of what `lag` steps add that one step adds: over them it is one step's, times 1 + f^2 + f^4 ..."""
        squared = self.persistence**2
        return 1 / self.lag if squared == 1 else (1 - squared) / (1 - squared**self.lag)

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> Structure:
        """Read the structure of a fitted model from its `about`.

        Raises:
            ModelError: the model was not fitted by `estimation.estimate`.
        """
        found = about.get("structure")
        if not isinstance(found, Mapping) or found.get("transition") not in get_args(Transition):
            raise ModelError(f"model: about: found structure {found!r}, expected that of a fitted model")
        return cls(found["transition"], float(found["shrinkage"]), float(found["persistence"]), int(found["lag"]))


class Moments:
    """Second moments of standardised rows.

    Attributes:
        rows: float64[T, n], standardised; NaN = no reading.
    """

    def __init__(self, rows: Floats) -> None:
        self.rows = rows
        self._found: dict[int, Floats] = {}

    def covariance(self) -> Floats:
        """Return float64[n, n]."""
        if 0 not in self._found:
            self._found[0] = covariance(self.rows[_any(self.rows)])
        return self._found[0]

    def joint(self, lag: int) -> Floats:
        """Return float64[2n, 2n] of the rows `lag` steps apart, the later one first."""
        if lag not in self._found:
            later, earlier = self.rows[lag:], self.rows[:-lag]
            whole = _any(later) & _any(earlier)  # a row in which nobody was read tells nothing
            self._found[lag] = covariance(np.hstack([later[whole], earlier[whole]]))
        return self._found[lag]

    def model(self, structure: Structure, base: Model) -> Model:
        """Return a model of this structure; names, mean, scale and profile are those of `base`."""
        if structure.transition == "diagonal":
            return of_covariance(self.covariance(), structure, base)
        return of_joint(self.joint(structure.lag), structure, base)


class GivenMoments(Moments):
    """Second moments that were found elsewhere.

    Args:
        found: by lag: float64[2n, 2n] as of `joint`; of lag 0, float64[n, n] as of `covariance`.
    """

    def __init__(self, found: Mapping[int, Floats]) -> None:
        super().__init__(np.empty((0, 0)))
        self._found = dict(found)

    def covariance(self) -> Floats:
        return self._found[0]

    def joint(self, lag: int) -> Floats:
        return self._found[lag]


def _any(rows: Floats) -> npt.NDArray[np.bool_]:
    return np.asarray(np.isfinite(rows).any(axis=1))


def of_covariance(moments: Floats, structure: Structure, base: Model) -> Model:
    """Make a "diagonal" model of float64[n, n]."""
    prior = shrunk(moments, structure.shrinkage)
    n = len(prior)
    return replace(
        base,
        transition=np.full(n, structure.persistence),
        Q=(1 - structure.persistence**2) * prior,
        prior=prior,
        drift=np.zeros(n),
    )


def of_joint(joint: Floats, structure: Structure, base: Model) -> Model:
    """Make an "innovation" or "full" model of float64[2n, 2n], the later rows first."""
    n = len(joint) // 2
    if structure.transition == "full":
        # The target keeps what each sensor tells of itself: independent autoregressions.
        own = np.tile(np.eye(n, dtype=bool), (2, 2))
        kept = np.where(own, joint, (1 - structure.shrinkage) * joint)
        model = Model.from_joint(np.zeros(2 * n), kept, base.names)
        # Back to the base's own scale; `from_joint` put the variance of block B into it.
        return replace(
            base,
            transition=_rescaled(model),
            Q=_covered(model.Q, model.scale),
            drift=np.zeros(n),
            prior=_covered(model.prior, model.scale),
        )
    ahead, cross, behind = joint[:n, :n], joint[:n, n:], joint[n:, n:]
    forgotten = structure.persistence**structure.lag
    added = ahead - forgotten * (cross + cross.T) + forgotten**2 * behind
    return replace(
        base,
        transition=np.full(n, structure.persistence),
        Q=shrunk(structure.noise_share * added, structure.shrinkage),
        prior=shrunk(behind, structure.shrinkage),
        drift=np.zeros(n),
    )


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
    """Return the second moments of standardised rows over the cells that both have, made positive semi-definite."""
    seen = np.isfinite(rows)
    filled = np.where(seen, rows, 0.0)
    if seen.all():
        return covariance_of(filled.T @ filled, float(len(rows)))
    counts = seen.astype(np.float64)
    return covariance_of(filled.T @ filled, counts.T @ counts)


def covariance_of(products: Floats, pairs: Floats | float) -> Floats:
    """Return a covariance, float64[n, n], given sums of products and of how many cells; one number = no gaps."""
    if isinstance(pairs, float):
        found = products / max(pairs, 1.0)
    else:
        found = np.divide(products, pairs, out=np.zeros_like(pairs), where=pairs >= LEAST_PAIRS)
        found = nearest(found)  # each element over its own rows: the whole need not be a covariance
    variances = np.diag(found)
    lift = np.where(variances < LEAST_VARIANCE**2, 1.0, np.maximum(LEAST_VARIANCE - variances, 0.0))
    found = found + found.T
    found /= 2
    found[np.diag_indices_from(found)] += lift
    return np.asarray(found)


def nearest(matrix: Floats) -> Floats:
    """Return the matrix without its negative eigenvalues, variances kept."""
    values, vectors = np.linalg.eigh(matrix)
    variances = np.diag(matrix).copy()
    positive = (vectors * np.maximum(values, 0.0)) @ vectors.T
    ratio = np.sqrt(np.divide(variances, np.diag(positive), out=np.zeros(len(variances)), where=variances > 0))
    return np.asarray(positive * np.outer(ratio, ratio))


def profile_of(rows: Floats, period: int, harmonics: int, first_step: int = 0) -> Floats:
    """Return the mean of standardised rows by phase, float64[period, n], smoothed to some harmonics of the period.

    Args:
        rows: float64[T, n]; NaN = no reading. Row 0 is step `first_step`.
        harmonics: sines and cosines kept; a phase that was never seen counts as the mean.
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
    """Return the period at which standardised rows are most like themselves, in steps; None = nothing repeats.

    The autocorrelation of all sensors together must have a peak of `LEAST_REPEAT` that at least three cycles show.
    """
    filled = np.where(np.isfinite(rows), rows, 0.0)
    steps = len(filled)
    transformed = np.fft.rfft(filled - filled.mean(axis=0), n=2 * steps, axis=0)
    power = np.fft.irfft((np.abs(transformed) ** 2).sum(axis=1))[: steps // 3]
    if len(power) < 8 or power[0] <= 0:
        return None
    like: Floats = power / power[0] * steps / (steps - np.arange(len(power)))
    fallen = np.flatnonzero(like < like.max() / 4)  # past the first fall, so that mere smoothness is no period
    if not len(fallen):
        return None
    rest = like[fallen[0] :]
    best = int(rest.argmax())
    if rest[best] < LEAST_REPEAT or best in (0, len(rest) - 1):
        return None
    # Two periods are a period as well: the first peak that is as good as the best, but for noise.
    peaks = np.flatnonzero((rest[1:-1] >= rest[:-2]) & (rest[1:-1] >= rest[2:])) + 1
    first = int(fallen[0] + peaks[rest[peaks] >= AS_GOOD * rest[best]][0])
    near = range(max(2, first - first // 10), min(first + first // 10 + 1, len(like)))
    # Its multiples tell it more exactly than it does itself.
    return max(near, key=lambda period: float(like[period::period].mean()))
