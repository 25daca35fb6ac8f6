"""Reads columns of protobuf's varints of equal length, without a loop over the numbers.

A varint has seven bits of a number in each byte, the lowest first. All bytes but the last have their highest bit set.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MAX_LENGTH = 8
"""The most bytes of a varint here: 56 bits. Times in microseconds, offsets and steps need no more."""

Matrix = npt.NDArray[np.uint8]
_Words = npt.NDArray[np.uint64]

_LOW7, _HIGH7 = np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00)
"""Where two bytes of 7 bits stand in 16 bits."""
_LOW14, _HIGH14 = np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000)
"""Where two numbers of 14 bits stand in 32 bits."""
_LOW28, _HIGH28 = np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000)
"""Where two numbers of 28 bits stand in 64 bits."""
_ONE, _TWO, _FOUR = np.uint64(1), np.uint64(2), np.uint64(4)
"""Distances by which parts of a number are moved, bits."""


def read_varints(column: Matrix) -> npt.NDArray[np.int64]:
    """Return int64[n], the numbers of uint8[n, length]. Whether the bytes are varints is not looked at (`are_varints`).

    Raises:
        ValueError: a varint has more than `MAX_LENGTH` bytes.
    """
    padded = np.zeros((len(column), MAX_LENGTH), dtype=np.uint8)
    padded[:, : column.shape[1]] = column
    words: _Words = padded.view("<u8")[:, 0]
    words = (words & _LOW7) | ((words & _HIGH7) >> _ONE)
    words = (words & _LOW14) | ((words & _HIGH14) >> _TWO)
    words = (words & _LOW28) | ((words & _HIGH28) >> _FOUR)
    return words.astype(np.int64)


def are_varints(column: Matrix) -> npt.NDArray[np.bool_]:
    """Return bool[n]: whether each row of uint8[n, length] is one varint."""
    goes_on = column >= 0x80
    found: npt.NDArray[np.bool_] = goes_on[:, :-1].all(axis=1) & ~goes_on[:, -1]
    return found
