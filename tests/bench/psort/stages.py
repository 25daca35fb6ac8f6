"""What runs in Spark's Python workers of the day's benchmark, with the job's own code for queries, order and merge.

    split   reads a share of the day, and hands each core its sensors' rows (blocks, as the job's decoding does)
    order   a P-SORT core: q1..q3 and the order of its rows; hands on its part of the groups that are cut
    merge   the merge core: puts the parts together

Every task notes its own CPU time: of its whole process from the task's first line to its last, reading and writing of
Arrow's streams included, Spark's JVM not. A core's busy time is that of its split and its order; the merge core only
merges. Rows that are in order stay in memory: to send them on is no part of this benchmark.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from tests.bench.psort.day import GROUP_OF, RANGE_US, Day, read_rows, shares
from tsunagi_spark.blocks import Counters, RecoveredRows, SlotBlock, from_arrow, to_arrow
from tsunagi_spark.frontier import SlotMark
from tsunagi_spark.layout import Ints, Layout
from tsunagi_spark.merge import Advanced, CoreTask, Ordered, advance, grown
from tsunagi_spark.parts import dump_part, load_part, merge_parts
from tsunagi_spark.queries import QueryReadings

PART = pa.schema([("core", pa.int32()), ("number", pa.int32()), ("part", pa.binary())])
PART_SQL = "core int, number int, part binary"
CHUNKS = 32
"""Parts in which one core works through a day; each of sixteen does in two, so a row costs about the same everywhere.
As in the job a part then finds readings of the one before that leave the minute; in a whole day there would be none.
"""

Stage = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class Plan:
    """What every task is told.

    Attributes:
        reports: directory for what tasks report.
        check: whether order, rows and counts are looked at; their times then say nothing.
    """

    day: Day
    layout: Layout
    reports: Path
    check: bool

    @property
    def pieces(self) -> int:
        """In so many pieces a core splits its share of the day, and works through its rows."""
        return max(1, round(CHUNKS / self.layout.cores))

    def bounds(self, split: int) -> list[tuple[int, int]]:
        """Return (first, last) of the chunks of steps that a task splits; first is the last one of the one before."""
        splits, pieces = self.layout.cores, self.pieces
        edges = np.linspace(0, self.day.steps, splits * pieces + 1).round().astype(int).tolist()
        return list(pairwise(edges[split * pieces : (split + 1) * pieces + 1]))


class Account:
    """A task's CPU time, and what it reports."""

    def __init__(self, plan: Plan, stage: str) -> None:
        task = TaskContext.get()
        self.core = 0 if task is None else task.partitionId()
        self._path = plan.reports / f"{stage}-{self.core}.json"
        self._began = time.process_time()

    def close(self, **found: Any) -> None:
        """Stop the clock, and write the report."""
        cpu_s = time.process_time() - self._began
        self._path.write_text(json.dumps({"cpu_s": cpu_s, **found}), encoding="utf-8")


def splitting(plan: Plan) -> Stage:
    """Return the first stage."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        account = Account(plan, "split")
        for _ in batches:
            pass
        layout = plan.layout
        cells, place_of = np.unique(
            layout.slot_of.astype(np.int64) * layout.cores + layout.sensor_core, return_inverse=True
        )
        rows = 0
        for first, last in plan.bounds(account.core):
            part = read_rows(plan.day, first, last)
            rows += len(part)
            steps = _steps_of(part, plan.day, first, last)
            order, starts = shares(part.sensor, place_of)
            part = part.take(order)
            mark = SlotMark(1, last, 0, last, 1, last)
            blocks = []
            for cell, (begin, end) in zip(cells.tolist(), pairwise(starts.tolist()), strict=True):
                slot, core = divmod(cell, layout.cores)
                mine = part.take(slice(begin, end))
                blocks.append(SlotBlock(core, slot, mark, Counters(), steps[slot], steps[slot], mine))
            yield from to_arrow(blocks)
        account.close(rows=rows)
        _settle()

    return stage


def ordering(plan: Plan) -> Stage:
    """Return the second stage, a task a core."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        account = Account(plan, "order")
        whole: list[Ordered] = []
        rows = merged = 0
        for number, advanced in enumerate(_advanced(plan, account.core, from_arrow(batches))):
            ordered = advanced.ordered
            rows += len(ordered.rows)
            mine, part = ordered.apart(plan.layout.cut)
            if plan.check:
                whole.append(mine)
            if len(part):
                merged += len(part.rows)
                columns = [
                    pa.array([item], type=field.type)
                    for item, field in zip((account.core, number, dump_part(part)), PART, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=PART)
        account.close(rows=rows, merged=merged, **(judge(whole) if plan.check else {}))
        _settle()

    return stage


def merging(plan: Plan) -> Stage:
    """Return the third stage, one task: parts of the same number are of the same steps."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        account = Account(plan, "merge")
        parts: dict[int, list[tuple[int, Ordered]]] = {}
        for batch in batches:
            for core, number, part in zip(*(batch.column(place) for place in range(3)), strict=True):
                parts.setdefault(number.as_py(), []).append((core.as_py(), load_part(memoryview(part.as_buffer()))))
        whole: list[Ordered] = []
        rows = 0
        for number in sorted(parts):
            found = merge_parts([part for _, part in sorted(parts.pop(number), key=lambda item: item[0])], plan.layout)
            rows += len(found.rows)
            if plan.check:
                whole.append(found)
        account.close(rows=rows, **(judge(whole) if plan.check else {}))
        _settle()
        yield pa.RecordBatch.from_arrays([pa.array([], type=field.type) for field in PART], schema=PART)

    return stage


def _advanced(plan: Plan, core: int, blocks: list[SlotBlock]) -> Iterator[Advanced]:
    """Work through a core's rows, some chunks of steps at a time: each about as many rows as one of sixteen has."""
    layout = plan.layout
    state = grown(None, layout)
    kept: dict[int, QueryReadings] = {}
    ends = sorted({block.mark.step for block in blocks})
    if not ends:
        return  # a sensor may have more rows than a core should, and leave others without any
    turns = np.array_split(ends, plan.pieces)
    span = max(1, -(-RANGE_US // plan.day.slide_us))

    def read(batch: int, low: int, high: int) -> QueryReadings:
        held = kept[batch]
        return held.take(slice(*np.searchsorted(held.step, (low, high), side="right").tolist()))

    for number, turn in enumerate(turns):
        first, last = int(turn[0]), int(turn[-1])
        mine = [block for block in blocks if first <= block.mark.step <= last]
        there = {block.slot for block in mine}
        # A job's core gets a block of every slot; here those without rows for it are left out.
        marks = {slot: SlotMark(1, last, 0, last, 1, last) for slot in range(layout.slots) if slot not in there}
        task = CoreTask(number, core, layout, marks, frozenset(), plan.day.slide_us, span)
        advanced = advance(state, task, mine, read)
        state, kept[number] = advanced.state, advanced.keep
        yield advanced


def _steps_of(part: RecoveredRows, day: Day, first: int, last: int) -> list[Ints]:
    """Return the steps at which each slot has given something, int64[steps]."""
    if day.even:
        return [np.arange(first + 1, last + 1)]
    there = np.zeros((day.slots, last - first), dtype=np.bool_)
    there[GROUP_OF[part.sensor], part.step - first - 1] = True
    return [first + 1 + np.flatnonzero(row) for row in there]


def judge(whole: list[Ordered]) -> dict[str, int]:
    """Look at rows in the order in which they came out: inversions within a group and in all, sums of the answers."""
    step, sensor, q1, q2 = (
        np.concatenate([np.zeros(0, np.int64), *columns])
        for columns in (
            [item.rows.step for item in whole],
            [item.rows.sensor.astype(np.int64) for item in whole],
            [item.counted.q1 for item in whole],
            [item.counted.q2 for item in whole],
        )
    )
    place = step * len(GROUP_OF) + sensor
    group = GROUP_OF[sensor]
    within = np.argsort(group, kind="stable")
    same = np.diff(group[within]) == 0
    return {
        "inversions": int((np.diff(place[within])[same] <= 0).sum()),
        "inversions_in_all": int((np.diff(step) < 0).sum()),
        "q1": int(q1.sum()),
        "q2": int(q2.sum()),
        "out": len(step),
    }


@cache  # to ask `gc` whether it was done would take milliseconds: it counts
def _settle() -> None:
    """As the job does: take what the worker has imported out of the collector's sight, once a process."""
    gc.collect()
    gc.freeze()
