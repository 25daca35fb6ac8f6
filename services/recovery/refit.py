"""A model that follows the data: moments with exponentially fading weights, started from a fitted model's.

A row with gaps enters by its expectation, mean and covariance, given what was read of it and the moments so far (the E
step of an EM algorithm). So an outage neither stops the learning of the others nor teaches that the lost sensors stood
still, and the moments stay a covariance. In slots of more than `FILLED_AT_MOST` sensors that would take too long: there
rows with gaps are passed over.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np
from scipy import linalg

from services.recovery.model import Model, ModelError
from services.recovery.moments import Structure, of_covariance, of_joint
from services.runtime.columns import Floats

FOLD = 32
"""Rows that are folded into the moments at once: a matrix product in place of as many outer products."""
FILLED_AT_MOST = 300
RIDGE = 1e-9
"""Of the variances, so that sensors which tell the same can be told apart."""


class Refit:
    """Fading moments of one model.

    Args:
        model: made by `estimation.estimate`; its `about` names structure and steps.
        half_life: of a row, in steps; None = the number of steps it was fitted to.

    Attributes:
        passed_over: rows that taught nothing, since they had gaps and the slot is large.
    """

    def __init__(self, model: Model, *, half_life: float | None = None) -> None:
        self._base = model
        self._structure = Structure.of(model.about)
        steps = float(model.about.get("steps", 0)) or 1.0
        self._least_rate = 1 - 0.5 ** (1 / (half_life or steps))
        self._count = steps
        self._moments = _moments_of(model, self._structure)
        self._mean = np.zeros(len(self._moments))
        self._before: deque[Floats] = deque(maxlen=self._structure.lag + 1)
        self._rows: list[Floats] = []
        self.passed_over = 0

    def observe(self, values: Floats, step: int) -> None:
        """Take in a step's readings, float64[n], sensor units; NaN = missing."""
        base = self._base
        x = (values - base.mean_at(step)) / base.scale
        self._before.append(x)
        if len(self._before) <= self._structure.lag:
            return
        row = np.concatenate([x, self._before[0]]) if self._structure.lag else x
        if len(base) > FILLED_AT_MOST and not np.isfinite(row).all():
            self.passed_over += 1
            return
        self._rows.append(row)
        if len(self._rows) >= FOLD:
            self._fold()

    def _fold(self) -> None:
        rows = np.stack(self._rows)
        self._rows.clear()
        gaps = ~np.isfinite(rows)
        spread = np.zeros_like(self._moments)
        self._count = min(self._count + len(rows), 1 / self._least_rate)
        rate = 1 / self._count
        weights = rate * (1 - rate) ** np.arange(len(rows))[::-1]
        for row, missing, weight in zip(rows, gaps, weights.tolist(), strict=True):
            if missing.any():
                self._fill(row, missing, weight, spread)
        kept = (1 - rate) ** len(rows)
        self._mean = kept * self._mean + weights @ rows
        self._moments = kept * self._moments + (rows * weights[:, None]).T @ rows + spread

    def _fill(
        self, row: Floats, missing: np.ndarray[tuple[int], np.dtype[np.bool_]], weight: float, spread: Floats
    ) -> None:
        """Put the expectation of what is missing into a row, and add its covariance."""
        lost, seen = np.flatnonzero(missing), np.flatnonzero(~missing)
        block = self._moments[np.ix_(lost, lost)] - np.outer(self._mean[lost], self._mean[lost])
        row[lost] = self._mean[lost]
        if len(seen):
            own = self._moments[np.ix_(seen, seen)] - np.outer(self._mean[seen], self._mean[seen])
            own[np.diag_indices_from(own)] *= 1 + RIDGE
            cross = self._moments[np.ix_(seen, lost)] - np.outer(self._mean[seen], self._mean[lost])
            gain = linalg.solve(own, cross, assume_a="sym")
            row[lost] += gain.T @ (row[seen] - self._mean[seen])
            block = block - gain.T @ cross
        spread[np.ix_(lost, lost)] += weight * (block + block.T) / 2

    def model(self) -> Model:
        """Return a model of the moments as they are now; same names, scale, profile and structure."""
        if self._rows:
            self._fold()
        base, n = self._base, len(self._base)
        centred = self._moments - np.outer(self._mean, self._mean)
        base = replace(base, mean=base.mean + base.scale * self._mean[:n])
        made = of_joint if self._structure.lag else of_covariance
        return made((centred + centred.T) / 2, self._structure, base)


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
    behind = _unshrunk(model.prior, structure.shrinkage)
    added = _unshrunk(model.Q, structure.shrinkage) / structure.noise_share
    # added = behind (1 + f^2lag) - f^lag (cross + cross'), a stationary process given.
    cross = (behind * (1 + f ** (2 * lag)) - added) / (2 * f**lag) if f > 0 else np.zeros_like(behind)
    return np.block([[behind, cross], [cross.T, behind]])


def _unshrunk(matrix: Floats, weight: float) -> Floats:
    own = np.eye(len(matrix), dtype=bool)
    return np.where(own, matrix, matrix / (1 - weight))
