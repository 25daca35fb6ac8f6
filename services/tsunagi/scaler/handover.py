"""A slot's way from one worker to another as a sequence of wishes: a planned takeover, without I/O.

See architecture, "No live surgery".

prepare   the target becomes the slot's secondary and builds its state; the old secondary stays until that is ready
move      the target shall promote itself; the plan also names the slot's next secondary
moved     the target says that it owns the slot: the wish to move has ended, so that a later takeover is accepted

Each wish follows from the goal, the plan and the heartbeats alone, so a restarted scaler goes on with what the one
before it had begun. A wish without effect is given up after some time, and the slot rests before the next attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from tsunagi.runtime.messages import Assignment
from tsunagi.runtime.plan import MOVE
from tsunagi.standby.detector import Detector

PREPARE, MOVED, SETTLE = "prepare", "moved", "settle"
"""Reasons of an assignment in `plan`: the target builds the slot's state; the move is over, since the target owns the
slot; only the secondary changes."""

AT_ONCE = 4
"""Most slots that move at a time. Building a state reads the log, and too many at once delay each other."""

PREPARE_S = 60.0
"""A target that is not a ready secondary of the slot after this many seconds is given up."""
MOVE_S = 20.0
"""A target that does not own the slot this many seconds after the wish is given up."""
REST_S = 10.0
"""A slot whose move was given up is left alone for this many seconds."""


class Pair(NamedTuple):
    """Who owns a slot and who stands by for it; "" means nobody."""

    owner: str
    secondary: str


class Wished(NamedTuple):
    """What the plan should say about a slot."""

    owner: str
    secondary: str
    reason: str


class Handover:
    """The slots that are moving. Times are monotonic seconds of the caller's clock.

    Attributes:
        goal: for each slot, who should have it in the end; a slot that is missing stays where it is.
        done: number of moves carried out since the start; given_up: number of moves given up.
    """

    def __init__(self, detector: Detector) -> None:
        self.goal: Mapping[int, Pair] = {}
        self.done = 0
        self.given_up = 0
        self._detector = detector
        self._since: dict[int, tuple[int, float]] = {}  # slot -> (serial of the wish, time when it was first seen)
        self._rests: dict[int, float] = {}  # slot -> time until which it rests

    def stands(self, known: Assignment, actual: str, alive: Collection[str], now: float) -> bool:
        """Return whether a wish to move is still waited for although another worker owns the slot."""
        if known.reason != MOVE:
            return False
        if actual == known.owner:
            self.done += self._since.pop(known.slot, None) is not None
            return False
        if known.owner not in alive:
            return False
        return not self._overdue(known, MOVE_S, now)

    def under_way(self, plan: Mapping[int, Assignment]) -> int:
        """Return how many slots are moving."""
        return sum(slot in plan and plan[slot].reason in (PREPARE, MOVE) for slot in self._since)

    def at_rest(self, slot: int, pair: Pair) -> bool:
        """Return whether a slot that these workers have is to stay where it is."""
        goal = self.goal.get(slot)
        if goal is not None and goal != pair and goal.owner:
            return False
        self._since.pop(slot, None)
        return True

    def toward(self, known: Assignment, wished: Wished, alive: Collection[str], now: float, *, room: bool) -> Wished:
        """Return the next wish on the slot's way to its goal, or the given wish if there is nothing to do.

        Args:
            wished: what the plan would say without a goal; its owner is the worker that owns the slot.
            room: whether one more slot may begin to move.
        """
        slot, goal = known.slot, self.goal.get(known.slot)
        if goal is None or goal == wished[:2] or not goal.owner:
            self._since.pop(slot, None)
            return wished
        if goal.owner not in alive or (goal.secondary and goal.secondary not in alive):
            return wished
        if wished.owner == goal.owner:
            self._since.pop(slot, None)
            return Wished(*goal, SETTLE)
        if now < self._rests.get(slot, 0.0):
            return wished
        preparing = known.reason == PREPARE and known.secondary == goal.owner
        if not preparing and not room:
            return wished
        if self._detector.stands_by(goal.owner, slot):
            return Wished(goal.owner, goal.secondary, MOVE)
        if preparing and self._overdue(known, PREPARE_S, now):
            return self._back(slot, wished, alive)
        return Wished(wished.owner, goal.owner, PREPARE)

    def begun(self, wish: Assignment, now: float) -> None:
        """Take note that a wish has been written."""
        if wish.reason in (PREPARE, MOVE):
            self._since[wish.slot] = wish.serial, now

    def _overdue(self, known: Assignment, limit_s: float, now: float) -> bool:
        serial, since = self._since.setdefault(known.slot, (known.serial, now))
        if serial != known.serial:  # another scaler has written this wish
            self._since[known.slot] = known.serial, now
            return False
        if now - since <= limit_s:
            return False
        self.given_up += 1
        self._rests[known.slot] = now + REST_S
        del self._since[known.slot]
        return True

    def _back(self, slot: int, wished: Wished, alive: Collection[str]) -> Wished:
        """Return a wish for a ready secondary, if there is one; else the given wish."""
        ready = sorted(name for name in alive if name != wished.owner and self._detector.stands_by(name, slot))
        return Wished(wished.owner, ready[0], "protect") if ready else wished
