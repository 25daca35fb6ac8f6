"""Exact sums of doubles, by cells: the result does not depend on the order in which values are added.

A double is a whole number of 53 bits times a power of two. It is cut into pieces of 32 bits at fixed places (bins), and
the pieces of each bin are added up as whole numbers. So sums are the same to the last bit whatever the cut into batches
and cores, they can be put together in any order, and no error grows in a window that slides for months. The idea is
that of Kulisch's long accumulator (Kulisch, Miranker, "Computer Arithmetic in Theory and Practice", 1981). Only bins
that occur are held, as in Demmel and Nguyen, "Fast Reproducible Floating-Point Summation", ARITH 2013.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tsunagi.query.values import Floats, Ints

Bins = dict[int, Ints]
"""Sums by bin: int64[...] each, all of one shape. The value is the sum of bins[q] x 2^(32 q - 1152), absent bins being
0."""

_WIDTH = 32
"""Bits of a bin. A piece has 32 bits, so 2^31 of them can be added in an int64."""
_SHIFT = 1152
"""Exponent that is added before a value is cut, so that the number of no bin is negative."""
_HALF = np.int64(2**31)
"""Half of a bin's range: digits are from minus this to less than this."""
_MASK = np.uint64(0xFFFF_FFFF)
"""The bits of a bin."""
_LEAST = 5e-324
"""The least positive double."""
_GREAT, _FAR = 64, 128
"""Sums with this bin or a greater one are made smaller by 2^128 while they are put together, or parts of them would be
infinite although the sum is not."""
INFINITE = (-1, -2, -3)
"""Stand for bins that count +infinity, -infinity and NaN."""
_EXACT_COUNT = 2**20
"""Most rows that are added at once: bincount adds in doubles, which hold the sums of so many pieces exactly."""


def add_up(values: Floats, cells: Ints, size: int) -> Bins:
    """Return the exact sums of values by cell, each int64[size]."""
    found: Bins = {}
    for begin in range(0, len(values), _EXACT_COUNT):
        part = slice(begin, begin + _EXACT_COUNT)
        _add(found, values[part], cells[part], size)
    return found


def _add(found: Bins, values: Floats, cells: Ints, size: int) -> None:
    finite = np.isfinite(values)
    if not finite.all():
        odd, where = values[~finite], cells[~finite]
        for name, which in zip(INFINITE, (odd == np.inf, odd == -np.inf, np.isnan(odd)), strict=True):
            if which.any():
                _into(found, name, np.bincount(where[which], minlength=size))
        values, cells = values[finite], cells[finite]
    fraction, exponent = np.frexp(values)
    whole = (np.abs(fraction) * 2.0**53).astype(np.uint64)
    negative = values < 0
    place = exponent.astype(np.int64) - 53 + _SHIFT
    lowest, shift = place >> 5, (place & 31).astype(np.uint64)
    low = (whole << shift) & _MASK
    middle = (whole >> (np.uint64(32) - shift)) & _MASK
    high = np.where(shift == 0, np.uint64(0), whole >> (np.uint64(64) - np.maximum(shift, np.uint64(1))))
    for number in _occurring(lowest):
        here = slice(None) if (lowest == number).all() else lowest == number
        sign = np.where(negative[here], -1.0, 1.0)
        for bin_, piece in enumerate((low, middle, high), start=int(number)):
            weights = piece[here].astype(np.float64)
            if weights.any():
                _into(found, bin_, np.bincount(cells[here], weights=sign * weights, minlength=size))


def _occurring(lowest: Ints) -> list[int]:
    return np.flatnonzero(np.bincount(lowest)).tolist() if len(lowest) else []


def _into(found: Bins, bin_: int, sums: np.ndarray) -> None:
    whole = np.rint(sums).astype(np.int64)
    found[bin_] = found[bin_] + whole if bin_ in found else whole


def of_cells(values: Floats) -> Bins:
    """Return values as sums, each in a cell of its own: int64[n]."""
    return add_up(values, np.arange(len(values)), len(values))


def joined(one: Mapping[int, Ints], other: Mapping[int, Ints]) -> Bins:
    """Return the sums of both."""
    found = dict(one)
    for bin_, sums in other.items():
        found[bin_] = found[bin_] + sums if bin_ in found else sums
    return found


def to_doubles(bins: Mapping[int, Ints], shape: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Return the sums as (double, remainder): the sum rounded, and what it lacks, rounded as well."""
    numbers = sorted(bin_ for bin_ in bins if bin_ >= 0)
    down = _FAR if numbers and numbers[-1] >= _GREAT else 0
    high = np.zeros(shape)
    low = np.zeros(shape)
    carry = np.zeros(shape, dtype=np.int64)
    digits: list[tuple[int, Ints]] = []
    if numbers:
        for bin_ in range(numbers[0], numbers[-1] + 1):
            carry = carry + bins.get(bin_, np.int64(0))
            digit = ((carry + _HALF) & np.int64(0xFFFF_FFFF)) - _HALF  # balanced, so that -1 is no row of ones
            digits.append((bin_, digit))
            carry = (carry - digit) >> _WIDTH
        digits.append((numbers[-1] + 1, carry))
    rest = np.zeros(shape)
    with np.errstate(all="ignore"):
        for bin_, digit in reversed(digits):
            term = np.ldexp(digit.astype(np.float64), _WIDTH * bin_ - _SHIFT - down)
            if down:  # what is far too small to be seen beside such a sum still decides a tie, and is still a remainder
                term = np.where(term == 0, np.sign(digit) * _LEAST, term)
            high, term = _two_sum(high, term)
            low, term = _two_sum(low, term)
            rest = rest + term
        low, rest = _two_sum(low, rest)
        total, low = _two_sum(high, low)
        # If what is left is just half of a unit, `rest` decides how the sum is rounded (as in CPython's fsum).
        twice = 2 * low
        other = total + twice
        tied = (np.sign(low) * np.sign(rest) > 0) & (other - total == twice)
        low = np.where(tied, (low - twice) + rest, low + rest)
        total = np.where(tied, other, total)
        if down:
            high, low = np.ldexp(total, down), np.ldexp(low, down)
            total = high
        low = np.where(np.isfinite(total), low, 0.0)
        for name, value in zip(INFINITE, (np.inf, -np.inf, np.nan), strict=True):
            if name in bins:
                total = np.where(bins[name] > 0, total + value, total)
                low = np.where(bins[name] > 0, 0.0, low)
    return total, low


def _two_sum(one: Floats, other: Floats) -> tuple[Floats, Floats]:
    """Return a sum rounded, and exactly what it lacks (Knuth)."""
    total = one + other
    part = total - one
    return total, (one - (total - part)) + (other - part)


def halves(values: Floats) -> tuple[Floats, Floats]:
    """Return values as sums of two doubles that have half of the digits each (Veltkamp)."""
    split = 134217729.0 * values  # 2^27 + 1
    head = split - (split - values)
    return head, values - head


def two_square(values: Floats) -> tuple[Floats, Floats]:
    """Return squares rounded, and exactly what they lack (Dekker 1971)."""
    head, tail = halves(values)
    square = values * values
    return square, ((head * head - square) + 2 * head * tail) + tail * tail


def squares(values: Floats, cells: Ints, size: int) -> Bins:
    """Return the exact sums of squares by cell, each int64[size]; a square is two doubles."""
    with np.errstate(all="ignore"):
        square, rest = two_square(values)
    return joined(add_up(square, cells, size), add_up(np.where(np.isfinite(rest), rest, 0.0), cells, size))
