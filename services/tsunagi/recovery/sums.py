"""First and second moments of a history in one pass over it, as sums whose parts can be added.

Steps are taken in units of provisional means and scales (and profile). The true means and scales are known at the end,
and the sums are then corrected exactly: for two sensors x, y, sum (x - a)(y - b) = sum x y - b sum x - a sum y + a b
count, where the sums go over the steps with readings of both. Memory: one matrix of the size of the joint of
neighbouring steps, and two more if readings are missing, whatever the number of steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import blas

from tsunagi.recovery.moments import covariance_of
from tsunagi.runtime.columns import Floats

TILE = 512
"""Rows and columns of a tile; matrices are sent in tiles."""
BLOCK_CELLS = 2_000_000
"""Number of values that are multiplied at once: it bounds the memory that this takes."""
MATRICES = ("products", "alone", "pairs")
"""Names of the matrices of `HistorySums`."""


@dataclass(frozen=True, slots=True)
class Units:
    """The units of steps while they are summed.

    Attributes:
        mean, scale: float64[n], sensor units.
        profile: float64[period, n], units of scale; None if there is none.
    """

    mean: Floats
    scale: Floats
    profile: Floats | None = None


class Tile(NamedTuple):
    """A part of some sums.

    Attributes:
        key: which part it is; parts with the same key are added.
        data: its numbers, float64[...].
    """

    key: tuple[str, int, int]
    data: Floats


class HistorySums:
    """Sums over the steps of a history.

    Args:
        sensors: number of sensors, n.
        lag: lag of the joint: rows are [x(t), x(t - lag)] and 2n wide; 0 means x(t) alone.
        units: provisional units.

    Attributes:
        count, first, second: float64[n]: number of readings, their sum and sum of squares, without profile, provisional
            units.
        whole: number of rows without a gap; whole_sum: float64[w], their sum (w = n, or 2n with a lag).
        matrices: "products" float64[w, w], upper triangle, over cells that both have. If there are gaps also "alone",
            the sum of x_i where row j has a reading, and "pairs", upper triangle, the number of cells that both have.
    """

    def __init__(self, sensors: int, lag: int, units: Units) -> None:
        self._n, self._lag, self._units = sensors, lag, units
        self.width = 2 * sensors if lag else sensors
        self.count, self.first, self.second = (np.zeros(sensors) for _ in range(3))
        self.whole, self.whole_sum = 0.0, np.zeros(self.width)
        self.matrices: dict[str, Floats] = {}
        self._before = np.empty((0, sensors))
        self._next: int | None = None
        self._block = max(1, BLOCK_CELLS // self.width)

    def add(self, step: int, values: Floats, own_from: int | None = None) -> None:
        """Add neighbouring steps, which are later than all before.

        Args:
            step: number of the first of them.
            values: float64[steps, n], sensor units; NaN means missing.
            own_from: steps before this one only pair with others; None means that all count.
        """
        units = self._units
        x = (values - units.mean) / units.scale
        own = 0 if own_from is None else max(0, min(len(x), own_from - step))
        seen = np.isfinite(x[own:])
        filled = np.where(seen, x[own:], 0.0)
        self.count += seen.sum(axis=0)
        self.first += filled.sum(axis=0)
        self.second += np.einsum("ij,ij->j", filled, filled)
        if units.profile is not None:
            x = x - units.profile[(step + np.arange(len(x))) % len(units.profile)]
        if not self._lag:
            self._multiply(x[own:])
            return
        if self._next is not None and step > self._next:  # steps without a reading were left out
            self._before = np.concatenate([self._before, np.full((min(step - self._next, self._lag), self._n), np.nan)])
        rows = np.concatenate([self._before[-self._lag :], x])
        self._next = step + len(x)
        begin = step - (len(rows) - len(x))  # number of row 0's step
        first = self._lag if own_from is None else max(self._lag, own_from - begin)
        for at in range(first, len(rows), self._block):
            later = rows[at : at + self._block]
            self._multiply(np.hstack([later, rows[at - self._lag : at - self._lag + len(later)]]))
        self._before = rows[-self._lag :].copy()

    def _multiply(self, rows: Floats) -> None:
        """Add the products of rows, float64[k, width]."""
        seen = np.isfinite(rows)
        told = seen[:, : self._n].any(axis=1)
        if self._lag:
            told &= seen[:, self._n :].any(axis=1)  # a step without any reading tells nothing
        if not told.all():
            rows, seen = rows[told], seen[told]
        if not len(rows):
            return
        whole = seen.all(axis=1)
        self.whole += float(whole.sum())
        if whole.all():
            self.whole_sum += rows.sum(axis=0)
            self._add("products", rows)
            return
        self.whole_sum += rows[whole].sum(axis=0)
        self._add("products", np.where(seen, rows, 0.0))
        partial = ~whole
        mask = seen[partial].astype(np.float64)
        self._add("pairs", mask)
        self._add("alone", np.where(seen[partial], rows[partial], 0.0), mask)

    def _add(self, name: str, rows: Floats, other: Floats | None = None) -> None:
        """Add rows' @ rows (upper triangle), or rows' @ other, in place: a second matrix of this size is too large."""
        matrix = self.matrices.get(name)
        if matrix is None:
            matrix = np.zeros((self.width, self.width), order="F")
        # A C-ordered float64[k, w], transposed, is what BLAS takes without a copy.
        turned = np.ascontiguousarray(rows).T
        if other is None:
            done = blas.dsyrk(1.0, turned, beta=1.0, c=matrix, overwrite_c=1)
        else:
            done = blas.dgemm(1.0, turned, np.ascontiguousarray(other).T, beta=1.0, c=matrix, trans_b=1, overwrite_c=1)
        self.matrices[name] = np.asarray(done)

    def tiles(self) -> Iterator[Tile]:
        """Yield all the sums in parts, which `join` can put together."""
        yield Tile(
            ("vectors", 0, 0), np.concatenate([self.count, self.first, self.second, self.whole_sum, [self.whole]])
        )
        for name, matrix in self.matrices.items():
            for row, column in tile_places(self.width, triangle=name != "alone"):
                part = matrix[row * TILE : (row + 1) * TILE, column * TILE : (column + 1) * TILE]
                yield Tile((name, row, column), np.ascontiguousarray(part))

    def join(self, tile: Tile) -> None:
        """Add a part of other sums."""
        name, row, column = tile.key
        if name == "vectors":
            n, w = self._n, self.width
            cuts = np.split(tile.data, [n, 2 * n, 3 * n, 3 * n + w])
            for total, part in zip((self.count, self.first, self.second, self.whole_sum), cuts, strict=False):
                np.add(total, part, out=total)
            self.whole += float(cuts[4][0])
            return
        if name not in self.matrices:
            self.matrices[name] = np.zeros((self.width, self.width), order="F")
        self.matrices[name][row * TILE : (row + 1) * TILE, column * TILE : (column + 1) * TILE] += tile.data

    def mean_and_sd(self) -> tuple[Floats, Floats]:
        """Return the mean and standard deviation of each sensor, float64[n], sensor units."""
        count = np.maximum(self.count, 1.0)
        mean = self.first / count
        spread = np.maximum(self.second - self.first * mean, 0.0) / np.maximum(count - 1, 1.0)
        return self._units.mean + self._units.scale * mean, self._units.scale * np.sqrt(spread)

    def moments(self, mean: Floats, scale: Floats) -> Floats:
        """Return second moments around `mean` in units of `scale`, as `moments.covariance` would for all the rows.

        Returns:
            float64[n, n], or float64[2n, 2n] with a lag, the later rows first.
        """
        units = self._units
        times = 2 if self._lag else 1
        off = np.tile((mean - units.mean) / units.scale, times)
        ratio = np.tile(units.scale / scale, times)
        products, alone, pairs = (self._symmetric(name) for name in ("products", "alone", "pairs"))
        found = np.zeros((self.width, self.width)) if products is None else np.array(products)
        for at in range(0, self.width, TILE):  # a few rows at a time, since matrices of this size take gigabytes
            rows = slice(at, at + TILE)
            single = np.broadcast_to(self.whole_sum[rows, None], (len(off[rows]), self.width))
            crossed = off * (single if alone is None else single + alone[rows])
            found[rows] -= crossed
            found[:, rows] -= crossed.T
            both = self.whole if pairs is None else self.whole + pairs[rows]
            found[rows] += both * np.outer(off[rows], off)
        found *= ratio[:, None]
        found *= ratio
        return covariance_of(found, self.whole if pairs is None else pairs + self.whole)

    def _symmetric(self, name: str) -> Floats | None:
        """Return a matrix with its lower triangle filled in; None if there is no such matrix."""
        matrix = self.matrices.get(name)
        if matrix is None or name == "alone":
            return matrix
        for row, column in tile_places(self.width, triangle=True):
            rows, columns = (slice(place * TILE, (place + 1) * TILE) for place in (row, column))
            tile = matrix[rows, columns]
            matrix[columns, rows] = (np.triu(tile) + np.triu(tile, 1).T) if row == column else tile.T
        return matrix


def tile_places(width: int, *, triangle: bool) -> list[tuple[int, int]]:
    """Return row and column of each tile of a matrix, or of its upper triangle."""
    count = -(-width // TILE)
    return [(row, column) for row in range(count) for column in range(row if triangle else 0, count)]
