"""Carries the posterior of the missing sensors from step to step where covariances are of low rank.

Given what was read, the missing sensors are again a few causes and something of their own: where some sensors of U U' +
D are read, U C U' + D is left of the others (Woodbury), and a step adds the noise's causes to those of the posterior.
So a step takes n r + m (r + k)^2 multiplications, r and k the causes of the noise and of the posterior, however many
sensors are missing: where all edges of a large slot fail, m^3 would be minutes.
"""

from __future__ import annotations

import numpy as np
from scipy import linalg

from tsunagi.recovery.low_rank import LowRank, Places
from tsunagi.recovery.model import LowRankModel
from tsunagi.recovery.state import State
from tsunagi.runtime.columns import Floats

NOTHING = 1e-12
"""A direction that explains less than this share of what the greatest one explains, in units of the sensors' own
variances, is a rounding error: the causes of the steps before tell the same."""


class LowRankForm:
    """The equations (1), (2), (4), (5) of Takao et al. (DEIM 2023) for a model of low rank. See `forms.Form`."""

    def __init__(self, model: LowRankModel) -> None:
        self._model = model
        self._noise, self._prior = _Prepared(model.noise), _Prepared(model.known)

    def first(self, readings: Floats, missing: Places) -> State:
        """Condition the prior on the readings: equations (1), (2)."""
        nobody = np.empty(0, dtype=np.intp)
        return _conditioned(self._prior, LowRank(np.empty((0, 0)), np.empty(0)), nobody, readings, 0.0, missing)

    def following(self, state: State, readings: Floats, missing: Places) -> State:
        """Predict from the last step, then condition: equations (4), (5), (1), (2)."""
        last, before = state.missing, state.spread
        if not isinstance(before, LowRank):  # of a trial, which begins with everything read
            before = LowRank(np.empty((0, 0)), np.empty(0))
        f = self._model.transition[last]
        carried = LowRank(f[:, None] * before.loadings, f**2 * before.own)
        return _conditioned(self._noise, carried, last, readings, self._model.predict(state.x), missing)


class _Prepared:
    """A covariance of low rank, and what each step needs of it."""

    def __init__(self, of: LowRank) -> None:
        self.own, self.loadings = of.own, of.loadings
        self.weighted = of.loadings / of.own[:, None]
        self.inner = of.loadings.T @ self.weighted  # U' D^-1 U


def _conditioned(
    of: _Prepared, carried: LowRank, last: Places, readings: Floats, origin: Floats | float, missing: Places
) -> State:
    """Condition a prediction on the readings.

    Args:
        of: the covariance of what the step adds, of all n sensors.
        carried: the covariance that comes from the step before, of the sensors `last` alone.
        readings: float64[n] or [n, k], zeros on `missing`.
        origin: the prediction, of the same shape.
    """
    if not len(missing):
        return State(missing, LowRank(np.empty((0, 0)), np.empty(0)), readings, np.empty(0))
    r, k = of.loadings.shape[1], carried.rank
    surprise = readings - origin
    surprise[missing] = 0.0
    gone = np.zeros(len(readings), dtype=bool)
    gone[missing] = True
    back = np.flatnonzero(~gone[last])  # places in `last` of sensors that are read again
    read_again = last[back]

    # U' D^-1 U and U' D^-1 s over what is read. Beside the sensors that were missing before, D is that of `of`.
    aside = np.concatenate([missing, read_again])
    inner, pull = np.eye(r + k), np.empty((r + k, *readings.shape[1:]))
    inner[:r, :r] += of.inner - of.loadings[aside].T @ of.weighted[aside]
    pull[:r] = of.weighted.T @ surprise - of.weighted[read_again].T @ surprise[read_again]
    both = np.hstack([of.loadings[read_again], carried.loadings[back]])
    weighted = both / (of.own[read_again] + carried.own[back])[:, None]
    inner += both.T @ weighted
    pull[r:] = 0.0
    pull += weighted.T @ surprise[read_again]

    factor = linalg.cholesky(inner, lower=True)
    rows = np.zeros((len(missing), r + k))
    rows[:, :r] = of.loadings[missing]
    own = of.own[missing]
    _, there, still = np.intersect1d(missing, last, assume_unique=True, return_indices=True)
    rows[there, r:] = carried.loadings[still]
    own[there] += carried.own[still]
    x = readings.copy()
    x[missing] = (np.broadcast_to(origin, readings.shape))[missing] + rows @ linalg.cho_solve((factor, True), pull)
    spread = _fewest(LowRank(linalg.solve_triangular(factor, rows.T, lower=True).T, own))
    return State(missing, spread, x, spread.variances)


def _fewest(of: LowRank) -> LowRank:
    """Return the same covariance with as few causes as it has."""
    scaled = of.loadings / np.sqrt(of.own)[:, None]
    values, vectors = np.linalg.eigh(scaled.T @ scaled)
    kept = values > NOTHING * max(1.0, float(values[-1]) if len(values) else 1.0)
    return LowRank(of.loadings @ vectors[:, kept], of.own)
