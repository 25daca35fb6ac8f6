"""Correlation matrices to split and to recover over."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tsunagi.runtime.columns import Floats


def paper_field(n: int, rng: np.random.Generator, *, edge_size: int = 20) -> tuple[Floats, npt.NDArray[np.intp]]:
    """Return correlation and edges as in section 5.1 of Takao et al.: strong within an edge, weak across, and strong
    across for some sensors, which share a cause with sensors of other edges."""
    edges = np.arange(n) // edge_size
    causes = max(2, n // 10)
    shared = np.full(n, -1)
    some = rng.permutation(n)[: n // 2]
    shared[some] = np.arange(len(some)) % causes
    loads = np.zeros((n, int(edges.max()) + 1 + causes + 1))
    loads[np.arange(n), edges] = np.where(shared >= 0, 0.5, 0.85)
    loads[some, int(edges.max()) + 1 + shared[some]] = 0.8
    loads[:, -1] = 0.2
    return _correlation(loads, 0.1), edges


def spatial_field(n: int, rng: np.random.Generator, *, regions: int) -> tuple[Floats, npt.NDArray[np.intp]]:
    """Return correlation and edges of sensors on a plane, an edge a region of neighbours."""
    places = rng.random((n, 2))
    columns = int(np.sqrt(regions))
    order = np.lexsort((places[:, 1], np.argsort(np.argsort(places[:, 0])) * columns // n))
    edges = np.empty(n, dtype=np.intp)
    edges[order] = np.arange(n) * regions // n
    distance = np.sqrt(((places[:, None] - places) ** 2).sum(axis=2))
    return np.asarray(0.95 * np.exp(-distance / 0.1) + 0.05 * np.eye(n)), edges


def _correlation(loads: Floats, noise: float) -> Floats:
    covariance = loads @ loads.T + noise * np.eye(len(loads))
    size = np.sqrt(np.diag(covariance))
    return np.asarray(covariance / np.outer(size, size))
