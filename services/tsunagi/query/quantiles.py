"""APPROX_QUANTILE: values are counted in buckets, so a quantile is known to a share of itself, of any number of rows.

A bucket has the floats whose first bits are the same: sign, exponent, and `_BITS` bits of the fraction. Whole numbers
alone decide which bucket a float is in, so it is the same on every machine; logarithms, as in DDSketch (Masson, Rim,
Lee, VLDB 2019), may differ in the last bit. Counts of buckets add up, whatever the cut of rows into parts.
"""

from __future__ import annotations

import numpy as np

from tsunagi.query.values import Array, Floats, Ints

_BITS = 6
"""Bits of the fraction that tell buckets apart: 64 buckets for each power of two."""
_DROPPED = 52 - _BITS
"""Bits of a float that do not matter."""
ERROR = 2.0 ** -(_BITS + 1)
"""The result is off by at most this share of itself: half a bucket, 0.8 %."""
_SIGN = np.int64(0x7FFF_FFFF_FFFF_FFFF)
"""All bits but the sign: turned over in negative floats, they rise with the value as whole numbers do."""


def buckets(values: Floats) -> Floats:
    """Return the number of each value's bucket, as a float: numbers rise with the values; NaN stays NaN."""
    bits = (np.asarray(values, dtype=np.float64) + 0.0).view(np.int64)  # -0.0 becomes 0.0
    ordered = np.where(bits < 0, bits ^ _SIGN, bits)
    return np.where(np.isnan(values), np.nan, (ordered >> _DROPPED).astype(np.float64))


def middles(bucket: Ints) -> Floats:
    """Return the value in the middle of each bucket; 0 for the one of zero."""
    ordered = (bucket << _DROPPED) + (np.int64(1) << (_DROPPED - 1))
    bits = np.where(ordered < 0, ordered ^ _SIGN, ordered)
    found = np.ascontiguousarray(bits, dtype=np.int64).view(np.float64)
    infinite = np.isnan(found)  # the bucket of an infinity goes on beyond it
    return np.where((bucket == 0) | (bucket == -1), 0.0, np.where(infinite, np.copysign(np.inf, bucket), found))


def choose(group: Ints, rank: Ints, counts: Array, groups: int, share: float) -> Ints:
    """Return which value of each group is its quantile, int64[..., groups]: a place among the pairs; -1 = it has none.

    Of n values in order it is number ceil(share n), and the first one at least.

    Args:
        group, rank: int64[pairs], of which group and value the counts are; values are in the order of their ranks.
        counts: int64[..., pairs].
        share: from 0 to 1.
    """
    order = np.lexsort((rank, group))
    sums = np.cumsum(counts[..., order], axis=-1)
    sums = np.concatenate([np.zeros((*sums.shape[:-1], 1), dtype=np.int64), sums], axis=-1)
    first = np.searchsorted(group[order], np.arange(groups))
    last = np.searchsorted(group[order], np.arange(groups), side="right")
    before, size = sums[..., first], sums[..., last] - sums[..., first]
    wanted = before + np.maximum(1, np.ceil(share * size)).astype(np.int64)
    found = np.full(size.shape, -1, dtype=np.int64)
    for place in np.ndindex(size.shape[:-1]):
        there = size[place] > 0
        found[place][there] = order[np.searchsorted(sums[place], wanted[place][there]) - 1]
    return found
