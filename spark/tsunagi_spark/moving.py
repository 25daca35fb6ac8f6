"""When sensors change cores: what the new core needs from the states of the others.

The table changes only between two batches. The batch before has delivered everything it sent, so nothing of an SPK can
come out behind what follows, whoever sends that: the end of a batch is the barrier. In the first batch under a new
table every core reads the states of all cores after the batch before, and takes what now belongs to it. A batch that is
run again does the same, since those states are kept as long as it may be run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tsunagi_spark.blocks import RecoveredRows
from tsunagi_spark.layout import Flags, Ints, Layout
from tsunagi_spark.queries import QueryReadings
from tsunagi_spark.state import CoreState, Minute

GATHERED = -1
"""Stands for a batch in `Minute`: readings that were gathered from other cores and are in no file yet."""

ReadCoreRows = Callable[[int, int, int, int], QueryReadings]
"""(core, batch, low, high): returns the readings that a core has kept of a batch for the minute."""


class Gathered(NamedTuple):
    """The state of a core under a new table; `readings` are its sensors' of the minute, in the order of steps."""

    state: CoreState
    readings: QueryReadings


def touched(before: Layout, after: Layout, core: int) -> bool:
    """Return whether a core wins or loses a sensor, or a share of a group."""
    known = len(before)
    sensors = (before.sensor_core == core) != (after.sensor_core[:known] == core)
    groups = before.holds[:, core] != after.holds[: len(before.groups), core]
    return bool(sensors.any() or groups.any())


def gather(
    states: Sequence[CoreState], core: int, before: Layout, after: Layout, span: int, batch: int, read: ReadCoreRows
) -> Gathered:
    """Return what a core needs under a new table.

    Args:
        states: the states of all cores after the batch before, with a place for every sensor and group (`merge.grown`).
        batch: the first batch under `after`.
    """
    mine = after.sensor_core == core
    delivered = np.max([state.delivered for state in states], axis=0)
    slot, step, appended_us = (
        np.concatenate([getattr(state, name) for state in states]) for name in ("slot", "step", "appended_us")
    )
    _, first = np.unique(np.stack((slot, step)), axis=1, return_index=True)
    rows = RecoveredRows.concatenate(state.rows.take(mine[state.rows.sensor]) for state in states)
    found = [_readings(state, number, before, mine, delivered, span, read) for number, state in enumerate(states)]
    readings = _joined(found)
    own = states[core].minute
    left = np.full(len(own.batch), batch, dtype=np.int64)
    minute = Minute(dropped=np.concatenate((own.dropped, np.column_stack((own.batch, left)))))
    if len(readings.step):
        minute.batch = np.array([GATHERED])
        minute.least, minute.left = readings.step[:1].copy(), np.array([len(readings.step)])
    state = CoreState(
        delivered=delivered,
        count=np.where(mine, np.sum([state.count for state in states], axis=0), 0),
        above=np.where(mine, np.sum([state.above for state in states], axis=0), 0),
        rows=rows,
        slot=slot[first],
        step=step[first],
        appended_us=appended_us[first],
        minute=minute,
        rate=np.where(mine, np.sum([state.rate for state in states], axis=0), 0.0),
        panes=np.concatenate([state.panes[mine[state.panes["sensor"]]] for state in states]),
    )
    return Gathered(state, readings)


def within(readings: QueryReadings, low: int, high: int) -> QueryReadings:
    """Return the readings of the steps low < step <= high."""
    first, last = np.searchsorted(readings.step, (low, high), side="right")
    return readings.take(slice(int(first), int(last)))


def settled(
    minute: Minute, gathered: QueryReadings, keep: QueryReadings, delivered: Ints, after: Layout, span: int, batch: int
) -> tuple[Minute, QueryReadings]:
    """Return the minute and its readings after the first batch; the batch's file also gets the gathered readings."""
    alive = gathered.step > delivered[after.group_of[gathered.sensor]] - span
    joined = _joined([gathered.take(alive), keep])
    others = (minute.batch != GATHERED) & (minute.batch != batch)
    count = len(joined.step)
    return replace(
        minute,
        batch=np.append(minute.batch[others], [batch] * bool(count)),
        least=np.append(minute.least[others], joined.step[:1]),
        left=np.append(minute.left[others], [count] * bool(count)),
    ), joined


def _readings(
    state: CoreState, core: int, before: Layout, mine: Flags, delivered: Ints, span: int, read: ReadCoreRows
) -> QueryReadings:
    """Return the readings that one core has kept of its sensors that are `mine` now, and that have not expired."""
    high = int(delivered.max(initial=0))
    found = []
    for number in state.minute.batch.tolist():
        rows = read(core, number, int(delivered.min(initial=high)) - span, high)
        own = (before.sensor_core[rows.sensor] == core) & mine[rows.sensor]
        own &= rows.step > delivered[before.group_of[rows.sensor]] - span
        found.append(rows.take(own))
    return _joined(found)


def _joined(parts: Sequence[QueryReadings]) -> QueryReadings:
    """Return all readings in the order of steps."""
    joined = QueryReadings.concatenate(parts)
    return joined.take(np.argsort(joined.step, kind="stable"))
