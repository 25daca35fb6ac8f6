"""Decides which worker should own each slot and which should stand by: the scaler's wishes, without I/O.

The log of a slot says who owns it. The planner follows what owners say in their heartbeats, and makes sure that every
slot has a living secondary on another node. If a slot should be elsewhere, `handover` moves it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping

from tsunagi.runtime.messages import Assignment, Heartbeat
from tsunagi.runtime.plan import MOVE
from tsunagi.scaler.handover import AT_ONCE, MOVED, Handover, Wished
from tsunagi.standby.detector import Detector

SUSPECT = 0.25
"""Share of `dead_s`. A worker that has been silent for longer is not made a secondary while there are others."""
READ_BACK_S = 5.0
"""A wish that has not come back from `plan` after this many seconds is written again."""


class Planner:
    """Keeps the assignments of all slots.

    Args:
        slots: number of slots.
        workers: number of workers that the first plan waits for.
        dead_s: a worker that is silent for this many seconds gets no slots any more.
        patience_s: the first plan waits this many seconds for all workers, then it takes those that are there.

    Attributes:
        handover: moves slots to where they should be.
        usable: workers that may be given slots; None means all.
    """

    def __init__(self, slots: int, workers: int, dead_s: float, patience_s: float, detector: Detector) -> None:
        self._slots = slots
        self._workers = workers
        self._dead_s = dead_s
        self._patience_s = patience_s
        self._detector = detector
        self.handover = Handover(detector)
        self.usable: Collection[str] | None = None
        # wishes that are written and not read back yet, with the time
        self._sent: dict[int, tuple[Assignment, float]] = {}
        self._plan: dict[int, Assignment] = {}
        self._serial = 0
        self._first_seen: float | None = None

    def grow(self, slots: int) -> None:
        """Take note that there are so many slots, or more."""
        self._slots = max(self._slots, slots)

    @property
    def assignments(self) -> Mapping[int, Assignment]:
        """The newest assignment of each slot that was read from `plan`."""
        return self._plan

    @property
    def serial(self) -> int:
        """The greatest serial number of an assignment; 0 if there is none yet."""
        return self._serial

    def on_assignment(self, assignment: Assignment) -> None:
        """Take note of an assignment that was read from `plan`: this scaler's own, or another one's."""
        self._serial = max(self._serial, assignment.serial)
        known = self._plan.get(assignment.slot)
        if known is None or assignment.serial > known.serial:
            self._plan[assignment.slot] = assignment
        sent = self._sent.get(assignment.slot)
        if sent is not None and assignment.serial >= sent[0].serial:
            del self._sent[assignment.slot]

    def named(self) -> set[str]:
        """Return the workers that the plan names."""
        wishes = [*self._plan.values(), *(assignment for assignment, _ in self._sent.values())]
        return {name for wish in wishes for name in (wish.owner, wish.secondary) if name}

    def heard(self) -> set[str]:
        """Return the names of all workers that have ever sent a heartbeat."""
        return set(self._detector.beats())

    def alive(self, now: float) -> dict[str, Heartbeat]:
        """Return the last heartbeats of the living workers, by name."""
        return {
            name: beat
            for name, beat in sorted(self._detector.beats().items())
            if beat.role == "worker" and not beat.leaving and self._detector.silence(name, now) < self._dead_s
        }

    def decide(self, now: float) -> list[Assignment]:
        """Return the assignments to write now; none while this scaler's own heartbeats do not come back."""
        if not self._detector.settled(now):
            return []
        alive = self.alive(now)
        if self._first_seen is None and alive:
            self._first_seen = now
        wanted: list[Assignment] = []
        owners = owners_of(alive)
        first_owners = self._first_owners(alive, owners, now)
        for slot in range(self._slots):
            sent = self._sent.get(slot)
            if sent is not None and now - sent[1] < READ_BACK_S:
                continue
            wish = self._wish(slot, alive, owners, wanted, first_owners, now)
            known = self._plan.get(slot)
            if wish.owner and (known is None or (known.owner, known.secondary) != wish[:2] or _ends(known, wish)):
                self._serial += 1
                owner, secondary, reason = wish
                assignment = Assignment(slot=slot, owner=owner, secondary=secondary, serial=self._serial, reason=reason)
                wanted.append(assignment)
                self._sent[slot] = assignment, now
                self.handover.begun(assignment, now)
        return wanted

    def _first_owners(self, alive: Mapping[str, Heartbeat], owners: Mapping[int, str], now: float) -> dict[int, str]:
        """Spread the slots that have no assignment yet over the workers, once these are there."""
        unplanned = [slot for slot in range(self._slots) if slot not in self._plan]
        if not unplanned or not alive or self._first_seen is None:
            return {}
        if len(alive) < self._workers and now - self._first_seen < self._patience_s:
            return {}
        load, usable = self._load(alive, owners, [], -1), self._usable(alive)
        first = {}
        for slot in unplanned:
            first[slot] = owners.get(slot) or _least(load, lambda name: name in usable)
            load[first[slot]] += 1
        return first

    def _wish(
        self,
        slot: int,
        alive: Mapping[str, Heartbeat],
        owners: Mapping[int, str],
        wanted: list[Assignment],
        first_owners: Mapping[int, str],
        now: float,
    ) -> Wished:
        known = self._plan.get(slot)
        actual = owners.get(slot, "")
        load = self._load(alive, owners, wanted, slot)
        usable = self._usable(alive)
        if known is None:
            owner = first_owners.get(slot, "")
            if not owner:
                return Wished("", "", "")
            for name in first_owners.values():
                load[name] += 1
            return Wished(owner, _least(load, lambda name: name in usable and name != owner), "first")
        if actual and self.handover.stands(known, actual, alive, now):
            return Wished(known.owner, known.secondary, known.reason)
        if actual:
            owner, reason = actual, "follow" if actual != known.owner else known.reason
        elif known.owner in alive or known.secondary in alive:
            # the secondary takes over by itself, or the owner is still starting
            owner, reason = known.owner, known.reason
        else:
            owner, reason = _least(load, lambda name: name in usable), "rebuild"
        if reason == MOVE and actual:
            reason = MOVED
        wished = self._protected(slot, Wished(owner, known.secondary, reason), alive, load, now)
        if not actual:
            return wished
        room = self.handover.under_way(self._plan) + len(self._sent) < AT_ONCE
        return self.handover.toward(known, wished, alive, now, room=room)

    def _protected(
        self, slot: int, wished: Wished, alive: Mapping[str, Heartbeat], load: Counter[str], now: float
    ) -> Wished:
        """Give the slot another secondary if the present one is dead or has become the owner.

        A worker that hosts the slot, such as a deposed owner, is ready at once. But an owner that was deposed because
        it seemed dead has just been silent; it is taken only if there is nobody else.
        """
        owner, known, reason = wished
        if known in alive and known != owner:
            return wished
        usable = [name for name in self._usable(alive) if name != owner]
        usable = [name for name in usable if self._detector.silence(name, now) < SUSPECT * self._dead_s] or usable
        hosting = [name for name in usable if _hosts(slot, alive[name])]
        secondary = min(hosting, key=lambda name: (load[name], name), default="")
        secondary = secondary or _least(load, lambda name: name in usable)
        if not secondary and known != owner:
            secondary = known  # nobody is better, and this one may come back
        return Wished(owner, secondary, reason if secondary == known else "protect")

    def _usable(self, alive: Mapping[str, Heartbeat]) -> list[str]:
        """Return the workers that may be given slots; if none may, all."""
        return [name for name in alive if self.usable is None or name in self.usable] or list(alive)

    def _load(
        self, alive: Mapping[str, Heartbeat], owners: Mapping[int, str], wanted: list[Assignment], but: int
    ) -> Counter[str]:
        """Count for each living worker the slots that it has or will have, as owner or as secondary."""
        load: Counter[str] = Counter(dict.fromkeys(alive, 0))
        plan = dict(self._plan) | {assignment.slot: assignment for assignment in wanted}
        for slot, assignment in plan.items():
            if slot == but:
                continue
            for name in {assignment.owner, assignment.secondary, owners.get(slot, "")}:
                if name in load:
                    load[name] += 1
        return load


def _ends(known: Assignment, wish: Wished) -> bool:
    """Return whether a wish to move that the plan still holds has ended."""
    return known.reason == MOVE and wish.reason != MOVE


def owners_of(alive: Mapping[str, Heartbeat]) -> dict[int, str]:
    """Return for each slot the living worker that says it is the primary; of several the one of the greatest epoch."""
    claims: dict[int, tuple[int, str]] = {}
    for name, worker in alive.items():
        for beat in worker.slots:
            if beat.role == "primary":
                claims[beat.slot] = max(claims.get(beat.slot, (-1, "")), (beat.epoch, name))
    return {slot: name for slot, (_, name) in claims.items()}


def _hosts(slot: int, beat: Heartbeat) -> bool:
    return any(part.slot == slot for part in beat.slots)


def _least(load: Counter[str], allowed: Callable[[str], bool]) -> str:
    """Return the least loaded of the allowed workers, of equal ones the first by name; "" if there is none."""
    names = [name for name in load if allowed(name)]
    return min(names, key=lambda name: (load[name], name), default="")
