"""The work of one P-SORT core in a batch: add what came to what it carried, take what is complete, and order it.

If a group is whole on one core, the order is final. If it is cut, every core has the same steps complete and some of
the rows; they are put together afterwards (tsunagi_spark.parts). The place of a row is (step, group, sensor), which no
two rows share. So the result does not depend on the order in which blocks arrived, on how records were cut into
batches, or on which core worked on which sensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from tsunagi.runtime.columns import Floats, pack_floats, pack_octets, pack_sensors
from tsunagi.runtime.messages import VERSION, ResultBlock
from tsunagi_spark.blocks import RecoveredRows, SlotBlock
from tsunagi_spark.frontier import NEVER, CompletedSteps, SlotMark, appended_at, frontiers
from tsunagi_spark.layout import Flags, Ints, Layout
from tsunagi_spark.queries import QueryAnswers, QueryReadings, above_threshold, count_minute, shift_counts
from tsunagi_spark.state import CoreState, Minute
from tsunagi_spark.windows import CompleteWindows, Spec, add_rows, close_windows

QUERY = "readings"
"""Name of the query in results: each value with q1..q3."""

ReadRows = Callable[[int, int, int], QueryReadings]
"""(batch, low, high): returns the readings that a batch has left for the minute, of the steps low < step <= high."""


class CoreTask(NamedTuple):
    """What a core must know about its batch.

    Attributes:
        marks: for each slot, how far it had been read before the batch.
        overdue: slots that are no longer waited for, unless they deliver a new step now.
        dropped: slots that are not waited for even then, because too many rows wait for them.
        span: number of steps in a minute.
        memory: half-life of a sensor's measured rate, in steps; 0 means that rates are not measured.
        specs: the window aggregates.
        counts: whether q1 to q3 are counted.
    """

    batch: int
    core: int
    layout: Layout
    marks: Mapping[int, SlotMark]
    overdue: frozenset[int]
    slide_us: int
    span: int
    memory: int = 0
    specs: tuple[Spec, ...] = ()
    dropped: frozenset[int] = frozenset()
    counts: bool = True


@dataclass(slots=True)
class Ordered:
    """The complete rows of a batch, in the order in which they are sent.

    Attributes:
        group, step, appended_us: int64[blocks], in the order of (step, group), the blocks of cut groups behind all
            others.
        start: int64[blocks + 1]; block b has the rows start[b]..start[b + 1].
        rows: the rows in the order of their blocks, and of sensors in each block.
        counted: q1..q3 of the rows; zeros if they are not counted.
    """

    group: Ints
    step: Ints
    appended_us: Ints
    start: Ints
    rows: RecoveredRows
    counted: QueryAnswers

    def __len__(self) -> int:
        """Number of blocks."""
        return len(self.group)

    def apart(self, cut: Flags) -> tuple[Ordered, Ordered]:
        """Return (blocks of whole groups, blocks of cut groups) as views; `cut` is bool[groups]."""
        at = len(self) - int(np.count_nonzero(cut[self.group]))
        return self._between(0, at), self._between(at, len(self))

    def _between(self, first: int, last: int) -> Ordered:
        blocks, start = slice(first, last), self.start[first : last + 1]
        rows = slice(int(start[0]), int(start[-1]))
        return Ordered(
            self.group[blocks],
            self.step[blocks],
            self.appended_us[blocks],
            start - start[0],
            self.rows.take(rows),
            self.counted.take(rows),
        )


class Advanced(NamedTuple):
    """A core after a batch; `keep` are this batch's readings for the minute, `windows` the windows complete now."""

    state: CoreState
    ordered: Ordered
    keep: QueryReadings
    windows: CompleteWindows


def grown(state: CoreState | None, layout: Layout) -> CoreState:
    """Return the state with a place for every group and sensor of the layout; None gives a new state."""
    if state is None:
        nothing = np.zeros(0, dtype=np.int64)
        state = CoreState(delivered=nothing, count=nothing, above=nothing, rows=RecoveredRows.empty())
    return replace(
        state,
        delivered=_padded(state.delivered, len(layout.groups), NEVER),
        count=_padded(state.count, len(layout), 0),
        above=_padded(state.above, len(layout), 0),
        rate=np.concatenate((state.rate, np.zeros(len(layout) - len(state.rate)))),
    )


def advance(state: CoreState, task: CoreTask, blocks: Sequence[SlotBlock], read_rows: ReadRows) -> Advanced:
    """Return the state of a core after a batch, and what it sends."""
    layout = task.layout
    mine = layout.holds[:, task.core]
    complete = _frontier(task, blocks)
    carried_steps = _steps_of(state, blocks)
    closed = _closed(layout, mine, carried_steps, state.delivered, complete)
    delivered = state.delivered.copy()
    for some in closed:
        delivered[some.groups] = some.step[-1]

    rows = RecoveredRows.concatenate([state.rows, *(block.rows for block in blocks)])
    ready = rows.step <= delivered[layout.group_of[rows.sensor]]
    left, rows = rows.take(~ready), rows.take(ready)
    rows = rows.take(order_rows(rows, layout))
    begin = begins(rows, layout)
    group, step, appended_us = _own_blocks(closed, rows, begin, layout, task.core)
    start = starts(rows, begin, layout, group, step)

    answered = _answered(state, task, rows, delivered, read_rows) if task.counts else _uncounted(state, task, rows)
    panes = add_rows(state.panes, rows, task.specs)
    windows, panes = close_windows(panes, task.specs, layout, state.delivered, delivered, closed)
    slot, steps, appended = carried_steps
    open_step = _still_open(layout, mine, delivered, slot, steps)
    after = CoreState(
        delivered=delivered,
        count=answered.count,
        above=answered.above,
        rows=left,
        slot=slot[open_step],
        step=steps[open_step],
        appended_us=appended[open_step],
        minute=answered.minute,
        rate=_rates(state, task, rows, delivered),
        panes=panes,
    )
    ordered = Ordered(group, step, appended_us, start, rows, answered.answers)
    return Advanced(after, ordered, answered.keep, windows)


@dataclass(slots=True)
class _Answered:
    """The answers for the rows of a batch, and what the next batch needs: see `CoreState` and `Advanced`."""

    answers: QueryAnswers
    count: Ints
    above: Ints
    minute: Minute
    keep: QueryReadings


def _answered(state: CoreState, task: CoreTask, rows: RecoveredRows, delivered: Ints, read_rows: ReadRows) -> _Answered:
    """Answer q1..q3 for rows that are in the order in which they are sent."""
    layout = task.layout
    new = QueryReadings(rows.sensor, rows.step, above_threshold(rows.mean, layout.threshold[rows.sensor]))
    expired, minute = _expire(state, task, delivered, read_rows)
    answers = count_minute(new, expired, state.count, state.above, task.span)
    last_step = delivered[layout.group_of]
    count, above, alive = shift_counts(state.count, state.above, new, expired, last_step, task.span)
    keep = new.take(alive)
    # rows of cut groups are behind the others, but readings are read by steps
    if (keep.step[1:] < keep.step[:-1]).any():
        keep = keep.take(np.argsort(keep.step, kind="stable"))
    if len(keep.sensor):
        minute.batch = np.append(minute.batch, task.batch)
        minute.least = np.append(minute.least, int(keep.step.min()))
        minute.left = np.append(minute.left, len(keep.sensor))
    return _Answered(answers, count, above, minute, keep)


def _uncounted(state: CoreState, task: CoreTask, rows: RecoveredRows) -> _Answered:
    """Return no answers, and forget what was counted: if the setting changes, counts begin anew."""
    nothing = np.zeros(len(rows), dtype=np.int64)
    gone = state.minute.gone(task.batch, np.ones(len(state.minute.batch), dtype=np.bool_))
    answers = QueryAnswers(nothing, nothing, nothing.astype(np.float64))
    zeros = np.zeros_like(state.count)
    return _Answered(answers, zeros, zeros.copy(), gone, QueryReadings.concatenate(()))


def result_blocks(ordered: Ordered, layout: Layout, slide_us: int, part_number: int = 0) -> Iterator[ResultBlock]:
    """Yield the blocks in the order in which they are sent.

    Args:
        part_number: which part of its group each block is, if nothing is merged; 0 means the whole.
    """
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
            part=part_number,
            parts=layout.cores if part_number else 0,
        )


def counted_slots(task: CoreTask, blocks: Sequence[SlotBlock]) -> tuple[Ints, Flags]:
    """Return (newest step by slot, which slots count for the frontier), this batch included."""
    slots = task.layout.slots
    last_step = np.full(slots, NEVER, dtype=np.int64)
    counted = np.ones(slots, dtype=np.bool_)
    for slot, mark in task.marks.items():
        if slot < slots:
            last_step[slot] = mark.step
    for slot in task.overdue | task.dropped:
        counted[slot] = False
    for block in blocks:
        before = task.marks.get(block.slot, SlotMark())
        if block.slot < slots and (block.mark.step, block.mark.generation) != (before.step, before.generation):
            last_step[block.slot] = block.mark.step
            counted[block.slot] = block.slot not in task.dropped
    return last_step, counted


def _frontier(task: CoreTask, blocks: Sequence[SlotBlock]) -> Ints:
    last_step, counted = counted_slots(task, blocks)
    return frontiers(task.layout.awaited, last_step, counted)


def _steps_of(state: CoreState, blocks: Sequence[SlotBlock]) -> tuple[Ints, Ints, Ints]:
    """Return (slot, step, appended_us) of the records that a group may still need."""
    slots = [state.slot, *(np.full(len(block.steps), block.slot, dtype=np.int64) for block in blocks)]
    return (
        np.concatenate(slots),
        np.concatenate([state.step, *(block.steps for block in blocks)]),
        np.concatenate([state.appended_us, *(block.appended_us for block in blocks)]),
    )


def _closed(
    layout: Layout, mine: Flags, records: tuple[Ints, Ints, Ints], delivered: Ints, complete: Ints
) -> list[CompletedSteps]:
    """Return what is complete now; groups that are held by the same slots and are at the same step share the work."""
    slot, step, appended_us = records
    alike: dict[tuple[bytes, int, int], list[int]] = {}
    for number in np.flatnonzero(mine):
        if complete[number] > delivered[number]:
            key = (layout.held[number].tobytes(), int(delivered[number]), int(complete[number]))
            alike.setdefault(key, []).append(int(number))
    found = []
    for (_, low, high), members in alike.items():
        which = layout.held[members[0]][slot] & (step > low) & (step <= high)
        if which.any():
            found.append(CompletedSteps(np.array(members, dtype=np.int64), *_latest(step[which], appended_us[which])))
    return found


def _latest(step: Ints, appended_us: Ints) -> tuple[Ints, Ints]:
    """Return each step once, ascending, with the latest of its append times."""
    if (step[1:] > step[:-1]).all():  # a single slot delivers each step once
        return step, appended_us
    found, place = np.unique(step, return_inverse=True)
    latest = np.full(len(found), np.iinfo(np.int64).min)
    np.maximum.at(latest, place, appended_us)
    return found, latest


def order_rows(rows: RecoveredRows, layout: Layout) -> Ints:
    """Return the positions that put rows in the order of (whether cut, step, group, sensor)."""
    if not len(rows):
        return np.zeros(0, dtype=np.int64)
    group = layout.group_of[rows.sensor]
    behind = layout.cut[group]
    step, steps = _placed(behind, rows.step, int(rows.step.min()), int(rows.step.max()))
    sensors, groups = len(layout), len(layout.groups)
    if steps * sensors * groups >= 2**62:
        return np.lexsort((rows.sensor, group, step))
    key = (step * groups + group) * sensors + rows.sensor
    if not behind.any() or behind.all():
        return np.argsort(key, kind="stable")
    # Rows mostly come in order, with those of cut groups among the others; with these apart little is left to sort.
    place = np.arange(len(key))
    place = np.concatenate((place[~behind], place[behind]))
    key = key[place]
    return place if (key[1:] > key[:-1]).all() else place[np.argsort(key, kind="stable")]


def _placed(behind: Flags, step: Ints, first: int, last: int) -> tuple[Ints, int]:
    """Return steps numbered from 0, those that are to be behind all others after them, and how many there are."""
    steps = last - first + 1
    placed = step - first
    if behind.any():
        placed += behind * steps
        steps *= 2
    return placed, steps


def begins(rows: RecoveredRows, layout: Layout) -> Ints:
    """Return where the rows of the next (step, group) begin; the rows are in order."""
    step, group = rows.step, layout.group_of[rows.sensor]
    other = np.ones(len(rows), dtype=np.bool_)
    np.logical_or(step[1:] != step[:-1], group[1:] != group[:-1], out=other[1:])
    return np.flatnonzero(other)


def starts(rows: RecoveredRows, begin: Ints, layout: Layout, group: Ints, step: Ints) -> Ints:
    """Return where the rows of each (step, group) begin, and their number; a pair without rows has an empty range.

    Args:
        begin: the result of `begins`.
        group, step: of the blocks, in the order of (whether cut, step, group).

    Raises:
        ValueError: there are rows without a block.
    """
    start = np.append(begin, len(rows))
    row_group, row_step = layout.group_of[rows.sensor[begin]], rows.step[begin]
    if np.array_equal(row_group, group) and np.array_equal(row_step, step):  # the usual case: each pair has rows
        return start
    found, key = _keys(layout, (row_group, row_step), (group, step))
    place = np.searchsorted(found, key)
    with_rows = place < np.searchsorted(found, key, side="right")
    if np.count_nonzero(with_rows) != len(begin):
        lost = int(np.argmin(np.isin(found, key)))
        name = layout.groups[int(row_group[lost])]
        raise ValueError(f"group {name}, step {int(row_step[lost])}: found rows, expected a block for them")
    return np.append(start[place], len(rows))


def _own_blocks(
    closed: Sequence[CompletedSteps], rows: RecoveredRows, begin: Ints, layout: Layout, core: int
) -> tuple[Ints, Ints, Ints]:
    """Return the blocks that this core sends or hands on, in the order of (whether cut, step, group).

    For a cut group one core hands on every block, the others only those in which they have rows. If sensors have few
    readings, a part would otherwise cost as much as the whole group.
    """
    elsewhere = layout.cut & layout.holds[:, core] & (layout.listing != core)
    nothing = np.zeros(0, dtype=np.int64)
    parts = [(nothing, nothing, nothing)]
    for cut in (False, True):
        for some in closed:
            listed = some.groups[(layout.cut[some.groups] == cut) & ~elsewhere[some.groups]]
            steps, times = (np.repeat(column, len(listed)) for column in some[1:])
            parts.append((np.tile(listed, len(some.step)), steps, times))
    if elsewhere.any():
        row_group, row_step = layout.group_of[rows.sensor[begin]], rows.step[begin]
        asked = elsewhere[row_group]
        row_group, row_step = row_group[asked], row_step[asked]
        appended_us, there = appended_at(closed, len(layout.groups), row_group, row_step)
        parts.append((row_group[there], row_step[there], appended_us[there]))
    group, step, appended_us = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    (key,) = _keys(layout, (group, step))
    if not (key[1:] > key[:-1]).all():
        place = key.argsort(kind="stable")  # a stable sort uses the runs that are in order already
        group, step, appended_us = group[place], step[place], appended_us[place]
    return group, step, appended_us


def _keys(layout: Layout, *blocks: tuple[Ints, Ints]) -> list[Ints]:
    """Return one number for each (group, step), in the order of (whether cut, step, group)."""
    steps = [step for _, step in blocks if len(step)]
    first, last = (
        min((int(step.min()) for step in steps), default=0),
        max((int(step.max()) for step in steps), default=0),
    )
    groups = len(layout.groups)
    return [_placed(layout.cut[group], step, first, last)[0] * groups + group for group, step in blocks]


def _expire(state: CoreState, task: CoreTask, delivered: Ints, read_rows: ReadRows) -> tuple[QueryReadings, Minute]:
    """Return the old readings that leave the minute now, and the files of the minute without them."""
    minute = state.minute
    group_of = task.layout.group_of
    moved = task.layout.holds[:, task.core] & (delivered > state.delivered)
    limit = int(delivered[moved].max(initial=NEVER)) - task.span
    low = int(state.delivered[moved].min(initial=limit)) - task.span
    found = []
    left = minute.left.copy()
    for number in np.flatnonzero(minute.least <= limit):
        rows = read_rows(int(minute.batch[number]), low, limit)
        group = group_of[rows.sensor]
        out = (rows.step > state.delivered[group] - task.span) & (rows.step <= delivered[group] - task.span)
        left[number] -= int(out.sum())
        found.append(rows.take(out))
    return QueryReadings.concatenate(found), replace(state.minute, left=left).gone(task.batch, left == 0)


def _rates(state: CoreState, task: CoreTask, rows: RecoveredRows, delivered: Ints) -> Floats:
    """Return the number of rows delivered by sensor, older ones counting less: float64[sensors]."""
    if not task.memory:
        return state.rate
    moved = delivered > state.delivered
    passed = int(delivered.max(initial=NEVER)) - int(state.delivered[moved].max(initial=NEVER))
    gone = 0.5 ** (min(max(passed, 0), 64 * task.memory) / task.memory) if moved.any() else 1.0
    return np.asarray(state.rate * gone + np.bincount(rows.sensor, minlength=len(state.rate)))


def _still_open(layout: Layout, mine: Flags, delivered: Ints, slot: Ints, step: Ints) -> Flags:
    """Return for which records some group of this core has still to deliver the step."""
    held = layout.held & mine[:, None]
    least = np.where(held, delivered[:, None], np.iinfo(np.int64).max).min(axis=0, initial=np.iinfo(np.int64).max)
    return np.asarray(step > least[slot], dtype=np.bool_)


def _padded(values: Ints, size: int, fill: int) -> Ints:
    return np.concatenate((values, np.full(size - len(values), fill, dtype=np.int64)))
