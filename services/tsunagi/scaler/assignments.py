"""Decides which worker should have which slot, by measured load and capacity: the stream's split, in whole slots.

ElasticStream's StreamManager splits one stream at any ratio. Here a slot goes to one worker as a whole, so the split is
as fine as the slots are many, and each slot that changes its worker costs a planned takeover. Slots therefore stay
where they are unless their worker leaves or is overloaded, and a slot moves only if that lowers the load of the most
loaded worker enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

from tsunagi.runtime.cells import ONE, Cells
from tsunagi.scaler.handover import Pair

SLACK = 0.15
"""A worker may carry this share more than its part of the load before a slot leaves it. With less, small changes of the
load would move slots back and forth."""

GAIN = 0.1
"""A move must lower the load of the more loaded worker by this share of the mean load, or it is not worth the pause
that it causes."""

STANDBY_SLACK = 0.5
"""Secondaries may be spread this much less evenly than owners, as a share of the mean load: a new secondary must build
the slot's state again."""
FLOOR = 0.02
"""An idle slot counts with this share of the mean load, so that idle slots are spread over the workers as well."""

HOT = 0.3
"""A worker is overloaded if its load is above the mean by more than this share."""
HOT_S = 10.0
"""An overload must last this many seconds before slots move: a short peak is over before a move is."""
REST_S = 30.0
"""After slots have moved for an overload, this many seconds pass before slots move for another one, so that the first
move shows its effect."""


def place(
    loads: Sequence[float],
    capacity: Mapping[str, float],
    present: Mapping[int, Pair],
    *,
    slack: float = SLACK,
    cells: Cells = ONE,
) -> dict[int, Pair]:
    """Return who should own each slot and who should stand by for it.

    Args:
        loads: load of each slot, in tuples/s or any other unit of work a second.
        capacity: capacity of each worker that may have slots, in the same unit. Only the ratios count. Not empty.
        present: who has the slots now; a worker without a capacity loses its slots.
        cells: how the slots are divided. Of equally good workers one is taken that has slots of the slot's cell.
    """
    homes = {(cells.of(slot), name) for slot, pair in present.items() for name in pair} if cells.count > 1 else None
    share = _Share(loads, capacity, lambda slot, name: homes is not None and (cells.of(slot), name) not in homes)
    owners = {slot: pair.owner for slot, pair in present.items() if pair.owner in capacity}
    warm = {slot: pair.secondary for slot, pair in present.items()}
    share.spread(owners, warm, slack=slack, gain=GAIN)
    if len(capacity) == 1:
        return {slot: Pair(owner, "") for slot, owner in owners.items()}
    # A secondary costs its worker little while nobody dies, and as much as an owner afterwards.
    seconds: dict[int, str] = {}
    for slot, owner in owners.items():
        pair = present.get(slot, Pair("", ""))
        for name in (pair.secondary, pair.owner):  # the secondary is warm; the owner will be when it is deposed
            if name in capacity and name != owner:
                seconds[slot] = name
                break
    share.add(owners)
    share.spread(seconds, {}, slack=STANDBY_SLACK, gain=STANDBY_SLACK, apart=owners)
    return {slot: Pair(owners[slot], seconds[slot]) for slot in sorted(owners)}


def utilisation(loads: Sequence[float], capacity: Mapping[str, float], owners: Mapping[int, str]) -> dict[str, float]:
    """Return the load of each worker as a multiple of its capacity."""
    total = dict.fromkeys(capacity, 0.0)
    for slot, name in owners.items():
        if name in total:
            total[name] += loads[slot]
    return {name: load / capacity[name] for name, load in total.items()}


class _Share:
    """The loads of the workers while slots are given to them.

    Args:
        strange: whether a worker has no slots of a slot's cell.
    """

    def __init__(
        self, loads: Sequence[float], capacity: Mapping[str, float], strange: Callable[[int, str], bool]
    ) -> None:
        self._strange = strange
        mean = sum(loads) / len(loads) if loads else 0.0
        floor = FLOOR * mean if mean > 0 else 1.0
        self._loads = [load + floor for load in loads]
        self._capacity = capacity
        self._base = dict.fromkeys(capacity, 0.0)

    def add(self, owners: Mapping[int, str]) -> None:
        """Count these slots from now on as load that stays on its workers."""
        for slot, name in owners.items():
            self._base[name] += self._loads[slot]

    def spread(
        self,
        of: dict[int, str],
        warm: Mapping[int, str],
        *,
        slack: float,
        gain: float,
        apart: Mapping[int, str] | None = None,
    ) -> None:
        """Give every slot a worker in `of`, then move slots from more to less loaded workers while that is worth it.

        Args:
            warm: for a slot, the worker that is preferred among equally good ones, because it has the slot's state.
            apart: for a slot, the worker that must not have it.
        """
        apart = apart or {}
        total = dict(self._base)
        for slot, name in of.items():
            total[name] += self._loads[slot]
        homeless = [slot for slot in range(len(self._loads)) if slot not in of]
        for slot in sorted(homeless, key=lambda slot: (-self._loads[slot], slot)):
            *_, name = min(
                ((total[name] + self._loads[slot]) / size, name != warm.get(slot), self._strange(slot, name), name)
                for name, size in self._capacity.items()
                if name != apart.get(slot)
            )
            of[slot] = name
            total[name] += self._loads[slot]
        mean = sum(total.values()) / sum(self._capacity.values())
        while move := self._best(of, total, warm, apart, (1 + slack) * mean, gain * mean):
            slot, name = move
            total[of[slot]] -= self._loads[slot]
            total[name] += self._loads[slot]
            of[slot] = name

    def _best(
        self,
        of: Mapping[int, str],
        total: Mapping[str, float],
        warm: Mapping[int, str],
        apart: Mapping[int, str],
        limit: float,
        gain: float,
    ) -> tuple[int, str] | None:
        """Return the (slot, worker) of the move that helps the most loaded worker most; None if no move is worth it."""
        used = {name: total[name] / size for name, size in self._capacity.items()}
        hot = max(used, key=lambda name: (used[name], name))
        if used[hot] <= limit:
            return None
        found = min(
            (
                (
                    max((total[hot] - load) / self._capacity[hot], (total[cold] + load) / size),
                    cold != warm.get(slot),
                    self._strange(slot, cold),
                    slot,
                    cold,
                )
                for slot, name in of.items()
                if name == hot
                for load in (self._loads[slot],)
                for cold, size in self._capacity.items()
                if cold not in (hot, apart.get(slot))
            ),
            default=None,
        )
        if found is None or used[hot] - found[0] < max(gain, 1e-12):
            return None
        return found[3], found[4]


CALM_S = 5.0
"""After an unplanned takeover or the loss of a worker, slots stay where they are for this many seconds. Where one
worker died others may, a restarted one comes back, and a slot that takes over should do nothing else."""


class Placer:
    """Keeps the goal for all slots; changes it only for a reason. Times are monotonic seconds of the caller's clock.

    Args:
        cells: how the slots are divided.

    Attributes:
        goal: for each slot, who should own it and who should stand by.
    """

    def __init__(self, cells: Cells = ONE) -> None:
        self._cells = cells
        self.goal: dict[int, Pair] = {}
        self._workers: frozenset[str] = frozenset()
        self._seen: dict[int, str] = {}  # slot -> its owner when the goal was made or reached
        self._hot_since: float | None = None
        self._rests_until = 0.0
        self._calm_at = -math.inf

    def update(
        self,
        loads: Sequence[float],
        capacity: Mapping[str, float],
        present: Mapping[int, Pair],
        now: float,
        *,
        retiring: Collection[str] = (),
    ) -> bool:
        """Update the goal from what the workers do now; return whether it has changed.

        Args:
            capacity: capacity of each worker that may have slots. Nothing changes while it is empty or a slot has no
                owner.
            present: who has the slots now: the owner according to itself, the secondary according to the plan.
            retiring: workers that are to stop; their slots move at once, even in a calm time.
        """
        if not capacity or len(present) < len(loads):
            return False
        for slot, pair in present.items():
            if slot in self.goal and pair.owner == self.goal[slot].owner:
                self._seen[slot] = pair.owner
        strayed = [slot for slot, pair in present.items() if pair.owner != self._seen.get(slot)]
        lost = self._workers - capacity.keys() - set(retiring)
        if self._seen and (strayed or lost):
            self._calm_at = now + CALM_S
            self._workers -= lost
            for slot in strayed:  # the slot stays with the worker that took it over
                self._seen[slot] = present[slot].owner
                self.goal.pop(slot, None)
        urgent = any(pair.owner in retiring for pair in present.values())
        if now < self._calm_at and not urgent:
            return False
        due = len(self.goal) < len(loads) or self._calm_at > -math.inf
        if self._workers == frozenset(capacity) and not due and not self._hot(loads, capacity, now):
            return False
        self._calm_at = -math.inf
        self._workers = frozenset(capacity)
        self._seen = {slot: pair.owner for slot, pair in present.items()}
        self._hot_since, self._rests_until = None, now + REST_S
        before, self.goal = self.goal, place(loads, capacity, present, cells=self._cells)
        return self.goal != before

    def ask(self, slot: int, pair: Pair) -> None:
        """Set the goal of a slot as somebody asks for it. Load or a takeover may change it as any other goal."""
        self.goal[slot] = pair

    def _hot(self, loads: Sequence[float], capacity: Mapping[str, float], now: float) -> bool:
        owners = {slot: pair.owner for slot, pair in self.goal.items()}
        used = utilisation(loads, capacity, owners)
        mean = sum(loads) / sum(capacity.values())
        if mean <= 0 or max(used.values()) <= (1 + HOT) * mean:
            self._hot_since = None
            return False
        if self._hot_since is None:
            self._hot_since = now
        return now - self._hot_since >= HOT_S and now >= self._rests_until


def split(loads: Sequence[float], present: Mapping[int, Pair], workers: Collection[str]) -> dict[str, float]:
    """Return the share of the whole load that each worker carries (the paper's split ratio)."""
    total = sum(loads)
    used = utilisation(loads, dict.fromkeys(workers, 1.0), {slot: pair.owner for slot, pair in present.items()})
    return {name: load / total if total > 0 else 0.0 for name, load in used.items()}
