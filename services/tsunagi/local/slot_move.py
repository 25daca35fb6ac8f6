"""`tsunagi scaler move`: has a slot moved to another worker."""

from __future__ import annotations

import time
from collections.abc import Callable

from tsunagi.local.fleet import Fleet
from tsunagi.runtime.log import TUPLES
from tsunagi.runtime.messages import VERSION, Plan, SlotMove
from tsunagi.runtime.settings import Settings
from tsunagi.scaler.by_hand import OPERATOR
from tsunagi.system.plan import Write, write_plan
from tsunagi.system.topics import tool_log

_LOOK_S = 0.2
"""Longest wait for heartbeats between two looks at who owns the slot, in seconds."""


class SlotMoveError(ValueError):
    """The slot cannot move there, or has not in time."""


def ask(settings: Settings, slot: int, to: str, tell: Callable[[str], None], write: Write | None = None) -> None:
    """Write to `plan` that a worker is to own a slot, and say how the slot gets there.

    Args:
        write: writes the record; None = to the log.

    Raises:
        SlotMoveError: there is no such slot, or no such worker lives, or it owns the slot already.
        LogError: the broker does not answer, or does not take the record.
    """
    log = tool_log(settings, "move")
    fleet = Fleet(log)
    try:
        fleet.hear()
        count = log.partitions(TUPLES)
        if not 0 <= slot < count:
            raise SlotMoveError(f"slot: found {slot}, expected 0 to {count - 1}")
        workers = fleet.fresh("worker")
        if to not in workers:
            raise SlotMoveError(
                f"worker: found {to!r}, expected one that lives: {', '.join(workers) or 'there is none'}"
            )
        owner = fleet.of_slot(slot, "primary")
        if owner is not None and owner[0] == to:
            raise SlotMoveError(f"worker: found {to!r}, which owns slot {slot} already")
        ready = any(part.slot == slot and part.role == "standby" and part.ready for part in workers[to].slots)
    finally:
        fleet.close()
    (write or write_plan)(
        settings, {f"move/{slot}": Plan(version=VERSION, move=SlotMove(slot=slot, to=to, by=OPERATOR))}
    )
    way = "which is ready" if ready else "which builds the slot's state first"
    tell(f"slot {slot}: from {owner[0] if owner else 'nobody'} to {to}, {way}")


def wait(settings: Settings, slot: int, to: str, tell: Callable[[str], None], timeout_s: float) -> None:
    """Wait until a worker owns a slot.

    Raises:
        SlotMoveError: it does not in time; the scaler may have given up, since the worker died or did not get ready.
        LogError: the broker does not answer.
    """
    began = time.monotonic()
    fleet = Fleet(tool_log(settings, "move"))
    try:
        while time.monotonic() < began + timeout_s:
            fleet.update(_LOOK_S)
            owner = fleet.of_slot(slot, "primary")
            if owner is not None and owner[0] == to:
                tell(f"done after {time.monotonic() - began:.1f} s: {to} owns slot {slot}")
                return
    finally:
        fleet.close()
    raise SlotMoveError(
        f"after {timeout_s:g} s {to} does not own slot {slot}; the scaler's log says why, if it has given up"
    )
