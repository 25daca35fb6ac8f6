"""The queries q1..q3 of figure 1 in the P-SORT paper, for every reading (istream).

    q1 = readings of the sensor in the last minute, q2 = those above the sensor's threshold, q3 = q2 / q1

A minute is `[query] range_s` long; the window of a reading at t is (t - range, t]. Only running counts are kept for
each sensor. Readings that expire are read again from the batch that brought them, so the cost of a batch does not grow
with the length of the minute.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tsunagi.runtime.columns import Floats, Sensors
from tsunagi_spark.kway import block_order
from tsunagi_spark.layout import Flags, Ints


class QueryReadings(NamedTuple):
    """Readings in the form that the counts need: uint32[n], int64[n], bool[n]."""

    sensor: Sensors
    step: Ints
    above: Flags

    def take(self, which: Flags | Ints | slice) -> QueryReadings:
        """Return some of the readings: by a mask, by positions or by a slice."""
        return QueryReadings(self.sensor[which], self.step[which], self.above[which])

    @staticmethod
    def concatenate(parts: Sequence[QueryReadings]) -> QueryReadings:
        """Return the readings of all parts, one after the other."""
        if not parts:
            return QueryReadings(np.zeros(0, np.uint32), np.zeros(0, np.int64), np.zeros(0, np.bool_))
        return QueryReadings(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


class QueryAnswers(NamedTuple):
    """Answers for each reading: int64[n], int64[n], float64[n]."""

    q1: Ints
    q2: Ints
    q3: Floats

    def take(self, which: Flags | Ints | slice) -> QueryAnswers:
        """Return the answers for some of the readings: by a mask, by positions or by a slice."""
        return QueryAnswers(self.q1[which], self.q2[which], self.q3[which])


def span_steps(range_s: float, slide_us: int) -> int:
    """Return how many steps a minute has: step j counts at step k iff k - span < j <= k, which is (t - range, t]."""
    range_us = round(range_s * 1_000_000)
    return max(1, -(-range_us // slide_us))


def above_threshold(mean: Floats, threshold: Floats) -> Flags:
    """Return bool[n]: mean > threshold; a threshold of NaN is never exceeded."""
    return np.asarray(mean > threshold, dtype=np.bool_)


def count_minute(new: QueryReadings, expiring: QueryReadings, count: Ints, above: Ints, span: int) -> QueryAnswers:
    """Answer q1..q3 for new readings.

    Args:
        new: readings to answer, in any order, at most one of a sensor in a step, all later than those in `count`.
        expiring: the readings in `count` that may leave the minute while `new` is answered; more do no harm.
        count, above: int64[sensors], readings in the minute before `new`, and those of them above the threshold.
        span: number of steps in a minute.
    """
    if not len(new.sensor):
        nothing = np.zeros(0, dtype=np.int64)
        return QueryAnswers(nothing, nothing, np.zeros(0))
    # Groups are at different steps, so expiring readings of one may be newer than all new readings of another.
    steps = np.concatenate((new.step, expiring.step))
    base = int(steps.min())
    width = int(steps.max()) - base + 2  # one value below `base` stands for "before all"
    order = block_order(new.sensor, new.step)
    sensor, step = new.sensor[order], new.step[order]
    least = sensor.astype(np.int64) * width
    key = least + (step - base + 1)
    gone_key = least + np.maximum(step - span - base + 1, 0)
    rank = np.arange(len(key))
    fresh = np.concatenate(([True], sensor[1:] != sensor[:-1]))
    first = np.maximum.accumulate(np.where(fresh, rank, 0))
    passed = np.concatenate(([0], np.cumsum(new.above[order])))
    gone = np.searchsorted(key, gone_key, side="right")
    q1 = count[sensor] + (rank + 1 - first) - (gone - first)
    q2 = above[sensor] + (passed[rank + 1] - passed[first]) - (passed[gone] - passed[first])
    if len(expiring.sensor):
        old_key = expiring.sensor.astype(np.int64) * width + (expiring.step - base + 1)
        old_order = np.argsort(old_key, kind="stable")
        old_key = old_key[old_order]
        old_passed = np.concatenate(([0], np.cumsum(expiring.above[old_order])))
        old_first = np.searchsorted(old_key, least)
        old_gone = np.searchsorted(old_key, gone_key, side="right")
        q1 -= old_gone - old_first
        q2 -= old_passed[old_gone] - old_passed[old_first]
    back = np.empty_like(order)
    back[order] = rank
    q1, q2 = q1[back], q2[back]
    return QueryAnswers(q1, q2, q2 / q1)


def shift_counts(
    count: Ints, above: Ints, new: QueryReadings, expired: QueryReadings, last_step: Ints, span: int
) -> tuple[Ints, Ints, Flags]:
    """Move the counts on to the last delivered step of each sensor.

    Args:
        expired: exactly the old readings that have left the minute.
        last_step: int64[sensors], the last delivered step of each sensor's group.

    Returns:
        (count, above, which of `new` are still in the minute).
    """
    size = len(count)
    alive = new.step > last_step[new.sensor] - span
    moved = count.copy()
    moved += np.bincount(new.sensor[alive], minlength=size).astype(np.int64)
    moved -= np.bincount(expired.sensor, minlength=size).astype(np.int64)
    moved_above = above.copy()
    moved_above += np.bincount(new.sensor[alive & new.above], minlength=size).astype(np.int64)
    moved_above -= np.bincount(expired.sensor[expired.above], minlength=size).astype(np.int64)
    return moved, moved_above, np.asarray(alive, dtype=np.bool_)
