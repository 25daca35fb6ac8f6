"""Failure detection without false alarms from one's own troubles (architecture, "Evidence of death").

Nobody is suspected on a timer alone. The detector keeps one heartbeat of its own in flight, and counts another node's
silence only

- while its own heartbeats come back (the last one less than two intervals ago),
- after at least two of its own have come back, in log order, since the other's last, and
- not for the time up to 1 s after a gap in its own: what the others were silent for until then does not count either,
  since their connections may come back later than ours.

A broker that stalls, a network that is down or cores that are saturated silence both alike, and nobody is accused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tsunagi.runtime.heartbeat import HeartbeatFilter
from tsunagi.runtime.messages import Heartbeat, SlotBeat

SETTLE_S = 1.0
"""After a gap in this node's own heartbeats it judges nobody for so long, seconds."""
OWN_BACK_INTERVALS = 2.0
"""A node may judge others only while its own last heartbeat came back less than so many intervals ago."""
GAP_INTERVALS = 4.0
"""Two of this node's own heartbeats that come back further apart than so many intervals are a gap."""
MIN_OWN_BACK = 2
"""A node counts another's silence once so many of its own heartbeats have come back since the other's last one."""
MIN_STALL_S = 1.0
"""A piece of work may always last this long, seconds: processes share cores, and any of them may have to wait."""

STALL_RECORDS = 50.0
"""A record that announces no long work may cost this many times the mean; more, and the loop counts as stalled."""

STUCK_S = 5.0
"""An owner that beats, works on nothing and reads nothing of a log that goes on is given so long."""

REPLACED_INTERVALS = 5.0
"""A heartbeat of an earlier process of the same name counts as late for so many intervals after the later one's last.

Who seems earlier may be the later one: the machine's clock was set back before it started. So the wait is shorter than
what a takeover waits for: such a process would else lose each slot that it takes.
"""

OWNING = frozenset({"primary", "promoting"})
"""Roles in which a node owns a slot, or is about to."""


@dataclass(slots=True)
class _Seen:
    at: float
    own_count: int
    beat: SlotBeat | None = None
    incarnation: int = 0


class Detector:
    """Watches every node of the heartbeats topic, in log order. Times are monotonic seconds of the caller's clock."""

    def __init__(self, node: str, incarnation: int, interval_s: float) -> None:
        self._node = node
        self._incarnation = incarnation
        self._interval_s = interval_s
        self._own_last: float | None = None
        self._first_at: float | None = None  # when anybody's was heard: ours should have come back soon after
        self._own_count = 0
        self._hold_until = 0.0
        self._heard = HeartbeatFilter()
        self._nodes: dict[str, _Seen] = {}
        self._beats: dict[str, Heartbeat] = {}
        self._slots: dict[tuple[str, int], _Seen] = {}
        # slot -> (epoch, by a standby that speculated) -> (node and incarnation, records [from, until))
        self._announced: dict[int, dict[tuple[int, bool], tuple[tuple[str, int], tuple[int, int]]]] = {}
        self._behind: dict[int, tuple[str, int, float]] = {}  # slot -> (owner, its position, behind the end since)
        self.gaps = 0

    def on_heartbeat(self, beat: Heartbeat, now: float) -> bool:
        """Take in one heartbeat as read from the log; return False if it is no sign of life: a repeat, or late."""
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
            return False  # a late one of a process that has been replaced (or, later, one whose clock was set back)
        self._nodes[beat.node] = _Seen(now, self._own_count, incarnation=beat.incarnation)
        self._beats[beat.node] = beat
        for slot_beat in beat.slots:
            role = slot_beat.role
            if role == "standby":
                self._note_announced(slot_beat, (beat.node, beat.incarnation), owner=False)
            elif role in OWNING and not beat.leaving:
                self._slots[beat.node, slot_beat.slot] = _Seen(now, self._own_count, slot_beat, beat.incarnation)
                if role == "primary":  # one being promoted names the old owner's epoch, and announces nothing
                    self._note_announced(slot_beat, (beat.node, beat.incarnation), owner=True)
        return True

    def _note_announced(self, beat: SlotBeat, process: tuple[str, int], *, owner: bool) -> None:
        """Keep what a process has announced, until it has survived it, or whoever owned the slot then or later has."""
        of_slot = self._announced.setdefault(beat.slot, {})
        key = beat.epoch, not owner
        known = of_slot.get(key)
        if beat.busy_until > beat.busy_offset >= 0:
            of_slot[key] = process, (beat.busy_offset, beat.busy_until)
        elif known is not None and (owner or known[0] == process):
            del of_slot[key]
        if not owner:
            return
        for earlier in [one for one in of_slot if one[0] <= beat.epoch and one != key]:
            if beat.position >= of_slot[earlier][1][1]:
                del of_slot[earlier]

    def connected(self, now: float) -> bool:
        """Return whether our own heartbeats come back, that is, whether we may judge others at all."""
        return self._own_last is not None and now - self._own_last < OWN_BACK_INTERVALS * self._interval_s

    def settled(self, now: float) -> bool:
        """Return whether our own heartbeats come back and no gap in them was less than 1 s ago."""
        return self.connected(now) and now >= self._hold_until

    def beat(self, node: str) -> Heartbeat | None:
        """Return the last heartbeat of another node."""
        return self._beats.get(node)

    def beats(self) -> dict[str, Heartbeat]:
        """Return the last heartbeat of every other node."""
        return self._beats

    def stands_by(self, node: str, slot: int) -> bool:
        """Return whether a node said last that it is a ready standby of the slot."""
        last = self._beats.get(node)
        return (
            last is not None
            and not last.leaving
            and any(part.slot == slot and part.role == "standby" and part.ready for part in last.slots)
        )

    def age(self, node: str, now: float) -> float:
        """Return the seconds since a node's last heartbeat, whoever is to blame; infinite if never heard."""
        seen = self._nodes.get(node)
        return float("inf") if seen is None else now - seen.at

    def silence(self, node: str, now: float) -> float:
        """Return for how long a node has been silent, seconds; 0 while we may not judge, infinite if never heard."""
        seen = self._nodes.get(node)
        if seen is None:
            return float("inf") if self.settled(now) else 0.0
        return self._count(seen.at, seen.own_count, now)

    def lost(self, node: str, limit_s: float, now: float) -> bool:
        """Return whether a node was heard once and has been silent for longer than the limit."""
        return node in self._nodes and self.silence(node, now) > limit_s

    def owner_silence(self, node: str, slot: int, since: float, now: float) -> float:
        """Return for how long the owner of a slot has not claimed it, seconds; 0 while we may not judge.

        A node that lives but does not claim the slot (started anew, or fallen) is as silent about it as a dead one.

        Args:
            since: when the watch began; earlier silence does not count.
        """
        seen = self._slots.get((node, slot))
        if seen is None:
            return self._count(since, self._own_count - MIN_OWN_BACK, now)
        return self._count(max(seen.at, since), seen.own_count, now)

    def left(self, node: str) -> bool:
        """Return whether a node has said that it leaves, and nothing since."""
        last = self._beats.get(node)
        return last is not None and last.leaving

    def owner_beat(self, node: str, slot: int, since: float = -math.inf) -> SlotBeat | None:
        """Return what the owner last said of the slot, unless that was before a time: in an earlier term, perhaps."""
        seen = self._slots.get((node, slot))
        return None if seen is None or seen.at < since else seen.beat

    def announced(self, slot: int, epoch: int) -> list[tuple[int, int]]:
        """Return what was announced up to an epoch and nobody has survived: records [from, until), newest first.

        Of an epoch first what a standby announced that speculated, which it does when the owner is silent already. An
        owner of which nothing was heard, since another claimed at the same moment, hides nothing of those before it.
        """
        found = self._announced.get(slot, {})
        return [found[key][1] for key in sorted(found, reverse=True) if key[0] <= epoch]

    def stalled(self, node: str, slot: int, since: float) -> bool:
        """Return whether the owner's loop is on one piece of work for longer than that kind of work may last.

        An owner of an earlier version does not say how long that is: far longer than its records cost is too long.

        Args:
            since: when the watch of this owner began; what it said earlier does not count.
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
        """Return whether the owner lives, and reads its log no more: a client that has lost a partition says nothing.

        Args:
            since: when the watch of this owner began; what it said earlier does not count.
            end: of the slot's log.
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
        """Return whether what should come from the log at once has not come for `STUCK_S`, and the log is there."""
        return self.settled(now) and now - max(since, self._hold_until) > STUCK_S

    def _count(self, at: float, own_count: int, now: float) -> float:
        if not self.settled(now) or self._own_count - own_count < MIN_OWN_BACK:
            return 0.0
        return now - max(at, self._hold_until)
