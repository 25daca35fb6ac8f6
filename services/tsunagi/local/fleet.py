"""Follows what the nodes say about themselves: heartbeats and acknowledgements."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tsunagi.runtime.auth import forgery
from tsunagi.runtime.cells import SUMMARY, SUMMARY_S
from tsunagi.runtime.door import UnusableError, decode
from tsunagi.runtime.heartbeat import HeartbeatFilter
from tsunagi.runtime.log import ACKS, HEARTBEATS, Log, Position
from tsunagi.runtime.messages import Ack, Heartbeat, SlotBeat

FRESH_S = 2.0
"""A node counts as gone here once its last heartbeat is older than this, in seconds, and `SUMMARY_S` later in a fleet
of several cells. Slots decide by stricter rules."""

_BACK = 400
"""Heartbeats before the end of the topic that are read at the start: the last ones of each node are among them."""
_LARGE_BACK = 30_000
"""The same in a fleet of several cells, which may have ten thousand edges. Each node sends one a second."""
_LOOK_S = 0.2
"""Longest wait for records of one look while the fleet's heartbeats are waited for, in seconds."""
_HEAR_S = 2.0
"""Longest wait for the heartbeats of the fleet, in seconds."""
_READ_RECORDS = 2000
"""Most records that are read at once."""


@dataclass(frozen=True, slots=True)
class FleetHeartbeat:
    """The last heartbeat of a node, and when the log appended it."""

    message: Heartbeat
    appended_us: int

    def age_s(self, now_us: int) -> float:
        """Return how long ago the log appended it, in seconds."""
        return (now_us - self.appended_us) / 1e6


class Fleet:
    """A reader of `heartbeats` and `acks`; `update` reads what is new.

    Attributes:
        beats: the last heartbeat of each node.
        acks: the last acknowledgement of each (slot, level, node).
    """

    def __init__(self, log: Log) -> None:
        self._reader = log.reader()
        self.beats: dict[str, FleetHeartbeat] = {}
        self.acks: dict[tuple[int, str, str], Ack] = {}
        self._heard = HeartbeatFilter()
        several = log.partitions(HEARTBEATS) > 1
        self._fresh_s = FRESH_S + SUMMARY_S * several
        first, end = self._reader.range(HEARTBEATS, SUMMARY)
        self._next, self._end = (end if first == end else first), end
        self._reader.assign(
            [
                Position(HEARTBEATS, SUMMARY, max(first, end - (_LARGE_BACK if several else _BACK))),
                *(Position(ACKS, cell, self._reader.range(ACKS, cell)[0]) for cell in range(log.partitions(ACKS))),
            ]
        )

    @property
    def caught_up(self) -> bool:
        """Whether all heartbeats have been read that stood in the log at the start."""
        return self._next >= self._end

    def hear(self) -> None:
        """Read what stood in the log at the start, and some heartbeats: they say who lives, and how far all are.

        It waits `_HEAR_S` at most, since there may be none.
        """
        deadline = time.monotonic() + _HEAR_S
        while time.monotonic() < deadline and not (self.caught_up and self.beats):
            self.update(_LOOK_S)
        self.update(_LOOK_S)

    def update(self, timeout_s: float = 0.0) -> None:
        """Read what is new; wait up to `timeout_s` seconds for the first record."""
        records = self._reader.read(_READ_RECORDS, timeout_s)
        while records:
            for record in records:
                try:
                    if record.topic == HEARTBEATS:
                        self._next = record.offset + 1
                        beat = decode(Heartbeat, record.value)
                        if not forgery(record, beat) and self._heard.news(beat):
                            self.beats[beat.node] = FleetHeartbeat(beat, record.appended_us)
                    elif record.value:
                        ack = decode(Ack, record.value)
                        if not forgery(record, ack):
                            self._on_ack(ack)
                except UnusableError:
                    continue  # the services count and report such records
            records = self._reader.read(_READ_RECORDS, 0.0)

    def _on_ack(self, ack: Ack) -> None:
        body = ack.level0 if ack.WhichOneof("body") == "level0" else ack.level1
        key = (body.slot, str(ack.WhichOneof("body")), body.node)
        known = self.acks.get(key)
        if known is None or (getattr(known, key[1]).epoch, getattr(known, key[1]).offset) <= (body.epoch, body.offset):
            self.acks[key] = ack

    def fresh(self, role: str | None = None) -> dict[str, Heartbeat]:
        """Return the last heartbeat of each living node, or of those with one role."""
        now_us = time.time_ns() // 1000
        return {
            node: beat.message
            for node, beat in sorted(self.beats.items())
            if beat.age_s(now_us) < self._fresh_s and not beat.message.leaving and role in (None, beat.message.role)
        }

    def of_slot(self, slot: int, role: str) -> tuple[str, SlotBeat] | None:
        """Return the living node with this role (primary | standby | ...) of a slot in the latest epoch, or None."""
        found = [
            (part.epoch, node, part)
            for node, beat in self.fresh("worker").items()
            for part in beat.slots
            if part.slot == slot and part.role == role
        ]
        if not found:
            return None
        _, node, part = max(found, key=lambda item: item[:2])
        return node, part

    def standby_ready(self, slot: int, other_than: str = "") -> str:
        """Return a node that could take the slot over now; "" if there is none."""
        for node, beat in self.fresh("worker").items():
            if node != other_than and any(
                part.slot == slot and part.role == "standby" and part.ready for part in beat.slots
            ):
                return node
        return ""

    def acked(self, slot: int, node: str) -> int:
        """Return the offset of the node's last Level-0-Ack of a slot (exclusive); -1 if there is none."""
        ack = self.acks.get((slot, "level0", node))
        return -1 if ack is None else ack.level0.offset

    def close(self) -> None:
        """Release the reader."""
        self._reader.close()
