"""Which worker should own which slot, and which should stand by: the scaler's wishes, without I/O.

The slot's log says who owns it; the planner follows what the owners say in their heartbeats, and sees to it that every
slot has a living secondary on another node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from services.runtime.messages import Assignment, Heartbeat
from services.standby.detector import Detector


class Planner:
    """Keeps the assignments of all slots.

    Args:
        slots: how many there are.
        workers: how many workers the first plan waits for.
        dead_s: silence after which a worker is planned without.
        patience_s: how long the first plan waits for all of them before it takes those that are there.
    """

    def __init__(self, slots: int, workers: int, dead_s: float, patience_s: float, detector: Detector) -> None:
        self._slots = slots
        self._workers = workers
        self._dead_s = dead_s
        self._patience_s = patience_s
        self._detector = detector
        self._plan: dict[int, Assignment] = {}
        self._serial = 0
        self._first_seen: float | None = None

    @property
    def assignments(self) -> Mapping[int, Assignment]:
        """The newest assignment of each slot, as read from `plan`."""
        return self._plan

    @property
    def serial(self) -> int:
        """The greatest serial number of an assignment, 0 = none yet."""
        return self._serial

    def on_assignment(self, assignment: Assignment) -> None:
        """Take in an assignment as read from `plan` (our own, or another scaler's)."""
        self._serial = max(self._serial, assignment.serial)
        known = self._plan.get(assignment.slot)
        if known is None or assignment.serial > known.serial:
            self._plan[assignment.slot] = assignment

    def alive(self, now: float) -> dict[str, Heartbeat]:
        """Return the workers that live, by name."""
        return {
            name: beat
            for name, beat in sorted(self._detector.beats().items())
            if beat.role == "worker" and not beat.leaving and self._detector.silence(name, now) < self._dead_s
        }

    def decide(self, now: float) -> list[Assignment]:
        """Return the assignments to write now. Nothing while our own heartbeats do not come back."""
        if not self._detector.settled(now):
            return []
        alive = self.alive(now)
        if self._first_seen is None and alive:
            self._first_seen = now
        wanted: list[Assignment] = []
        first_owners = self._first_owners(alive, now)
        for slot in range(self._slots):
            owner, secondary, reason = self._wish(slot, alive, wanted, first_owners)
            known = self._plan.get(slot)
            if owner and (known is None or (known.owner, known.secondary) != (owner, secondary)):
                self._serial += 1
                wanted.append(
                    Assignment(slot=slot, owner=owner, secondary=secondary, serial=self._serial, reason=reason)
                )
        return wanted

    def _first_owners(self, alive: Mapping[str, Heartbeat], now: float) -> dict[int, str]:
        """Spread the slots that nobody has planned yet over the workers, once these are there."""
        unplanned = [slot for slot in range(self._slots) if slot not in self._plan]
        if not unplanned or not alive or self._first_seen is None:
            return {}
        if len(alive) < self._workers and now - self._first_seen < self._patience_s:
            return {}
        load = self._load(alive, [], -1)
        owners = {}
        for slot in unplanned:
            owners[slot] = _owner_of(slot, alive) or _least(load, lambda name: name in alive)
            load[owners[slot]] += 1
        return owners

    def _wish(
        self, slot: int, alive: Mapping[str, Heartbeat], wanted: list[Assignment], first_owners: Mapping[int, str]
    ) -> tuple[str, str, str]:
        known = self._plan.get(slot)
        actual = _owner_of(slot, alive)
        load = self._load(alive, wanted, slot)
        if known is None:
            owner = first_owners.get(slot, "")
            if not owner:
                return "", "", ""
            for name in first_owners.values():
                load[name] += 1
            return owner, _least(load, lambda name: name in alive and name != owner), "first"
        if actual:
            owner, reason = actual, "follow" if actual != known.owner else known.reason
        elif known.owner in alive or known.secondary in alive:
            owner, reason = known.owner, known.reason  # the secondary takes over by itself, or the owner is starting
        else:
            owner, reason = _least(load, lambda name: name in alive), "rebuild"
        if known.secondary in alive and known.secondary != owner:
            return owner, known.secondary, reason
        hosting = [name for name in alive if name != owner and _hosts(slot, alive[name])]
        secondary = min(hosting, key=lambda name: (load[name], name), default="")
        secondary = secondary or _least(load, lambda name: name in alive and name != owner)
        if not secondary and known.secondary != owner:
            secondary = known.secondary  # nobody better: it may come back
        return owner, secondary, reason if secondary == known.secondary else "protect"

    def _load(self, alive: Mapping[str, Heartbeat], wanted: list[Assignment], but: int) -> Counter[str]:
        """Count the slots each living worker has or will have, as owner or secondary."""
        load: Counter[str] = Counter(dict.fromkeys(alive, 0))
        plan = dict(self._plan) | {assignment.slot: assignment for assignment in wanted}
        for slot, assignment in plan.items():
            if slot == but:
                continue
            for name in {assignment.owner, assignment.secondary, _owner_of(slot, alive)}:
                if name in load:
                    load[name] += 1
        return load


def _owner_of(slot: int, alive: Mapping[str, Heartbeat]) -> str:
    """Return the living worker that says it is the slot's primary, of the greatest epoch; "" = none."""
    claims = [
        (beat.epoch, name)
        for name, worker in alive.items()
        for beat in worker.slots
        if beat.slot == slot and beat.role == "primary"
    ]
    return max(claims)[1] if claims else ""


def _hosts(slot: int, beat: Heartbeat) -> bool:
    return any(part.slot == slot for part in beat.slots)


def _least(load: Counter[str], allowed: Callable[[str], bool]) -> str:
    """Return the least loaded of the allowed workers, ties by name; "" = none."""
    names = [name for name in load if allowed(name)]
    return min(names, key=lambda name: (load[name], name), default="")
