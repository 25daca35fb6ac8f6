"""The routines for large matrices give what SciPy's give, on blocks too, and let other threads run."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from scipy.linalg import blas
from scipy.linalg import lapack as plain

from tsunagi.recovery import lapack
from tsunagi.recovery.forms import choose_form
from tsunagi.recovery.helpers import best_variance
from tsunagi.recovery.model import Model
from tsunagi.runtime.columns import Floats

N = 150
SIZES = (float("inf"), 0.0)
"""Values of `lapack.LARGE`: with infinity every call goes through SciPy, with 0 every call lets other threads run."""


def matrices(n: int = N) -> tuple[Floats, Floats, Floats]:
    """Return a covariance, its factor, and any other matrix, all in Fortran's order."""
    rng = np.random.default_rng(3)
    other = np.asfortranarray(rng.normal(size=(n, n)))
    covariance = np.asfortranarray(other @ other.T / n + np.eye(n))
    factor, _ = plain.dpotrf(covariance, lower=1, clean=1)
    return covariance, np.asfortranarray(factor), other


def block(matrix: Floats) -> Floats:
    """Return the same matrix as a block within a larger one."""
    n, k = matrix.shape
    room = np.full((n + 7, k + 5), np.nan, order="F")
    room[3 : 3 + n, 2 : 2 + k] = matrix
    return room[3 : 3 + n, 2 : 2 + k]


@pytest.mark.parametrize("large", SIZES)
@pytest.mark.parametrize("within", [lambda matrix: matrix.copy(order="F"), block])
def test_each_routine_gives_what_the_library_gives(
    large: float, within: Callable[[Floats], Floats], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lapack, "LARGE", large)
    covariance, factor, other = matrices()
    made = within(covariance)
    assert lapack.potrf(made) == 0
    np.testing.assert_allclose(made, factor, atol=1e-14)
    assert not np.triu(made, 1).any()
    made = within(factor)
    lapack.potri(made)
    np.testing.assert_allclose(np.tril(made), np.tril(np.linalg.inv(covariance)), atol=1e-12)
    made = within(factor)
    lapack.trtri(made)
    np.testing.assert_allclose(np.tril(made) @ factor, np.eye(N), atol=1e-12)
    for right in (other[:, 0], other):
        kept = right.copy(order="F")
        np.testing.assert_allclose(covariance @ lapack.potrs(within(factor), kept), right, atol=1e-11)
        np.testing.assert_allclose(factor @ lapack.trtrs(within(factor), kept), right, atol=1e-11)
        np.testing.assert_array_equal(kept, right)
    for transposed in (False, True):
        for from_right in (False, True):
            made = within(other)
            lapack.trsm(within(factor), made, transposed=transposed, from_right=from_right)
            expected = blas.dtrsm(1.0, factor, other, side=from_right, lower=1, trans_a=transposed)
            np.testing.assert_allclose(made, expected, atol=1e-11)
        made = within(covariance)
        lapack.gemm(-2.0, within(factor), within(other), made, beta=0.5, transposed=transposed)
        expected = covariance / 2 - 2 * factor @ (other.T if transposed else other)
        np.testing.assert_allclose(made, expected, atol=1e-11)
    made = within(covariance)
    lapack.syrk(-1.0, within(other[:, :40]), made)
    np.testing.assert_allclose(np.tril(made), np.tril(covariance - other[:, :40] @ other[:, :40].T), atol=1e-11)


@pytest.mark.parametrize("large", SIZES)
def test_a_matrix_without_a_factor_is_told(large: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lapack, "LARGE", large)
    covariance, _, _ = matrices(20)
    covariance[11, 11] = -1.0
    assert lapack.potrf(covariance) == 12


def test_rows_in_the_order_of_c_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lapack, "LARGE", 0.0)
    with pytest.raises(ValueError, match="Fortran"):
        lapack.potrf(np.ascontiguousarray(matrices(20)[0][:, ::-1]))


def turns_during(work: Callable[[], object]) -> int:
    """Return how often another thread ran while the work was done."""
    turns = 0
    ended = threading.Event()
    pause = threading.Event()

    def count() -> None:
        nonlocal turns
        while not ended.is_set():
            pause.wait(0.001)
            turns += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        before = turns
        work()
        return turns - before
    finally:
        ended.set()
        thread.join()


def test_other_threads_run_while_a_large_step_is_computed() -> None:
    # Heartbeats are sent by a thread of their own: one that cannot run for half a second is a death to the others.
    n = 700
    rng = np.random.default_rng(5)
    loadings = rng.normal(size=(n, 8))
    joint = np.eye(n) * 0.5 + loadings @ loadings.T / 16
    model = Model(
        names=tuple(f"s{place}" for place in range(n)),
        mean=np.zeros(n),
        scale=np.ones(n),
        transition=np.full(n, 0.9),
        Q=0.19 * joint,
        prior=joint,
        drift=np.zeros(n),
    )
    form = choose_form(model, "precision").form
    readings = np.zeros(n)
    missing = np.arange(n - 20)
    state = form.first(readings, missing)
    assert turns_during(lambda: form.following(state, readings, missing)) >= 5
    precision: Floats = np.asarray(np.linalg.inv(model.prior), dtype=np.float64)
    assert turns_during(lambda: best_variance(precision, missing, missing[:5])) >= 3
