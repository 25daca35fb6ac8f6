"""Imputers of the package ImputeGAP, as baselines: `pip install --no-deps imputegap toml` is enough for these.

They see the whole series at once, the future of a gap too, and give no bounds. Columns are standardised before, as
their authors do, and the package's own parameters are taken: rank 3 (CDRec: Khayati, Cudre-Mauroux, Boehlen, KAIS
2020; IterativeSVD: Troyanskaya et al., Bioinformatics 2001).
"""

from __future__ import annotations

import numpy as np

from services.runtime.columns import Floats

RANK = 3
EPSILON = 1e-6
ITERATIONS = 100
NAMES = ("CDRec", "IterativeSVD")


def impute(name: str, values: Floats) -> Floats:
    """Return a series, float64[T, n], with its NaN filled in.

    Raises:
        ImportError: ImputeGAP is not installed.
    """
    mean, scale = np.nanmean(values, axis=0), np.nanstd(values, axis=0).clip(1e-12)
    standard = (values - mean) / scale
    rank = min(RANK, values.shape[1] - 1)
    if name == "CDRec":
        from imputegap.algorithms.cdrec import native_cdrec  # type: ignore[import-not-found]

        found = native_cdrec(standard, rank, EPSILON, ITERATIONS, False)
    else:
        from imputegap.algorithms.iterative_svd import native_iterative_svd  # type: ignore[import-not-found]

        found = native_iterative_svd(standard, rank, False)
    filled: Floats = np.asarray(found, dtype=np.float64) * scale + mean
    return filled
