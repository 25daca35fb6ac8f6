"""The query core's work in Spark: what P-SORT cores hand to it, and how it runs, sends and keeps its state."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tsunagi.query.encoding import EncodedBlock
from tsunagi.query.readings import Readings
from tsunagi.runtime.columns import pack_arrays, unpack_arrays
from tsunagi.runtime.log import RESULTS
from tsunagi.runtime.messages import ResultBlock
from tsunagi_spark.layout import Layout
from tsunagi_spark.merge import Ordered
from tsunagi_spark.publish import Sending, Stopwatch, messages
from tsunagi_spark.query_core import CompleteRows, QueryCore, QueryProgram, no_rows, partition_of
from tsunagi_spark.state import KEPT, Store
from tsunagi_spark.task_context import BatchContext, JobContext, layout_of

QUERIES = -2
"""Stands for the query core in reports."""
FOLDER = "queries"
"""The folder of the query core's state in the job's store."""
_TIMES = 100
"""Number of blocks for which a report says when their inputs came."""

_kept: dict[str, tuple[str, int, QueryCore]] = {}
"""What this process has of the query core, by checkpoint: the Spark query, the batch, and the state behind it. Spark's
Python workers outlive a batch, and to read the state again takes as long as its size."""
_tables: dict[tuple[str, int, int], Readings] = {}
"""What the sensors table says, by Spark query, layout and program."""


def dump_rows(ordered: Ordered) -> bytes:
    """Return what one core has of complete steps, for `load_rows`."""
    return pack_arrays(CompleteRows.from_ordered(ordered).arrays())


def load_rows(data: bytes) -> CompleteRows:
    """Read what `dump_rows` has written."""
    return CompleteRows.from_arrays(unpack_arrays(data))


def program_file(serial: int) -> str:
    """Return the name of the file that holds a version of the statements in force."""
    return f"programs/{serial}"


def state_file(batch: int) -> str:
    """Return the name of the file that holds the query core's state behind a batch."""
    return f"{FOLDER}/state-{batch}"


def run_queries(job: JobContext, context: BatchContext, parts: Sequence[bytes], upto: int) -> dict[str, Any]:
    """Run the queries on a batch, send their rows and keep their state; return the report for the driver.

    Args:
        parts: what each P-SORT core has complete.
        upto: the last step that is complete for all groups.
    """
    watch = Stopwatch()
    cpu_s = time.thread_time()
    store = Store(Path(job.checkpoint))
    layout = layout_of(job, context)
    core = _taken(job, context, store)
    watch.lap("load_s")
    came = CompleteRows.of([load_rows(part) for part in parts]) if parts else no_rows()
    table = _table(job, context, core.program, layout)
    sent, places, appended = 0, Counter[int](), list[int]()
    blocks = rows = 0
    with Sending(job.kafka) as out:
        for block in core.advance(came, upto, table, job.query_bytes):
            partition = partition_of(block, layout)
            for key, value in _records(block, layout, job.form):
                out.send(RESULTS, partition, key, value)
                sent += len(value)
                places[partition] += 1
            blocks, rows = blocks + 1, rows + block.rows
            if block.appended_us:
                appended.append(block.appended_us)
        watch.lap("compute_s")
    watch.lap("send_s")
    store.write(state_file(context.batch), core.dump())
    store.remove(state_file(context.batch - KEPT))
    _kept[job.checkpoint] = context.query, context.batch, core
    watch.lap("save_s")
    return {
        "core": QUERIES,
        "blocks": blocks,
        "rows": rows,
        "bytes": sent,
        "sent_to": places,
        "appended_us": appended[-_TIMES:],
        "sent_us": time.time_ns() // 1000,
        "cpu_s": time.thread_time() - cpu_s,
        "seconds": watch.seconds,
        "waiting": len(core.waiting.rows["step"]),
        "queries": core.report(),
    }


def _records(block: EncodedBlock, layout: Layout, form: str) -> Iterator[tuple[bytes, bytes]]:
    if form == "blocks":
        yield block.key, block.value
    else:
        yield from messages(ResultBlock.FromString(block.value), layout, form)


def _taken(job: JobContext, context: BatchContext, store: Store) -> QueryCore:
    """Return the query core as it was behind the batch before, with the program that is in force now.

    What this process has kept is used once: this batch changes it, and may have to run again from the file.
    """
    kept = _kept.pop(job.checkpoint, None)
    if kept is not None:
        query, batch, core = kept
        if query == context.query and batch == context.batch - 1 and core.program.serial == context.program:
            return core
    program = QueryProgram.load(store.read(program_file(context.program)))
    data = store.find(state_file(context.batch - 1))
    if data is None:  # there was no query before
        return QueryCore(program, job.slide_us)
    return QueryCore.load(data, store.root / state_file(context.batch - 1), program, job.slide_us)


def _table(job: JobContext, context: BatchContext, program: QueryProgram, layout: Layout) -> Readings:
    key = context.query, context.layout, context.program
    if key not in _tables:
        _tables.clear()
        _tables[key] = Readings(layout.table, job.slide_us, program.kinds)
    return _tables[key]
