"""Follows who owns which slot, by the slots' logs, and what nodes say about themselves, by their heartbeats. No I/O.

The log alone decides who the owner is. A heartbeat that claims a term which the log gave to somebody else is a finding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tsunagi.audit.evidence import OwnershipTerm
from tsunagi.audit.tally import Tally
from tsunagi.replay.generations import begins_term
from tsunagi.runtime.messages import Assignment, Heartbeat, Ownership
from tsunagi.runtime.plan import MOVE

FRESH_US = 2_000_000
"""A node whose last heartbeat is older than this counts as gone, in microseconds. It equals the `FRESH_S` of
`tsunagi.local.fleet`, so `tsunagi status` counts the same nodes."""

_TERMS = 500
"""How many terms of a slot are kept, the last ones. Late heartbeats are compared with them."""


@dataclass(frozen=True, slots=True)
class AuditedHeartbeat:
    """The last heartbeat of a node, and when it was appended, in microseconds since 1970."""

    message: Heartbeat
    appended_us: int


@dataclass(slots=True)
class _Ready:
    """A standby that says it could take over.

    Attributes:
        epoch: the owner's epoch for which it says so.
        incarnation: the process that says so.
        since_us, last_us: when it first and last said so without a break, in microseconds since 1970.
    """

    epoch: int
    incarnation: int
    since_us: int
    last_us: int


@dataclass(slots=True)
class _Slot:
    terms: dict[int, OwnershipTerm] = field(default_factory=dict)
    epoch: int = 0
    early: list[OwnershipTerm] = field(default_factory=list)


class Roles:
    """Follows ownership and heartbeats.

    Attributes:
        beats: the last heartbeat of each node.
    """

    def __init__(self, slots: int, tally: Tally) -> None:
        self._slots = {slot: _Slot() for slot in range(slots)}
        self._tally = tally
        self._ready: dict[tuple[int, str], _Ready] = {}
        self._doubtful: set[tuple[int, int, str]] = set()
        self._accused: set[tuple[int, int, str]] = set()
        self._changes: list[tuple[OwnershipTerm, OwnershipTerm]] = []
        self._moves: set[tuple[int, str]] = set()
        self.beats: dict[str, AuditedHeartbeat] = {}

    # ---- records

    def take_assignment(self, assignment: Assignment) -> None:
        """Take in an assignment of the plan. A move asks for one change of owner."""
        if assignment.reason == MOVE:
            self._moves.add((assignment.slot, assignment.owner))

    def take_ownership(self, slot: int, offset: int, appended_us: int, claim: Ownership) -> bool:
        """Take in an Ownership record, in log order; return whether it counts."""
        state = self._slots[slot]
        owner = OwnershipTerm(slot, claim.epoch, claim.node, offset, appended_us)
        if state.epoch == 0 and claim.epoch > 1:
            state.early.append(owner)  # the log is read from its middle, so it is not known yet which term is current
            return False
        if not begins_term(claim, state.epoch):
            return False
        self._enter(slot, owner)
        return True

    def take_beat(self, beat: Heartbeat, appended_us: int) -> None:
        """Take in a heartbeat."""
        self.beats[beat.node] = AuditedHeartbeat(beat, appended_us)
        standing = set()
        for part in beat.slots:
            if part.slot not in self._slots:
                continue
            if part.role == "primary":
                self._claims(part.slot, part.epoch, beat.node)
            if part.role == "standby" and part.ready:
                standing.add(part.slot)
                known = self._ready.get((part.slot, beat.node))
                if known is None or (known.epoch, known.incarnation) != (part.epoch, beat.incarnation):
                    known = _Ready(part.epoch, beat.incarnation, appended_us, appended_us)
                    self._ready[part.slot, beat.node] = known
                known.last_us = appended_us
        for slot in self._slots:
            if slot not in standing:
                self._ready.pop((slot, beat.node), None)

    def settle(self, slots: Iterable[int]) -> None:
        """Judge claims of epochs that the log, as far as it was read, did not have yet.

        Args:
            slots: the slots whose logs have been read further since.
        """
        read = set(slots)
        for slot, epoch, node in list(self._doubtful):
            if slot in read and epoch <= self._slots[slot].epoch:
                self._doubtful.discard((slot, epoch, node))
                self._judge(slot, epoch, node)

    # ---- questions

    def owner(self, slot: int) -> OwnershipTerm | None:
        """Return the owner by the slot's log; None if it is not known yet."""
        state = self._slots[slot]
        return state.terms.get(state.epoch)

    def terms_since(self, slot: int, from_us: int) -> list[OwnershipTerm]:
        """Return the terms that began after that time, in microseconds since 1970."""
        return [owner for owner in self._slots[slot].terms.values() if owner.appended_us > from_us]

    def take_changes(self) -> list[tuple[OwnershipTerm, OwnershipTerm]]:
        """Return the changes of owner since the last call that no plan had asked for, each as (before, after)."""
        found, self._changes = self._changes, []
        unplanned = [(before, owner) for before, owner in found if (owner.slot, owner.node) not in self._moves]
        self._moves -= {(owner.slot, owner.node) for _, owner in found}
        return unplanned

    def owned_by(self, node: str) -> list[int]:
        """Return the slots that a node owns."""
        return [slot for slot in self._slots if (owner := self.owner(slot)) is not None and owner.node == node]

    def secondary(self, slot: int, now_us: int) -> str:
        """Return the secondary of a slot that has been ready for longest; "" if none is ready."""
        found = self._standbys(slot, now_us, 0)
        return min(found)[1] if found else ""

    def protected_us(self, slot: int, after_us: int, now_us: int) -> int | None:
        """Return since when the slot has had a secondary that was ready after `after_us`; None if it has none.

        Only heartbeats after `after_us` count: what a node said before it was disturbed proves nothing.
        """
        found = self._standbys(slot, now_us, after_us)
        return max(after_us, min(found)[0]) if found else None

    def fresh(self, role: str, now_us: int) -> dict[str, Heartbeat]:
        """Return the last heartbeat of each living node with this role."""
        return {
            node: beat.message
            for node, beat in sorted(self.beats.items())
            if beat.message.role == role and not beat.message.leaving and now_us - beat.appended_us < FRESH_US
        }

    def missing(self, now_us: int, at_us: int | None = None) -> list[str]:
        """Return in words what the slots lack.

        A slot needs an owner that says so in its heartbeats, no other node that says so, and a ready secondary.

        Args:
            now_us: the present time, in microseconds since 1970.
            at_us: when the system was disturbed. A secondary must have been ready after that, and after each takeover
                that followed. None if nothing was disturbed.
        """
        found = []
        workers = self.fresh("worker", now_us)
        claims = [(node, part) for node, beat in workers.items() for part in beat.slots if part.role == "primary"]
        for slot in self._slots:
            owner = self.owner(slot)
            if owner is None:
                found.append(f"slot {slot} has no known owner")
                continue
            acting = [(node, part.epoch) for node, part in claims if part.slot == slot]
            if (owner.node, owner.epoch) not in acting:
                found.append(f"slot {slot}: {owner.node}, its owner, is not at work")
            found += [
                f"slot {slot}: {node} acts as its owner of epoch {epoch}, "
                f"and the log names {owner.node}, epoch {owner.epoch}"
                for node, epoch in acting
                if (node, epoch) != (owner.node, owner.epoch)
            ]
            after_us = 0
            if at_us is not None:
                after_us = max([at_us, *(term.appended_us for term in self.terms_since(slot, at_us))])
            if not self._standbys(slot, now_us, after_us):
                found.append(f"slot {slot} has no ready secondary")
        return found

    def role_of(self, node: str) -> str:
        """Return the roles that a worker claims, such as "slot 0: standby, slot 1: primary", or "idle"."""
        beat = self.beats.get(node)
        if beat is None:
            return "never heard of"
        return ", ".join(f"slot {part.slot}: {part.role}" for part in beat.message.slots) or "idle"

    # ---- inside

    def _enter(self, slot: int, owner: OwnershipTerm) -> None:
        state = self._slots[slot]
        before = state.terms.get(state.epoch)
        if before is not None:
            self._changes.append((before, owner))
        state.epoch = owner.epoch
        state.terms[owner.epoch] = owner
        if len(state.terms) > _TERMS:
            del state.terms[min(state.terms)]

    def _claims(self, slot: int, epoch: int, node: str) -> None:
        state = self._slots[slot]
        if state.epoch == 0:
            self._enter(
                slot, OwnershipTerm(slot, epoch, node, -1, 0)
            )  # the term that was current when the reading began
            for owner in state.early:
                if owner.epoch == state.epoch + 1:
                    self._enter(slot, owner)
            state.early.clear()
        elif epoch > state.epoch:
            self._doubtful.add((slot, epoch, node))
        else:
            self._judge(slot, epoch, node)

    def _judge(self, slot: int, epoch: int, node: str) -> None:
        owner = self._slots[slot].terms.get(epoch)
        if owner is not None and owner.node != node and (slot, epoch, node) not in self._accused:
            self._accused.add((slot, epoch, node))
            self._tally.amiss(
                "second primary",
                f"slot {slot}: {node} says it is the primary of epoch {epoch}, which is {owner.node}'s",
            )

    def _standbys(self, slot: int, now_us: int, after_us: int) -> list[tuple[int, str]]:
        owner = self.owner(slot)
        if owner is None:
            return []
        return [
            (ready.since_us, node)
            for (number, node), ready in self._ready.items()
            if number == slot
            and node != owner.node
            and ready.epoch == owner.epoch
            and ready.last_us > after_us
            and now_us - ready.last_us < FRESH_US
        ]
