"""The paper's splits of a fleet (Takao et al., DEIM 2023, section 5.1 d), to compare `partition` with."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from scipy import linalg

from tsunagi.recovery.partition import (
    PartitionError,
    Slots,
    checked,
    first_sensors,
    greedy_split,
    pair_weights,
    partition,
)
from tsunagi.runtime.columns import Floats

Split = Literal["single", "random", "vanilla", "proposed", "proposed-swap"]
SPLITS: tuple[str, ...] = get_args(Split)

TIE_DIGITS = 12
"""Digits by which two candidates must differ; else the first of them is taken, on every machine."""
LEAST_RESIDUAL = 1e-12
"""Variance, of 1, below which a sensor is known from others already and tells nothing new."""


def split(
    correlation: npt.ArrayLike,
    edge_of: Sequence[Hashable] | npt.NDArray[np.generic],
    slots: int,
    method: Split = "proposed-swap",
    *,
    seed: int = 0,
) -> Slots:
    """Split n sensors over slots.

    Args:
        correlation: float64[n, n]; "vanilla" also takes a covariance, whose diagonal then counts.
        edge_of: each sensor's edge, length n, anything that can be compared for equality.
        slots: how many; "single" uses the first alone.
        method: "single" (one slot, the paper's comparison), "random" (by `seed`), "vanilla" (figure 3 with equations
            (10), (11)), "proposed" (figure 3 with equation (12)), "proposed-swap" (Tsunagi's `partition`).

    Returns:
        intp[n]: each sensor's slot. The same arguments give the same slots.

    Raises:
        PartitionError: naming the argument.
    """
    if method not in SPLITS:
        raise PartitionError(f"split: method: found {method!r}, expected {', '.join(SPLITS)}")
    if method == "proposed-swap":
        return partition(correlation, edge_of, slots)
    matrix, edges = checked(correlation, edge_of, slots)
    n = len(matrix)
    if method == "single" or slots == 1:
        return np.zeros(n, dtype=np.intp)
    if method == "random":
        return np.random.default_rng(seed).permutation(np.arange(n, dtype=np.intp) % slots)
    if method == "vanilla":
        return _vanilla(matrix, edges, slots)
    return greedy_split(pair_weights(matrix, edges), np.diag(matrix), slots)


def _vanilla(covariance: Floats, edges: npt.NDArray[np.intp], slots: int) -> Slots:
    """Figure 3 with equations (10), (11): the worst variance of a slot's sensors when its own edge is down decides.

    A slot A keeps K = Sigma_AA^-1 and B = K Sigma_A., both updated by bordering. With J = the slot's sensors of one
    edge, and O = A without J: Cov(J | O) = K_JJ^-1, Cov(J, X | O) = K_JJ^-1 B_JX, and
    Var(X | O) = Var(X | A) + B_JX' K_JJ^-1 B_JX; so no candidate needs an inverse of its own.
    """
    n = len(covariance)
    variances = np.diag(covariance)
    slot_of = np.full(n, -1, dtype=np.intp)
    free = np.ones(n, dtype=bool)
    parts = [_Part(covariance, edges, int(start)) for start in first_sensors(variances, slots)]
    for slot, part in enumerate(parts):
        slot_of[part.members[0]] = slot
        free[part.members[0]] = False
    for turn in range(slots, n):
        slot = turn % slots
        candidates = np.flatnonzero(free)
        # Most candidates do not touch the worst sensor and tie: the first of them, whatever rounding says.
        best = int(candidates[np.argmin(np.round(parts[slot].worst(candidates), TIE_DIGITS))])
        parts[slot].add(best)
        slot_of[best] = slot
        free[best] = False
    return slot_of


class _Part:
    """One slot of `_vanilla`."""

    def __init__(self, covariance: Floats, edges: npt.NDArray[np.intp], start: int) -> None:
        self._covariance, self._edges = covariance, edges
        self.members = [start]
        variance = max(float(covariance[start, start]), LEAST_RESIDUAL)
        self._K = np.array([[1.0 / variance]])
        self._B = covariance[[start]] / variance  # float64[|A|, n]
        self._residual = np.diag(covariance) - self._B[0] * covariance[start]  # Var(X | A), float64[n]

    def add(self, sensor: int) -> None:
        coefficients = self._B[:, sensor].copy()
        variance = max(float(self._residual[sensor]), LEAST_RESIDUAL)
        # Cov(sensor, X | A) for all X: what is left of the sensor's row.
        left = self._covariance[sensor] - coefficients @ self._covariance[self.members]
        new = left / variance
        self._B = np.vstack([self._B - np.outer(coefficients, new), new])
        self._residual = self._residual - left * new
        border = -coefficients / variance
        self._K = np.block(
            [
                [self._K + np.outer(coefficients, coefficients) / variance, border[:, None]],
                [border[None, :], np.array([[1.0 / variance]])],
            ]
        )
        self.members.append(sensor)

    def worst(self, candidates: npt.NDArray[np.intp]) -> Floats:
        """Return the slot's greatest variance under the outage of one edge, for each candidate that might join."""
        own = self._edges[self.members]
        edges = self._edges[candidates]
        coefficients = self._B[:, candidates]
        residual = np.maximum(self._residual[candidates], LEAST_RESIDUAL)
        worst = residual.copy()  # the candidate itself, if the slot holds nothing else of its edge
        for edge in np.unique(own):
            J = np.flatnonzero(own == edge)
            spread = linalg.inv(self._K[np.ix_(J, J)])
            cross = spread @ coefficients[J]
            without = residual + np.einsum("jx,jx->x", coefficients[J], cross)  # Var(X | O)
            same = edges == edge
            after = np.diag(spread)[:, None] - np.where(same, 0.0, cross**2 / without)
            worst = np.maximum(worst, np.where(same, without, 0.0))
            worst = np.maximum(worst, after.max(axis=0))
        return np.asarray(worst)
