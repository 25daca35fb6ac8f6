"""A model that follows the data: moments with exponentially fading weights, started from a fitted model's.

Only what was read counts: each second moment fades by the steps at which both its sensors were read. So an outage
neither stops the learning of the others nor teaches that the lost sensors stood still.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np

from services.recovery.model import Model, ModelError
from services.recovery.moments import Structure, nearest, of_covariance, of_joint
from services.runtime.columns import Floats

FOLD = 32
"""Rows that are folded into the moments at once: a matrix product in place of as many outer products."""


class Refit:
    """Fading moments of one model.

    Args:
        model: made by `estimation.estimate`; its `about` names structure and steps.
        half_life: of a row, in steps; None = the number of steps it was fitted to.
    """

    def __init__(self, model: Model, *, half_life: float | None = None) -> None:
        self._base = model
        self._structure = Structure.of(model.about)
        steps = float(model.about.get("steps", 0)) or 1.0
        self._kept = 0.5 ** (1 / (half_life or steps))
        weight = min(steps, 1 / (1 - self._kept))
        moments = _moments_of(model, self._structure)
        # Sums over the fading rows, and the weights that each element's rows have.
        self._sum, self._weight = weight * moments, np.full(moments.shape, weight)
        self._mean_sum, self._mean_weight = np.zeros(len(model)), np.full(len(model), weight)
        self._before: deque[Floats] = deque(maxlen=self._structure.lag + 1)
        self._rows: list[Floats] = []
        self._gaps = False

    def observe(self, values: Floats, step: int) -> None:
        """Take in a step's readings, float64[n], sensor units; NaN = missing."""
        base = self._base
        x = (values - base.mean_at(step)) / base.scale
        self._before.append(x)
        if len(self._before) <= self._structure.lag:
            return
        self._rows.append(np.concatenate([x, self._before[0]]) if self._structure.lag else x)
        if len(self._rows) >= FOLD:
            self._fold()

    def _fold(self) -> None:
        rows = np.stack(self._rows)
        self._rows.clear()
        seen = np.isfinite(rows)
        self._gaps = self._gaps or not seen.all()
        rows = np.where(seen, rows, 0.0)
        n, count = len(self._base), len(rows)
        faded = self._kept**count
        weights = self._kept ** np.arange(count)[::-1]
        weighted, here = rows * weights[:, None], seen.astype(np.float64)
        self._sum = faded * self._sum + weighted.T @ rows
        self._weight = faded * self._weight + (here * weights[:, None]).T @ here
        self._mean_sum = faded * self._mean_sum + weighted[:, :n].sum(axis=0)
        self._mean_weight = faded * self._mean_weight + weights @ here[:, :n]

    def model(self) -> Model:
        """Return a model of the moments as they are now; same names, scale, profile and structure."""
        if self._rows:
            self._fold()
        base, n = self._base, len(self._base)
        mean = self._mean_sum / np.maximum(self._mean_weight, TINY)
        shift = np.tile(mean, len(self._sum) // n)
        centred = self._sum / np.maximum(self._weight, TINY) - np.outer(shift, shift)
        centred = (centred + centred.T) / 2
        if self._gaps:
            centred = nearest(centred)  # each element over its own rows: the whole need not be a covariance
        base = replace(base, mean=base.mean + base.scale * mean)
        made = of_joint if self._structure.lag else of_covariance
        return made(centred, self._structure, base)


TINY = 1e-9
"""Weight of a pair that was not seen for so long that nothing is left of it."""


def _moments_of(model: Model, structure: Structure) -> Floats:
    """Return the moments that a model was made of, but for what shrinkage took away.

    Raises:
        ModelError: it was shrunk to nothing.
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
    share = 1 / lag if f == 1 else (1 - f**2) / (1 - f ** (2 * lag))
    behind = _unshrunk(model.prior, structure.shrinkage)
    added = _unshrunk(model.Q, structure.shrinkage) / share
    # added = behind (1 + f^2lag) - f^lag (cross + cross'), a stationary process given.
    cross = (behind * (1 + f ** (2 * lag)) - added) / (2 * f**lag) if f > 0 else np.zeros_like(behind)
    return np.block([[behind, cross], [cross.T, behind]])


def _unshrunk(matrix: Floats, weight: float) -> Floats:
    own = np.eye(len(matrix), dtype=bool)
    return np.where(own, matrix, matrix / (1 - weight))
