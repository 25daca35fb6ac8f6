"""What one P-SORT core does in a batch: merge what was carried with what came, take what is complete, order it.

A core holds whole groups (P-SORT basic), so its order is final and nothing is merged between cores. A row's place is
(step, group, sensor), which no two rows share; so the outcome does not depend on the order in which blocks arrived, nor
on how the records were cut into batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from services.runtime.columns import pack_floats, pack_octets, pack_sensors
from services.runtime.messages import VERSION, ResultBlock
from spark.blocks import Block, Rows
from spark.frontier import NEVER, Mark, frontiers
from spark.layout import Flags, Ints, Layout
from spark.queries import Counted, Readings, above_threshold, count_minute, shift_counts
from spark.state import KEPT, CoreState, Minute

QUERY = "readings"
"""The query's name in results: the values with q1..q3."""

ReadRows = Callable[[int, int, int], Readings]
"""(batch, low, high): reads what a batch left for the minute, of the steps low < step <= high."""


class Task(NamedTuple):
    """What a core is told about its batch.

    Attributes:
        marks: by slot, before the batch.
        overdue: slots that are waited for no longer, unless they give a new step now.
        span: steps in a minute.
    """

    batch: int
    core: int
    layout: Layout
    marks: Mapping[int, Mark]
    overdue: frozenset[int]
    slide_us: int
    span: int


@dataclass(slots=True)
class Ordered:
    """The complete rows of a batch, in the order in which they are sent.

    Attributes:
        group, step, appended_us: int64[blocks], in the order of (step, group).
        start: int64[blocks + 1], block b holds the rows start[b]..start[b + 1].
        rows: in the order of (step, group, sensor).
        counted: q1..q3 of the rows.
    """

    group: Ints
    step: Ints
    appended_us: Ints
    start: Ints
    rows: Rows
    counted: Counted

    def __len__(self) -> int:
        """Blocks."""
        return len(self.group)


class Advanced(NamedTuple):
    """A core after a batch; `keep` are the readings of this batch for the minute."""

    state: CoreState
    ordered: Ordered
    keep: Readings


def grown(state: CoreState | None, layout: Layout) -> CoreState:
    """Return the state with a place for every group and sensor of the layout; None = a new one."""
    if state is None:
        nothing = np.zeros(0, dtype=np.int64)
        state = CoreState(delivered=nothing, count=nothing, above=nothing, rows=Rows.empty())
    return replace(
        state,
        delivered=_padded(state.delivered, len(layout.groups), NEVER),
        count=_padded(state.count, len(layout), 0),
        above=_padded(state.above, len(layout), 0),
    )


def advance(state: CoreState, task: Task, blocks: Sequence[Block], read_rows: ReadRows) -> Advanced:
    """Compute a core's state after a batch, and what it sends."""
    layout = task.layout
    mine = layout.core_of == task.core
    complete = _frontier(task, blocks)
    carried_steps = _steps_of(state, blocks)
    pairs = _complete_pairs(layout, mine, carried_steps, state.delivered, complete)
    group, step, appended_us = pairs
    delivered = state.delivered.copy()
    np.maximum.at(delivered, group, step)

    rows = Rows.concatenate([state.rows, *(block.rows for block in blocks)])
    ready = rows.step <= delivered[layout.group_of[rows.sensor]]
    left, rows = rows.take(~ready), rows.take(ready)
    rows = rows.take(_order(rows, layout))
    ordered_rows, start = rows, _starts(rows, layout, group, step)

    new = Readings(rows.sensor, rows.step, above_threshold(rows.mean, layout.threshold[rows.sensor]))
    expired, minute = _expire(state, task, delivered, read_rows)
    counted = count_minute(new, expired, state.count, state.above, task.span)
    last_step = delivered[layout.group_of]
    count, above, alive = shift_counts(state.count, state.above, new, expired, last_step, task.span)
    keep = Readings(new.sensor[alive], new.step[alive], new.above[alive])
    if len(keep.sensor):
        minute.batch = np.append(minute.batch, task.batch)
        minute.least = np.append(minute.least, int(keep.step.min()))
        minute.left = np.append(minute.left, len(keep.sensor))

    slot, steps, appended = carried_steps
    open_step = _still_open(layout, mine, delivered, slot, steps)
    after = CoreState(
        delivered=delivered,
        count=count,
        above=above,
        rows=left,
        slot=slot[open_step],
        step=steps[open_step],
        appended_us=appended[open_step],
        minute=minute,
    )
    return Advanced(after, Ordered(group, step, appended_us, start, ordered_rows, counted), keep)


def result_blocks(ordered: Ordered, layout: Layout, slide_us: int) -> Iterator[ResultBlock]:
    """Yield the blocks in the order in which they are sent."""
    rows, counted = ordered.rows, ordered.counted
    for number in range(len(ordered)):
        part = slice(int(ordered.start[number]), int(ordered.start[number + 1]))
        step = int(ordered.step[number])
        yield ResultBlock(
            version=VERSION,
            query=QUERY,
            group=layout.groups[int(ordered.group[number])],
            step=step,
            event_time_us=step * slide_us,
            appended_us=int(ordered.appended_us[number]),
            sensor=pack_sensors(rows.sensor[part]),
            mean=pack_floats(rows.mean[part]),
            sd=pack_floats(rows.sd[part]),
            quality=pack_octets(rows.quality[part]),
            bound=pack_floats(rows.bound[part]),
            q1=pack_sensors(counted.q1[part]),
            q2=pack_sensors(counted.q2[part]),
            q3=pack_floats(counted.q3[part]),
        )


def counted_slots(task: Task, blocks: Sequence[Block]) -> tuple[Ints, Flags]:
    """Return (newest step by slot, which slots count for the frontier) with this batch taken in."""
    slots = task.layout.slots
    last_step = np.full(slots, NEVER, dtype=np.int64)
    counted = np.ones(slots, dtype=np.bool_)
    for slot, mark in task.marks.items():
        if slot < slots:
            last_step[slot] = mark.step
    for slot in task.overdue:
        counted[slot] = False
    for block in blocks:
        before = task.marks.get(block.slot, Mark())
        if block.slot < slots and (block.mark.step, block.mark.generation) != (before.step, before.generation):
            last_step[block.slot] = block.mark.step
            counted[block.slot] = True
    return last_step, counted


def _frontier(task: Task, blocks: Sequence[Block]) -> Ints:
    last_step, counted = counted_slots(task, blocks)
    return frontiers(task.layout.held, last_step, counted)


def _steps_of(state: CoreState, blocks: Sequence[Block]) -> tuple[Ints, Ints, Ints]:
    """Return (slot, step, appended_us) of the records that some group may still need."""
    slots = [state.slot, *(np.full(len(block.steps), block.slot, dtype=np.int64) for block in blocks)]
    return (
        np.concatenate(slots),
        np.concatenate([state.step, *(block.steps for block in blocks)]),
        np.concatenate([state.appended_us, *(block.appended_us for block in blocks)]),
    )


def _complete_pairs(
    layout: Layout, mine: Flags, records: tuple[Ints, Ints, Ints], delivered: Ints, complete: Ints
) -> tuple[Ints, Ints, Ints]:
    """Return (group, step, latest append time) of what is complete now, in the order of (step, group).

    Groups that are held by the same slots and stand at the same step share the work.
    """
    slot, step, appended_us = records
    alike: dict[tuple[bytes, int, int], list[int]] = {}
    for number in np.flatnonzero(mine):
        if complete[number] > delivered[number]:
            key = (layout.held[number].tobytes(), int(delivered[number]), int(complete[number]))
            alike.setdefault(key, []).append(int(number))
    groups, steps, times = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for (_, low, high), members in alike.items():
        which = layout.held[members[0]][slot] & (step > low) & (step <= high)
        found, place = np.unique(step[which], return_inverse=True)
        latest = np.full(len(found), np.iinfo(np.int64).min)
        np.maximum.at(latest, place, appended_us[which])
        groups.append(np.repeat(np.array(members, dtype=np.int64), len(found)))
        steps.append(np.tile(found, len(members)))
        times.append(np.tile(latest, len(members)))
    group, step, latest = np.concatenate(groups), np.concatenate(steps), np.concatenate(times)
    order = np.lexsort((group, step))
    return group[order], step[order], latest[order]


def _order(rows: Rows, layout: Layout) -> Ints:
    """Return the positions that put the rows in the order of (step, group, sensor)."""
    if not len(rows):
        return np.zeros(0, dtype=np.int64)
    group = layout.group_of[rows.sensor]
    least = int(rows.step.min())
    sensors, groups = len(layout), len(layout.groups)
    if (int(rows.step.max()) - least + 1) * sensors * groups < 2**62:
        key = ((rows.step - least) * groups + group) * sensors + rows.sensor
        return np.argsort(key, kind="stable")
    return np.lexsort((rows.sensor, group, rows.step))


def _starts(rows: Rows, layout: Layout, group: Ints, step: Ints) -> Ints:
    """Return where the rows of each (step, group) begin; a pair without rows gets an empty range."""
    start = np.zeros(len(group) + 1, dtype=np.int64)
    if not len(group):
        return start
    least = int(step.min())
    groups = len(layout.groups)
    row_key = (rows.step - least) * groups + layout.group_of[rows.sensor]
    start[:-1] = np.searchsorted(row_key, (step - least) * groups + group, side="left")
    start[-1] = len(rows)
    return start


def _expire(state: CoreState, task: Task, delivered: Ints, read_rows: ReadRows) -> tuple[Readings, Minute]:
    """Return the old readings that leave the minute now, and the minute's files without them."""
    minute = replace(state.minute)
    group_of = task.layout.group_of
    moved = (task.layout.core_of == task.core) & (delivered > state.delivered)
    limit = int(delivered[moved].max(initial=NEVER)) - task.span
    low = int(state.delivered[moved].min(initial=limit)) - task.span
    found = []
    left = minute.left.copy()
    for number in np.flatnonzero(minute.least <= limit):
        rows = read_rows(int(minute.batch[number]), low, limit)
        group = group_of[rows.sensor]
        out = (rows.step > state.delivered[group] - task.span) & (rows.step <= delivered[group] - task.span)
        left[number] -= int(out.sum())
        found.append(Readings(rows.sensor[out], rows.step[out], rows.above[out]))
    empty = left == 0
    gone = np.column_stack((minute.batch[empty], np.full(int(empty.sum()), task.batch, dtype=np.int64)))
    minute.dropped = np.concatenate((minute.dropped[minute.dropped[:, 1] >= task.batch - KEPT], gone))
    minute.batch, minute.least, minute.left = minute.batch[~empty], minute.least[~empty], left[~empty]
    if not found:
        return Readings(np.zeros(0, np.uint32), np.zeros(0, np.int64), np.zeros(0, np.bool_)), minute
    return Readings(*(np.concatenate(columns) for columns in zip(*found, strict=True))), minute


def _still_open(layout: Layout, mine: Flags, delivered: Ints, slot: Ints, step: Ints) -> Flags:
    """Return which records' steps some group of this core has still to deliver."""
    held = layout.held & mine[:, None]
    least = np.where(held, delivered[:, None], np.iinfo(np.int64).max).min(axis=0, initial=np.iinfo(np.int64).max)
    return np.asarray(step > least[slot], dtype=np.bool_)


def _padded(values: Ints, size: int, fill: int) -> Ints:
    return np.concatenate((values, np.full(size - len(values), fill, dtype=np.int64)))
