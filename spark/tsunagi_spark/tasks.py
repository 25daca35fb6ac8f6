"""What runs in Spark's Python workers: the stages of a batch's one action.

Stage one decodes the records of some slots, and hands on a block for every (slot, core). Stage two has one task for
each P-SORT core, which orders what is complete, sends it, writes the state of the core and reports a few numbers to the
driver. If groups are cut over cores, stage two hands on its parts of them, and the one task of stage three merges and
sends those. If there are queries in CQL, stage two hands on what is complete, and stage three has one task for each
query core, which runs the queries on it.
"""

from __future__ import annotations

import gc
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tsunagi.runtime.kafka import KafkaLog
from tsunagi.runtime.log import RESULTS, Reader
from tsunagi.runtime.marks import BREAK_US
from tsunagi.runtime.settings import KafkaSettings
from tsunagi_spark.blocks import SCHEMA, Counters, from_arrow, to_arrow
from tsunagi_spark.decode import Arrived, SlotDecoder
from tsunagi_spark.encode import Encoded, encode_blocks
from tsunagi_spark.frontier import SlotMark
from tsunagi_spark.identity import check_read
from tsunagi_spark.layout import Layout
from tsunagi_spark.limit import ByteCount
from tsunagi_spark.merge import CoreTask, Ordered, advance, grown, result_blocks
from tsunagi_spark.moving import GATHERED, gather, settled, touched, within
from tsunagi_spark.parts import dump_part, dump_windows, load_part, load_windows, merge_parts, merge_windows
from tsunagi_spark.publish import Sending, Stopwatch, messages, publisher
from tsunagi_spark.queries import QueryReadings
from tsunagi_spark.query_core import query_frontier
from tsunagi_spark.query_task import QueryParts, parts_of, run_direct, run_queries
from tsunagi_spark.state import KEPT, CoreState, Store, dump_readings, load_readings
from tsunagi_spark.task_context import BatchContext, JobContext, layout_of, told
from tsunagi_spark.windows import CompleteWindows, window_blocks

_PARTS = ("part", "windows", "split", "whole", "events", "apart", "sums")
"""What stage two hands on beside its report: its part of the cut groups and of their aggregates, and for queries in CQL
what is complete and the events that came (`QueryParts`). Each may be missing."""
REPORT_SCHEMA = pa.schema([("core", pa.int32()), ("report", pa.string()), *((name, pa.binary()) for name in _PARTS)])
"""Arrow schema of what stage two hands on. `core` is the task of stage three for which it is."""
REPORT_SQL = (
    "core int, report string, part binary, windows binary, split binary, whole binary, events binary, apart binary, "
    "sums binary"
)
"""The same schema in Spark's notation."""
EMIT_BYTES = 64_000_000
"""Bytes of columns that a decoding task gathers before it hands them on."""
MERGE = -1
"""Stands for the merge core in reports."""
_TIMES = 100
"""Number of blocks for which a report says when their inputs came."""

_AT_ONCE_S = 0.001
"""Longest time, in seconds, for which the broker may hold back an empty fetch: the next question waits for it."""


class HandedOn(NamedTuple):
    """What a P-SORT core hands on to stage three.

    Attributes:
        part, windows: its part of the cut groups and of their aggregates, as bytes; None = no group is cut.
        queries: what is complete, for each query core; empty = there are no queries, or they have run here.
        answered: the report of the query core, if it has run here.
    """

    part: bytes | None = None
    windows: bytes | None = None
    queries: tuple[QueryParts, ...] = ()
    answered: dict[str, Any] | None = None


Stage = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def decoding(job: JobContext) -> Stage:
    """Return stage one, for `mapInArrow`."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context, _ = told()
        yield from decode_records(job, context, batches)
        _settle()

    return stage


def ordering(job: JobContext) -> Stage:
    """Return stage two, for `mapInArrow`."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context, core = told()
        report, parts = order_core(job, context, core, batches)
        _settle()
        yield _report(report, parts.part, parts.windows)
        if parts.answered is not None:
            yield _report(parts.answered)
        for number, item in enumerate(parts.queries):
            head = {"from": core, "first": item.first, "upto": item.upto}
            yield _report(head, None, None, *item[2:], target=number)

    return stage


def merging(job: JobContext) -> Stage:
    """Return stage three, for `mapInArrow`: it passes reports on, merges and sends parts, and runs queries in CQL."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context, number = told()
        merged: list[tuple[int, HandedOn]] = []
        complete: list[tuple[int, QueryParts]] = []
        for batch in batches:
            for _, text, part, windows, *parts in zip(*(c.to_pylist() for c in batch.columns), strict=True):
                report = json.loads(text)
                if "from" in report:
                    complete.append((report["from"], QueryParts(report["first"], report["upto"], *parts)))
                    continue
                merged.append((report["core"], HandedOn(part, windows)))
                yield _report(report)
        if number == 0 and layout_of(job, context).cut.any():
            yield _report(merge_core(job, context, [parts for _, parts in sorted(merged, key=itemgetter(0))]))
        if context.program:
            parts = [item for _, item in sorted(complete, key=itemgetter(0))]
            for report in run_queries(job, context, number, parts):
                yield _report(report)
        _settle()

    return stage


def warming(kafka: KafkaSettings) -> Stage:
    """Return a stage that imports what the other stages need, and makes the producer of the process."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        publisher(kafka)
        _settle()
        yield pa.RecordBatch.from_arrays([pa.array([], type=field.type) for field in SCHEMA], schema=SCHEMA)

    return stage


def decode_records(
    job: JobContext, context: BatchContext, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Decode Kafka records (key, value, partition, offset, timestamp) into blocks.

    Raises:
        BatchTooLargeError: the task's share of the batch is too large.
        LogChangedError: the records are of another log than those that were read before.
    """
    count = ByteCount(job.task_bytes)
    layout = layout_of(job, context)
    delivered = np.array(context.delivered, dtype=np.int64)
    decoders: dict[int, SlotDecoder] = {}
    known: dict[int, SlotMark] = {}
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in ("partition", "offset", "key", "value")]
        appended_us = batch.column("timestamp").cast(pa.int64()).to_pylist()
        for slot, offset, key, value, at_us in zip(*columns, appended_us, strict=True):
            decoder = decoders.get(slot)
            if decoder is None:
                mark = context.marks.get(slot, SlotMark())
                follows = offset <= mark.read_to and 0 <= at_us - mark.read_us < BREAK_US
                if slot in context.marks and not follows:
                    known[slot] = mark
                decoder = decoders[slot] = SlotDecoder(
                    slot,
                    mark,
                    layout,
                    delivered,
                    job.slide_us,
                    events=context.whole or context.sums or bool(context.opks),
                )
            count.add(len(key or b"") + len(value or b""), len(decoders))
            decoder.add(Arrived(slot, offset, key, value, at_us))
        for decoder in decoders.values():
            if decoder.bytes > EMIT_BYTES:
                yield from to_arrow(decoder.blocks())
    # Nothing is sent yet. Afterwards it would be too late: readers would drop the right results as repeats.
    if known:
        check_read(_reader(job.kafka), known)
    sidelined = [record for decoder in decoders.values() for record in decoder.sidelined]
    if sidelined:
        with Sending(job.kafka) as out:
            for record in sidelined:
                out.send(record.topic, 0, record.key, record.value)
    yield from to_arrow(block for decoder in decoders.values() for block in decoder.blocks())


def order_core(
    job: JobContext, context: BatchContext, core: int, batches: Iterator[pa.RecordBatch]
) -> tuple[dict[str, Any], HandedOn]:
    """Order one core's share of a batch, send it, and keep its state.

    Returns:
        (report for the driver, what is handed on to stage three).
    """
    watch = Stopwatch()
    blocks = from_arrow(batches)
    watch.lap("wait_s")
    cpu_s = time.thread_time()
    store = Store(Path(job.checkpoint))
    layout = layout_of(job, context)
    state, gathered = _begin(job, context, store, core, layout)
    watch.lap("load_s")
    task = CoreTask(
        context.batch,
        core,
        layout,
        context.marks,
        context.overdue,
        slide_us=job.slide_us,
        span=job.span,
        memory=job.memory,
        specs=job.specs,
        dropped=context.dropped,
        counts=job.readings,
    )

    def read_rows(batch: int, low: int, high: int) -> QueryReadings:
        if gathered is not None and batch == GATHERED:
            return within(gathered, low, high)
        return load_readings(store.root / _rows(core, batch), low, high)

    advanced = advance(state, task, blocks, read_rows)
    watch.lap("compute_s")
    ordered, windows = advanced.ordered, advanced.windows
    upto = query_frontier(task, blocks)
    shuffled = context.program > 0 and not context.direct
    events = [block.events for block in blocks if block.events]
    parts = HandedOn(queries=tuple(parts_of(job, context, ordered, upto, events)) if shuffled else ())
    if layout.cut.any():
        ordered, cut = ordered.apart(layout.cut)
        cut_window = layout.cut[layout.group_of[windows.sums["sensor"]]]
        parts = parts._replace(part=dump_part(cut), windows=dump_windows(windows.take(cut_window)))
        windows = windows.take(~cut_window)
    sent, sent_to = _send(job, layout, ordered, windows, core + 1 if layout.order == "none" else 0, watch)
    if context.direct:  # behind the readings, which should not wait for it
        parts = parts._replace(answered=run_direct(job, context, core, ordered, upto))
        watch.lap("queries_s")
    keep = advanced.keep
    if gathered is not None and job.readings:
        minute = advanced.state.minute
        delivered = advanced.state.delivered
        advanced.state.minute, keep = settled(minute, gathered, keep, delivered, layout, job.span, context.batch)
    if len(keep.sensor):
        store.write(_rows(core, context.batch), dump_readings(keep))
    store.write(_state(core, context.batch), advanced.state.dump())
    _clean(store, core, context.batch, advanced.state)
    watch.lap("save_s")
    slots: dict[int, tuple[SlotMark, Counters]] = {}
    for block in blocks:
        _, counters = slots.setdefault(block.slot, (block.mark, Counters()))
        counters.add(block.counters)
        slots[block.slot] = (block.mark, counters)  # blocks are sorted, so the last one has read furthest
    mine = np.flatnonzero(layout.holds[:, core])
    report = {
        "core": core,
        "slots": {slot: {"mark": mark, "counters": counters.as_dict()} for slot, (mark, counters) in slots.items()},
        "delivered": {int(group): int(advanced.state.delivered[group]) for group in mine},
        "blocks": len(ordered),
        "rows": len(ordered.rows),
        "taken": len(advanced.ordered.rows),
        "carried": len(advanced.state.rows),
        "bytes": sent,
        "sent_to": sent_to,
        "appended_us": ordered.appended_us.tolist()[-_TIMES:],
        "sent_us": time.time_ns() // 1000,
        "cpu_s": time.thread_time() - cpu_s,
        "seconds": watch.seconds,
    }
    return report, parts


def merge_core(job: JobContext, context: BatchContext, parts: Sequence[HandedOn]) -> dict[str, Any]:
    """Merge the cores' parts of the cut groups and send them; return the report for the driver.

    Args:
        parts: what the cores have handed on, in the order of cores.
    """
    watch = Stopwatch()
    cpu_s = time.thread_time()
    layout = layout_of(job, context)
    ordered = merge_parts([load_part(item.part) for item in parts if item.part], layout)
    windows = merge_windows([load_windows(item.windows) for item in parts if item.windows], layout)
    watch.lap("compute_s")
    sent, sent_to = _send(job, layout, ordered, windows, 0, watch)
    return {
        "core": MERGE,
        "blocks": len(ordered),
        "rows": len(ordered.rows),
        "bytes": sent,
        "sent_to": sent_to,
        "appended_us": ordered.appended_us.tolist()[-_TIMES:],
        "sent_us": time.time_ns() // 1000,
        "cpu_s": time.thread_time() - cpu_s,
        "seconds": watch.seconds,
    }


def _send(
    job: JobContext, layout: Layout, ordered: Ordered, windows: CompleteWindows, part: int, watch: Stopwatch
) -> tuple[int, Counter[int]]:
    """Send blocks to their groups' partitions (a part to its core's); return the bytes, and records by partition."""
    sent, sent_to = 0, Counter[int]()
    if not len(ordered):
        return sent, sent_to
    with Sending(job.kafka) as out:
        for group, key, value in _encoded(job, layout, ordered, windows, part):
            partition = part - 1 if part else int(layout.home[group])
            out.send(RESULTS, partition, key, value)
            sent += len(value)
            sent_to[partition] += 1
        watch.lap("serialise_s")
    watch.lap("send_s")
    return sent, sent_to


def _encoded(
    job: JobContext, layout: Layout, ordered: Ordered, windows: CompleteWindows, part: int
) -> Iterator[Encoded]:
    blocks = window_blocks(windows, job.specs, layout, job.slide_us, part)
    if job.readings and job.form == "blocks":
        yield from encode_blocks(ordered, layout, job.slide_us, part)
    elif job.readings:
        readings = result_blocks(ordered, layout, job.slide_us, part)
        blocks = chain(zip(ordered.group.tolist(), readings, strict=True), blocks)
    for group, block in blocks:
        for key, value in messages(block, layout, job.form):
            yield Encoded(group, key, value)


def _report(report: dict[str, Any], *parts: bytes | None, target: int = 0) -> pa.RecordBatch:
    cells = (target, json.dumps(report), *parts, *(None,) * (len(_PARTS) - len(parts)))
    columns = [pa.array([cell], type=column.type) for cell, column in zip(cells, REPORT_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=REPORT_SCHEMA)


@cache  # asking `gc` whether it was done would take milliseconds, since it counts
def _settle() -> None:
    """Exclude what the worker has imported from garbage collection, once in a process.

    PySpark's daemon collects all generations after every task. With numpy and pyarrow loaded that takes 25 ms of CPU
    each time, otherwise a fraction of one, and a batch has four tasks.
    """
    gc.collect()
    gc.freeze()


_readers: dict[str, Reader] = {}


def _reader(settings: KafkaSettings) -> Reader:
    """Return this process's reader for questions; an empty request of it must not delay the next one."""
    key = settings.model_dump_json()
    if key not in _readers:
        _readers[key] = KafkaLog(settings, client_id="tsunagi-spark-core").reader(wait_s=_AT_ONCE_S)
    return _readers[key]


def _begin(
    job: JobContext, context: BatchContext, store: Store, core: int, layout: Layout
) -> tuple[CoreState, QueryReadings | None]:
    """Return the state with which the batch begins, and the readings gathered from other cores, if that was needed."""

    def load(number: int) -> CoreState:
        name = _state(number, context.batch - 1)
        return grown(CoreState.load(store.read(name), store.root / name), layout)

    if context.batch == 0:
        return grown(None, layout), None
    if context.layout_before in (0, context.layout):
        return load(core), None
    before = Layout.load(store.read(f"layouts/{context.layout_before}"))
    if not touched(before, layout, core):
        return load(core), None

    def read(number: int, batch: int, low: int, high: int) -> QueryReadings:
        return load_readings(store.root / _rows(number, batch), low, high)

    states = [load(number) for number in range(layout.cores)]
    return gather(states, core, before, layout, job.span, context.batch, read)


def _clean(store: Store, core: int, batch: int, state: CoreState) -> None:
    """Delete the files that no batch needs which may run again."""
    store.remove(_state(core, batch - KEPT))
    for rows_batch, dropped_at in state.minute.dropped.tolist():
        if dropped_at <= batch - KEPT:
            store.remove(_rows(core, rows_batch))


def _state(core: int, batch: int) -> str:
    return f"core-{core}/state-{batch}"


def _rows(core: int, batch: int) -> str:
    return f"core-{core}/rows-{batch}"
