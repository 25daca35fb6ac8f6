"""A model that follows the data: its moments have exponentially fading weights, and begin with a fitted model's.

A row with gaps enters with its expectation, mean and covariance, given what was read of it and the moments so far (the
E step of an EM algorithm). So an outage does not stop the learning of the other sensors, nor does it teach that the
lost ones stood still; and the moments stay a covariance. In slots with more than `FILLED_AT_MOST` sensors this would
take too long: there rows with gaps are left out.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt
from scipy import linalg

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.model import Model
from tsunagi.recovery.moments import Structure, of_covariance, of_joint
from tsunagi.runtime.columns import Floats

FOLD = 32
"""Number of rows that are added to the moments at once: one matrix product instead of as many outer products."""
BLOCK = 512
"""Number of rows of the moments that are changed at once: it bounds the memory that this takes."""
COPIES = 20
"""To copy, scale and add up the moments takes as long as this many multiplications for each element."""
FILLED_AT_MOST = 300
"""In a slot with up to this many sensors the gaps of a row are filled from the other sensors before it is added to the
moments."""
RIDGE = 1e-9
"""Share that is added to variances, so that sensors that always read the same can be told apart."""


class FadingMoments:
    """Mean and second moments of rows x(t), or of (x(t), x(t - lag)); newer rows weigh more.

    Args:
        moments: what was known before: float64[n, n] without a lag, float64[2n, 2n] (later rows first) with one.
        steps: number of rows from which it comes.
        half_life: half-life of a row, in steps.
        lag: steps between the two halves of a row; 0 means that there is only one.

    Attributes:
        passed_over: number of rows that were left out because they had gaps and the slot is large.
    """

    def __init__(self, moments: Floats, *, steps: float, half_life: float, lag: int) -> None:
        self._least_rate = 1 - 0.5 ** (1 / half_life)
        self._count = min(steps, 1 / self._least_rate)
        self._moments = np.array(moments)
        self._mean = np.zeros(len(moments))
        self._lag = lag
        self._before: deque[Floats] = deque(maxlen=lag + 1)
        self._rows: list[Floats] = []
        self.passed_over = 0

    @property
    def operations(self) -> float:
        """Multiplications that adding rows takes if none has a gap: a product, and some copies of the moments."""
        return (FOLD + COPIES) * float(len(self._moments)) ** 2

    def observe(self, x: Floats) -> None:
        """Add the next row, float64[n]; NaN means missing."""
        self._before.append(x)
        if len(self._before) <= self._lag:
            return
        row = np.concatenate([x, self._before[0]]) if self._lag else x
        if len(x) > FILLED_AT_MOST and not np.isfinite(row).all():
            self.passed_over += 1
            return
        self._rows.append(row)
        if len(self._rows) >= FOLD:
            self._fold()

    def found(self) -> tuple[Floats, Floats]:
        """Return the mean, float64[n or 2n], and the covariance."""
        if self._rows:
            self._fold()
        centred = self._moments - np.outer(self._mean, self._mean)
        return self._mean, (centred + centred.T) / 2

    def _fold(self) -> None:
        rows = np.stack(self._rows)
        self._rows.clear()
        spread: Floats | None = None
        self._count = min(self._count + len(rows), 1 / self._least_rate)
        rate = 1 / self._count
        weights = rate * (1 - rate) ** np.arange(len(rows))[::-1]
        gaps = ~np.isfinite(rows)
        patterns, which = np.unique(gaps, axis=0, return_inverse=True)
        for number, missing in enumerate(patterns):
            if missing.any():
                spread = np.zeros_like(self._moments) if spread is None else spread
                self._fill(rows, np.flatnonzero(which.ravel() == number), missing, weights, spread)
        kept = (1 - rate) ** len(rows)
        self._mean = kept * self._mean + weights @ rows
        weighted = (rows * weights[:, None]).T
        # in place, since a copy of large moments takes hundreds of megabytes
        for first in range(0, len(self._moments), BLOCK):
            block = self._moments[first : first + BLOCK]
            block *= kept
            block += weighted[first : first + BLOCK] @ rows
        if spread is not None:
            self._moments += spread

    def _fill(
        self, rows: Floats, mine: npt.NDArray[np.intp], missing: npt.NDArray[np.bool_], weights: Floats, spread: Floats
    ) -> None:
        """Put expectations into the gaps of rows that have the same gaps, and add their covariance."""
        lost, seen = np.flatnonzero(missing), np.flatnonzero(~missing)
        block = self._known(lost, lost)
        expected = np.broadcast_to(self._mean[lost], (len(mine), len(lost)))
        if len(seen):
            own = self._known(seen, seen)
            own[np.diag_indices_from(own)] *= 1 + RIDGE
            cross = self._known(seen, lost)
            gain = linalg.solve(own, cross, assume_a="sym")
            expected = expected + (rows[np.ix_(mine, seen)] - self._mean[seen]) @ gain
            block = block - gain.T @ cross
        rows[np.ix_(mine, lost)] = expected
        spread[np.ix_(lost, lost)] += weights[mine].sum() * (block + block.T) / 2

    def _known(self, rows: npt.NDArray[np.intp], columns: npt.NDArray[np.intp]) -> Floats:
        """Return a block of the covariance, shrunk the more the fewer rows there are for the sensors.

        What a sensor tells about itself a lag later is kept. Without shrinkage the gaps would be filled with noise.
        """
        block = self._moments[np.ix_(rows, columns)] - np.outer(self._mean[rows], self._mean[columns])
        size = len(self._moments)
        n = size // 2 if self._lag else size
        alien = (rows % n)[:, None] != columns % n
        return np.asarray(np.where(alien, self._count / (self._count + size) * block, block))


class Refit:
    """The fading moments of one model, and the model of the same structure that they give.

    Args:
        model: made by `estimation.estimate`; its `about` names structure and number of steps.
        half_life: half-life of a row, in steps; None means the number of steps of the fit.
    """

    def __init__(self, model: Model, *, half_life: float | None = None) -> None:
        self._base = model
        self._structure = Structure.of(model.about)
        steps = steps_of(model)
        moments = moments_of(model, self._structure)
        self._moments = FadingMoments(moments, steps=steps, half_life=half_life or steps, lag=self._structure.lag)

    @property
    def passed_over(self) -> int:
        """Number of rows that were left out because they had gaps and the slot is large."""
        return self._moments.passed_over

    def observe(self, values: Floats, step: int) -> None:
        """Add the readings of a step, float64[n], sensor units; NaN means missing."""
        self._moments.observe((values - self._base.mean_at(step)) / self._base.scale)

    def model(self) -> Model:
        """Return a model of the present moments, with the same names, scale, profile and structure."""
        return refitted(self._base, self._structure, *self._moments.found())


def steps_of(model: Model) -> float:
    """Return the number of steps to which a model was fitted; 1 if it does not say."""
    return float(model.about.get("steps", 0)) or 1.0


def refitted(base: Model, structure: Structure, mean: Floats, moments: Floats) -> Model:
    """Return a model of this structure from the moments that `FadingMoments` found for `base`'s standardised rows.

    A "diagonal" structure also takes the moments of a joint.
    """
    n = len(base)
    base = base.around(base.mean + base.scale * mean[:n], base.profile)
    if not structure.lag:
        return of_covariance(moments[:n, :n], structure, base)
    return of_joint(moments, structure, base)


def moments_of(model: Model, structure: Structure) -> Floats:
    """Return the moments from which a model was made, except for what shrinkage removed.

    Raises:
        ModelError: shrinkage removed all of them.
    """
    if structure.shrinkage >= 1:
        raise ModelError("refit: found a model of independent sensors (shrinkage 1), expected one with moments")
    if structure.transition == "diagonal":
        return _unshrunk(model.prior, structure.shrinkage)
    if structure.transition == "full":
        cross = model.apply_transition(model.prior)
        joint = np.block([[model.prior, cross], [cross.T, model.prior]])
        own = np.tile(np.eye(len(model), dtype=bool), (2, 2))
        return np.where(own, joint, joint / (1 - structure.shrinkage))
    f, lag = structure.persistence, structure.lag
    behind = _unshrunk(model.prior, structure.shrinkage)
    added = _unshrunk(model.Q, structure.shrinkage) / structure.noise_share
    # added = behind (1 + f^2lag) - f^lag (cross + cross'), for a stationary process.
    cross = (behind * (1 + f ** (2 * lag)) - added) / (2 * f**lag) if f > 0 else np.zeros_like(behind)
    return np.block([[behind, cross], [cross.T, behind]])


def _unshrunk(matrix: Floats, weight: float) -> Floats:
    own = np.eye(len(matrix), dtype=bool)
    return np.where(own, matrix, matrix / (1 - weight))
