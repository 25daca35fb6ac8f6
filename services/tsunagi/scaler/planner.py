"""Decides which worker should own each slot and which should stand by: the scaler's wishes, without I/O.

The log of a slot says who owns it. The planner follows what owners say in their heartbeats, and makes sure that every
slot has a living secondary on another node. If a slot should be elsewhere, `handover` moves it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import groupby

from tsunagi.runtime.cells import ONE, SUMMARY_S, Cells
from tsunagi.runtime.messages import Assignment, Heartbeat
from tsunagi.runtime.plan import MOVE
from tsunagi.scaler.handover import AT_ONCE, MOVED, Handover, Pair, Wished
from tsunagi.scaler.loads import Loads
from tsunagi.standby.detector import Detector

SUSPECT = 0.25
"""Share of `dead_s`. A worker that has been silent for longer is not made a secondary while there are others."""
READ_BACK_S = 5.0
"""A wish that has not come back from `plan` after this many seconds is written again."""
SLACK = 0.125
"""Where there are several cells, a worker that has slots of a slot's cell already may have so much more than an even
share of all slots, as a part of that share. The slots of a dead worker then go to few others, and each of these reads
few cells more."""


class Planner:
    """Keeps the assignments of all slots.

    Args:
        slots: number of slots.
        workers: number of workers that the first plan waits for.
        dead_s: a worker that is silent for this many seconds gets no slots any more.
        patience_s: the first plan waits this many seconds for all workers, then it takes those that are there.
        cells: how the slots are divided. A slot's owner and its secondary are of its cell where they can be.

    Attributes:
        slots: as above, or more, if some were added.
        cells: as above.
        handover: moves slots to where they should be.
        usable: workers that may be given slots; None means all.
    """

    def __init__(
        self, slots: int, workers: int, dead_s: float, patience_s: float, detector: Detector, cells: Cells = ONE
    ) -> None:
        self.slots = slots
        self._workers = workers
        self._dead_s = dead_s
        self._patience_s = patience_s
        self._detector = detector
        self.cells = cells
        # In the summary heartbeats come at its own interval.
        self._suspect_s = SUSPECT * dead_s if cells.count == 1 else max(SUSPECT * dead_s, 1.5 * SUMMARY_S)
        self.handover = Handover(detector)
        self.usable: Collection[str] | None = None
        # wishes that are written and not read back yet, with the time
        self._sent: dict[int, tuple[Assignment, float]] = {}
        self._plan: dict[int, Assignment] = {}
        self._named: set[str] | None = None  # the answer of `named`, until a wish changes
        self._serial = 0
        self._first_seen: float | None = None
        self._claims: dict[str, tuple[Heartbeat, list[tuple[int, int]]]] = {}  # worker -> (slot, epoch) that it owns
        self._owners: tuple[Mapping[str, Heartbeat], dict[int, str]] = {}, {}  # the last answer, and of which workers

    def grow(self, slots: int) -> None:
        """Take note that there are so many slots, or more."""
        self.slots = max(self.slots, slots)

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
        self._named = None
        self._serial = max(self._serial, assignment.serial)
        known = self._plan.get(assignment.slot)
        if known is None or assignment.serial > known.serial:
            self._plan[assignment.slot] = assignment
        sent = self._sent.get(assignment.slot)
        if sent is not None and assignment.serial >= sent[0].serial:
            del self._sent[assignment.slot]

    def named(self) -> AbstractSet[str]:
        """Return the workers that the plan names."""
        if self._named is None:
            wishes = [*self._plan.values(), *(assignment for assignment, _ in self._sent.values())]
            self._named = {name for wish in wishes for name in (wish.owner, wish.secondary) if name}
        return self._named

    def heard(self) -> set[str]:
        """Return the names of all workers that have ever sent a heartbeat."""
        return set(self._detector.beats())

    def alive(self, now: float) -> dict[str, Heartbeat]:
        """Return the last heartbeats of the living workers, by name."""
        workers = [(name, beat) for name, beat in self._detector.beats().items() if beat.role == "worker"]
        return {
            name: beat
            for name, beat in sorted(workers)
            if not beat.leaving and self._detector.silence(name, now) < self._dead_s
        }

    def owners(self, alive: Mapping[str, Heartbeat]) -> dict[int, str]:
        """Return for each slot the living worker that says it owns it; of several the one of the greatest epoch.

        Several parts of the scaler ask in one turn, with the same workers.
        """
        if self._owners[0] is alive:
            return self._owners[1]
        self._claims = {name: self._claimed(name, beat) for name, beat in alive.items()}
        best: dict[int, tuple[int, str]] = {}
        for name, (_, claims) in self._claims.items():
            for slot, epoch in claims:
                best[slot] = max(best.get(slot, (-1, "")), (epoch, name))
        self._owners = alive, {slot: name for slot, (_, name) in best.items()}
        return self._owners[1]

    def _claimed(self, name: str, beat: Heartbeat) -> tuple[Heartbeat, list[tuple[int, int]]]:
        known = self._claims.get(name)
        if known is not None and known[0] is beat:
            return known
        return beat, [(part.slot, part.epoch) for part in beat.slots if part.role == "primary"]

    def decide(self, alive: Mapping[str, Heartbeat], now: float) -> list[Assignment]:
        """Return the assignments to write now; none while this scaler's own heartbeats do not come back."""
        if not self._detector.settled(now):
            return []
        if self._first_seen is None and alive:
            self._first_seen = now
        owners = self.owners(alive)
        unsettled = [
            slot for slot in range(self.slots) if not self._waits(slot, now) and not self._rests(slot, alive, owners)
        ]
        if not unsettled:
            return []
        turn = self._turn(alive, now)
        wanted: list[Assignment] = []
        for slot in unsettled:
            known, actual = self._plan.get(slot), turn.owners.get(slot, "")
            has = {known.owner, known.secondary, actual} if known is not None else set()
            turn.loads.add(slot, has, -1)
            wish = self._wish(slot, turn)
            if wish.owner and (known is None or (known.owner, known.secondary) != wish[:2] or _ends(known, wish)):
                self._serial += 1
                owner, secondary, reason = wish
                assignment = Assignment(slot=slot, owner=owner, secondary=secondary, serial=self._serial, reason=reason)
                wanted.append(assignment)
                self._sent[slot], self._named = (assignment, now), None
                self.handover.begun(assignment, now)
                has = {secondary} if slot in turn.counted else {owner, secondary, actual}
            turn.loads.add(slot, has)
        return wanted

    def _turn(self, alive: Mapping[str, Heartbeat], now: float) -> _Turn:
        owners, several = self.owners(alive), self.cells.count > 1
        loads = Loads(alive, self.cells)
        sent = {slot: assignment for slot, (assignment, _) in self._sent.items()} if several else {}
        for slot, wish in (self._plan | sent).items():
            loads.add(slot, {wish.owner, wish.secondary, owners.get(slot, "")})
        usable = {name for name in alive if self.usable is None or name in self.usable} or set(alive)
        fresh = {name for name in usable if self._detector.silence(name, now) < self._suspect_s}
        share = 2 * self.slots / max(1, len(usable))
        turn = _Turn(now, alive, owners, usable, fresh, loads, share + max(1.0, SLACK * share))
        if several:
            turn.first_owners = self._first_owners(turn)
            turn.counted = turn.first_owners.keys()
            turn.neighbours = _neighbours(turn.first_owners)
        else:
            turn.loads = loads.copy()
            turn.first_owners = self._first_owners(turn)
            turn.loads, turn.more = loads, Counter(turn.first_owners.values())
        return turn

    def _waits(self, slot: int, now: float) -> bool:
        """Return whether a wish for a slot was written just now, and has not come back from `plan` yet."""
        sent = self._sent.get(slot)
        return sent is not None and now - sent[1] < READ_BACK_S

    def _rests(self, slot: int, alive: Mapping[str, Heartbeat], owners: Mapping[int, str]) -> bool:
        """Return whether a slot is where the plan and its goal have it, so that there is nothing to wish."""
        known = self._plan.get(slot)
        if known is None or known.reason == MOVE or known.secondary not in alive:
            return False
        pair = Pair(known.owner, known.secondary)
        if owners.get(slot) != pair.owner or pair.owner == pair.secondary:
            return False
        return self.handover.at_rest(slot, pair)

    def _first_owners(self, turn: _Turn) -> dict[int, str]:
        """Spread the slots that have no assignment yet over the workers, once these are there."""
        unplanned = [slot for slot in self.cells.in_turn(self.slots) if slot not in self._plan]
        if not unplanned or not turn.alive or self._first_seen is None:
            return {}
        if len(turn.alive) < self._workers and turn.now - self._first_seen < self._patience_s:
            return {}
        names = sorted(turn.usable)
        first = {}
        for number, slot in enumerate(unplanned):
            if self.cells.count > 1:
                spread = names[number * len(names) // len(unplanned)]
            else:
                spread = turn.least(slot, turn.usable)
            first[slot] = turn.owners.get(slot) or spread
            turn.loads.add(slot, [first[slot]])
        return first

    def _wish(self, slot: int, turn: _Turn) -> Wished:
        known = self._plan.get(slot)
        actual = turn.owners.get(slot, "")
        alive, now = turn.alive, turn.now
        if known is None:
            owner = turn.first_owners.get(slot, "")
            if not owner:
                return Wished("", "", "")
            neighbour = turn.neighbours.get(slot, "")
            secondary = neighbour if neighbour in turn.usable else ""
            return Wished(owner, secondary or turn.least(slot, turn.usable, but=owner, more=turn.more), "first")
        if actual and self.handover.stands(known, actual, alive, now):
            return Wished(known.owner, known.secondary, known.reason)
        if actual:
            owner, reason = actual, "follow" if actual != known.owner else known.reason
        elif known.owner in alive or known.secondary in alive:
            # the secondary takes over by itself, or the owner is still starting
            owner, reason = known.owner, known.reason
        else:
            owner, reason = turn.least(slot, turn.usable), "rebuild"
        if reason == MOVE and actual:
            reason = MOVED
        wished = self._protected(slot, Wished(owner, known.secondary, reason), turn)
        if not actual:
            return wished
        room = self.handover.under_way(self._plan) + len(self._sent) < AT_ONCE
        return self.handover.toward(known, wished, alive, now, room=room)

    def _protected(self, slot: int, wished: Wished, turn: _Turn) -> Wished:
        """Give the slot another secondary if the present one is dead or has become the owner.

        A worker that hosts the slot, such as a deposed owner, is ready at once. But an owner that was deposed because
        it seemed dead has just been silent; it is taken only if there is nobody else.
        """
        owner, known, reason = wished
        if known in turn.alive and known != owner:
            return wished
        usable = turn.fresh if len(turn.fresh) > (owner in turn.fresh) else turn.usable
        hosting = [name for name in turn.hosts(slot) if name in usable and name != owner]
        secondary = min(hosting, key=lambda name: (turn.loads.count[name], name), default="")
        secondary = secondary or turn.least(slot, usable, but=owner)
        if not secondary and known != owner:
            secondary = known  # nobody is better, and this one may come back
        return Wished(owner, secondary, reason if secondary == known else "protect")


@dataclass
class _Turn:
    """What the planner decides by in one turn, put together once for all slots.

    Attributes:
        owners: for each slot, the living worker that says it owns it.
        usable: the workers that may be given slots; fresh: those of them that were heard shortly before.
        loads: the slots of each worker, with what was wished in this turn.
        limit: a worker with fewer slots may get another one of a cell of which it has some already.
        first_owners: the owners of slots that have no assignment yet.
        neighbours: with several cells, the workers that should stand by for these.
        counted: those of them that `loads` has already; more: how many of the others each worker gets.
    """

    now: float
    alive: Mapping[str, Heartbeat]
    owners: Mapping[int, str]
    usable: AbstractSet[str]
    fresh: AbstractSet[str]
    loads: Loads
    limit: float
    first_owners: Mapping[int, str] = field(default_factory=dict)
    neighbours: Mapping[int, str] = field(default_factory=dict)
    counted: AbstractSet[int] = frozenset()
    more: Counter[str] = field(default_factory=Counter)
    _hosts: dict[int, list[str]] | None = None

    def hosts(self, slot: int) -> list[str]:
        """Return the living workers whose heartbeats speak of the slot."""
        if self._hosts is None:
            self._hosts = {}
            for name, beat in self.alive.items():
                for part in beat.slots:
                    self._hosts.setdefault(part.slot, []).append(name)
        return self._hosts.get(slot, [])

    def least(self, slot: int, among: AbstractSet[str], *, but: str = "", more: Counter[str] | None = None) -> str:
        """Return who of these workers should get the slot, as `Loads.least`."""
        return self.loads.least(slot, lambda name: name in among and name != but, self.limit, more)


def _neighbours(owners: Mapping[int, str]) -> dict[int, str]:
    """Return who stands by for each slot, given the owners of slots, one cell behind the other.

    For the first half of a run of slots that one worker owns, the owner of the run before stands by, for the second
    half that of the run after; the runs form a ring. So a worker has equally many slots as owner and as secondary, in
    few cells, and those of a dead one go to two others (H. Hsiao, D. J. DeWitt: Chained declustering, ICDE 1990).
    """
    runs = [(name, [slot for slot, _ in run]) for name, run in groupby(owners.items(), lambda item: item[1])]
    if len({name for name, _ in runs}) < 2:
        return {}
    found = {}
    for number, (name, slots) in enumerate(runs):
        before, after = runs[number - 1][0], runs[(number + 1) % len(runs)][0]
        for place, slot in enumerate(slots):
            nearest = (before, after) if 2 * place < len(slots) else (after, before)
            found[slot] = next(neighbour for neighbour in nearest if neighbour != name)
    return found


def _ends(known: Assignment, wish: Wished) -> bool:
    """Return whether a wish to move that the plan still holds has ended."""
    return known.reason == MOVE and wish.reason != MOVE
