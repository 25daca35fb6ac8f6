"""SDAR: an autoregressive model that discounts the past; the paper forecasts the next TimeSlot with it (section 4.2).

The value of n slots ago has the weight (1 - r)^n. All moments have the same weights and are taken around the same,
newest mean, so that the recursion gives what a computation over the whole history would:

    W = sum w_i,   mu = sum w_i x_i / W,   C_j = sum w_i (x_i - mu)(x_(i-j) - mu) / W      (i over i - j >= 0)

The module keeps the raw sums, from which C_j around the present mean follows. The coefficients solve the Yule-Walker
equations C_j = sum_i omega_i C_|j-i|; the Levinson-Durbin recursion solves them for every order up to k at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tsunagi.runtime.columns import Floats

_RIDGE = 1e-9
"""Share that is added to the variance of the series, so that a series that is exactly predictable can be solved."""
_LIMIT = 0.9999
"""Reflection coefficients stay between minus and plus this value, so that the model is stationary."""


class Sdar:
    """SDAR of order `order` with the discount `discount` (r).

    Args:
        order: k, the number of past values that the next one depends on.
        discount: r in (0, 1); the model remembers about 1 / r slots.
    """

    def __init__(self, order: int = 3, discount: float = 0.01) -> None:
        self._order = order
        self._keep = 1.0 - discount
        lags = order + 1
        self._recent = np.zeros(lags)  # x_t, x_(t-1), ... minus the offset
        self._seen = 0
        self._offset = 0.0
        # Sums over the pairs of values at each lag j: of w, w x_i, w x_(i-j), w x_i x_(i-j).
        self._sums = np.zeros((4, lags))
        self._terms = np.zeros((4, lags))

    def update(self, value: float) -> None:
        if not self._seen:
            self._offset = value  # sums of small numbers lose fewer digits
        recent = self._recent
        recent[1:] = recent[:-1].copy()
        recent[0] = now = value - self._offset
        self._seen += 1
        terms, pairs = self._terms, min(self._seen, len(recent))
        terms[0, :pairs] = 1.0
        terms[1, :pairs] = now
        terms[2, :pairs] = recent[:pairs]
        terms[3, :pairs] = now * recent[:pairs]
        self._sums *= self._keep
        self._sums += terms

    @property
    def mean(self) -> float:
        """mu, the discounted mean of the values."""
        return float(self._sums[1, 0] / self._sums[0, 0] + self._offset) if self._seen else 0.0

    def covariances(self) -> Floats:
        """Return C_0..C_k, the covariances around the present mean."""
        if not self._seen:
            return np.zeros(self._order + 1)
        weights, now, then, product = self._sums
        mu = now[0] / weights[0]
        return np.asarray((product - mu * (now + then) + mu * mu * weights) / weights[0])

    def coefficients(self) -> list[list[float]]:
        """Return omega_1..omega_j for each order j = 0..k, from the Yule-Walker equations."""
        return _levinson(self.covariances().tolist())

    def gains(self, orders: Sequence[int], horizon: int) -> Floats:
        """Return G, (orders, horizon, k): the means of a model are mu + G (x_t - mu, x_(t-1) - mu, ...)."""
        table = self.coefficients()
        found = np.zeros((len(orders), horizon, self._order))
        for row, order in enumerate(orders):
            omega = np.array(table[order])
            # Row h is in terms of the k newest values; the values in between are the earlier rows.
            for lead in range(horizon):
                known = min(lead, order)
                found[row, lead] = omega[:known] @ found[row, lead - known : lead][::-1]
                found[row, lead, : order - known] += omega[known:]
        return found

    def means_by(self, gains: Floats) -> Floats:
        """Return the means that gains (present ones, or those of some slots ago) give, (orders, horizon)."""
        mu = self.mean
        known = self._recent[:-1] + (self._offset - mu)
        known[self._seen :] = 0.0
        return np.asarray(gains @ known + mu)

    def means(self, horizon: int) -> Floats:
        return np.asarray(self.means_by(self.gains((self._order,), horizon))[0])

    def variances(self, horizon: int) -> Floats:
        """Return the variances of the errors 1..horizon slots ahead: sigma^2 times the sum of squared psi weights."""
        omega = np.array(self.coefficients()[-1])
        covariances = self.covariances()
        sigma2 = max(0.0, float(covariances[0] - omega @ covariances[1:]))
        psi = np.zeros(horizon)
        psi[0] = 1.0
        for lead in range(1, horizon):
            reach = min(lead, len(omega))
            psi[lead] = omega[:reach] @ psi[lead - reach : lead][::-1]
        return np.asarray(sigma2 * np.cumsum(psi * psi))


def _levinson(covariances: list[float]) -> list[list[float]]:
    """Solve the Yule-Walker equations for the orders 0..k; reflections within (-1, 1) keep the model stationary."""
    error = covariances[0] * (1 + _RIDGE)
    omega: list[float] = []
    found = [omega]
    for order in range(1, len(covariances)):
        reflection = 0.0
        if error > 0 and math.isfinite(error):
            known = sum(weight * covariances[order - 1 - i] for i, weight in enumerate(omega))
            reflection = min(max((covariances[order] - known) / error, -_LIMIT), _LIMIT)
        omega = [*(a - reflection * b for a, b in zip(omega, reversed(omega), strict=True)), reflection]
        error *= 1 - reflection * reflection
        found.append(omega)
    return found
