"""Starts and stops workers in the paper's order (ElasticStream, section 5), as a state machine without I/O.

Start, wait until ready (the first heartbeat), move slots away from workers that are to stop, stop those without slots.

It keeps little that it could not read again: heartbeats say which workers live, the launcher says which run and of what
type, and `plan` says whom the plan names. So a scaler that dies half-way leaves no worker behind: the next scaler
counts workers that boot, and drains and stops those that are too many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from tsunagi.runtime.settings import LOCAL

RETRY_S = 1.0
"""Pause before the next launch after one that failed, in seconds; it doubles with each failure up to `RETRY_MOST_S`."""
RETRY_MOST_S = 30.0
"""Longest pause before the next launch after failures, in seconds."""

QUIET_S = 1.0
"""A worker that is to stop is stopped once no slot has had anything to do with it for this many seconds."""

LOST_S = 3.0
"""A worker that died is replaced after this many seconds. Its slots are taken over at once by who stands by, and a
process that starts takes a core for seconds."""

MOST_PATIENCE = 64.0
"""Greatest number of boot times of its type that a worker gets until its first heartbeat."""
HUNG_S = 30.0
"""A worker that runs and sends no heartbeat is stopped this many seconds after its boot time is over."""

GATHER_S = 10.0
"""Slots move to new workers when all booting ones are ready, but at the latest after this many seconds, so that slots
do not move twice."""


@dataclass(frozen=True, slots=True)
class WorkerSlots:
    """The slots of a living worker.

    Attributes:
        owns: number of slots that it says it is the primary of.
        hosts: number of slots that it has anything to do with, as it or the plan says.
    """

    owns: int = 0
    hosts: int = 0


@dataclass(slots=True)
class Todo:
    """What to do now.

    Attributes:
        launch: (name, type) of the workers to launch.
        stop: names of the workers to stop; a worker that does not stop at once is named again.
        usable: workers that may be given slots.
        placed: those of them over which slots are to be spread now.
        lost: number of workers that had been ready and have died since the last call.
    """

    launch: list[tuple[str, str]] = field(default_factory=list)
    stop: list[str] = field(default_factory=list)
    usable: frozenset[str] = frozenset()
    placed: frozenset[str] = frozenset()
    lost: int = 0


class Rescale:
    """Compares the workers that there are with those wanted. Times are monotonic seconds of the caller's clock.

    Args:
        least: least number of local workers while nobody has said how many there should be.
        boot_s: returns the boot time of a type. A worker that has sent no heartbeat by then is given up, and the next
            ones may take twice as long: on a machine that is overloaded all take longer, and workers that are stopped
            for it and started anew would only add to its load. Workers that boot together share the machine, so each
            may take as many times as long as there are workers that boot.
        settle_s: after the start nothing is launched for this many seconds, since others may be starting workers too.
        launches: whether there is a launcher that could start a worker.

    Attributes:
        wanted: number of workers of each type; a missing type gets none. None means that nobody has said: `least` local
            ones.
        least: as given; it grows with the number of slots.
        prefer: workers that are the first to stop.
        retiring: workers that are to stop.
        launched: number of launches since the start.
    """

    def __init__(
        self, least: int, boot_s: Callable[[str], float], settle_s: float, now: float, *, launches: bool = True
    ) -> None:
        self.wanted: Mapping[str, int] | None = None
        self.prefer: Collection[str] = ()
        self.retiring: set[str] = set()
        self.launched = 0
        self.least = least
        self._boot_s = boot_s
        self._launches = launches
        self._quiet_until = now + settle_s
        self._retry_s = RETRY_S
        self._number: Counter[str] = Counter()
        self._kinds: dict[str, str] = {}  # type of each worker, as the launcher said last
        self._patience = 1.0  # how many boot times a worker may take
        self._booting: dict[str, float] = {}  # launched, or running without a heartbeat so far -> since when
        self._heard: dict[str, float] = {}  # lives, or has lived and still runs -> when it was last alive
        self._idle_since: dict[str, float] = {}
        self._fresh_since: dict[str, float] = {}  # ready, and without slots so far -> since when
        self._placed: frozenset[str] = frozenset()

    def kind(self, name: str) -> str:
        """Return the type of a worker."""
        return self._kinds.get(name, LOCAL)

    def kinds(self, alive: Collection[str]) -> dict[str, str]:
        """Return the types of the workers that live or boot."""
        return {name: self.kind(name) for name in sorted({*alive, *self._booting})}

    def count(self, alive: Collection[str]) -> Counter[str]:
        """Return how many workers of each type live or boot and are not to stop."""
        return Counter(self.kind(name) for name in {*alive, *self._booting} - self.retiring)

    def total(self, alive: Collection[str]) -> int:
        """Return how many workers there should be, of all types together."""
        have = self.count(alive)
        return sum(self._target(kind, have) for kind in {*(self.wanted or {}), LOCAL})

    def refused(self, name: str, now: float) -> None:
        """Take note that a launch failed: nothing else is launched for some time."""
        self._booting.pop(name, None)
        self._wait(now)

    def step(
        self, alive: Mapping[str, WorkerSlots], running: Mapping[str, str], known: Collection[str], now: float
    ) -> Todo:
        """Return what to do now.

        Args:
            alive: the living workers, by their heartbeats.
            running: name -> type of the workers that the launcher has started and that have not ended.
            known: all names that were ever heard of; a new worker gets none of them.
        """
        todo = Todo()
        self._kinds.update(running)
        self._follow(alive, running, todo, now)
        ready = self._size(alive, running, known, todo, now)
        self.retiring &= {*alive, *running}
        if ready:
            self._retire(alive, running, todo)
        todo.stop += self._idle(alive, now)
        todo.usable = frozenset(name for name in alive if name not in self.retiring)
        todo.placed = self._gather(todo.usable, now)
        return todo

    def _follow(self, alive: Mapping[str, WorkerSlots], running: Mapping[str, str], todo: Todo, now: float) -> None:
        """Update who boots, who lives and who is gone."""
        for name in alive:
            since = self._booting.pop(name, None)
            if since is not None:
                self._retry_s = RETRY_S
                self._calm(now - since, self._boot_s(self.kind(name)))
            self._heard[name] = now
        together, late = len(self._booting), False
        for name, since in list(self._booting.items()):
            if name not in running:
                del self._booting[name]
                if name not in self.retiring:
                    self._wait(now)  # this one died at once, and the next one may too
            elif now - since > self._limit(name, together):
                todo.stop.append(name)
                del self._booting[name]
                self._heard[name] = since  # so that it does not count as booting again
                late = True
                self._wait(now)
        if late:
            self._patience = min(2 * self._patience, MOST_PATIENCE)
        for name in running:
            if name not in alive and name not in self._booting and name not in self._heard:
                self._booting[name] = now
        for name, at in list(self._heard.items()):
            if name in alive:
                continue
            if name not in running:
                del self._heard[name]
                self._kinds.pop(name, None)
                if name not in self.retiring:
                    todo.lost += 1
                    self._quiet_until = max(self._quiet_until, now + LOST_S)
            elif now - at > self._limit(name, 1) + HUNG_S:
                todo.stop.append(name)

    def _limit(self, name: str, together: int) -> float:
        """Return how long a worker may take until its first heartbeat, of so many that boot together."""
        return self._boot_s(self.kind(name)) * min(max(self._patience, float(together)), MOST_PATIENCE)

    def _calm(self, took_s: float, boot_s: float) -> None:
        """Take note of a boot that was in time: half the patience is enough where it took less than a quarter of it."""
        if took_s < boot_s * self._patience / 4:
            self._patience = max(1.0, self._patience / 2)

    def _size(
        self,
        alive: Mapping[str, WorkerSlots],
        running: Mapping[str, str],
        known: Collection[str],
        todo: Todo,
        now: float,
    ) -> bool:
        """Launch what is missing; return whether nothing is missing and nothing boots."""
        have, missing = self.count(alive), False
        for kind in sorted({*(self.wanted or {}), LOCAL}):
            lacking = self._target(kind, have) - have[kind]
            for name in sorted(name for name in self.retiring if name in alive and self.kind(name) == kind):
                if lacking > 0:
                    self.retiring.discard(name)  # it is kept instead of launching another one
                    lacking -= 1
            missing |= lacking > 0
            if now < self._quiet_until or not self._launches:
                continue
            for _ in range(lacking):
                name = self._fresh_name(kind, known, running)
                self._booting[name] = now
                self._kinds[name] = kind
                self.launched += 1
                todo.launch.append((name, kind))
        return not missing and not any(name not in self.retiring for name in self._booting)

    def _retire(self, alive: Mapping[str, WorkerSlots], running: Mapping[str, str], todo: Todo) -> None:
        """Choose which workers stop if there are too many; none stops before its successors are ready."""
        have = self.count(alive)
        for kind in list(have):
            surplus = have[kind] - self._target(kind, have)
            if surplus <= 0:
                continue
            going = [name for name in {*alive, *self._booting} if name not in self.retiring and self.kind(name) == kind]
            # The first to stop are those that own least, then the newest ones: the others are warm, and few slots
            # move.
            going.sort(key=_order, reverse=True)
            going.sort(key=lambda name: (name not in self.prefer, alive.get(name, WorkerSlots()).owns))
            self.retiring.update(going[:surplus])
        for name in sorted(self.retiring):
            if name in self._booting and name in running:
                todo.stop.append(name)

    def _idle(self, alive: Mapping[str, WorkerSlots], now: float) -> list[str]:
        """Return the workers that are to stop and that no slot has had anything to do with for `QUIET_S`."""
        found = []
        for name in sorted(self.retiring):
            standing = alive.get(name)
            if standing is None or standing.owns or standing.hosts:
                self._idle_since.pop(name, None)
            elif now - self._idle_since.setdefault(name, now) >= QUIET_S:
                found.append(name)
        self._idle_since = {name: at for name, at in self._idle_since.items() if name in self.retiring}
        return found

    def _gather(self, usable: frozenset[str], now: float) -> frozenset[str]:
        """Return the workers over which slots are spread: new ones together, once no worker boots any more."""
        fresh = usable - self._placed
        self._fresh_since = {name: self._fresh_since.get(name, now) for name in fresh}
        waited = max((now - at for at in self._fresh_since.values()), default=0.0)
        if not self._booting or waited >= GATHER_S or not self._placed & usable:
            self._placed = usable
        else:
            self._placed &= usable
        return self._placed

    def _target(self, kind: str, have: Mapping[str, int]) -> int:
        if self.wanted is not None and kind in self.wanted:
            return self.wanted[kind]
        # Nobody has said how many: local workers are kept, even if somebody else starts more of them.
        return max(self.least, have.get(LOCAL, 0)) if kind == LOCAL else 0

    def _wait(self, now: float) -> None:
        self._quiet_until = max(self._quiet_until, now + self._retry_s)
        self._retry_s = min(2 * self._retry_s, RETRY_MOST_S)

    def _fresh_name(self, kind: str, known: Collection[str], running: Mapping[str, str]) -> str:
        stem = "worker" if kind == LOCAL else kind
        while True:
            self._number[kind] += 1
            name = f"{stem}-{self._number[kind]}"
            if name not in known and name not in running and name not in self._booting:
                return name


def _order(name: str) -> tuple[str, int]:
    stem, _, number = name.rpartition("-")
    return stem, int(number) if number.isdigit() else 0
