"""Symmetric matrices: one triangle copied from the other, and a triangle as a row of numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tsunagi.runtime.columns import Floats

TILE = 256
"""Rows and columns of a matrix that are mirrored at once: as many as fit into a core's cache."""


def mirror(matrix: Floats) -> None:
    """Replace the upper triangle of a matrix by its lower one."""
    for lower, upper in mirrored_tiles(matrix):
        on_diagonal = lower.ctypes.data == upper.ctypes.data
        upper[:] = np.tril(lower) + np.tril(lower, -1).T if on_diagonal else lower.T


def mirrored_tiles(matrix: Floats) -> Iterator[tuple[Floats, Floats]]:
    """Yield the tiles on and below the diagonal of a matrix, each with the tile across the diagonal (perhaps itself).

    To go through a large matrix transposed would miss every cache, and a copy of it takes gigabytes.
    """
    for row in range(0, len(matrix), TILE):
        for column in range(0, row + 1, TILE):
            rows, columns = slice(row, row + TILE), slice(column, column + TILE)
            yield matrix[rows, columns], matrix[columns, rows]


def lower_of(matrix: Floats) -> Floats:
    """Return the lower triangle of a matrix, row by row."""
    n = len(matrix)
    lower = np.empty(n * (n + 1) // 2)
    for row, values in enumerate(matrix):  # the indices of all elements would take four times their memory
        begin = row * (row + 1) // 2
        lower[begin : begin + row + 1] = values[: row + 1]
    return lower


def square_of(lower: Floats, n: int) -> Floats:
    """Return the n by n matrix of a lower triangle.

    Raises:
        ValueError: the triangle has another size.
    """
    if lower.shape != (n * (n + 1) // 2,):
        raise ValueError(f"found a triangle of {lower.size} numbers, expected {n * (n + 1) // 2} for {n} sensors")
    matrix = np.empty((n, n))
    for row in range(n):
        begin = row * (row + 1) // 2
        matrix[row, : row + 1] = lower[begin : begin + row + 1]
    mirror(matrix)
    return matrix
