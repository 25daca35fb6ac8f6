"""The lag guard's reckoning: how much capacity to launch now, for a queue that is there.

A rate above the forecast either stays or goes back to what was forecast; how often it stays is learnt (`persistence`).
For each amount that could be launched both are played through: workers are there after the boot, and what is late until
a slot later has its price. Covering the mean of the two would be wrong in both: too little to drain the queue if the
rate stays, and of no use if it goes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tsunagi.runtime.columns import Floats

AMOUNTS = 12
"""Amounts that are compared, up to what drains the queue within a slot."""


@dataclass(frozen=True, slots=True)
class Queue:
    """What waits, and what is to be done about it. Times are seconds from now.

    Attributes:
        waiting: tuples.
        ready: (n, 2) rows of (time, tuples/s): capacity that is there or comes without our doing, now in the first row.
        slo_s: longest delay promised.
        boot_s: from launch to ready; span_s: time after that for which lateness counts.
        step_s: of the reckoning.
    """

    waiting: float
    ready: Floats
    slo_s: float
    boot_s: float
    span_s: float
    step_s: float

    def late(self, rate: float, more: Floats) -> Floats:
        """Return the tuples that come too late at a rate, for each amount of capacity launched now."""
        steps = max(1, round((self.boot_s + self.span_s) / self.step_s))
        waiting, late = np.full(len(more), self.waiting), np.zeros(len(more))
        for step in range(steps):
            now_s = step * self.step_s
            there = float(self.ready[self.ready[:, 0] <= now_s, 1].sum())
            capacity = there + more * (now_s >= self.boot_s)
            waiting = np.maximum(waiting + (rate - capacity) * self.step_s, 0.0)
            late += (waiting > self.slo_s * capacity) * rate * self.step_s
        return late

    def amounts(self, near: float) -> Floats:
        """Return amounts to compare, 0 first: up to what carries the rate and drains the queue in `span_s`."""
        most = near + (self.waiting + near * self.boot_s) / self.span_s - float(self.ready[:, 1].sum())
        return np.linspace(0.0, max(most, 0.0), AMOUNTS + 1)


def expected_late(queue: Queue, near: float, said: float, stays: float, more: Floats) -> Floats:
    """Return the tuples expected too late for each amount.

    Args:
        near: the rate now; said: as forecast; stays: probability that it stays, 0..1.
    """
    return stays * queue.late(near, more) + (1.0 - stays) * queue.late(said, more)
