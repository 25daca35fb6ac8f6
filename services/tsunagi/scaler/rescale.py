"""Workers come and go in the paper's order (ElasticStream, section 5), as a state machine without I/O.

start -> wait until ready (the first heartbeat) -> move slots away from those that are to go -> stop what owns nothing.

It remembers little that it could not read again: which workers live is in the heartbeats, which run and of what type
the launcher says, what the plan names is in `plan`. A scaler that dies half-way therefore leaves no orphan: the next
one counts a worker that boots, and drains and stops the ones that are too many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from tsunagi.runtime.settings import LOCAL

RETRY_S = 1.0
"""Between two launches when the first one came to nothing; it doubles up to `RETRY_MOST_S`."""
RETRY_MOST_S = 30.0

QUIET_S = 1.0
"""A worker that is to go is stopped when it has had nothing to do with any slot for so long."""

HUNG_S = 30.0
"""Beyond its boot time: a process that runs and says nothing for so long is stopped."""

GATHER_S = 10.0
"""Slots move to new workers when all that boot are ready, or after so long, so that they do not move twice."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A worker that lives.

    Attributes:
        owns: slots it says it is the primary of.
        hosts: slots it has anything to do with, by its word or the plan's.
    """

    owns: int = 0
    hosts: int = 0


@dataclass(slots=True)
class Todo:
    """What follows.

    Attributes:
        launch: (name, type).
        stop: names; those that do not stop at once are named again.
        usable: workers that may be given slots.
        placed: those of them that slots are to be spread over now.
        lost: workers that had been ready and are dead, since the last call.
    """

    launch: list[tuple[str, str]] = field(default_factory=list)
    stop: list[str] = field(default_factory=list)
    usable: frozenset[str] = frozenset()
    placed: frozenset[str] = frozenset()
    lost: int = 0


class Rescale:
    """Compares the workers there are with those that are wanted. Times are monotonic seconds of the caller's clock.

    Args:
        least: local workers at least, while nobody has said how many there should be.
        boot_s: of a type: a launched worker that has not reported by then is given up.
        settle_s: after the start nothing is launched for so long, since others may be starting workers too.
        launches: whether there is anybody who could launch a worker.

    Attributes:
        wanted: type -> workers; a type that is not named: none, local ones: `least` or more. None: nobody has said.
        prefer: workers that are to go first.
        retiring: workers that are to go.
        launched: how many were, since the start.
    """

    def __init__(
        self, least: int, boot_s: Callable[[str], float], settle_s: float, now: float, *, launches: bool = True
    ) -> None:
        self.wanted: Mapping[str, int] | None = None
        self.prefer: Collection[str] = ()
        self.retiring: set[str] = set()
        self.launched = 0
        self._least = least
        self._boot_s = boot_s
        self._launches = launches
        self._quiet_until = now + settle_s
        self._retry_s = RETRY_S
        self._number: Counter[str] = Counter()
        self._kinds: dict[str, str] = {}  # as last told by the launcher
        self._booting: dict[str, float] = {}  # launched, or found running and never heard: since
        self._heard: dict[str, float] = {}  # lives, or lived and still runs: last seen alive
        self._idle_since: dict[str, float] = {}
        self._fresh_since: dict[str, float] = {}  # ready, and not placed on yet
        self._placed: frozenset[str] = frozenset()

    def kind(self, name: str) -> str:
        """Return a worker's type."""
        return self._kinds.get(name, LOCAL)

    def kinds(self, alive: Collection[str]) -> dict[str, str]:
        """Return the types of the workers that live or boot."""
        return {name: self.kind(name) for name in sorted({*alive, *self._booting})}

    def count(self, alive: Collection[str]) -> Counter[str]:
        """Return how many workers of each type live or boot and are not about to go."""
        return Counter(self.kind(name) for name in {*alive, *self._booting} - self.retiring)

    def total(self, alive: Collection[str]) -> int:
        """Return how many workers there should be, of all types."""
        have = self.count(alive)
        return sum(self._target(kind, have) for kind in {*(self.wanted or {}), LOCAL})

    def refused(self, name: str, now: float) -> None:
        """A launch failed: nothing else is launched for a while."""
        self._booting.pop(name, None)
        self._wait(now)

    def step(
        self, alive: Mapping[str, Standing], running: Mapping[str, str], known: Collection[str], now: float
    ) -> Todo:
        """Return what to do now.

        Args:
            alive: the workers that live, by their heartbeats.
            running: name -> type of what the launcher has started and what has not ended.
            known: all names ever heard; a fresh one is none of them.
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

    def _follow(self, alive: Mapping[str, Standing], running: Mapping[str, str], todo: Todo, now: float) -> None:
        """Bring up to date who boots, who lives and who is gone."""
        for name in alive:
            if self._booting.pop(name, None) is not None:
                self._retry_s = RETRY_S
            self._heard[name] = now
        for name, since in list(self._booting.items()):
            if name not in running:
                del self._booting[name]
                if name not in self.retiring:
                    self._wait(now)  # it died at once, and so may the next one
            elif now - since > self._boot_s(self.kind(name)):
                todo.stop.append(name)
                del self._booting[name]
                self._heard[name] = since  # it is not to be taken for one that boots again
                self._wait(now)
        for name in running:
            if name not in alive and name not in self._booting and name not in self._heard:
                self._booting[name] = now
        for name, at in list(self._heard.items()):
            if name in alive:
                continue
            if name not in running:
                del self._heard[name]
                self._kinds.pop(name, None)
                todo.lost += name not in self.retiring
            elif now - at > self._boot_s(self.kind(name)) + HUNG_S:
                todo.stop.append(name)

    def _size(
        self,
        alive: Mapping[str, Standing],
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
                    self.retiring.discard(name)  # rather than launch another one
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

    def _retire(self, alive: Mapping[str, Standing], running: Mapping[str, str], todo: Todo) -> None:
        """Choose who is to go where there are too many: never before those are ready that are to follow them."""
        have = self.count(alive)
        for kind in list(have):
            surplus = have[kind] - self._target(kind, have)
            if surplus <= 0:
                continue
            going = [name for name in {*alive, *self._booting} if name not in self.retiring and self.kind(name) == kind]
            # Who owns least, then who came last: the others are warm, and nothing more than needed moves.
            going.sort(key=_order, reverse=True)
            going.sort(key=lambda name: (name not in self.prefer, alive.get(name, Standing()).owns))
            self.retiring.update(going[:surplus])
        for name in sorted(self.retiring):
            if name in self._booting and name in running:
                todo.stop.append(name)

    def _idle(self, alive: Mapping[str, Standing], now: float) -> list[str]:
        """Return those of the retiring that have had nothing to do with any slot for a while."""
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
        """Return the workers to spread slots over: new ones together, once nothing boots any more."""
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
        # Nobody has said how many: local ones are kept, however many somebody else starts.
        return max(self._least, have.get(LOCAL, 0)) if kind == LOCAL else 0

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
