"""Decides which sensors are recovered together: splits a fleet into slots of equal size.

Takao, Sugiura, Ishikawa, Lu, DEIM 2023, section 4.1. A slot recovers a dead edge's sensors from its other sensors, so
strongly correlated sensors of *different* edges belong into one slot; equation (12) is the sum of their squared
correlations. The paper's greedy method (figure 3) maximises it one sensor at a time, slot by slot in turn, and every
slot ends with what the others left. `partition` fills one slot after the other, and then exchanges sensors as long as
that helps.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from tsunagi.recovery.low_rank import LowRank
from tsunagi.recovery.numbering import numbered
from tsunagi.runtime.columns import Floats

Slots = npt.NDArray[np.intp]
Weights = npt.NDArray[np.float64] | npt.NDArray[np.float32]
"""[n, n]: what each pair of sensors is worth in one slot. Sums are float64: rounding must look like no gain."""

ROUNDS = 12
"""Most rounds of exchanges."""
LEAST_GAIN = 1e-3
"""A round that gains less than this share of the objective is the last one."""
NEIGHBOURS = 5
"""Number of slots that are filled again together."""
TINY = 1e-12
"""A gain below this may be a rounding error, and counts as none."""
TILE = 256
"""Rows and columns of a matrix that are compared with their mirror image at once, so that both are in the cache."""


class PartitionError(ValueError):
    """The arguments do not fit together. The message says what was found and what was expected."""


def partition(
    correlation: npt.ArrayLike,
    edge_of: Sequence[Hashable] | npt.NDArray[np.generic],
    slots: int,
) -> Slots:
    """Split n sensors over slots whose sizes differ by at most one: equation (12), by growth and exchanges.

    Args:
        correlation: float64[n, n].
        edge_of: the edge of each sensor, length n; anything that can be compared for equality.
        slots: number of slots.

    Returns:
        intp[n], the slot of each sensor. The same arguments give the same slots.

    Raises:
        PartitionError: an argument is wrong; the message names it.
    """
    matrix, edges = checked(correlation, edge_of, slots)
    if slots == 1:
        return np.zeros(len(matrix), dtype=np.intp)
    weights = pair_weights(matrix, edges)
    return _refined(weights, greedy_split(weights, np.diag(matrix), slots), slots)


def partition_by_causes(
    covariance: LowRank, edge_of: Sequence[Hashable] | npt.NDArray[np.generic], slots: int
) -> Slots:
    """Split n sensors whose covariance is of low rank, as `partition` does.

    No matrix of the covariance is made; the worth of pairs is kept as float32[n, n] (1.6 GB for 20,000 sensors).

    Args:
        covariance: of n sensors, in any units.
        edge_of, slots: as for `partition`.

    Raises:
        PartitionError: an argument is wrong; the message names it.
    """
    edges = _checked_edges(edge_of, len(covariance), slots)
    if slots == 1:
        return np.zeros(len(covariance), dtype=np.intp)
    size = np.sqrt(covariance.variances)
    loadings = (covariance.loadings / size[:, None]).astype(np.float32)
    weights = np.empty((len(loadings), len(loadings)), dtype=np.float32)
    for row in range(0, len(loadings), TILE):
        np.square(loadings[row : row + TILE] @ loadings.T, out=weights[row : row + TILE])
    _leave_out_edges(weights, edges)
    return _refined(weights, greedy_split(weights, np.ones(len(loadings)), slots), slots)


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
    return matrix, _checked_edges(edge_of, len(matrix), slots)


def _checked_edges(
    edge_of: Sequence[Hashable] | npt.NDArray[np.generic], sensors: int, slots: int
) -> npt.NDArray[np.intp]:
    if len(edge_of) != sensors:
        raise PartitionError(f"edge_of: found {len(edge_of)} edges for {sensors} sensors")
    if not 1 <= slots <= sensors:
        raise PartitionError(f"partition: slots: found {slots}, expected 1 to the number of sensors, {sensors}")
    return numbered(edge_of.tolist() if isinstance(edge_of, np.ndarray) else edge_of)[0]


def _asymmetry(matrix: Floats) -> float:
    """Return the greatest difference across the diagonal; it goes tile by tile to use the cache."""
    worst = 0.0
    for row in range(0, len(matrix), TILE):
        for column in range(row, len(matrix), TILE):
            upper = matrix[row : row + TILE, column : column + TILE]
            lower = matrix[column : column + TILE, row : row + TILE]
            worst = max(worst, float(np.abs(upper - lower.T).max()))
    return worst


def pair_weights(matrix: Floats, edges: npt.NDArray[np.intp]) -> Floats:
    """Return R squared, with zeros between sensors of one edge and on the diagonal: the worth of a pair in one slot."""
    weights = np.square(matrix)
    _leave_out_edges(weights, edges)
    return weights


def _leave_out_edges(weights: Weights, edges: npt.NDArray[np.intp]) -> None:
    """Let pairs of sensors of one edge be worth nothing."""
    by_edge = np.argsort(edges, kind="stable")
    for members in np.split(by_edge, np.flatnonzero(np.diff(edges[by_edge])) + 1):
        weights[np.ix_(members, members)] = 0.0


def first_sensors(variances: Floats, slots: int) -> npt.NDArray[np.intp]:
    """Return the first sensor of each slot: the greatest variances (figure 3, lines 1-4), of equal ones the first."""
    return np.argsort(-variances, kind="stable")[:slots]


def greedy_split(weights: Weights, variances: Floats, slots: int) -> Slots:
    """Figure 3 with equation (12): in turn, each slot takes the free sensor that adds most to it."""
    n = len(weights)
    slot_of = np.full(n, -1, dtype=np.intp)
    starts = first_sensors(variances, slots)
    slot_of[starts] = np.arange(slots)
    gain = weights[starts].astype(np.float64)  # [slots, n]: what a sensor would add to a slot; -inf if it is taken
    gain[:, starts] = -np.inf
    for turn in range(slots, n):
        slot = turn % slots
        row = gain[slot]
        best = int(row.argmax())
        slot_of[best] = slot
        gain[:, best] = -np.inf
        row += weights[best]
    return slot_of


def _refined(weights: Weights, greedy: Slots, slots: int) -> Slots:
    """Return the best of two grown splits, each improved by exchanges, and then with neighbouring slots filled again.

    The greedy split is the third: it is never the best for a large field, but may be for a handful of sensors.
    """
    sizes = [len(greedy) // slots + (slot < len(greedy) % slots) for slot in range(slots)]
    splits = [_Split(weights, _grow(weights, sizes, by_share=by_share), slots) for by_share in (False, True)]
    for split in splits:
        split.exchange()
    best = max(*splits, _Split(weights, greedy, slots), key=_Split.value)  # of equal ones the first
    if slots > NEIGHBOURS:
        best.grow_anew()
    best.exchange()
    return best.of


def _grow(weights: Weights, sizes: list[int], *, by_share: bool) -> Slots:
    """Fill one slot after the other, from the outside of the field inwards, so that no remnants are left in between.

    A slot starts from the sensor about which the free ones tell least (with `by_share`: least as a share of what all
    sensors told, which is next to what is taken already). Then it takes the sensor that adds most, until it is full.
    """
    n = len(weights)
    slot_of = np.full(n, -1, dtype=np.intp)
    free = np.ones(n, dtype=bool)
    among_all = weights.sum(axis=0, dtype=np.float64)
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
    """A split that is improved by exchanges, which keep the size of every slot.

    Attributes:
        of: intp[n], the slot of each sensor.
        members: the sensors of each slot.
        worth: float64[slots, n]: sum of the weights between a sensor and the sensors of a slot.
    """

    def __init__(self, weights: Weights, of: Slots, slots: int) -> None:
        self._weights = weights
        self.of = of
        by_slot = np.argsort(of, kind="stable")
        bounds = np.searchsorted(of[by_slot], np.arange(slots + 1))
        self.members = [by_slot[first:end].copy() for first, end in pairwise(bounds)]
        self.worth = np.stack([_told(weights, group) for group in self.members])

    def value(self) -> float:
        """Return equation (12), summed over the slots."""
        return float(self.worth[self.of, np.arange(len(self.of))].sum()) / 2

    def exchange(self) -> None:
        """Use the two kinds of exchange in turn until they gain nearly nothing."""
        least = LEAST_GAIN * self.value()
        for _ in range(ROUNDS):
            if self._rotations() + self._swaps() <= least:
                break

    def _rotations(self) -> float:
        """Take one sensor out of every slot, the loosest, then the second loosest, ...; return the gain.

        To put them back in the best way is an assignment problem, since each slot gets one back. So cycles over many
        slots are found at once.
        """
        weights, worth = self._weights, self.worth
        gained = 0.0
        every = np.arange(len(self.members))
        ranked = [np.argsort(worth[slot, group], kind="stable") for slot, group in enumerate(self.members)]
        for rank in range(max(len(group) for group in self.members)):
            # A slot with fewer sensors offers its first one again when it has offered all.
            place = [int(order[rank % len(order)]) for order in ranked]
            out = np.array([group[i] for group, i in zip(self.members, place, strict=True)])
            value = worth[:, out].T - weights[np.ix_(out, out)]  # [sensor, slot]: without the sensor that the slot gave
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
        """Swap the best two sensors of two slots as long as that gains; return the gain.

        An upper bound of the gain is cheap to compute for each two slots (it leaves out what two sensors lose when the
        other one leaves), and it excludes most pairs.
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
        """Swap sensors of two slots as long as that gains; return the gain.

        A swap gains no more than what both sensors gain if they do not lose each other. That excludes nearly all pairs.
        """
        weights, worth = self._weights, self.worth
        mine, theirs = self.members[one], self.members[other]
        gained = 0.0
        while True:
            leaving, coming = worth[other, mine] - worth[one, mine], worth[one, theirs] - worth[other, theirs]
            rows = np.flatnonzero(leaving + coming.max() > TINY)
            if not len(rows):
                return gained
            columns = np.flatnonzero(coming + leaving.max() > TINY)
            lost = weights[np.ix_(mine[rows], theirs[columns])].astype(np.float64)
            gain = leaving[rows, None] + coming[columns] - 2.0 * lost
            at = divmod(int(gain.argmax()), len(columns))
            if gain[at] <= TINY:
                return gained
            gained += float(gain[at])
            i, j = int(rows[at[0]]), int(columns[at[1]])
            change = np.subtract(weights[mine[i]], weights[theirs[j]], dtype=np.float64)
            worth[other] += change
            worth[one] -= change
            mine[i], theirs[j] = theirs[j], mine[i]
            self.of[mine[i]], self.of[theirs[j]] = one, other

    def grow_anew(self) -> None:
        """Fill each slot and its nearest ones again, and keep what is better: this leads out of a local optimum."""
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
                self.worth[place] = _told(self._weights, sensors[group])


def _told(weights: Weights, group: Slots) -> Floats:
    """Return what the sensors of a group tell about each sensor, float64[n]."""
    return np.asarray(weights[group].sum(axis=0, dtype=np.float64))
