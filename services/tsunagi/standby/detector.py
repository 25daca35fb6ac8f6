"""Detects dead owners, without false alarms when this node itself is in trouble (architecture, "Evidence of death").

Nobody is suspected on a timer alone. A node reads its own heartbeats back from the broker, and counts another node's
silence only

- while its own heartbeats come back (the last one less than two intervals ago),
- after at least two of its own have come back, in log order, since the other's last one, and
- from 1 s after a gap in its own on. Earlier silence does not count, since the other node's connection may come back
  later than this node's.

A stalled broker, a network that is down, and saturated cores silence all nodes alike, so nobody is suspected.

The *epoch* is the number of an ownership of a slot: each takeover adds one. To *announce* records is to name them in a
heartbeat before they are processed. To *survive* a record is to have processed it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tsunagi.runtime.beat_routes import OWNING
from tsunagi.runtime.heartbeat import HeartbeatFilter
from tsunagi.runtime.messages import Heartbeat, SlotBeat

SETTLE_S = 1.0
"""A node suspects nobody for this long after a gap in its own heartbeats, seconds."""
OWN_BACK_INTERVALS = 2.0
"""A node counts others' silence only while its own last heartbeat came back less than this many intervals ago."""
GAP_INTERVALS = 4.0
"""There is a gap in a node's own heartbeats if two of them come back further apart than this many intervals."""
MIN_OWN_BACK = 2
"""A node counts another's silence once this many of its own heartbeats have come back since the other's last one."""
MIN_STALL_S = 1.0
"""Each piece of work may last this long, seconds: processes share cores, and any of them may have to wait."""

STALL_RECORDS = 50.0
"""A record may take this many times the mean, unless it announces long work. After that the loop counts as stalled."""

STUCK_S = 5.0
"""An owner that sends heartbeats but neither works nor reads on in its growing log counts as stuck after this, seconds.
"""

HINT_INTERVALS = 2.0
"""Heartbeats that come within this many intervals of a hint were on their way already. One that comes later shows that
the process lives, and the hint was wrong."""

HINT_S = 5.0
"""A hint is forgotten after this time, seconds: by then heartbeats have shown whether the process is dead."""

REPLACED_INTERVALS = 5.0
"""Heartbeats of an earlier process of a node are ignored for this many intervals after the later process's last one.

Processes are told apart by their start times. The one that seems earlier may be the later one, if the machine's clock
was set back in between. So this time is shorter than a takeover's detection: otherwise such a process would lose each
slot that it takes.
"""


@dataclass(slots=True)
class _Seen:
    at: float
    own_count: int
    beat: SlotBeat | None = None
    incarnation: int = 0


class Detector:
    """Judges which nodes live by their heartbeats, in log order. Times are monotonic seconds of the caller's clock.

    Attributes:
        gaps: how many gaps there have been in this node's own heartbeats.
    """

    def __init__(self, node: str, incarnation: int, interval_s: float) -> None:
        self._node = node
        self._incarnation = incarnation
        self._interval_s = interval_s
        self._own_last: float | None = None
        self._first_at: float | None = None  # of another node's: our own should come back soon after
        self._own_count = 0
        self._hold_until = 0.0
        self._heard = HeartbeatFilter()
        self._nodes: dict[str, _Seen] = {}
        self._beats: dict[str, Heartbeat] = {}
        self._slots: dict[tuple[str, int], _Seen] = {}
        # slot -> (epoch, whether a speculating standby announced) -> (node and incarnation, records [from, until))
        self._announced: dict[int, dict[tuple[int, bool], tuple[tuple[str, int], tuple[int, int]]]] = {}
        self._behind: dict[int, tuple[str, int, float]] = {}  # slot -> (owner, its position, since when it is there)
        self._hints: dict[str, tuple[int, float]] = {}  # node -> (incarnation, when a connection to it ended)
        self.gaps = 0

    def on_heartbeat(self, beat: Heartbeat, now: float) -> bool:
        """Take in a heartbeat in log order; return False if it is a repeat or late, and so no sign of life."""
        if not self._heard.news(beat):
            return False
        if beat.node == self._node and beat.incarnation == self._incarnation:
            before = self._first_at if self._own_last is None else self._own_last
            if before is not None and now - before > GAP_INTERVALS * self._interval_s:
                self.gaps += 1
                self._hold_until = now + SETTLE_S
            self._own_last = now
            self._own_count += 1
            return True
        if self._first_at is None:
            self._first_at = now
        known = self._nodes.get(beat.node)
        if (
            known is not None
            and beat.incarnation < known.incarnation
            and now - known.at < REPLACED_INTERVALS * self._interval_s
        ):
            return False  # from a process that has been replaced; REPLACED_INTERVALS says why not for ever
        self._nodes[beat.node] = _Seen(now, self._own_count, incarnation=beat.incarnation)
        self._beats[beat.node] = beat
        if beat.slots:
            self._note_slots(beat, now)
        return True

    def hint(self, node: str, incarnation: int, now: float) -> None:
        """Take in that a connection to a process has ended, as it does when the process dies."""
        seen = self._nodes.get(node)
        if seen is not None and seen.incarnation == incarnation:
            self._hints[node] = incarnation, now

    def hinted(self, node: str, now: float) -> bool:
        """Return whether a node may be dead by a hint, and nothing has been heard since that speaks against it.

        It is False while this node's own heartbeats do not come back: its network may have ended the connection.
        """
        incarnation, at = self._hints.get(node, (0, -math.inf))
        seen = self._nodes.get(node)
        if now - at > HINT_S or seen is None or seen.incarnation != incarnation:
            return False
        return self.connected(now) and seen.at <= at + HINT_INTERVALS * self._interval_s

    def _note_slots(self, beat: Heartbeat, now: float) -> None:
        """Take in what a node says of its slots. Most of a worker's work on control is here, so it makes no objects."""
        node, incarnation, owns = beat.node, beat.incarnation, not beat.leaving
        slots, announced, own_count = self._slots, self._announced, self._own_count
        for part in beat.slots:
            role, slot = part.role, part.slot
            if role in OWNING and owns:
                seen = slots.get((node, slot))
                if seen is None:
                    slots[node, slot] = _Seen(now, own_count, part, incarnation)
                else:
                    seen.at, seen.own_count, seen.beat, seen.incarnation = now, own_count, part, incarnation
            elif role != "standby":
                continue
            # A node being promoted names the old owner's epoch and announces nothing.
            if role != "promoting" and (slot in announced or part.busy_until > part.busy_offset >= 0):
                self._note_announced(part, (node, incarnation), owner=role == "primary")

    def _note_announced(self, beat: SlotBeat, process: tuple[str, int], *, owner: bool) -> None:
        """Keep the records that a process announced until it, or an owner of that or a later epoch, survives them."""
        of_slot = self._announced.setdefault(beat.slot, {})
        key = beat.epoch, not owner
        known = of_slot.get(key)
        if beat.busy_until > beat.busy_offset >= 0:
            of_slot[key] = process, (beat.busy_offset, beat.busy_until)
        elif known is not None and (owner or known[0] == process):
            del of_slot[key]
        survived = [one for one in of_slot if owner and one[0] <= beat.epoch and one != key]
        for earlier in survived:
            if beat.position >= of_slot[earlier][1][1]:
                del of_slot[earlier]
        if not of_slot:
            del self._announced[beat.slot]

    def connected(self, now: float) -> bool:
        """Return whether this node's own heartbeats come back, so that it may judge others at all."""
        return self._own_last is not None and now - self._own_last < OWN_BACK_INTERVALS * self._interval_s

    def settled(self, now: float) -> bool:
        """Return whether this node's own heartbeats come back, and the last gap in them is at least `SETTLE_S` ago."""
        return self.connected(now) and now >= self._hold_until

    def beat(self, node: str) -> Heartbeat | None:
        """Return the last heartbeat of another node; None = it was never heard."""
        return self._beats.get(node)

    def beats(self) -> dict[str, Heartbeat]:
        """Return the last heartbeat of every other node."""
        return self._beats

    def stands_by(self, node: str, slot: int) -> bool:
        """Return whether a node's last heartbeat says that it is a ready standby of the slot."""
        last = self._beats.get(node)
        return (
            last is not None
            and not last.leaving
            and any(part.slot == slot and part.role == "standby" and part.ready for part in last.slots)
        )

    def age(self, node: str, now: float) -> float:
        """Return the seconds since a node's last heartbeat, whatever the reason; infinite if it was never heard."""
        seen = self._nodes.get(node)
        return float("inf") if seen is None else now - seen.at

    def silence(self, node: str, now: float) -> float:
        """Return a node's silence in seconds; 0 while this node may not judge, infinite if it was never heard."""
        seen = self._nodes.get(node)
        if seen is None:
            return float("inf") if self.settled(now) else 0.0
        return self._count(seen.at, seen.own_count, now)

    def lost(self, node: str, limit_s: float, now: float) -> bool:
        """Return whether a node was heard before and has been silent for longer than the limit."""
        return node in self._nodes and self.silence(node, now) > limit_s

    def owner_silence(self, node: str, slot: int, since: float, now: float) -> float:
        """Return for how long the owner's heartbeats have not named the slot as its own, seconds.

        It is 0 while this node may not judge. A node that lives but does not hold the slot any more (its process is
        new, or it was deposed) counts as silent about it.

        Args:
            since: when the watch of this owner began; earlier silence does not count.
        """
        seen = self._slots.get((node, slot))
        if seen is None:
            return self._count(since, self._own_count - MIN_OWN_BACK, now)
        return self._count(max(seen.at, since), seen.own_count, now)

    def left(self, node: str) -> bool:
        """Return whether a node's last heartbeat says that it leaves."""
        last = self._beats.get(node)
        return last is not None and last.leaving

    def owner_beat(self, node: str, slot: int, since: float = -math.inf) -> SlotBeat | None:
        """Return what the owner last said of the slot, if that was not before `since` (perhaps in an earlier term)."""
        seen = self._slots.get((node, slot))
        return None if seen is None or seen.at < since else seen.beat

    def announced(self, slot: int, epoch: int) -> list[tuple[int, int]]:
        """Return the records that were announced in an epoch up to `epoch` and that nobody has survived.

        Returns:
            Offsets [from, until), the newest epoch first. Within an epoch, those of a speculating standby come before
            the owner's, since a standby speculates when the owner is silent already.
        """
        found = self._announced.get(slot, {})
        return [found[key][1] for key in sorted(found, reverse=True) if key[0] <= epoch]

    def stalled(self, node: str, slot: int, since: float) -> bool:
        """Return whether the owner's loop has been on one piece of work for longer than that kind of work may last.

        Owners of an earlier version do not say how long that is. For them the limit is `STALL_RECORDS` mean records.

        Args:
            since: when the watch of this owner began; heartbeats before that do not count.
        """
        beat = self.owner_beat(node, slot, since)
        if beat is None:
            return False
        if beat.busy_limit_us:
            return beat.busy_us > beat.busy_limit_us
        if beat.busy_offset < 0:
            return False
        return beat.busy_us / 1e6 > max(MIN_STALL_S, STALL_RECORDS * beat.record_us / 1e6)

    def stuck(self, node: str, slot: int, since: float, end: int, now: float) -> bool:
        """Return whether the owner lives but has stopped reading its log. A Kafka client may lose a partition silently.

        Args:
            since: when the watch of this owner began; heartbeats before that do not count.
            end: the end of the slot's log.
        """
        beat = self.owner_beat(node, slot, since)
        works = beat is not None and (beat.busy_offset >= 0 or beat.busy_limit_us > 0)
        if beat is None or beat.role != "primary" or not beat.ready or works or beat.position >= end:
            self._behind.pop(slot, None)
            return False
        known = self._behind.get(slot)
        if known is None or known[:2] != (node, beat.position):
            known = self._behind[slot] = node, beat.position, now
        return self.overdue(max(known[2], since), now)

    def overdue(self, since: float, now: float) -> bool:
        """Return whether something awaited since `since` is overdue: `STUCK_S` have passed, and the broker answers."""
        return self.settled(now) and now - max(since, self._hold_until) > STUCK_S

    def _count(self, at: float, own_count: int, now: float) -> float:
        if not self.settled(now) or self._own_count - own_count < MIN_OWN_BACK:
            return 0.0
        return now - max(at, self._hold_until)
