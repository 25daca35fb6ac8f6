"""Imputers that see the whole series at once, the future of a gap too; they give no bounds.

CDRec (Khayati, Cudre-Mauroux, Boehlen, KAIS 2020) is that of the package ImputeGAP. Its IterativeSVD needs a newer
C++ library than Debian 12 has, so the algorithm (Troyanskaya et al., Bioinformatics 2001) is written out here. Columns
are standardised before, as their authors do, and the package's own rank is taken.
"""

from __future__ import annotations

import numpy as np

from tsunagi.recovery.errors import ModelError
from tsunagi.runtime.columns import Floats

RANK = 3
EPSILON = 1e-6
ITERATIONS = 100
SETTLED = 1e-5
"""Change of what is filled in, over its size, at which the iteration ends."""
NAMES = ("CDRec", "IterativeSVD")


def impute(name: str, values: Floats) -> Floats:
    """Return a series, float64[T, n], with its NaN filled in.

    Raises:
        ModelError: ImputeGAP is not installed, or its library cannot be loaded.
    """
    mean, scale = np.nanmean(values, axis=0), np.nanstd(values, axis=0).clip(1e-12)
    standard = (values - mean) / scale
    rank = min(RANK, values.shape[1] - 1)
    found = _cdrec(standard, rank) if name == "CDRec" else iterative_svd(standard, rank)
    filled: Floats = found * scale + mean
    return np.where(np.isnan(values), filled, values)


def iterative_svd(standard: Floats, rank: int) -> Floats:
    """Fill gaps with the column's mean (0), then again and again with the best approximation of this rank."""
    gaps = np.isnan(standard)
    filled = np.where(gaps, 0.0, standard)
    for _ in range(ITERATIONS):
        # Eigenvectors of n x n in place of an SVD of T x n: the same projection.
        _, vectors = np.linalg.eigh(filled.T @ filled)
        top = vectors[:, -rank:]
        now = (filled @ top @ top.T)[gaps]
        moved = float(np.linalg.norm(now - filled[gaps]))
        filled[gaps] = now
        if moved <= SETTLED * max(float(np.linalg.norm(now)), SETTLED):
            break
    return filled


def _cdrec(standard: Floats, rank: int) -> Floats:
    try:
        from imputegap.algorithms.cdrec import native_cdrec  # type: ignore[import-not-found]

        return np.asarray(native_cdrec(standard, rank, EPSILON, ITERATIONS, False), dtype=np.float64)
    except (ImportError, OSError) as error:
        expected = "expected ImputeGAP and libopenblas0 (docs/measured/recovery.md)"
        raise ModelError(f"--offline: CDRec: {error}; {expected}") from None
