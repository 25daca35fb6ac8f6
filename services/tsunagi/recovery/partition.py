"""Which sensors are recovered together: the split of a fleet into slots of equal size.

Takao, Sugiura, Ishikawa, Lu, DEIM 2023, section 4.1. A slot recovers a dead edge's sensors from its other sensors, so
strongly correlated sensors of *different* edges belong into one slot: equation (12) sums their squared correlations.
The paper's greedy (figure 3) maximises it one sensor at a time, the slots in turn, and every slot ends with what the
others left. `partition` fills one slot after the other, and then exchanges sensors for as long as that helps.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from tsunagi.recovery.numbering import numbered
from tsunagi.runtime.columns import Floats

Slots = npt.NDArray[np.intp]

ROUNDS = 12
"""Rounds of exchanges at most."""
LEAST_GAIN = 1e-3
"""A round that gains a smaller share of the objective is the last."""
NEIGHBOURS = 5
"""Slots that are grown anew together."""
TINY = 1e-12
"""A gain that may be rounding."""
TILE = 256
"""Rows and columns of a matrix that are mirrored at once, so that both places of a pair are in the cache."""


class PartitionError(ValueError):
    """The arguments do not fit together; the message says what was found and what was expected."""


def partition(
    correlation: npt.ArrayLike,
    edge_of: Sequence[Hashable] | npt.NDArray[np.generic],
    slots: int,
) -> Slots:
    """Split n sensors over slots whose sizes differ by at most one: equation (12), by growth and exchanges.

    Args:
        correlation: float64[n, n].
        edge_of: each sensor's edge, length n, anything that can be compared for equality.
        slots: how many.

    Returns:
        intp[n]: each sensor's slot. The same arguments give the same slots.

    Raises:
        PartitionError: naming the argument.
    """
    matrix, edges = checked(correlation, edge_of, slots)
    if slots == 1:
        return np.zeros(len(matrix), dtype=np.intp)
    weights = pair_weights(matrix, edges)
    return _refined(weights, greedy_split(weights, np.diag(matrix), slots), slots)


def objective(
    correlation: npt.ArrayLike, edge_of: Sequence[Hashable] | npt.NDArray[np.generic], slot_of: npt.ArrayLike
) -> float:
    """Return equation (12), summed over the slots: squared correlations of sensors of one slot and different edges.

    Raises:
        PartitionError: the arguments do not fit together.
    """
    matrix, edges = checked(correlation, edge_of)
    of = np.asarray(slot_of)
    if of.shape != (len(matrix),):
        raise PartitionError(f"objective: slot_of: found shape {of.shape}, expected ({len(matrix)},)")
    total = 0.0
    for slot in np.unique(of):
        members = np.flatnonzero(of == slot)
        block = np.square(matrix[np.ix_(members, members)])
        block[edges[members][:, None] == edges[members]] = 0.0
        total += float(block.sum()) / 2
    return total


def checked(
    correlation: npt.ArrayLike, edge_of: Sequence[Hashable] | npt.NDArray[np.generic], slots: int = 1
) -> tuple[Floats, npt.NDArray[np.intp]]:
    """Return the matrix and the edges as numbers.

    Raises:
        PartitionError: naming the argument that does not fit the others.
    """
    matrix = np.asarray(correlation, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise PartitionError(f"correlation: found shape {matrix.shape}, expected (n, n)")
    if not np.isfinite(np.sum(matrix)):
        raise PartitionError("correlation: found NaN or infinity, expected finite numbers")
    if _asymmetry(matrix) > 1e-9 * max(1.0, float(matrix.max())):
        raise PartitionError("correlation: found an asymmetric matrix, expected a symmetric one")
    if len(edge_of) != len(matrix):
        raise PartitionError(f"edge_of: found {len(edge_of)} edges for {len(matrix)} sensors")
    if not 1 <= slots <= len(matrix):
        raise PartitionError(f"partition: slots: found {slots}, expected 1 to the number of sensors, {len(matrix)}")
    return matrix, numbered(edge_of.tolist() if isinstance(edge_of, np.ndarray) else edge_of)[0]


def _asymmetry(matrix: Floats) -> float:
    """Return the greatest difference across the diagonal, tile by tile, since a transposed walk misses every cache."""
    worst = 0.0
    for row in range(0, len(matrix), TILE):
        for column in range(row, len(matrix), TILE):
            upper = matrix[row : row + TILE, column : column + TILE]
            lower = matrix[column : column + TILE, row : row + TILE]
            worst = max(worst, float(np.abs(upper - lower.T).max()))
    return worst


def pair_weights(matrix: Floats, edges: npt.NDArray[np.intp]) -> Floats:
    """Return R squared, zero between sensors of one edge (and on the diagonal): what a pair in one slot is worth."""
    weights = np.square(matrix)
    by_edge = np.argsort(edges, kind="stable")
    for members in np.split(by_edge, np.flatnonzero(np.diff(edges[by_edge])) + 1):
        weights[np.ix_(members, members)] = 0.0
    return weights


def first_sensors(variances: Floats, slots: int) -> npt.NDArray[np.intp]:
    """Return the sensors that the slots start from: the greatest variances (figure 3, lines 1-4), first come first."""
    return np.argsort(-variances, kind="stable")[:slots]


def greedy_split(weights: Floats, variances: Floats, slots: int) -> Slots:
    """Figure 3 with equation (12): slots take turns to take the free sensor that adds most to them."""
    n = len(weights)
    slot_of = np.full(n, -1, dtype=np.intp)
    starts = first_sensors(variances, slots)
    slot_of[starts] = np.arange(slots)
    gain = weights[starts].copy()  # float64[slots, n]: what a sensor would add to a slot; taken ones are no candidates
    gain[:, starts] = -np.inf
    for turn in range(slots, n):
        slot = turn % slots
        row = gain[slot]
        best = int(row.argmax())
        slot_of[best] = slot
        gain[:, best] = -np.inf
        row += weights[best]
    return slot_of


def _refined(weights: Floats, greedy: Slots, slots: int) -> Slots:
    """Return the best of two grown splits, each improved by exchanges, and then neighbourhoods of it grown anew.

    What the greedy gives is the third: it is never the best of a large field, but of a handful of sensors it may be.
    """
    sizes = [len(greedy) // slots + (slot < len(greedy) % slots) for slot in range(slots)]
    splits = [_Split(weights, _grow(weights, sizes, by_share=by_share), slots) for by_share in (False, True)]
    for split in splits:
        split.exchange()
    best = max(*splits, _Split(weights, greedy, slots), key=_Split.value)  # the first of equals
    if slots > NEIGHBOURS:
        best.grow_anew()
    best.exchange()
    return best.of


def _grow(weights: Floats, sizes: list[int], *, by_share: bool) -> Slots:
    """Fill one slot after the other, from the outside of the field inwards, so that no remnants are left between.

    A slot starts from the sensor that the free ones tell least of (`by_share`: least, as a share of what all did: next
    to what is taken already), and takes the sensor that adds most until it is full.
    """
    n = len(weights)
    slot_of = np.full(n, -1, dtype=np.intp)
    free = np.ones(n, dtype=bool)
    among_all = weights.sum(axis=0)
    among_free = among_all.copy()
    for slot, size in enumerate(sizes):
        tells = among_free / (among_all + TINY) if by_share else among_free
        sensor = int(np.where(free, tells, np.inf).argmin())
        gain = np.where(free, 0.0, -np.inf)
        for place in range(size):
            if place:
                sensor = int(gain.argmax())
            slot_of[sensor] = slot
            free[sensor] = False
            among_free -= weights[sensor]
            gain += weights[sensor]
            gain[sensor] = -np.inf
    return slot_of


class _Split:
    """A split that is improved by exchanges which keep every slot's size.

    Attributes:
        of: intp[n], each sensor's slot.
        members: each slot's sensors.
        worth: float64[slots, n]: the weights between a sensor and a slot's sensors, summed.
    """

    def __init__(self, weights: Floats, of: Slots, slots: int) -> None:
        self._weights = weights
        self.of = of
        by_slot = np.argsort(of, kind="stable")
        bounds = np.searchsorted(of[by_slot], np.arange(slots + 1))
        self.members = [by_slot[first:end].copy() for first, end in pairwise(bounds)]
        self.worth = np.stack([weights[group].sum(axis=0) for group in self.members])

    def value(self) -> float:
        """Return equation (12), summed over the slots."""
        return float(self.worth[self.of, np.arange(len(self.of))].sum()) / 2

    def exchange(self) -> None:
        """Take turns with the two kinds of exchange until they gain nearly nothing."""
        least = LEAST_GAIN * self.value()
        for _ in range(ROUNDS):
            if self._rotations() + self._swaps() <= least:
                break

    def _rotations(self) -> float:
        """Take one sensor out of every slot, the loosest, then the second loosest, ...; return what it gained.

        To put them back the best way is an assignment problem, since each slot gets one back: cycles over many slots
        are found at once.
        """
        weights, worth = self._weights, self.worth
        gained = 0.0
        every = np.arange(len(self.members))
        ranked = [np.argsort(worth[slot, group], kind="stable") for slot, group in enumerate(self.members)]
        for rank in range(max(len(group) for group in self.members)):
            # Slots of one sensor less offer their first again when they are through.
            place = [int(order[rank % len(order)]) for order in ranked]
            out = np.array([group[i] for group, i in zip(self.members, place, strict=True)])
            value = worth[:, out].T - weights[np.ix_(out, out)]  # [sensor, slot]: with the slot's own sensor gone
            _, to = linear_sum_assignment(value, maximize=True)
            gain = float(value[every, to].sum() - np.diag(value).sum())
            if gain <= TINY:
                continue
            gained += gain
            moved = np.flatnonzero(to != every)
            worth[to[moved]] += weights[out[moved]]
            worth[moved] -= weights[out[moved]]
            self.of[out[moved]] = to[moved]
            for sensor, slot in zip(out[moved].tolist(), to[moved].tolist(), strict=True):
                self.members[slot][place[slot]] = sensor
        return gained

    def _swaps(self) -> float:
        """Swap the best two sensors of two slots for as long as that gains; return what it gained.

        What a swap may gain at most, for each two slots, is cheap to tell (what two sensors lose by each other's
        leaving is left out), and most pairs are dismissed by it.
        """
        gained = 0.0
        starts = np.concatenate([[0], np.cumsum([len(group) for group in self.members])[:-1]])
        while True:
            order = np.concatenate(self.members)
            leaving = self.worth[:, order] - self.worth[self.of[order], order]
            most = np.maximum.reduceat(leaving, starts, axis=1)  # [to, from]
            bound = np.triu(most + most.T, 1)
            first, second = np.nonzero(bound > TINY)
            by_bound = np.argsort(-bound[first, second], kind="stable")
            round_gained = sum(
                self._swap(one, other)
                for one, other in zip(first[by_bound].tolist(), second[by_bound].tolist(), strict=True)
            )
            gained += round_gained
            if round_gained <= TINY:
                return gained

    def _swap(self, one: int, other: int) -> float:
        """Swap sensors of two slots for as long as that gains; return what it gained."""
        weights, worth = self._weights, self.worth
        mine, theirs = self.members[one], self.members[other]
        gained = 0.0
        while True:
            leaving, coming = worth[other, mine] - worth[one, mine], worth[one, theirs] - worth[other, theirs]
            if float(leaving.max() + coming.max()) <= TINY:
                return gained
            gain = leaving[:, None] + coming - 2.0 * weights[np.ix_(mine, theirs)]
            i, j = divmod(int(gain.argmax()), len(theirs))
            if gain[i, j] <= TINY:
                return gained
            gained += float(gain[i, j])
            change = weights[mine[i]] - weights[theirs[j]]
            worth[other] += change
            worth[one] -= change
            mine[i], theirs[j] = theirs[j], mine[i]
            self.of[mine[i]], self.of[theirs[j]] = one, other

    def grow_anew(self) -> None:
        """Grow each slot and its nearest ones anew, and keep what is better: the way out of a local optimum."""
        for slot in range(len(self.members)):
            near = np.array([self.worth[slot, group].sum() for group in self.members])
            near[slot] = np.inf
            slots = np.argsort(-near, kind="stable")[:NEIGHBOURS]
            if near[slots[-1]] <= TINY:
                continue
            sensors = np.concatenate([self.members[place] for place in slots])
            block = self._weights[np.ix_(sensors, sensors)]
            sizes = [len(self.members[place]) for place in slots]
            old = _Split(block, np.repeat(np.arange(NEIGHBOURS), sizes), NEIGHBOURS)
            new = _Split(block, _grow(block, sizes, by_share=slot % 2 == 1), NEIGHBOURS)
            new.exchange()
            if new.value() <= old.value() + TINY:
                continue
            for place, group in zip(slots.tolist(), new.members, strict=True):
                self.members[place] = sensors[group]
                self.of[sensors[group]] = place
                self.worth[place] = self._weights[sensors[group]].sum(axis=0)
