"""What a recovery model's names, vectors and matrices must be, and how its matrices are made exactly symmetric."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tsunagi.recovery import lapack
from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.symmetric import mirror, mirrored_tiles
from tsunagi.runtime.columns import Floats

NEGATIVE_SHARE = 1e-8
"""Rounding may push an eigenvalue below zero by this share of the largest one; more means that a matrix is no
covariance."""
ROUNDING = 1e-13
"""F counts as diagonal if no element beside its diagonal is above this, as a share of the largest diagonal element or
of 1: such elements are rounding errors of the fit."""

Calibrated = tuple[tuple[float, float], ...]
"""Pairs (delta, factor), ascending."""


def check_names(names: Sequence[str]) -> None:
    """Raise a `ModelError` if there is no sensor, or a name stands twice."""
    if not names:
        raise ModelError("model: found no sensors, expected at least one")
    if len(set(names)) != len(names):
        double = sorted({name for name in names if names.count(name) > 1})
        raise ModelError(f"model: sensor {double[0]!r} stands twice")


def checked(key: str, given: npt.ArrayLike, shape: tuple[int, ...], sensors: int) -> Floats:
    """Return an array of a model as float64 of its own, which may be written to.

    Raises:
        ModelError: it has another shape, or numbers that are not finite.
    """
    array = np.array(given, dtype=np.float64)
    if array.shape != shape:
        raise ModelError(f"model: {key}: found shape {array.shape}, expected {shape} for {sensors} sensors")
    if not np.isfinite(array).all():
        raise ModelError(f"model: {key}: found NaN or infinity, expected finite numbers")
    return array


def check_scale(names: Sequence[str], scale: Floats) -> None:
    """Raise a `ModelError` if a scale is not above 0."""
    if not (scale > 0).all():
        worst = int(np.argmin(scale))
        raise ModelError(f"model: scale of {names[worst]!r}: found {scale[worst]}, expected more than 0")


def check_calibration(calibration: Calibrated) -> None:
    """Raise a `ModelError` if a level is no probability, a factor is not above 0, or levels are not ascending."""
    for delta, factor in calibration:
        if not (0 < delta < 1 and 0 < factor < np.inf):
            found = f"found delta {delta} with factor {factor}"
            raise ModelError(f"model: calibration: {found}, expected 0 < delta < 1 and a factor above 0")
    if any(first[0] >= second[0] for first, second in pairwise(calibration)):
        raise ModelError("model: calibration: levels are not ascending")


def make_exact(key: str, matrix: Floats) -> None:
    """Make a symmetric matrix equal to what the file will hold, to the last bit: its lower triangle, mirrored.

    Raises:
        ModelError: the matrix is not symmetric.
    """
    worst = largest = 0.0
    for lower, upper in mirrored_tiles(matrix):
        worst = max(worst, float(np.abs(lower - upper.T).max()))
        largest = max(largest, float(lower.max()), -float(lower.min()))
    if worst > 1e-9 * max(1.0, largest):
        raise ModelError(f"model: {key} is not symmetric")
    mirror(matrix)


def check_joint(sigma: Floats) -> None:
    """Raise a `ModelError` if a covariance of sensors of unit variance has an eigenvalue clearly below 0.

    If a Cholesky factor exists after the greatest allowed rounding error was added to the diagonal, there is no such
    eigenvalue. This takes a thirtieth of the work of computing the eigenvalues.
    """
    lifted = np.array(sigma, order="F")
    lifted[np.diag_indices_from(lifted)] += NEGATIVE_SHARE * max(float(np.diag(sigma).max()), 1e-300)
    if not lapack.potrf(lifted):
        return
    lowest, highest = np.linalg.eigvalsh(sigma)[[0, -1]]
    if lowest < -NEGATIVE_SHARE * max(highest, 1e-300):
        raise ModelError(f"joint: found eigenvalue {lowest:.3g} (largest {highest:.3g}), expected none below 0")


def is_diagonal(matrix: Floats) -> bool:
    """Return whether everything beside the diagonal is a rounding error."""
    diagonal = np.diag(matrix)
    beside = np.abs(matrix)
    beside[np.diag_indices_from(beside)] = 0.0
    return bool(beside.max() <= ROUNDING * max(1.0, float(np.abs(diagonal).max())))


def symmetrised(matrix: Floats) -> Floats:
    """Return the mean of a matrix and its transpose, which rounding has made different."""
    return (matrix + matrix.T) / 2


def right_divide(numerator: Floats, covariance: Floats) -> Floats:
    """Return numerator @ covariance^-1; with the pseudo-inverse if the covariance is singular."""
    factor = np.array(covariance, order="F")
    if not lapack.potrf(factor) and float(np.diag(factor).min()) > 1e-7 * float(np.diag(factor).max()):
        return np.asarray(lapack.potrs(factor, numerator.T).T)
    return np.asarray(numerator @ np.linalg.pinv(covariance, rcond=1e-12, hermitian=True))
