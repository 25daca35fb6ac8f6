"""Which worker should have which slot, by measured load and capacity: the split ratio of the stream, in whole slots.

ElasticStream's StreamManager splits one stream at any ratio. Here a slot goes to one worker as a whole, so the ratio is
as fine as there are slots, and a change costs a planned takeover for each slot that goes elsewhere. So slots stay where
they are unless their worker goes or is hot, and one is moved only where that lowers the hottest worker's load enough.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from tsunagi.scaler.handover import Pair

SLACK = 0.15
"""A worker may carry so much more than its share before a slot leaves it."""

GAIN = 0.1
"""A move must lower the hotter worker's load by this share of the mean at least, or it is not worth its pause."""

STANDBY_SLACK = 0.5
"""Secondaries may be spread so much less evenly than owners, as a share of the mean: a change of secondary costs a
rebuild."""
FLOOR = 0.02
"""Of the mean load: what a slot counts for that has none, so that idle slots are spread as well."""

HOT = 0.3
HOT_S = 10.0
REST_S = 30.0
"""Slots leave a worker that has been hotter than the mean by `HOT` for `HOT_S`, and not within `REST_S` of others."""


def place(
    loads: Sequence[float], capacity: Mapping[str, float], present: Mapping[int, Pair], *, slack: float = SLACK
) -> dict[int, Pair]:
    """Return who should own each slot and who should stand by for it.

    Args:
        loads: of each slot, tuples/s or any other unit of work a second.
        capacity: of each worker that may have slots, in the same unit; only their ratios count. Not empty.
        present: who has the slots now; workers without a capacity lose them.
    """
    share = _Share(loads, capacity)
    owners = {slot: pair.owner for slot, pair in present.items() if pair.owner in capacity}
    warm = {slot: pair.secondary for slot, pair in present.items()}
    share.spread(owners, warm, slack=slack, gain=GAIN)
    if len(capacity) == 1:
        return {slot: Pair(owner, "") for slot, owner in owners.items()}
    # A standby costs its worker little as long as nobody dies, and as much as the owner when it does.
    seconds: dict[int, str] = {}
    for slot, owner in owners.items():
        pair = present.get(slot, Pair("", ""))
        for name in (pair.secondary, pair.owner):  # one is warm already, the other will be when it is deposed
            if name in capacity and name != owner:
                seconds[slot] = name
                break
    share.add(owners)
    share.spread(seconds, {}, slack=STANDBY_SLACK, gain=STANDBY_SLACK, apart=owners)
    return {slot: Pair(owners[slot], seconds[slot]) for slot in sorted(owners)}


def utilisation(loads: Sequence[float], capacity: Mapping[str, float], owners: Mapping[int, str]) -> dict[str, float]:
    """Return each worker's load over its capacity."""
    total = dict.fromkeys(capacity, 0.0)
    for slot, name in owners.items():
        if name in total:
            total[name] += loads[slot]
    return {name: load / capacity[name] for name, load in total.items()}


class _Share:
    """Loads on workers while slots are dealt out."""

    def __init__(self, loads: Sequence[float], capacity: Mapping[str, float]) -> None:
        mean = sum(loads) / len(loads) if loads else 0.0
        floor = FLOOR * mean if mean > 0 else 1.0
        self._loads = [load + floor for load in loads]
        self._capacity = capacity
        self._base = dict.fromkeys(capacity, 0.0)

    def add(self, owners: Mapping[int, str]) -> None:
        """Count these from now on as load that stays."""
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
        """Give every slot a worker in `of`, then move slots from hot to cold workers while that is worth it.

        Args:
            warm: slot -> the worker that it goes to rather than to others as good.
            apart: slot -> the worker that must not have it.
        """
        apart = apart or {}
        total = dict(self._base)
        for slot, name in of.items():
            total[name] += self._loads[slot]
        homeless = [slot for slot in range(len(self._loads)) if slot not in of]
        for slot in sorted(homeless, key=lambda slot: (-self._loads[slot], slot)):
            _, _, name = min(
                ((total[name] + self._loads[slot]) / size, name != warm.get(slot), name)
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
        """Return the move that helps the hottest worker most; None = none is worth it."""
        used = {name: total[name] / size for name, size in self._capacity.items()}
        hot = max(used, key=lambda name: (used[name], name))
        if used[hot] <= limit:
            return None
        found = min(
            (
                (
                    max((total[hot] - load) / self._capacity[hot], (total[cold] + load) / size),
                    cold != warm.get(slot),
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
        return found[2], found[3]


CALM_S = 5.0
"""After a takeover that nobody wished, or the loss of a worker, slots stay where they are for so long: where one died
others may, whoever is started anew comes back, and a slot that takes over should do nothing else."""


class Placer:
    """Keeps the goal of all slots, and changes it only for a reason. Times are monotonic seconds of the caller's clock.

    Attributes:
        goal: slot -> who should have it.
    """

    def __init__(self) -> None:
        self.goal: dict[int, Pair] = {}
        self._workers: frozenset[str] = frozenset()
        self._seen: dict[int, str] = {}  # slot -> its owner when the goal was made, or when the goal was reached
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
        """Take in how things are; return whether the goal has changed.

        Args:
            capacity: of each worker that may have slots; while there is none, or a slot has no owner yet, nothing
                changes.
            present: who has the slots now: the owner by its own word, the secondary by the plan.
            retiring: workers that are to go: their slots do not wait.
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
            for slot in strayed:  # it is not led back
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
        before, self.goal = self.goal, place(loads, capacity, present)
        return self.goal != before

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
    """Return the share of the whole load that each worker has (the paper's ratio)."""
    total = sum(loads)
    used = utilisation(loads, dict.fromkeys(workers, 1.0), {slot: pair.owner for slot, pair in present.items()})
    return {name: load / total if total > 0 else 0.0 for name, load in used.items()}
