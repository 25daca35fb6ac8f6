"""What runs in Spark's Python workers: the two stages of a batch's one action.

Stage one decodes the records of some slots and hands on a block for every (slot, core). Stage two, one task a P-SORT
core, orders what is complete, sends it, writes the core's state and reports a few numbers to the driver.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from services.runtime.log import RESULTS
from services.runtime.settings import Kafka
from spark.blocks import SCHEMA, Counters, from_arrow, to_arrow
from spark.decode import Arrived, SlotDecoder
from spark.frontier import Mark
from spark.layout import Layout
from spark.merge import Task, advance, grown, result_blocks
from spark.publish import Publisher, Stopwatch, forget, messages, publisher
from spark.state import KEPT, CoreState, Store, dump_readings, load_readings

REPORT_SCHEMA = pa.schema([("report", pa.string())])
REPORT_SQL = "report string"
EMIT_BYTES = 64_000_000
"""Columns a decoding task gathers before it hands them on."""

Stage = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class BatchContext:
    """What every task of a batch is told; small, since it goes to each of them.

    Attributes:
        query: the Spark query's id.
        layout: serial of the layout in force.
        marks: by slot, before the batch.
        delivered: by group of the layout, before the batch (shorter if the layout has grown).
        overdue: slots that are waited for no longer.
        form: `[results] format`.
    """

    query: str
    batch: int
    checkpoint: str
    layout: int
    marks: dict[int, Mark]
    delivered: tuple[int, ...]
    overdue: frozenset[int]
    slide_us: int
    span: int
    form: str
    kafka: Kafka


def decoding(context: BatchContext) -> Stage:
    """Return stage one for `mapInArrow`."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from decode_records(context, batches)
        _settle()

    return stage


def ordering(context: BatchContext) -> Stage:
    """Return stage two for `mapInArrow`."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        core = 0 if task is None else task.partitionId()
        report = order_core(context, core, batches)
        _settle()
        yield pa.RecordBatch.from_arrays([pa.array([json.dumps(report)], type=pa.string())], schema=REPORT_SCHEMA)

    return stage


def warming(kafka: Kafka) -> Stage:
    """Return a stage that imports what the others need and makes the process's producer."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        publisher(kafka)
        _settle()
        yield pa.RecordBatch.from_arrays([pa.array([], type=field.type) for field in SCHEMA], schema=SCHEMA)

    return stage


def decode_records(context: BatchContext, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Decode Kafka records (key, value, partition, offset) into blocks."""
    layout = _layout(context)
    delivered = np.array(context.delivered, dtype=np.int64)
    decoders: dict[int, SlotDecoder] = {}
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in ("partition", "offset", "key", "value")]
        for slot, offset, key, value in zip(*columns, strict=True):
            decoder = decoders.get(slot)
            if decoder is None:
                mark = context.marks.get(slot, Mark())
                decoder = decoders[slot] = SlotDecoder(slot, mark, layout, delivered, context.slide_us)
            decoder.add(Arrived(slot, offset, key, value))
        for decoder in decoders.values():
            if decoder.bytes > EMIT_BYTES:
                yield from to_arrow(decoder.blocks())
    sidelined = [record for decoder in decoders.values() for record in decoder.sidelined]
    if sidelined:
        with _Sending(context.kafka) as out:
            for record in sidelined:
                out.send(record.topic, 0, record.key, record.value)
    for decoder in decoders.values():
        yield from to_arrow(decoder.blocks())


def order_core(context: BatchContext, core: int, batches: Iterator[pa.RecordBatch]) -> dict[str, Any]:
    """Order one core's share of a batch, send it, keep its state; return the report for the driver."""
    watch = Stopwatch()
    blocks = from_arrow(batches)
    watch.lap("wait_s")
    store = Store(Path(context.checkpoint))
    layout = _layout(context)
    state = grown(_state_before(context, store, core), layout)
    watch.lap("load_s")
    task = Task(
        context.batch, core, layout, context.marks, context.overdue, slide_us=context.slide_us, span=context.span
    )
    advanced = advance(
        state, task, blocks, lambda batch, low, high: load_readings(store.root / _rows(core, batch), low, high)
    )
    watch.lap("compute_s")
    sent = 0
    if len(advanced.ordered):
        blocks_out = result_blocks(advanced.ordered, layout, context.slide_us)
        with _Sending(context.kafka) as out:
            for key, value in messages(blocks_out, layout, context.form):
                out.send(RESULTS, core, key, value)
                sent += len(value)
            watch.lap("serialise_s")
        watch.lap("send_s")
    if len(advanced.keep.sensor):
        store.write(_rows(core, context.batch), dump_readings(advanced.keep))
    store.write(_state(core, context.batch), advanced.state.dump())
    _clean(store, core, context.batch, advanced.state)
    watch.lap("save_s")
    slots: dict[int, tuple[Mark, Counters]] = {}
    for block in blocks:
        _, counters = slots.setdefault(block.slot, (block.mark, Counters()))
        counters.add(block.counters)
        slots[block.slot] = (block.mark, counters)  # blocks are sorted: the last one read furthest
    mine = np.flatnonzero(layout.core_of == core)
    return {
        "core": core,
        "slots": {slot: {"mark": mark, "counters": counters.as_dict()} for slot, (mark, counters) in slots.items()},
        "delivered": {int(group): int(advanced.state.delivered[group]) for group in mine},
        "blocks": len(advanced.ordered),
        "rows": len(advanced.ordered.rows),
        "carried": len(advanced.state.rows),
        "bytes": sent,
        "appended_us": int(advanced.ordered.appended_us.min()) if len(advanced.ordered) else 0,
        "seconds": watch.seconds,
    }


def _settle() -> None:
    """Take what the worker has imported out of the garbage collector's sight, once a process.

    PySpark's daemon collects all generations after every task: 25 ms of CPU each time with numpy and pyarrow loaded, a
    fraction of one without, and a batch has four tasks.
    """
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


class _Sending:
    """The process's publisher for a while: flushed at the end, given up after an error."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka

    def __enter__(self) -> Publisher:
        return publisher(self._kafka)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            forget(self._kafka)
            return
        try:
            publisher(self._kafka).flush()
        except BaseException:
            forget(self._kafka)
            raise


_layouts: dict[tuple[str, int], Layout] = {}


def _layout(context: BatchContext) -> Layout:
    key = (context.query, context.layout)
    if key not in _layouts:
        _layouts.clear()
        _layouts[key] = Layout.load(Store(Path(context.checkpoint)).read(f"layouts/{context.layout}"))
    return _layouts[key]


def _state_before(context: BatchContext, store: Store, core: int) -> CoreState | None:
    if context.batch == 0:
        return None
    name = _state(core, context.batch - 1)
    return CoreState.load(store.read(name), store.root / name)


def _clean(store: Store, core: int, batch: int, state: CoreState) -> None:
    """Delete what no batch that may run again needs."""
    store.remove(_state(core, batch - KEPT))
    for rows_batch, dropped_at in state.minute.dropped.tolist():
        if dropped_at <= batch - KEPT:
            store.remove(_rows(core, rows_batch))


def _state(core: int, batch: int) -> str:
    return f"core-{core}/state-{batch}"


def _rows(core: int, batch: int) -> str:
    return f"core-{core}/rows-{batch}"
