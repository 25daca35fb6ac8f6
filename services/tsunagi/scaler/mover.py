"""Leads a move of sensors between slots through its phases (tsunagi.runtime.moving), without I/O."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from tsunagi.runtime.messages import Heartbeat, Placement, SlotBeat
from tsunagi.runtime.moving import AGREED, DONE, HELD, MOVING, SensorSlots, first_step

READY_S = 3.0
"""Slots have so many seconds to get ready for a boundary, and a step at least. Then it is put off."""
LEAD_S = 2.0
"""The slots' agreement is written so many seconds before the boundary, and two steps at least: edges read it by then.
What is known of the newest step is a second old in a large fleet."""
READ_BACK_S = 5.0
"""A placement that has not come back from `plan` after this many seconds is written again."""


class Mover:
    """Says what the next placement is while sensors move. Any scaler can go on where another one has died.

    Args:
        slide_us: length of a step in microseconds.
    """

    def __init__(self, slide_us: int) -> None:
        self._slide_us = slide_us
        self._written = -1, 0.0  # the serial number of the placement that was last answered, and when

    def turn(self, placement: Placement, beats: Collection[Heartbeat], now: float) -> Placement | None:
        """Return the placement to write now; None = nothing is to be done.

        Args:
            placement: the one in force.
            beats: the newest heartbeats of all nodes.
            now: time in monotonic seconds.
        """
        serial, at = self._written
        if placement.move not in MOVING or (serial == placement.serial and now - at < READ_BACK_S):
            return None
        slots = SensorSlots.of(placement)
        phase, from_us = self._next(slots, owners(beats), newest_step(beats))
        if (phase, from_us) == (slots.phase, slots.from_us):
            return None
        self._written = placement.serial, now
        after = Placement()
        after.CopyFrom(placement)
        after.move, after.from_us = phase, from_us
        return after

    def _next(self, slots: SensorSlots, owned: Mapping[int, SlotBeat], newest: int) -> tuple[str, int]:
        """Return the phase, and the boundary, that follow; the present ones if the time has not come."""
        boundary = first_step(slots.from_us, self._slide_us)
        if slots.phase == AGREED:
            past = all(slot in owned and owned[slot].step >= boundary for slot in slots.concerned)
            return (DONE if past else AGREED), slots.from_us
        in_time = newest + lead_steps(self._slide_us) < boundary
        if in_time and all(slot in owned and owned[slot].move_us == slots.from_us for slot in slots.concerned):
            return AGREED, slots.from_us
        return HELD, slots.from_us if in_time else boundary_ahead(newest, self._slide_us)


def owners(beats: Collection[Heartbeat]) -> dict[int, SlotBeat]:
    """Return what the owner of each slot says of it; of two that claim it, the one of the newer epoch counts."""
    found: dict[int, SlotBeat] = {}
    for beat in beats:
        for part in beat.slots if beat.role == "worker" else ():
            if part.role == "primary" and (part.slot not in found or part.epoch > found[part.slot].epoch):
                found[part.slot] = part
    return found


def newest_step(beats: Collection[Heartbeat]) -> int:
    """Return the newest step that any edge has published, or any slot has closed; 0 = none."""
    sent = [beat.step for beat in beats if beat.role == "edge"]
    return max([0, *sent, *(part.step for part in owners(beats).values())])


def boundary_ahead(newest: int, slide_us: int) -> int:
    """Return a boundary for a move, an event time in microseconds, if this is the newest step."""
    return (newest + lead_steps(slide_us) + math.ceil(READY_S * 1e6 / slide_us)) * slide_us


def lead_steps(slide_us: int) -> int:
    """Return how many steps before a boundary the agreement on it must be written."""
    return max(2, math.ceil(LEAD_S * 1e6 / slide_us))
