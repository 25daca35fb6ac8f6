"""A fluid first-in first-out queue: what waits, what is late, and the least capacity that keeps a delay.

Arrivals and capacity are constant within a step; with that assumption the results are exact.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tsunagi.runtime.columns import Floats


def backlogs(rates: Floats, capacity: Floats, step_s: float, first: float = 0.0) -> Floats:
    """Return the number of tuples that wait at the end of each step (Lindley's recursion).

    Args:
        rates: tuples/s that arrive in each step.
        capacity: tuples/s that can be processed in each step.
        first: number of tuples that wait at the start.
    """
    free = np.cumsum((rates - capacity) * step_s)
    return np.asarray(free - np.minimum(np.minimum.accumulate(free), -first))


def late_tuples(rates: Floats, capacity: Floats, step_s: float, slo_s: float) -> Floats:
    """Return how many of the tuples that arrive in each step wait longer than `slo_s`; the last capacity goes on.

    A tuple that arrives at t is late if fewer tuples are processed by t + slo_s than have arrived by t.
    """
    steps = len(rates)
    beyond = int(np.ceil(slo_s / step_s)) + 1
    all_rates = np.concatenate((rates, np.zeros(beyond)))
    all_capacity = np.concatenate((capacity, np.full(beyond, capacity[-1])))
    time = np.arange(len(all_rates) + 1) * step_s
    arrived = np.concatenate(([0.0], np.cumsum(all_rates) * step_s))
    waiting = np.concatenate(([0.0], backlogs(all_rates, all_capacity, step_s)))
    # The queue may become empty within a step; the curve of processed tuples bends there.
    spare = all_capacity - all_rates
    empties = (waiting[:-1] > 0) & (spare * step_s > waiting[:-1])
    after = np.where(empties, waiting[:-1] / np.where(empties, spare, 1.0), 0.0)
    bends = time[:-1][empties] + after[empties]
    bend_done = (arrived[:-1] + all_rates * after)[empties]
    order = np.argsort(np.concatenate((time, bends)), kind="stable")
    done_time = np.concatenate((time, bends))[order]
    done = np.concatenate((arrived - waiting, bend_done))[order]
    # Both curves are straight between two of these moments, so the excess changes its sign at most once.
    edges = np.unique(np.concatenate((time[: steps + 1], done_time - slo_s)))
    edges = edges[(edges >= 0) & (edges <= steps * step_s)]
    excess = np.interp(edges, time, arrived) - np.interp(edges + slo_s, done_time, done)
    excess[np.abs(excess) < 1e-6] = 0.0
    low, high = excess[:-1], excess[1:]
    top, bottom = np.maximum(low, high), np.minimum(low, high)
    share = np.where(bottom >= 0, top > 0, top / np.where(top > bottom, top - bottom, 1.0)).clip(0.0, 1.0)
    step = np.minimum((0.5 * (edges[:-1] + edges[1:]) / step_s).astype(np.int64), steps - 1)
    late = np.bincount(step, weights=share * np.diff(edges) * rates[step], minlength=steps)
    return np.asarray(late)


def effective_rate(rates: Floats, step_s: float, slo_s: float, waiting: float = 0.0) -> float:
    """Return the SLO-effective rate: the least constant capacity with which no tuple takes longer than `slo_s`.

    With a constant capacity c, the tuple that arrives at t waits for the maximum over s <= t of (A(t) - A(s)) / c - (t
    - s), where A(t) is the number of tuples that have arrived by t. So c is the maximum over s < t of (A(t) - A(s)) /
    (t - s + slo_s). A is straight within a step, and the quotient is monotone where either variable moves along a
    straight piece: the ends of the steps are enough.

    Args:
        rates: tuples/s in each step, oldest first.
        waiting: number of tuples that wait at the start; they must be processed within `slo_s` too.
    """
    arrived = np.concatenate(([0.0], np.cumsum(rates) * step_s + waiting))
    start, end = _pairs(len(arrived))
    best = ((arrived[end] - arrived[start]) / ((end - start) * step_s + slo_s)).max(initial=waiting / slo_s)
    return float(best)


@lru_cache(maxsize=16)
def _pairs(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    start, end = np.triu_indices(count, 1)
    return start, end
