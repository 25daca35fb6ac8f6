"""A linear forecast for each number of slots ahead, learnt slot by slot: discounted least absolute deviations."""

from __future__ import annotations

import numpy as np

from tsunagi.runtime.columns import Floats

_SOLVE_EVERY = 12
"""Number of slots after which the weights are computed again, which is the costly part."""


class Regression:
    """Weights of features, one set for each number of slots ahead, from discounted normal equations.

    An observation counts by the inverse of its error (iteratively reweighted least squares), which makes the sum of
    absolute errors small: a burst does not change what holds between bursts.

    Args:
        horizon: number of slots ahead.
        prior: (features,) weights before there is data; the ridge pulls towards them.
        discount: share of its weight that the past loses with each slot.
        ridge: weight of the prior, as a number of observations.
    """

    def __init__(self, horizon: int, prior: Floats, discount: float = 5e-4, ridge: float = 12.0) -> None:
        features = len(prior)
        self._keep = 1.0 - discount
        self._prior = prior
        self._ridge = ridge
        self._matrix = np.zeros((horizon, features, features))
        self._vector = np.zeros((horizon, features))
        self._power = np.full(features, 1e-12)
        self._error = np.zeros(horizon)
        self._count = 0
        self.weights = np.tile(prior, (horizon, 1))

    def update(self, features: Floats, value: float) -> None:
        """Add a value, with the features that were known 1, 2, ... slots before it, (leads, features)."""
        leads = len(features)
        if not leads:
            return
        error = np.abs((features * self.weights[:leads]).sum(axis=1) - value)
        self._error[:leads] += (0.01 if self._count > 100 else 0.1) * (error - self._error[:leads])
        weight = 1.0 / np.maximum(np.maximum(error, 0.25 * self._error[:leads]), 1e-9)
        scaled = features * weight[:, None]
        self._matrix *= self._keep
        self._vector *= self._keep
        self._matrix[:leads] += scaled[:, :, None] * features[:, None, :]
        self._vector[:leads] += scaled * value
        self._count += 1
        if self._count % _SOLVE_EVERY == 0:
            self._solve()

    def _solve(self) -> None:
        diagonal = np.einsum("hii->hi", self._matrix)
        count = min(self._count, 1.0 / (1.0 - self._keep))
        ridge = self._ridge / count * diagonal + 1e-12 * diagonal.max(axis=1, keepdims=True) + 1e-30
        matrix = self._matrix.copy()
        np.einsum("hii->hi", matrix)[:] += ridge
        right = self._vector + ridge * self._prior
        self.weights = np.linalg.solve(matrix, right[:, :, None])[:, :, 0]
