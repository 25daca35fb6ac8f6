"""The two ways to carry the posterior of what is missing from one step to the next.

Both give the distribution of equations (1), (2), (4), (5) of Takao et al. (DEIM 2023). Since readings are exact, all
that is uncertain at a step is its missing set Z (m of n sensors), and the precision form (DESIGN section 4) works with
matrices of that size: 3 m^3 + 8 m n operations a step (n^2 more where F is not diagonal). The covariance form solves
with the n - m observed sensors instead, n^3 / 3 and more, but needs no inverse of Q.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy import linalg
from scipy.linalg import blas, lapack

from services.recovery.model import NEGATIVE_SHARE, Model, ModelError
from services.runtime.columns import Floats

Places = npt.NDArray[np.intp]

PRECISION_LIMIT = 1e7
"""Condition number of Q and of the prior up to which the precision form agrees with the literal equations to 1e-8."""
SINGULAR = 1e13
"""Condition number past which a nugget is added: Cholesky factors of single blocks would fail by rounding."""
NUGGET_SHARE = 1e-10
"""The nugget, as a share of the largest eigenvalue."""
SMALL = 256
"""Sensors up to which numpy's calls take longer than its arithmetic."""
FORMS = ("precision", "covariance")


@dataclass(frozen=True, slots=True)
class State:
    """The posterior after a step, in units of scale around the mean.

    Attributes:
        missing: intp[m], ascending: the missing set Z.
        spread: float64[m, m], lower triangle valid: precision or covariance of X on Z, by the form.
        x: float64[n]: readings, and on Z the posterior mean; float64[n, k] for k runs with the same missing sets.
        variance: float64[m]: of X on Z.
    """

    missing: Places
    spread: Floats
    x: Floats
    variance: Floats


class Form(Protocol):
    """One way to do it. `readings` is float64[n], or float64[n, k] for k runs at once, with zeros on `missing`.

    Raises (both methods):
        LinAlgError: rounding left no positive definite matrix.
    """

    def first(self, readings: Floats, missing: Places) -> State:
        """Condition the prior on the readings: equations (1), (2)."""

    def following(self, state: State, readings: Floats, missing: Places) -> State:
        """Predict from the last step, then condition: equations (4), (5), (1), (2)."""


class PrecisionForm:
    """L = Q^-1, G = L F, H = F' L F; K = P + H[Z,Z]; the new precision is L[Z',Z'] - G[Z',Z] K^-1 G[Z',Z]'.

    The mean is found as a correction to the prediction F x: the formula of DESIGN section 4 with fewer products. Where
    F is not diagonal and n is large, F x alone would take longer than all else; there the formula itself is used.
    """

    def __init__(self, model: Model, nugget: float) -> None:
        self._model = model
        self._prior_precision = inverse(model.prior, nugget)
        self._precision = inverse(model.Q, nugget)  # L
        self._dense: tuple[Floats, Floats, Floats] | None = None  # G, G' and H; of a diagonal F rows of L, rescaled
        if not model.diagonal:
            product = self._precision @ model.transition
            bent = model.transition.T @ product
            self._dense = product, np.ascontiguousarray(product.T), np.ascontiguousarray((bent + bent.T) / 2)
        self._gathered: tuple[Places, Places, tuple[Floats, ...]] | None = None

    def matrices(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Return prior^-1, L = Q^-1, G = L F and H = F' L F, float64[n, n] each."""
        if self._dense is not None:
            return self._prior_precision, self._precision, self._dense[0], self._dense[2]
        f = self._model.transition
        return self._prior_precision, self._precision, self._precision * f, f[:, None] * self._precision * f

    def first(self, readings: Floats, missing: Places) -> State:
        precision = self._prior_precision[np.ix_(missing, missing)].T
        return _solve(precision, -(self._prior_precision[missing] @ readings), readings, readings, missing)

    def following(self, state: State, readings: Floats, missing: Places) -> State:
        last = state.missing
        block, last_block, cross = self._gather(last, missing)
        precision = np.array(block.T, order="F")
        factor, spill = None, None
        if len(last):
            factor = _cholesky(last_block + state.spread)
            spill = blas.dtrsm(1.0, factor, cross.T, lower=1)  # C^-1 G[Z',Z]', with K = C C'
            precision = blas.dsyrk(-1.0, spill, beta=1.0, c=precision, trans=1, lower=1, overwrite_c=1)
        predicted, pull, behind = self._pull(state, readings, missing)
        if factor is not None and spill is not None:
            pull += spill.T @ _forward(factor, behind)
        return _solve(precision, pull, readings, predicted, missing)

    def _pull(self, state: State, readings: Floats, missing: Places) -> tuple[Floats, Floats, Floats]:
        """Return what the posterior mean is a correction to, and the right-hand sides on Z' and on Z."""
        model, last = self._model, state.missing
        if self._dense is None or len(readings) <= SMALL:
            predicted = model.predict(state.x)
            surprise = readings - predicted
            surprise[missing] = 0.0
            if self._dense is None:
                behind = _products(self._precision, last, surprise)
                behind *= model.transition[last] if behind.ndim == 1 else model.transition[last, None]
            else:
                behind = _products(self._dense[1], last, surprise)
            return predicted, -_products(self._precision, missing, surprise), behind
        G, transposed, H = self._dense
        drift = model.drift if readings.ndim == 1 else model.drift[:, None]
        seen = readings - drift
        seen[missing] = 0.0
        pull = _products(G, missing, state.x) - _products(self._precision, missing, seen)
        behind = _products(transposed, last, seen) - _products(H, last, state.x)
        return np.broadcast_to(drift, readings.shape), pull, behind

    def _gather(self, last: Places, missing: Places) -> tuple[Floats, ...]:
        """Return L[Z',Z'], H[Z,Z], G[Z',Z]; while an outage lasts they stay the same."""
        if self._gathered is not None:
            known_last, known_missing, blocks = self._gathered
            if np.array_equal(known_last, last) and np.array_equal(known_missing, missing):
                return blocks
        here, there, across = np.ix_(missing, missing), np.ix_(last, last), np.ix_(missing, last)
        block = self._precision[here]
        if self._dense is None:
            f = self._model.transition[last]
            last_block = f[:, None] * self._precision[there] * f
            cross = self._precision[across] * f
        else:
            cross, last_block = self._dense[0][across], self._dense[2][there]
        blocks = block, np.asfortranarray(last_block), cross
        self._gathered = last, missing, blocks
        return blocks


def _products(matrix: Floats, rows: Places, vector: Floats) -> Floats:
    """Return matrix[rows] @ vector, for a vector float64[n] or float64[n, k].

    Of a large matrix the rows are used where they lie: to gather them first would take longer than the products.
    """
    if vector.ndim > 1 or len(vector) <= SMALL:
        return np.asarray(matrix[rows] @ vector)
    result = np.empty(len(rows))
    for place, row in enumerate(rows.tolist()):
        result[place] = matrix[row].dot(vector)
    return result


class CovarianceForm:
    """The equations as published, with solves in place of inverses."""

    def __init__(self, model: Model, nugget: float) -> None:
        self._model = model
        self._prior = model.prior + nugget * np.eye(len(model))
        self._noise = model.Q + nugget * np.eye(len(model))

    def first(self, readings: Floats, missing: Places) -> State:
        return self._condition(np.zeros(readings.shape), self._prior, readings, missing)

    def following(self, state: State, readings: Floats, missing: Places) -> State:
        model, last = self._model, state.missing
        predicted = model.predict(state.x)
        ahead = self._noise
        if len(last):
            covariance = np.tril(state.spread) + np.tril(state.spread, -1).T
            if model.diagonal:
                f = model.transition[last]
                ahead = ahead.copy()
                ahead[np.ix_(last, last)] += f[:, None] * covariance * f
            else:
                part = model.transition[:, last]
                ahead = ahead + part @ covariance @ part.T
        return self._condition(predicted, ahead, readings, missing)

    @staticmethod
    def _condition(predicted: Floats, ahead: Floats, readings: Floats, missing: Places) -> State:
        """Equations (1), (2)."""
        seen = np.ones(len(readings), dtype=bool)
        seen[missing] = False
        observed = np.flatnonzero(seen)
        x = readings.copy()
        spread = ahead[np.ix_(missing, missing)]
        estimate = predicted[missing]
        if len(observed) and len(missing):
            factor = _cholesky(ahead[np.ix_(observed, observed)].T)
            spill = blas.dtrsm(1.0, factor, np.asfortranarray(ahead[np.ix_(observed, missing)]), lower=1)
            spread = spread - spill.T @ spill
            estimate = estimate + spill.T @ _forward(factor, (readings - predicted)[observed])
        x[missing] = estimate
        return State(missing, np.tril(spread), x, np.maximum(np.diag(spread), 0.0))


@dataclass(frozen=True, slots=True)
class Choice:
    """A form for a model.

    Attributes:
        name: "precision" or "covariance".
        form: it.
        condition: the greater of the condition numbers of Q and of the prior.
        nugget: what was added to both diagonals, in units of scale squared; 0 = nothing.
    """

    name: str
    form: Form
    condition: float
    nugget: float


def choose_form(model: Model, name: str = "auto") -> Choice:
    """Make the form of this name for a model; "auto" = precision up to `PRECISION_LIMIT`.

    Raises:
        ModelError: Q or the prior is no covariance, or no form has this name.
    """
    if name not in ("auto", *FORMS):
        raise ModelError(f"recovery: form: found {name!r}, expected auto, {' or '.join(FORMS)}")
    noise, noise_top = _condition_number("Q", model.Q)
    prior, prior_top = _condition_number("prior", model.prior)
    condition = max(noise, prior)
    nugget = NUGGET_SHARE * max(noise_top, prior_top, 1.0) if condition > SINGULAR else 0.0
    if name == "auto":
        name = "precision" if condition <= PRECISION_LIMIT else "covariance"
    form: Form = PrecisionForm(model, nugget) if name == "precision" else CovarianceForm(model, nugget)
    return Choice(name, form, condition, nugget)


def _condition_number(name: str, matrix: Floats) -> tuple[float, float]:
    """Return condition number and largest eigenvalue of a covariance."""
    eigenvalues = linalg.eigvalsh(matrix)
    lowest, highest = float(eigenvalues[0]), float(eigenvalues[-1])
    if lowest < -NEGATIVE_SHARE * max(highest, 1.0):
        raise ModelError(f"model: {name}: found eigenvalue {lowest:.3g} (largest {highest:.3g}), expected none below 0")
    return (highest / lowest if lowest > 0 else np.inf), highest


def _solve(precision: Floats, pull: Floats, readings: Floats, predicted: Floats, missing: Places) -> State:
    """Return the state with this precision (lower triangle) and precision x (mean - prediction) = pull on `missing`."""
    x = readings.copy()
    if not len(missing):
        return State(missing, np.empty((0, 0)), x, np.empty(0))
    factor = _cholesky(precision)
    correction, _ = lapack.dpotrs(factor, pull, lower=1)
    # `predicted` is `readings` (zero on the missing set) for the first step, where the prior's mean is the origin.
    x[missing] = predicted[missing] + correction
    inverse, _ = lapack.dtrtri(factor, lower=1, overwrite_c=1)
    return State(missing, precision, x, np.einsum("ij,ij->j", inverse, inverse))


def _forward(factor: Floats, right: Floats) -> Floats:
    """Return factor^-1 right, for a lower triangular factor."""
    solved, _ = lapack.dtrtrs(factor, right, lower=1)
    return np.asarray(solved)


def _cholesky(matrix: Floats) -> Floats:
    """Return the lower Cholesky factor, upper triangle zero; only the lower triangle is read."""
    factor, info = lapack.dpotrf(matrix, lower=1, clean=1)
    if info != 0:
        raise linalg.LinAlgError(f"the leading minor of order {info} is not positive definite")
    return np.asarray(factor)


def inverse(matrix: Floats, nugget: float = 0.0) -> Floats:
    """Return (matrix + nugget I)^-1, symmetric to the last bit."""
    factor = _cholesky(np.asfortranarray(matrix + nugget * np.eye(len(matrix))))
    whole, _ = lapack.dpotri(factor, lower=1, overwrite_c=1)
    lower = np.tril(whole)
    return np.ascontiguousarray(lower + np.tril(lower, -1).T)
