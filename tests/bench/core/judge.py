"""Judges what came out: each sum once, in the order of the log, with the right value."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tsunagi.runtime.columns import floats, sensors
from tsunagi.runtime.log import Record
from tsunagi.runtime.messages import Recovered
from tsunagi.runtime.ranges import I64

Sums = tuple[npt.NDArray[np.uint32], npt.NDArray[np.float64]]
"""Keys and sums, in the order of the log."""


def expected(pairs: Sums, count: int, window: int) -> Sums:
    """Return the sums that follow from the first `count` pairs of a key and a value."""
    keys, values = pairs[0][:count], pairs[1][:count]
    sums = np.full(count, np.nan)
    for key in np.unique(keys):
        mine = np.flatnonzero(keys == key)
        if len(mine) >= window:
            totals = np.concatenate([[0.0], np.cumsum(values[mine])])
            sums[mine[window - 1 :]] = totals[window:] - totals[:-window]
    there = ~np.isnan(sums)
    return keys[there], sums[there]


def wrong(keys: npt.NDArray[np.uint32], sums: npt.NDArray[np.float64], wanted: Sums) -> int:
    """Return how many outputs differ from those wanted, are missing or are too many."""
    count = min(len(keys), len(wanted[0]))
    differ = (keys[:count] != wanted[0][:count]) | (sums[:count] != wanted[1][:count])
    return int(differ.sum()) + abs(len(keys) - len(wanted[0]))


def judge_recovered(records: Sequence[Record], wanted: Sums) -> int:
    """Return how many outputs of Tsunagi are wrong."""
    found = [Recovered.FromString(record.value or b"") for record in records]
    keys = b"".join([item.run.sensor or item.sensor for item in found])
    sums = b"".join([item.run.mean or item.mean for item in found])
    offsets = [np.frombuffer(item.run.offset, dtype=I64) if item.run.offset else [item.offset] for item in found]
    names = np.concatenate([np.zeros(0, dtype=I64), *offsets])
    repeats = len(names) - len(np.unique(names))
    return wrong(sensors(keys), floats(sums), wanted) + repeats


def judge_sums(records: Sequence[Record], wanted: Sums) -> int:
    """Return how many outputs of Kafka Streams are wrong."""
    keys = np.frombuffer(b"".join([record.key or b"" for record in records]), dtype=">u4").astype(np.uint32)
    sums = np.frombuffer(b"".join([record.value or b"" for record in records]), dtype=">f8").astype(np.float64)
    return wrong(keys, sums, wanted)
