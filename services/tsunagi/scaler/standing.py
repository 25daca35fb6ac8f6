"""The capacity of the next slots without buying anything: local workers, and the paid blocks of other workers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tsunagi.runtime.columns import Floats
from tsunagi.scaler.policy import NEVER, PolicyView, WorkerType


def standing(
    view: PolicyView, types: Sequence[WorkerType], rates: Mapping[str, float], slot_s: float, slots: int
) -> tuple[Floats, Floats]:
    """Return (slots,) tuples/s that are paid already, and (types, slots) numbers of workers whose block ends then.

    The part of a slot in which a worker boots does not count. Nor does what a worker could do after its block, since
    that must be renewed first.
    """
    capacity = np.full(slots, view.local_rate)
    ends = np.zeros((len(types), slots))
    place = {kind.name: i for i, kind in enumerate(types)}
    for worker in view.workers:
        rate = rates[worker.type]
        ready = (worker.ready_s - view.now_s) / slot_s
        end = max(0.0, (min(worker.paid_s, worker.stop_s) - view.drain_s - view.now_s) / slot_s)
        last = min(slots, math.floor(end + 1e-6))
        capacity[:last] += rate * np.clip(np.arange(1, last + 1) - ready, 0.0, 1.0)
        if last == slots:
            continue
        capacity[last] += rate * (end - last)
        if worker.stop_s == NEVER:
            ends[place[worker.type], last] += 1
    return capacity, ends
