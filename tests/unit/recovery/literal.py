"""Equations (1), (2), (4), (5) of Takao et al. (DEIM 2023) as they stand, with inverses: slow, and plain."""

from __future__ import annotations

import numpy as np
from numpy.linalg import inv

from tsunagi.runtime.columns import Floats


def literal(mean: Floats, joint: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Return posterior means and standard deviations, float64[T, n], of steps float64[T, n] with NaN = missing.

    `mean` is float64[2n] and `joint` float64[2n, 2n], block A (time t+1) first. The first prior is that of block B.
    """
    n = values.shape[1]
    mean_a, mean_b = mean[:n], mean[n:]
    s_aa, s_ab, s_bb = joint[:n, :n], joint[:n, n:], joint[n:, n:]
    prior_mean, prior = mean_b, s_bb
    means, sds = np.empty_like(values), np.empty_like(values)
    for step, row in enumerate(values):
        z, o = np.flatnonzero(np.isnan(row)), np.flatnonzero(~np.isnan(row))
        posterior_mean, posterior = row.copy(), np.zeros((n, n))
        inverse = inv(prior[np.ix_(o, o)])
        gain = prior[np.ix_(z, o)] @ inverse
        posterior_mean[z] = prior_mean[z] + gain @ (row[o] - prior_mean[o])  # (1)
        posterior[np.ix_(z, z)] = prior[np.ix_(z, z)] - gain @ prior[np.ix_(o, z)]  # (2)
        means[step], sds[step] = posterior_mean, np.sqrt(np.maximum(np.diag(posterior), 0.0))
        transition = s_ab @ inv(s_bb)
        prior_mean = mean_a + transition @ (posterior_mean - mean_b)  # (4)
        prior = s_aa - transition @ s_ab.T + transition @ posterior @ transition.T  # (5)
    return means, sds


def random_joint(n: int, rng: np.random.Generator, *, ridge: float = 0.3) -> tuple[Floats, Floats]:
    """Return (mean, joint) of 2n correlated numbers of unlike size, condition number of each block well below 1e7."""
    factor = rng.normal(size=(2 * n, 2 * n))
    joint = factor @ factor.T / (2 * n) + ridge * np.eye(2 * n)
    size = np.tile(10.0 ** rng.uniform(-3, 3, size=n), 2)
    return rng.normal(size=2 * n) * size * 5, joint * np.outer(size, size)
