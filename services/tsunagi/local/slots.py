"""`tsunagi slots`: gives a running system more slots, and moves sensors to them."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from tsunagi.local.fleet import Fleet
from tsunagi.runtime.columns import pack_sensors
from tsunagi.runtime.log import Log
from tsunagi.runtime.messages import VERSION, Placement, Plan
from tsunagi.runtime.moving import AGREED, DONE, HELD, SensorSlots
from tsunagi.runtime.placement import PlacementReader
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import Settings
from tsunagi.scaler.mover import boundary_ahead, newest_step
from tsunagi.scaler.placing import place_sensors, with_slots
from tsunagi.system.plan import append_plan
from tsunagi.system.topics import quiet_log, tool_log

_LOOK_S = 0.2
"""Longest wait for heartbeats between two looks at how far the move is, in seconds."""
_TOLD = {
    HELD: "slots get ready for the step at which sensors move",
    AGREED: "all slots are ready; sensors move at the agreed step",
    DONE: "all slots are past it",
}
"""What is said of each phase of a move."""


class SlotsError(RuntimeError):
    """The number of slots cannot be that, or sensors are still moving."""


def show_slots(settings: Settings, tell: Callable[[str], None]) -> None:
    """Say how many slots there are, and how many sensors each has.

    Raises:
        SlotsError: the system has never run.
        LogError: the broker does not answer.
    """
    table, placement = _in_force(tool_log(settings, "slots"))
    slots = SensorSlots.of(placement)
    present = [sensor.id for sensor in table.present if sensor.id < len(slots.now)]
    counts = np.bincount(slots.now[present], minlength=placement.slots)
    tell(f"{placement.slots} slots, of {counts.min()} to {counts.max()} sensors")
    if slots.moving:
        tell(f"sensors are moving: {_TOLD[slots.phase]}")


def raise_slots(
    settings: Settings, count: int, tell: Callable[[str], None], *, agreed: Callable[[], bool], timeout_s: float
) -> None:
    """Give the running system `count` slots, and wait until its sensors have moved.

    Args:
        agreed: asks the user, once it has been said what will happen.
        timeout_s: longest wait until all slots are past the step at which sensors move, in seconds.

    Raises:
        SlotsError: the number is impossible, or the move is not done in time; then the system goes on with it.
        ModelError: `[slots] placement` needs a model, and there is none.
        LogError: the broker does not answer, or refuses to add partitions.
    """
    source = tool_log(settings, "slots")
    table, placement = _in_force(source)
    now = SensorSlots.of(placement)
    _check(settings, table, placement, count)
    if count == placement.slots and not now.moving:
        tell(f"there are {count} slots already")
        return
    fleet = Fleet(source)
    try:
        if not now.moving:
            fleet.hear()
            after = _after(settings, table, placement, count, newest_step(fleet.fresh().values()))
            moved = int((SensorSlots.of(after).now != now.now).sum())
            tell(f"{placement.slots} slots become {count}; {moved} of {len(now.now)} sensors move")
            if not agreed():
                tell("nothing was changed")
                return
            quiet_log(settings, "slots").raise_slots(count)
            append_plan(source, {"placement": Plan(version=VERSION, placement=after)})
        began = time.monotonic()
        _wait(source, fleet, tell, timeout_s)
    finally:
        fleet.close()
    tell(f"done after {time.monotonic() - began:.1f} s: {count} slots")
    if settings.slots.count < count:
        tell(f"[slots] count is {settings.slots.count} in the settings: it counts for new topics only")


def _in_force(source: Log) -> tuple[SensorTable, Placement]:
    reader = PlacementReader(source)
    try:
        placement = reader.latest()
        if placement is None or reader.table is None:
            raise SlotsError("`plan` has no placement yet: start the system first (`tsunagi up`)")
        return reader.table, placement
    finally:
        reader.close()


def _check(settings: Settings, table: SensorTable, placement: Placement, count: int) -> None:
    if settings.query.mode != "steps":
        raise SlotsError(f'[query] mode: found {settings.query.mode!r}, expected "steps": a sensor moves between steps')
    if count < placement.slots:
        raise SlotsError(f"found {count} slots, expected {placement.slots} or more: there is no way back to fewer")
    if count > len(table.present):
        raise SlotsError(f"found {count} slots for {len(table.present)} sensors, expected a sensor for each at least")
    if SensorSlots.of(placement).moving and count != placement.slots:
        raise SlotsError(
            f"sensors are still moving to {placement.slots} slots: wait until `tsunagi slots` says no more"
        )


def _after(settings: Settings, table: SensorTable, placement: Placement, count: int, newest: int) -> Placement:
    """Return the placement over `count` slots, which the slots get ready for."""
    rows = len(placement.slot) // 4
    wanted = with_slots(settings, count)
    placed = place_sensors(wanted, SensorTable(table.sensors[:rows], table.attributes))
    return Placement(
        slots=count,
        slot=pack_sensors(placed),
        table_sha256=placement.table_sha256,
        before=placement.slot,
        from_us=boundary_ahead(newest, settings.slide_us),
        move=HELD,
    )


def _wait(source: Log, fleet: Fleet, tell: Callable[[str], None], timeout_s: float) -> None:
    """Wait until the move is done, and say how far it is."""
    deadline = time.monotonic() + timeout_s
    reader = PlacementReader(source)
    said = ""
    try:
        while True:
            placement = reader.latest()
            phase = "" if placement is None else placement.move
            if phase != said and phase in _TOLD:
                tell(_TOLD[phase])
            said = phase
            if phase == DONE:
                return
            if time.monotonic() > deadline:
                raise SlotsError(
                    f"after {timeout_s:g} s sensors have not moved yet, the move goes on; `tsunagi slots` says how far "
                    "it is, `tsunagi status` whether each slot has an owner"
                )
            fleet.update(_LOOK_S)
    finally:
        reader.close()
