"""The filter of one slot whose helpers come and go: equations (1), (2), (4), (5) over A_i^t (Takao et al., DEIM 2023).

A set of sensors that changes has no Q^-1 that could be kept, so this is the covariance form: one Cholesky factor of
what is read (at most 150 sensors) a step. Valid where F = PERSISTENCE I, as of this benchmark's fleets.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.linalg import blas, lapack

from tests.bench.recovery.scenario import PERSISTENCE
from tsunagi.recovery.forms import Places
from tsunagi.runtime.columns import Floats


class HelpedSlot:
    """One slot.

    Args:
        correlation: float64[n, n] of the fleet.
        members: the slot's own sensors.
    """

    def __init__(self, correlation: Floats, members: Places) -> None:
        self._sigma, self.members = correlation, members
        self._known: Places | None = None  # members, and the helpers of the last step
        self._x = np.empty(0)  # of `_known`: readings, and posterior means
        self._spread = np.empty((0, 0))  # posterior covariance of the members, zero where read

    def step(self, readings: Floats, lost: npt.NDArray[np.bool_], helpers: Places) -> tuple[Places, Floats, Floats]:
        """Take in the next step.

        Args:
            readings: float64[n], of the fleet; what is lost or not asked for is not looked at.
            lost: bool[n].
            helpers: living sensors of other slots, read at this step.

        Returns:
            the slot's lost sensors, and mean and variance of each.
        """
        members = self.members
        down = lost[members]
        if not down.any():
            self._known, self._x = members, readings[members].copy()
            self._spread = np.zeros((len(members), len(members)))
            return members[down], np.empty(0), np.empty(0)
        used = np.concatenate([members, helpers]).astype(np.intp)
        mean, spread = self._predicted(used)
        gone = np.flatnonzero(down)
        read = np.concatenate([np.flatnonzero(~down), np.arange(len(members), len(used))])
        x = readings[used].copy()
        posterior = spread[np.ix_(gone, gone)]
        estimate = mean[gone]
        if len(read):
            factor, info = lapack.dpotrf(np.asfortranarray(spread[np.ix_(read, read)]), lower=1, clean=1)
            if info:
                raise ArithmeticError(f"helped slot: the covariance of what is read is not positive ({info})")
            right = np.column_stack([spread[np.ix_(read, gone)], x[read] - mean[read]])
            spill = blas.dtrsm(1.0, factor, np.asfortranarray(right), lower=1, overwrite_b=1)
            posterior = posterior - spill[:, :-1].T @ spill[:, :-1]
            estimate = estimate + spill[:, :-1].T @ spill[:, -1]
        x[gone] = estimate
        self._known, self._x = used, x
        self._spread = np.zeros((len(members), len(members)))
        self._spread[np.ix_(gone, gone)] = posterior
        return members[down], estimate, np.maximum(np.diag(posterior), 0.0)

    def _predicted(self, used: Places) -> tuple[Floats, Floats]:
        """Return mean and covariance of these sensors before this step's readings: the members first."""
        sigma = self._sigma[np.ix_(used, used)]
        if self._known is None:
            return np.zeros(len(used)), sigma
        last_mean, last = self._last(used)
        return PERSISTENCE * last_mean, PERSISTENCE**2 * last + (1 - PERSISTENCE**2) * sigma

    def _last(self, used: Places) -> tuple[Floats, Floats]:
        """Return mean and covariance of these sensors at the last step.

        What was not read then is told from what was: its residual hangs on nothing that the slot has seen.
        """
        known = self._known
        assert known is not None
        m = len(self.members)
        place = {sensor: at for at, sensor in enumerate(known.tolist())}
        old = np.array([place.get(sensor, -1) for sensor in used.tolist()], dtype=np.intp)
        fresh = np.flatnonzero(old < 0)
        mean, covariance = self._x[np.maximum(old, 0)], np.zeros((len(used), len(used)))
        covariance[:m, :m] = self._spread
        if len(fresh):
            cross = self._sigma[np.ix_(known, used[fresh])]
            factor, _ = lapack.dpotrf(np.asfortranarray(self._sigma[np.ix_(known, known)]), lower=1, clean=1)
            weights, _ = lapack.dpotrs(factor, np.asfortranarray(cross), lower=1)  # [known, fresh]
            mean[fresh] = weights.T @ self._x
            pull = self._spread @ weights[:m]
            covariance[:m, fresh] = pull
            covariance[fresh, :m] = pull.T
            own = self._sigma[np.ix_(used[fresh], used[fresh])] - cross.T @ weights
            covariance[np.ix_(fresh, fresh)] = own + weights[:m].T @ pull
        return mean, covariance
