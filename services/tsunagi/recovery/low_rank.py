"""Covariances of the form U U' + D: a few causes that all sensors share, and what each sensor has of its own.

D is diagonal, and U, the loadings, has r columns for n sensors. Where sensors are many beside the steps known, such a
factor model is estimated better than n (n + 1) / 2 numbers are; and everything that needs n^2 or n^3 operations with
these needs n r or n r^2 with that. Inverses are taken by Woodbury's identity, which is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import linalg

from tsunagi.runtime.columns import Floats

Places = npt.NDArray[np.intp]

OWN_AT_LEAST = 1e-4
"""Least share of a sensor's variance that is its own: no sensor is known exactly from others."""
LEAST_VARIANCE = 0.01
"""Least variance of a sensor in a part of the history, in units of its variance in the whole history; for a sensor that
stood still it is set to 1."""
ROUNDS = 3
"""Number of times that the directions of a sketch are improved: errors of single directions fall with a power of twice
this number."""
SPARE = 10
"""Number of directions of a sketch beyond those that are wanted; the last ones are not exact."""
FILLING = 16
"""Number of causes by which gaps are filled before the loadings are estimated."""
FILLS = 2
"""Number of times that gaps are filled, each time by what the fill before has shown."""
AT_ONCE = 256
"""Number of rows whose gaps are filled at once: it bounds the memory that this takes."""


@dataclass(frozen=True, eq=False)
class LowRank:
    """The covariance U U' + D of n sensors, in units of scale.

    Attributes:
        loadings: U, float64[n, r].
        own: float64[n], > 0: the diagonal of D.
    """

    loadings: Floats
    own: Floats

    def __len__(self) -> int:
        return len(self.own)

    @property
    def rank(self) -> int:
        """Number of shared causes, r."""
        return int(self.loadings.shape[1])

    @property
    def variances(self) -> Floats:
        """The diagonal, float64[n]."""
        return np.asarray(np.einsum("nr,nr->n", self.loadings, self.loadings) + self.own)

    def select(self, places: Places) -> LowRank:
        """Return the covariance of some of the sensors."""
        return LowRank(self.loadings[places], self.own[places])

    def times(self, share: float) -> LowRank:
        """Return the covariance times a number above 0."""
        return LowRank(np.sqrt(share) * self.loadings, share * self.own)

    def is_near(self, other: LowRank) -> bool:
        """Return whether the two differ by rounding alone."""
        pairs = (self.loadings, other.loadings), (self.own, other.own)
        return all(mine.shape == its.shape and np.allclose(mine, its, rtol=1e-12) for mine, its in pairs)

    def block(self, rows: Places, columns: Places) -> Floats:
        """Return matrix[rows][:, columns], whatever their order."""
        return _with_diagonal(self.loadings[rows] @ self.loadings[columns].T, rows, columns, self.own)

    def dense(self) -> Floats:
        """Return the matrix, float64[n, n], symmetric to the last bit."""
        found = self.loadings @ self.loadings.T
        found[np.diag_indices_from(found)] += self.own
        return np.asarray((found + found.T) / 2)

    def extremes(self) -> tuple[float, float]:
        """Return a lower bound of the lowest eigenvalue and an upper bound of the highest one."""
        highest = float(np.linalg.eigvalsh(self.loadings.T @ self.loadings)[-1]) if self.rank else 0.0
        return float(self.own.min()), highest + float(self.own.max())

    def inverse(self) -> LowRankInverse:
        """Return the inverse by Woodbury's identity: D^-1 - V V', V = D^-1 U C'^-1 with C C' = I + U' D^-1 U."""
        weighted = self.loadings / self.own[:, None]
        inner = self.loadings.T @ weighted
        inner[np.diag_indices_from(inner)] += 1.0
        factor = linalg.cholesky(inner, lower=True)
        taken = linalg.solve_triangular(factor, weighted.T, lower=True).T
        return LowRankInverse(1 / self.own, np.ascontiguousarray(taken))


@dataclass(frozen=True, eq=False)
class LowRankInverse:
    """The inverse of a `LowRank`: a diagonal matrix less V V'.

    Attributes:
        weights: float64[n], the diagonal matrix.
        taken: V, float64[n, r].
    """

    weights: Floats
    taken: Floats

    @property
    def variances(self) -> Floats:
        """The diagonal, float64[n]."""
        return np.asarray(self.weights - np.einsum("nr,nr->n", self.taken, self.taken))

    def times(self, vector: Floats) -> Floats:
        """Return the product with a vector, float64[n]."""
        return np.asarray(self.weights * vector - self.taken @ (self.taken.T @ vector))

    def block(self, rows: Places, columns: Places) -> Floats:
        """Return matrix[rows][:, columns], whatever their order."""
        return _with_diagonal(-(self.taken[rows] @ self.taken[columns].T), rows, columns, self.weights)

    def variances_given_others(self, places: Places) -> Floats:
        """Return the variances of these sensors if all others were read, float64[m]: the diagonal of a block's inverse.

        By Woodbury's identity once more it takes m r^2 multiplications, however many sensors are lost.

        Raises:
            LinAlgError: rounding has left no covariance.
        """
        own, mine = 1 / self.weights[places], self.taken[places]
        scaled = own[:, None] * mine
        inner = np.eye(mine.shape[1]) - mine.T @ scaled
        factor = linalg.cholesky(inner, lower=True)
        shared = linalg.solve_triangular(factor, scaled.T, lower=True)
        return np.asarray(own + np.einsum("rm,rm->m", shared, shared))


Covariance = Floats | LowRank
"""A covariance, as a whole matrix, float64[n, n], or of low rank."""


def block_of(matrix: Floats | LowRank | LowRankInverse, rows: Places, columns: Places) -> Floats:
    """Return matrix[rows][:, columns] as a new array; no sensor may stand twice in either."""
    return matrix[np.ix_(rows, columns)] if isinstance(matrix, np.ndarray) else matrix.block(rows, columns)


def variances_of(matrix: Floats | LowRank | LowRankInverse) -> Floats:
    """Return the diagonal, float64[n], as a new array."""
    return np.diag(matrix).copy() if isinstance(matrix, np.ndarray) else matrix.variances


class Spectrum:
    """The leading eigenvalues and eigenvectors of the covariance of standardised rows without gaps.

    They are found by a randomised sketch (Halko, Martinsson and Tropp 2011), always the same one, in about 14 T n r
    multiplications.

    Args:
        rows: float64[T, n], of mean zero.
        rank: most causes that will be asked for.
        variances: float64[n], those of the sensors; None means the rows' own.
    """

    def __init__(self, rows: Floats, rank: int, variances: Floats | None = None) -> None:
        steps, n = rows.shape
        own = np.einsum("tn,tn->n", rows, rows) / max(steps, 1)
        self._variances = lifted(own) if variances is None else variances
        self._total, self._shape = float(own.sum()), (steps, n)
        rank = max(0, min(rank, min(steps, n) - 1))
        squares, self._vectors = _leading(rows, rank) if rank else (np.zeros(0), np.zeros((n, 0)))
        self._values = squares / max(steps, 1)

    def covariance(self, rank: int) -> LowRank:
        """Estimate the covariance with at most `rank` causes; those that cannot be told from noise are left out.

        The eigenvalues and eigenvectors of a sample of T rows of n sensors are wrong in a known way if n is not small
        beside T: those of the spiked model (Baik and Silverstein 2006; Paul 2007). Each is shrunk as it loses least
        squares (Gavish and Donoho 2017, Frobenius loss).
        """
        steps, n = self._shape
        values, vectors = self._values[:rank], self._vectors[:, :rank]
        edge, clear, before = (1 + np.sqrt(n / max(steps, 1))) ** 2, 0, -1
        while clear > before:  # the causes found so far are no noise, so there is less of it, and more may be clear
            before = clear
            noise = max(self._total - float(values[:clear].sum()), 1e-12 * self._total) / (n - clear)
            clear = max(clear, int((values > edge * noise).sum()))
        sizes = noise * _shrunk(values[:clear] / noise, n / max(steps, 1)) if clear else np.zeros(0)
        return _covered(vectors[:, :clear] * np.sqrt(sizes), self._variances)


def of_matrix(matrix: Floats, rank: int) -> LowRank:
    """Return the covariance of low rank that is next to a given one, float64[n, n]; the variances are kept."""
    n = len(matrix)
    rank = min(rank, n - 1)
    if not rank:
        return LowRank(np.zeros((n, 0)), np.diag(matrix).copy())
    values, vectors = linalg.eigh(matrix, subset_by_index=(n - rank, n - 1))
    noise = max(float(np.trace(matrix)) - float(values.sum()), 0.0) / (n - rank)
    return _covered(vectors[:, ::-1] * np.sqrt(np.maximum(values[::-1] - noise, 0.0)), np.diag(matrix))


def exactly(matrix: Floats) -> LowRank:
    """Return a covariance, float64[m, m] with a valid lower triangle, as one of rank m: the same but for rounding.

    Raises:
        LinAlgError: it has an eigenvalue of 0 or below.
    """
    if not len(matrix):
        return LowRank(np.empty((0, 0)), np.empty(0))
    values, vectors = np.linalg.eigh(matrix)
    if values[0] <= 0:
        raise linalg.LinAlgError(f"found an eigenvalue of {values[0]:.3g}, expected more than 0")
    own = values[0] / 2
    return LowRank(vectors * np.sqrt(values - own), np.full(len(matrix), own))


def filled(rows: Floats) -> tuple[Floats, Floats]:
    """Return standardised rows, float64[T, n], with each gap (NaN) filled by what is expected given its row.

    The sensors' variances come with it, float64[n]: those of what was read, since filled rows vary less.
    """
    seen = np.isfinite(rows)
    found = rows if seen.all() else np.where(seen, rows, 0.0)
    variances = lifted(np.einsum("tn,tn->n", found, found) / np.maximum(seen.sum(axis=0), 1))
    gaps = np.flatnonzero(~seen.all(axis=1))
    for _ in range(FILLS if len(gaps) else 0):
        guess = Spectrum(found, FILLING, variances).covariance(FILLING)
        if not guess.rank:
            break
        for begin in range(0, len(gaps), AT_ONCE):
            some = gaps[begin : begin + AT_ONCE]
            found[some] = _expected(found[some], seen[some], guess)
    return found, variances


def lifted(variances: Floats) -> Floats:
    """Return the variances of sensors in a part of the history, with a floor; of those that stood still, 1."""
    return np.where(variances < LEAST_VARIANCE**2, 1.0, np.maximum(variances, LEAST_VARIANCE))


def _with_diagonal(block: Floats, rows: Places, columns: Places, diagonal: Floats) -> Floats:
    """Add the elements of a diagonal matrix to a block of rows and columns."""
    _, left, right = np.intersect1d(rows, columns, assume_unique=True, return_indices=True)
    block[left, right] += diagonal[rows[left]]
    return block


def _covered(loadings: Floats, variances: Floats) -> LowRank:
    """Return the covariance with these loadings and variances; a sensor has `OWN_AT_LEAST` of its variance itself."""
    explained = np.einsum("nr,nr->n", loadings, loadings)
    most = (1 - OWN_AT_LEAST) * variances
    share = np.sqrt(np.minimum(1.0, most / np.maximum(explained, 1e-300)))
    loadings = loadings * share[:, None]
    return LowRank(loadings, variances - np.minimum(explained, most))


def _shrunk(ratios: Floats, gamma: float) -> Floats:
    """Return what sample eigenvalues above the edge of the noise, in units of it, say of the true ones beyond it.

    A true eigenvalue 1 + l appears as (1 + l) (1 + gamma / l), where gamma is n / T; its sample eigenvector has the
    squared cosine (1 - gamma / l^2) / (1 + gamma / l) with the true one. The edge is (1 + sqrt(gamma))^2.
    """
    half = ratios - 1 - gamma
    size = (half + np.sqrt(half**2 - 4 * gamma)) / 2
    return np.asarray(size * (1 - gamma / size**2) / (1 + gamma / size))


def _leading(rows: Floats, rank: int) -> tuple[Floats, Floats]:
    """Return the greatest squared singular values, float64[rank], greatest first, and their vectors, float64[n, rank].

    Float32 is enough for the passes over the rows: a sample of T rows tells no cause to more than 1 / T.
    """
    thin = rows.astype(np.float32)
    draw = np.random.default_rng(0)
    width = min(rank + SPARE, *rows.shape)
    basis = thin @ draw.normal(size=(rows.shape[1], width)).astype(np.float32)
    for _ in range(ROUNDS):
        across, _ = np.linalg.qr(thin.T @ np.linalg.qr(basis)[0])
        basis = thin @ across
    inner = basis.astype(np.float64)
    values, turned = np.linalg.eigh(inner.T @ inner)
    order = np.argsort(values)[::-1][:rank]
    return np.maximum(values[order], 0.0), across.astype(np.float64) @ turned[:, order]


def _expected(rows: Floats, seen: npt.NDArray[np.bool_], guess: LowRank) -> Floats:
    """Return rows with their gaps filled: U (I + U_S' D_S^-1 U_S)^-1 U_S' D_S^-1 x_S on the gaps of each row."""
    weighted = guess.loadings / guess.own[:, None]
    outer = np.einsum("nr,ns->nrs", weighted, guess.loadings).reshape(len(guess), -1)
    inner = (seen @ outer).reshape(len(rows), guess.rank, guess.rank) + np.eye(guess.rank)
    causes = np.linalg.solve(inner, (np.where(seen, rows, 0.0) @ weighted)[..., None])[..., 0]
    return np.where(seen, rows, causes @ guess.loadings.T)
