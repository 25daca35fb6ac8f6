"""Plans by marginal worth: buy the block that saves most beyond its price, again and again, until none does.

The price of lateness is convex in a slot's capacity, so what a block saves shrinks with all that is bought beside it:
the greedy order is near the program's optimum, and takes a fraction of a millisecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tsunagi.runtime.columns import Floats

SWITCH_COST = 0.02
"""Price of a launch beside its block, in blocks, so that of equal plans the one that keeps what runs is taken."""
_MOST = 1000


@dataclass(frozen=True, slots=True)
class Prices:
    """What lateness costs: piecewise linear in a slot's capacity, at the same multiples of a unit in every slot.

    Attributes:
        unit: (slots,) tuples/s.
        shift: (slots,) tuples/s that are needed besides (a backlog).
        multiples: (points,) increasing.
        price: (slots, points) convex and not increasing.
    """

    unit: Floats
    shift: Floats
    multiples: Floats
    price: Floats

    def __call__(self, capacity: Floats) -> Floats:
        """Return the price in each slot, (slots,)."""
        # Not by np.clip, which takes longer: this is asked for every block that might be bought.
        multiple = (capacity - self.shift) / self.unit
        multiple = np.minimum(np.maximum(multiple, self.multiples[0]), self.multiples[-1])
        right = np.minimum(np.maximum(np.searchsorted(self.multiples, multiple), 1), len(self.multiples) - 1)
        left = right - 1
        share = (multiple - self.multiples[left]) / (self.multiples[right] - self.multiples[left])
        slot = np.arange(len(capacity))
        return np.asarray(self.price[slot, left] * (1 - share) + self.price[slot, right] * share)


@dataclass(frozen=True, slots=True)
class Offer:
    """Blocks that can be bought.

    Attributes:
        rate: tuples/s.
        cost: price of a block.
        boots: slots in which a launched one boots.
        first: share of the last of them in which it is ready.
        free: blocks at most; a large number = any.
        renewals: (slots,) workers whose block ends at the start of a slot: their next one needs no boot.
    """

    rate: float
    cost: float
    boots: int
    first: float
    free: int
    renewals: Floats


def plan(prices: Prices, capacity: Floats, offers: Sequence[Offer], block: int) -> list[int]:
    """Return how many blocks of each offer begin in the first slot, renewals among them.

    Args:
        capacity: (slots,) tuples/s of what is there anyway.
        block: slots that a block lasts.
    """
    slots = len(capacity)
    capacity = capacity.copy()
    bought = [0] * len(offers)
    free = [offer.free for offer in offers]
    renewals = [offer.renewals.copy() for offer in offers]
    start = np.arange(slots)
    end = np.minimum(start + block, slots)
    within = (end - start) / block
    for _ in range(_MOST):
        now = prices(capacity)
        best, choice = 1e-9, None
        for i, offer in enumerate(offers):
            if not free[i]:
                continue
            saved = np.concatenate(([0.0], np.cumsum(now - prices(capacity + offer.rate))))
            ready = np.minimum(start + offer.boots, end)
            part = offer.first * (saved[ready] - saved[np.maximum(ready - 1, 0)])
            launch = saved[end] - saved[ready] + part - (1.0 + SWITCH_COST) * offer.cost * within
            renew = np.where(renewals[i] > 0, saved[end] - saved[start] - offer.cost * within, -np.inf)
            gain = np.maximum(launch, renew) - 1e-9 * offer.cost * start  # of equal ones the first
            at = int(gain.argmax())
            if gain[at] > best:
                best, choice = float(gain[at]), (i, at, bool(renew[at] >= launch[at]))
        if choice is None:
            break
        i, at, renewed = choice
        offer = offers[i]
        if renewed:
            renewals[i][at] -= 1
            capacity[at : at + block] += offer.rate
        else:
            first = at + offer.boots
            capacity[first : at + block] += offer.rate
            capacity[first - 1 : first] += offer.rate * offer.first
        if at + block < slots:
            renewals[i][at + block] += 1
        free[i] -= not renewed
        bought[i] += at == 0
    return bought
