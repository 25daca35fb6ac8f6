"""Plans by marginal gain: buy the block that saves most beyond its price, again and again, until none saves anything.

The price of lateness is convex in a slot's capacity, so a block saves less the more is bought beside it. The greedy
order is therefore close to the optimum of the program, and takes a fraction of a millisecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tsunagi.runtime.columns import Floats

SWITCH_COST = 0.02
"""Price of a launch beside its block, as a share of the block's price: of two equal plans the one that keeps running
workers is taken."""
_MOST = 1000
"""Most blocks that one plan buys; it only guards against an endless loop."""


@dataclass(frozen=True, slots=True)
class Prices:
    """The price of lateness: piecewise linear in a slot's capacity, at the same multiples of a unit in every slot.

    Attributes:
        unit: (slots,) the unit, in tuples/s.
        shift: (slots,) tuples/s that are needed in addition, for a backlog.
        multiples: (points,) multiples of the unit, increasing.
        price: (slots, points) prices, convex and not increasing.
    """

    unit: Floats
    shift: Floats
    multiples: Floats
    price: Floats

    def __call__(self, capacity: Floats) -> Floats:
        """Return the price in each slot for a capacity, (slots,)."""
        # Not np.clip, which is slower: this is called for every block that might be bought.
        multiple = (capacity - self.shift) / self.unit
        multiple = np.minimum(np.maximum(multiple, self.multiples[0]), self.multiples[-1])
        right = np.minimum(np.maximum(np.searchsorted(self.multiples, multiple), 1), len(self.multiples) - 1)
        left = right - 1
        share = (multiple - self.multiples[left]) / (self.multiples[right] - self.multiples[left])
        slot = np.arange(len(capacity))
        return np.asarray(self.price[slot, left] * (1 - share) + self.price[slot, right] * share)


@dataclass(frozen=True, slots=True)
class Offer:
    """Blocks of one type that can be bought.

    Attributes:
        rate: tuples/s of one worker.
        cost: price of a block.
        boots: number of slots in which a launched worker boots.
        first: share of the last of these slots in which it is ready.
        free: most blocks that can be launched; a large number means any number.
        renewals: (slots,) number of workers whose block ends at the start of a slot; their next block needs no boot.
    """

    rate: float
    cost: float
    boots: int
    first: float
    free: int
    renewals: Floats


def plan(prices: Prices, capacity: Floats, offers: Sequence[Offer], block: int) -> list[int]:
    """Return how many blocks of each offer begin in the first slot, with the renewals among them.

    Args:
        capacity: (slots,) tuples/s that are there without buying anything.
        block: number of slots that a block lasts.
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
            gain = np.maximum(launch, renew) - 1e-9 * offer.cost * start  # of equal gains the first slot is taken
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
