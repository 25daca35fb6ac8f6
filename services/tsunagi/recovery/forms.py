"""The two ways, with whole matrices, to carry the posterior of the missing sensors from one step to the next.

Both give the distribution of equations (1), (2), (4), (5) of Takao et al. (DEIM 2023). Readings are exact, so only
the missing set Z (m of n sensors) is uncertain at a step. The precision form (docs/explanation/recovery-model.md)
works with matrices of that size: 3 m^3 + 8 m n operations a step, and n^2 more if F is not diagonal. The covariance
form solves with the n - m observed sensors instead, which takes n^3 / 3 and more, but needs no inverse of Q.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy import linalg
from scipy.sparse.linalg import ArpackError, eigsh

from tsunagi.recovery import lapack
from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.low_rank_form import LowRankForm
from tsunagi.recovery.model import LowRankModel, Model
from tsunagi.recovery.model_checks import NEGATIVE_SHARE
from tsunagi.recovery.state import State, matrix_of
from tsunagi.runtime.columns import Floats

Places = npt.NDArray[np.intp]

PRECISION_LIMIT = 1e7
"""Up to this condition number of Q and of the prior, the precision form agrees with the literal equations to 1e-8."""
SINGULAR = 1e13
"""Beyond this condition number a nugget is added to the diagonal: Cholesky factors of single blocks would fail by
rounding."""
NUGGET_SHARE = 1e-10
"""The nugget, as a share of the largest eigenvalue."""
CACHED = 2**16
"""Float64 numbers that stay in a core's cache from one use to the next: blocks of this size are read at once."""
KEPT = 2**20
"""Most float64 numbers of rows that a step keeps for the next one. Where there are more, reading them again takes
little of the whole time."""
HALVED = 64
"""A triangular solve or inverse with up to this many columns is not split."""
HALVED_INVERSE = 1000
"""From this many columns on LAPACK inverts a triangle faster than two halves do."""
FEW = 500
"""With up to this many sensors all eigenvalues are computed, which takes no time; with more, only the outermost
ones."""
FORMS = ("precision", "covariance")
"""Names of the two forms."""
LOW_RANK = "low rank"
"""Name of the form of a model of low rank, which has no other (`low_rank_form`)."""
NUMBERED = (*FORMS, LOW_RANK)
"""Names of all forms, in the order of their numbers in contexts."""
_CHOICE = "_choice"
"""Attribute in which a model keeps its form, if that was made in advance."""


class Form(Protocol):
    """One of the two ways. `readings` is float64[n], or float64[n, k] for k runs at once, with zeros on `missing`.

    Raises (both methods):
        LinAlgError: rounding left a matrix that is not positive definite.
    """

    def first(self, readings: Floats, missing: Places) -> State:
        """Condition the prior on the readings: equations (1), (2)."""

    def following(self, state: State, readings: Floats, missing: Places) -> State:
        """Predict from the last step, then condition: equations (4), (5), (1), (2)."""


class PrecisionForm:
    """Eliminates the sensors missing at the last step from the joint precision of those missing now and then.

    Let L = Q^-1, G = L F and H = F' L F. Two neighbouring steps, the later one first, have W = [[L, -G], [-G', H]]; P
    is added to its H[Z,Z]. The rows of Z' and Z, times (readings, last mean), are the gradient that the posterior mean
    brings to zero. With K = P + H[Z,Z] the new precision is K's Schur complement L[Z',Z'] - G[Z',Z] K^-1 G[Z',Z]'
    (docs/explanation/recovery-model.md).

    With a diagonal F, the rows that a step reads for its missing set are those that the next step reads for its last
    one. If little is missing they are kept, since nothing else takes as long as reading rows from memory.
    """

    def __init__(self, model: Model, prior_precision: Floats, precision: Floats) -> None:
        self._model = model
        self._rows = np.empty((0, len(model)))
        self._block = np.empty((0, 0))
        self._rows_of: Places | None = None  # the missing set whose rows and block of L are kept
        self._prior_precision = prior_precision
        self._precision = precision  # L
        self._pair: Floats | None = None  # W; with a diagonal F it is L with its rows and columns rescaled
        if not model.diagonal:
            self._pair = _pair_precision(precision, model.transition)

    def __copy__(self) -> PrecisionForm:
        """Return another form with the same matrices, which keeps rows of its own."""
        other = PrecisionForm.__new__(PrecisionForm)
        other.__dict__ |= self.__dict__ | {"_rows": np.empty((0, len(self._model))), "_rows_of": None}
        return other

    def matrices(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Return prior^-1, L = Q^-1, G = L F and H = F' L F, float64[n, n] each."""
        n, f = len(self._model), self._model.transition
        if self._pair is None:
            return self._prior_precision, self._precision, self._precision * f, f[:, None] * self._precision * f
        return self._prior_precision, self._precision, -self._pair[:n, n:], self._pair[n:, n:]

    def first(self, readings: Floats, missing: Places) -> State:
        pull, precision = _read(self._prior_precision, missing, readings, missing)
        return _solve(precision.T, -pull, readings, np.zeros_like(readings), missing)

    def following(self, state: State, readings: Floats, missing: Places) -> State:
        origin, pull, now, behind, cross, inner = self._gather(state, readings, missing)
        if len(state.missing):
            factor = cholesky(inner + matrix_of(state))  # C, with K = C C'
            _divide(cross, factor)  # now -G[Z',Z] C'^-1
            lapack.syrk(-1.0, cross, now)
            pull -= cross @ lapack.trtrs(factor, behind)
        return _solve(now, -pull, readings, origin, missing)

    def _gather(self, state: State, readings: Floats, missing: Places) -> tuple[Floats, ...]:
        """Return the origin of means; W's gradient and block on Z'; on Z the gradient, block [Z',Z] and block on Z.

        The blocks are in Fortran's order, as LAPACK needs them: of a symmetric matrix rows serve as columns.
        """
        model, last, n = self._model, state.missing, len(readings)
        if self._pair is not None:
            # The origin is the model's mean: to compute F x would take longer than everything else.
            drift = model.drift if readings.ndim == 1 else model.drift[:, None]
            both = np.concatenate([readings - drift, state.x])
            both[missing] = 0.0
            behind, cross, inner = _read(self._pair, last + n, both, missing, last + n)
            pull, now = _read(self._pair, missing, both, missing)
            return np.broadcast_to(drift, readings.shape), pull, now.T, behind, cross.T, inner.T
        origin = model.predict(state.x)
        surprise = readings - origin
        surprise[missing] = 0.0
        if self._rows_of is last:
            rows = self._rows[: len(last)]
            behind, cross, inner = rows @ surprise, rows.take(missing, axis=1, mode="clip"), self._block
        else:
            behind, cross, inner = _read(self._precision, last, surprise, missing, last)
        pull, now = self._read_now(missing, surprise)
        f = -model.transition[last, None]
        cross *= f
        inner *= f * f.T
        behind *= f if behind.ndim > 1 else f[:, 0]
        return origin, pull, now.T, behind, cross.T, inner.T

    def _read_now(self, missing: Places, surprise: Floats) -> tuple[Floats, ...]:
        """Return L[Z'] @ surprise and L[Z',Z'], and keep the rows if they are few."""
        if len(missing) * len(self._model) > KEPT:
            self._rows_of = None
            return _read(self._precision, missing, surprise, missing)
        if len(self._rows) < len(missing):
            self._rows, self._rows_of = np.empty((len(missing), len(self._model))), None
        rows = self._rows[: len(missing)]
        if self._rows_of is None or not np.array_equal(self._rows_of, missing):
            self._precision.take(missing, axis=0, out=rows, mode="clip")
        self._rows_of, self._block = missing, rows.take(missing, axis=1, mode="clip")
        return rows @ surprise, self._block.copy()


def _pair_precision(precision: Floats, transition: Floats) -> Floats:
    """Return the matrix W, float64[2n, 2n], of `PrecisionForm`."""
    n = len(precision)
    pair = np.empty((2 * n, 2 * n))
    pair[:n, :n] = precision
    pair[:n, n:] = -(precision @ transition)
    pair[n:, :n] = pair[:n, n:].T
    bent = transition.T @ pair[:n, n:]
    pair[n:, n:] = (bent + bent.T) / -2
    return pair


def _read(matrix: Floats, rows: Places, vector: Floats, *columns: Places) -> tuple[Floats, ...]:
    """Return matrix[rows] @ vector, then matrix[rows][:, c] for each c of `columns`; vector is float64[n] or [n, k].

    Rows are read from memory once for the product and all blocks: in a large model with little missing nothing else
    takes as long.
    """
    at_once = max(1, CACHED // matrix.shape[1])
    cache = np.empty((min(at_once, len(rows)), matrix.shape[1]))
    products = np.empty((len(rows), *vector.shape[1:]))
    blocks = [np.empty((len(rows), len(places))) for places in columns]
    for begin in range(0, len(rows), at_once):
        some = slice(begin, begin + at_once)
        gathered = matrix.take(rows[some], axis=0, out=cache[: len(rows) - begin], mode="clip")  # "raise" takes a copy
        np.dot(gathered, vector, out=products[some])
        for block, places in zip(blocks, columns, strict=True):
            gathered.take(places, axis=1, out=block[some], mode="clip")
    return products, *blocks


class CovarianceForm:
    """The equations as published, with solves instead of inverses."""

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
            lower = matrix_of(state)
            covariance = np.tril(lower) + np.tril(lower, -1).T
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
        """Condition a prediction on the readings: equations (1), (2)."""
        seen = np.ones(len(readings), dtype=bool)
        seen[missing] = False
        observed = np.flatnonzero(seen)
        x = readings.copy()
        spread = ahead[np.ix_(missing, missing)]
        estimate = predicted[missing]
        if len(observed) and len(missing):
            factor = cholesky(ahead[np.ix_(observed, observed)].T)
            spill = np.asfortranarray(ahead[np.ix_(observed, missing)])
            lapack.trsm(factor, spill)
            spread = spread - spill.T @ spill
            estimate = estimate + spill.T @ lapack.trtrs(factor, (readings - predicted)[observed])
        x[missing] = estimate
        return State(missing, np.tril(spread), x, np.maximum(np.diag(spread), 0.0))


@dataclass(frozen=True, slots=True)
class Examined:
    """Condition number, greatest eigenvalue and inverse (if rounding left one) of a covariance."""

    condition: float
    highest: float
    inverse: Floats | None

    def times(self, share: float) -> Examined:
        """Return the same for the matrix times a number above 0."""
        inverted = None if self.inverse is None else self.inverse / share
        return Examined(self.condition, share * self.highest, inverted)


@dataclass(frozen=True, slots=True)
class Choice:
    """The form that is used for a model.

    Attributes:
        name: one of `NUMBERED`.
        form: the form itself.
        condition: the greater of the condition numbers of Q and of the prior.
        nugget: what was added to both diagonals, in units of scale squared; 0 if nothing.
        noise, prior: what is known about Q and about the prior.
    """

    name: str
    form: Form
    condition: float
    nugget: float
    noise: Examined
    prior: Examined


def choose_form(model: Model, name: str = "auto") -> Choice:
    """Return the form of this name for a model; "auto" means precision up to `PRECISION_LIMIT`.

    Raises:
        ModelError: Q or the prior is not a covariance, or there is no form of this name.
    """
    if name not in ("auto", *FORMS):
        raise ModelError(f"recovery: form: found {name!r}, expected auto, {' or '.join(FORMS)}")
    kept: Choice | None = model.__dict__.get(_CHOICE)
    if kept is not None and name == "auto":
        return replace(kept, form=copy(kept.form))  # each filter needs rows of its own
    if isinstance(model, LowRankModel):
        return _of_low_rank(model, name)
    prior = _examine("prior", model.prior)
    share = _noise_share(model)
    noise = _examine("Q", model.Q) if share is None else prior.times(share)
    condition = max(noise.condition, prior.condition)
    nugget = NUGGET_SHARE * max(noise.highest, prior.highest, 1.0) if condition > SINGULAR else 0.0
    if name == "auto":
        name = "precision" if condition <= PRECISION_LIMIT else "covariance"
    if name == "covariance":
        return Choice(name, CovarianceForm(model, nugget), condition, nugget, noise, prior)
    if nugget or noise.inverse is None or prior.inverse is None:
        form = PrecisionForm(model, inverse(model.prior, nugget), inverse(model.Q, nugget))
    else:
        form = PrecisionForm(model, prior.inverse, noise.inverse)
    return Choice(name, form, condition, nugget, noise, prior)


def _of_low_rank(model: LowRankModel, name: str) -> Choice:
    if name != "auto":
        raise ModelError(f"recovery: form: found {name!r} with a model of low rank, expected auto")
    noise, prior = (
        Examined(highest / lowest, highest, None)
        for lowest, highest in (model.noise.extremes(), model.known.extremes())
    )
    condition = max(noise.condition, prior.condition)
    return Choice(LOW_RANK, LowRankForm(model), condition, 0.0, noise, prior)


def keep_form(model: Model) -> None:
    """Make a model's form in advance, so that `choose_form` need not.

    Raises:
        ModelError: as in `choose_form`.
    """
    model.__dict__[_CHOICE] = choose_form(model)


def _noise_share(model: Model) -> float | None:
    """Return q if Q = q prior, as in a model of the structure "diagonal" (`moments.of_covariance`), else None."""
    persistence = float(model.transition[0]) if model.diagonal else 1.0
    share = 1 - persistence**2
    if share <= 0 or not (model.transition == persistence).all():
        return None
    return share if np.array_equal(model.Q, share * model.prior) else None


def _examine(name: str, matrix: Floats) -> Examined:
    """Examine a covariance; not all eigenvalues are computed if a factor shows that they are positive."""
    inverted: Floats | None
    try:
        inverted = inverse(matrix)
        if len(matrix) > FEW:
            highest = _greatest(matrix)
            return Examined(highest * _greatest(inverted), highest, inverted)
    except linalg.LinAlgError:
        inverted = None
    except ArpackError:
        pass
    eigenvalues = np.linalg.eigvalsh(matrix)
    lowest, highest = float(eigenvalues[0]), float(eigenvalues[-1])
    if lowest < -NEGATIVE_SHARE * max(highest, 1.0):
        raise ModelError(f"model: {name}: found eigenvalue {lowest:.3g} (largest {highest:.3g}), expected none below 0")
    return Examined(highest / lowest if lowest > 0 else np.inf, highest, inverted)


def _greatest(matrix: Floats) -> float:
    """Return the greatest eigenvalue by Lanczos' method.

    Raises:
        ArpackError: the method did not converge.
    """
    # always the same, so that all workers choose the same form
    start = np.random.default_rng(0).normal(size=len(matrix))
    return float(eigsh(matrix, k=1, which="LA", v0=start, tol=1e-4, return_eigenvectors=False)[0])


def _solve(precision: Floats, pull: Floats, readings: Floats, origin: Floats, missing: Places) -> State:
    """Return the state with this precision (lower triangle), where precision x (mean - origin) = pull on `missing`."""
    x = readings.copy()
    if not len(missing):
        return State(missing, np.empty((0, 0)), x, np.empty(0))
    factor = cholesky(precision, keep=True)
    x[missing] = origin[missing] + lapack.potrs(factor, pull)
    _invert(factor)
    return State(missing, precision, x, np.einsum("ij,ij->j", factor, factor))


def _divide(block: Floats, factor: Floats) -> None:
    """Multiply a block in Fortran's order by factor'^-1 from the right, for a lower triangular factor.

    It works by halves, so that most of the work is products of matrices: they are three times as fast as a triangular
    solve.
    """
    columns = len(factor)
    if columns <= HALVED:
        lapack.trsm(factor, block, transposed=True, from_right=True)
        return
    half = columns // 2
    left, right = block[:, :half], block[:, half:]
    _divide(left, factor[:half, :half])
    lapack.gemm(-1.0, left, factor[half:, :half], right, transposed=True)
    _divide(right, factor[half:, half:])


def _invert(factor: Floats) -> None:
    """Replace a lower triangular factor, in Fortran's order and zero above, by its inverse.

    It works by halves like `_divide`, in sizes where that is up to twice as fast.
    """
    n = len(factor)
    if n <= HALVED or n > HALVED_INVERSE:
        lapack.trtri(factor)
        return
    half = n // 2
    first, below, last = factor[:half, :half], factor[half:, :half], factor[half:, half:]
    _invert(first)
    _invert(last)
    product = np.zeros_like(below, order="F")
    lapack.gemm(1.0, below, first, product, beta=0.0)
    lapack.gemm(-1.0, last, product, below, beta=0.0)


def cholesky(matrix: Floats, *, keep: bool = False) -> Floats:
    """Return the lower Cholesky factor, upper triangle zero; only the lower triangle of the matrix is read.

    Unless `keep` is set, the factor may overwrite the matrix (if that is in Fortran's order).
    """
    factor = matrix.copy(order="F") if keep else np.asfortranarray(matrix)
    info = lapack.potrf(factor)
    if info != 0:
        raise linalg.LinAlgError(f"the leading minor of order {info} is not positive definite")
    return factor


def inverse(matrix: Floats, nugget: float = 0.0) -> Floats:
    """Return (matrix + nugget I)^-1, symmetric to the last bit; only the lower triangle is read.

    Raises:
        LinAlgError: the matrix is not positive definite.
    """
    own = np.array(matrix, order="F")
    own[np.diag_indices_from(own)] += nugget
    factor = cholesky(own)
    lapack.potri(factor)
    lower = np.tril(factor)
    return np.ascontiguousarray(lower + np.tril(lower, -1).T)
