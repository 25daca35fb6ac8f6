"""`tsunagi apply`: puts the sensors table of the user's file in force, and waits until all nodes go by it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from tsunagi.local.fleet import Fleet
from tsunagi.runtime.fleet_change import FleetChange, fleet_change
from tsunagi.runtime.fleet_table import KEY, pack_table, unpack_table
from tsunagi.runtime.log import Log
from tsunagi.runtime.messages import VERSION, Plan
from tsunagi.runtime.sensors import SensorsError, read_sensors
from tsunagi.runtime.settings import Settings
from tsunagi.system.fleet_table import table_record
from tsunagi.system.plan import append_plan
from tsunagi.system.topics import tool_log

LEAD_US = 500_000
"""Edges go by the new table from so many microseconds after it was written: by then all of them have read it."""
_LOOK_S = 0.2
"""Longest wait for heartbeats between two looks at who goes by the table, in seconds."""
_SHOWN = 40
"""Most lines of the difference that are shown."""


class ApplyError(RuntimeError):
    """The table was written, but some nodes do not go by it yet."""


class _Late(NamedTuple):
    """Who does not go by the table yet: living nodes, and edges of the table that do not run."""

    nodes: list[str]
    absent: list[str]


def apply_table(
    settings: Settings, tell: Callable[[str], None], *, agreed: Callable[[], bool], timeout_s: float
) -> bool:
    """Compare the file's table with the one in force, and put it in force if the user agrees.

    Args:
        agreed: asks the user, once the difference has been shown.
        timeout_s: longest wait until all living nodes go by it, in seconds.

    Returns:
        Whether they differ.

    Raises:
        SensorsError: the file cannot be used, or asks for something impossible, or `plan` has no table yet.
        ApplyError: some nodes do not go by the table in time; they will once they can.
        LogError: the broker does not answer.
    """
    wanted = read_sensors(settings.sensors)
    source = tool_log(settings, "apply")
    record = table_record(source)
    if record is None:
        raise SensorsError("`plan` has no sensors table yet: start the system first (`tsunagi up`)")
    change = fleet_change(unpack_table(record), wanted)
    if not change:
        tell(f"{settings.sensors}: nothing differs from the table in force")
        return False
    _check_groups(settings, change)
    _show(change, tell)
    if not agreed():
        tell("nothing was changed")
        return True
    fleet = Fleet(source)
    try:
        began = time.monotonic()
        serial = _write(source, change, _log_time_us(fleet))
        late = _wait(fleet, change, serial, timeout_s)
    finally:
        fleet.close()
    if late.nodes:
        raise ApplyError(
            f"the table is written, but after {timeout_s:g} s {_some(late.nodes)} did not go by it; "
            "`tsunagi status` shows who lives"
        )
    tell(f"in force after {time.monotonic() - began:.1f} s: {len(change.table.present)} sensors")
    if late.absent:
        tell(
            f"these edges do not run: {_some(late.absent)}; start them (`tsunagi up` here, else with their containers)"
        )
    if change.idle_edges:
        tell(f"these edges have no sensor any more and may be stopped: {_some(list(change.idle_edges))}")
    return True


def _check_groups(settings: Settings, change: FleetChange) -> None:
    """Refuse sensors without a group, if the Spark job would end at them."""
    without = [sensor.name for sensor in change.table.present if not sensor.group]
    if without and settings.spark.ungrouped == "refuse":
        raise SensorsError(
            f"{settings.sensors}: {_some(without)}: found no group, expected one of each sensor, since [spark] "
            'ungrouped is "refuse"'
        )


def _show(change: FleetChange, tell: Callable[[str], None]) -> None:
    lines = change.lines()
    for line in lines[:_SHOWN]:
        tell(line)
    if len(lines) > _SHOWN:
        tell(f"... and {len(lines) - _SHOWN} more")
    counts = {
        "added": len(change.added),
        "removed": len(change.removed),
        "renamed": len(change.renamed),
        "moved": len(change.moved),
        "cells changed": len(change.edited),
    }
    tell("; ".join(f"{count} {what}" for what, count in counts.items() if count))


def _log_time_us(fleet: Fleet) -> int:
    """Return the log's time, by the newest heartbeat: this machine's clock may be wrong, and edges compare with theirs.

    Without any heartbeat it is this machine's time.
    """
    fleet.hear()
    newest = max((beat.appended_us for beat in fleet.beats.values()), default=0)
    now_us = time.time_ns() // 1000
    return newest if fleet.fresh() else max(newest, now_us)


def _write(source: Log, change: FleetChange, now_us: int) -> int:
    """Append the table to `plan`; return its serial number."""
    plan = Plan(version=VERSION, table=pack_table(change.table, by="apply", from_us=now_us + LEAD_US))
    append_plan(source, {KEY: plan})
    return plan.serial


def _wait(fleet: Fleet, change: FleetChange, serial: int, timeout_s: float) -> _Late:
    """Wait until all living workers, edges and the Spark job go by the table."""
    deadline = time.monotonic() + timeout_s
    edges = set(change.table.edges)
    while True:
        fleet.update(_LOOK_S)
        fresh = fleet.fresh()
        late = [
            node
            for node, beat in fresh.items()
            if beat.table < serial and (beat.role in ("worker", "spark") or (beat.role == "edge" and node in edges))
        ]
        absent = sorted(edges - {node for node, beat in fresh.items() if beat.role == "edge"})
        if not late or time.monotonic() >= deadline:
            return _Late(late, absent)


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
