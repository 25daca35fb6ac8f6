"""What a filter knows of sensors that come to it: given the present state they have their stationary distribution."""

from __future__ import annotations

import numpy as np
from scipy import linalg

from tsunagi.recovery import lapack
from tsunagi.recovery.forms import cholesky
from tsunagi.recovery.low_rank import LowRank, Places
from tsunagi.recovery.low_rank_form import NOTHING
from tsunagi.runtime.columns import Floats

MANY = 10
"""Missing sensors for each cause from which on `fresh_of_low_rank` is nearly exact, and worth it."""
OWN_LEFT = 1e-3
"""Least share of a missing sensor's own variance that `fresh_of_low_rank` leaves to it alone."""


def fresh_of_whole(
    own: Floats, cross: Floats, rest: Floats, known: Floats, missing: Places, covariance: Floats, nugget: float
) -> tuple[Floats, Floats]:
    """Return the covariance of the missing and the fresh sensors, and the mean of the fresh ones.

    Args:
        own, cross, rest: blocks of the prior: of the n sensors that have a state, float64[n, n]; of these and the k
            fresh ones, float64[n, k]; of the fresh ones, float64[k, k].
        known: float64[n], the mean of the former.
        missing, covariance: those of them that are missing, intp[m], and their covariance, float64[m, m].

    Raises:
        LinAlgError: rounding has left no covariance.
    """
    pull = lapack.potrs(cholesky(own + nugget * np.eye(len(own))), cross).T  # A
    m, k = len(missing), len(rest)
    both = np.empty((m + k, m + k))
    both[:m, :m] = covariance
    both[m:, :m] = pull[:, missing] @ covariance
    both[:m, m:] = both[m:, :m].T
    both[m:, m:] = rest - pull @ cross + both[m:, :m] @ pull[:, missing].T
    both[np.diag_indices_from(both)] += nugget
    return both, pull @ known


def fresh_of_low_rank(prior: LowRank, spread: LowRank, missing: Places, x: Floats) -> tuple[LowRank, Floats]:
    """Return the covariance of missing sensors and of others that come, and the mean of these.

    The fresh ones are N(U_f K X, U_f M U_f' + D_f) with M = (I + U' D^-1 U)^-1 and K = M U' D^-1. What is uncertain in
    X on the missing sensors Z, A A' + D_Z, is uncertain in them too: H = U_f K_Z of it. For H D_Z there are r causes
    more, on which missing sensors depend by a projection P of rank r. Variances and all that concerns the fresh sensors
    are exact. Missing sensors seem to share P's elements beside its diagonal, which are of the size r / m.

    Args:
        prior: of all n + h sensors, those that come last.
        spread: of the m missing sensors.
        missing: their places among the n.
        x: float64[n], the mean.
    """
    n = len(x)
    loadings, fresh = prior.loadings[:n], prior.loadings[n:]
    weighted = loadings / prior.own[:n, None]
    factor = linalg.cholesky(loadings.T @ weighted + np.eye(prior.rank), lower=True)
    told = linalg.cho_solve((factor, True), weighted.T)  # K, float64[r, n]
    root = np.sqrt(spread.own)[:, None]
    bent = root * told[:, missing].T  # D_Z^1/2 K_Z'
    values, vectors = np.linalg.eigh(bent.T @ bent)
    kept = values > NOTHING * max(float(values[-1]), 1e-300)
    sizes, vectors = np.sqrt(values[kept]), vectors[:, kept]
    basis = bent @ vectors / sizes  # P = basis basis'
    left = np.maximum(1.0 - np.einsum("mr,mr->m", basis, basis), OWN_LEFT)
    both = np.block(
        [
            [spread.loadings, root * basis, np.zeros((len(missing), prior.rank))],
            [
                fresh @ (told[:, missing] @ spread.loadings),
                (fresh @ vectors) * sizes,
                linalg.solve_triangular(factor, fresh.T, lower=True).T,
            ],
        ]
    )
    return LowRank(both, np.concatenate([spread.own * left, prior.own[n:]])), fresh @ (told @ x)
