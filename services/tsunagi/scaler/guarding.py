"""The calculation of the lag guard: how much capacity to launch at once for a queue that has built up.

A rate above the forecast either stays or goes back to the forecast; how often it stays is learnt (`persistence`). For
each amount of capacity that could be launched both cases are computed: workers are ready after the boot, and what is
late until one slot later has its price. To plan for the mean of both cases would be wrong in each: it is too little to
drain the queue if the rate stays, and useless if the rate goes back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tsunagi.runtime.columns import Floats

AMOUNTS = 12
"""Number of amounts of capacity that are compared; the largest one drains the queue within a slot."""


@dataclass(frozen=True, slots=True)
class Queue:
    """The tuples that wait, and the capacity for them. Times are seconds from now.

    Attributes:
        waiting: number of tuples that wait.
        ready: (n, 2) rows of (time, tuples/s): capacity that is there or will be without a launch; the first row is
            now.
        slo_s: longest delay that is promised.
        boot_s: time from a launch to a ready worker; span_s: time after that for which lateness counts.
        step_s: length of a step of the calculation.
    """

    waiting: float
    ready: Floats
    slo_s: float
    boot_s: float
    span_s: float
    step_s: float

    def late(self, rate: float, more: Floats) -> Floats:
        """Return the number of tuples that are late at a rate, for each amount of capacity that is launched now."""
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
        """Return amounts to compare, from 0 up to the one that carries `near` and drains the queue in `span_s`."""
        most = near + (self.waiting + near * self.boot_s) / self.span_s - float(self.ready[:, 1].sum())
        return np.linspace(0.0, max(most, 0.0), AMOUNTS + 1)


def expected_late(queue: Queue, near: float, said: float, stays: float, more: Floats) -> Floats:
    """Return the number of tuples expected to be late for each amount of capacity.

    Args:
        near: the rate now; said: the rate that was forecast; stays: probability that the rate stays, 0..1.
    """
    return stays * queue.late(near, more) + (1.0 - stays) * queue.late(said, more)
