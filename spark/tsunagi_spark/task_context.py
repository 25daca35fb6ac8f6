"""What the tasks of a batch are told: about the job, and about the batch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark import TaskContext

from tsunagi.runtime.settings import KafkaSettings
from tsunagi_spark.frontier import SlotMark
from tsunagi_spark.layout import Layout
from tsunagi_spark.state import Store
from tsunagi_spark.windows import Spec

BATCH = "tsunagi.batch"
"""Spark's local property that gives tasks what they must know about their batch."""


@dataclass(frozen=True, slots=True)
class JobContext:
    """What every task must know about the job; it is the same as long as the driver runs.

    Attributes:
        form: the setting `[results] format`.
        readings: the setting `[results] readings`.
        memory, specs: as in `merge.CoreTask`.
        task_bytes: most bytes of records that one task reads in a batch.
        query_bytes: most bytes of state that a query in CQL may have.
    """

    checkpoint: str
    slide_us: int
    span: int
    form: str
    memory: int
    specs: tuple[Spec, ...]
    kafka: KafkaSettings
    task_bytes: int
    query_bytes: int
    readings: bool = True


@dataclass(frozen=True, slots=True)
class BatchContext:
    """What the tasks of a batch must know about it; it is small, since each of them gets it.

    Attributes:
        query: id of the Spark query.
        layout: serial of the layout in force.
        layout_before: serial of the layout of the batch before; 0 if there was none.
        marks: for each slot, how far it had been read before the batch.
        delivered: for each group, the last step sent before the batch; shorter than the layout's groups if these have
            grown.
        overdue, dropped: as in `merge.CoreTask`.
        program: serial of the statements in CQL that are in force; 0 if there have been none.
        program_before: the same of the batch before.
        split, whole: whether there are queries that are split over the query cores, and others.
        direct: whether each P-SORT core has just the groups of the query core of its number, and runs it itself.
        fills: the queries that are filled from the log, or were, in this program or the one before.
        opks: the names of the OPKs by which queries are computed apart, in this program or the one before.
        sums: whether rows are added up for queries, in this program or the one before.
    """

    query: str
    batch: int
    layout: int
    layout_before: int
    marks: dict[int, SlotMark]
    delivered: tuple[int, ...]
    overdue: frozenset[int]
    dropped: frozenset[int]
    program: int = 0
    program_before: int = 0
    split: bool = False
    whole: bool = False
    direct: bool = False
    fills: tuple[str, ...] = ()
    opks: tuple[str, ...] = ()
    sums: bool = False

    def as_text(self) -> str:
        """Return the fields as JSON for `of`."""
        return json.dumps(
            asdict(self) | {"overdue": sorted(self.overdue), "dropped": sorted(self.dropped)}, separators=(",", ":")
        )

    @staticmethod
    def of(text: str) -> BatchContext:
        """Read the fields from JSON."""
        fields = json.loads(text)
        return BatchContext(
            query=fields["query"],
            batch=fields["batch"],
            layout=fields["layout"],
            layout_before=fields["layout_before"],
            marks={int(slot): SlotMark.of(mark) for slot, mark in fields["marks"].items()},
            delivered=tuple(fields["delivered"]),
            overdue=frozenset(fields["overdue"]),
            dropped=frozenset(fields["dropped"]),
            program=fields["program"],
            program_before=fields["program_before"],
            split=fields["split"],
            whole=fields["whole"],
            direct=fields["direct"],
            fills=tuple(fields["fills"]),
            opks=tuple(fields["opks"]),
            sums=fields["sums"],
        )


def told() -> tuple[BatchContext, int]:
    """Return what the driver tells the tasks of this batch, and the number of this task's partition."""
    task = TaskContext.get()
    text = None if task is None else task.getLocalProperty(BATCH)
    if task is None or text is None:
        raise RuntimeError(f"the batch's action was run without the local property {BATCH}")
    return BatchContext.of(text), task.partitionId()


_layouts: dict[tuple[str, int], Layout] = {}


def layout_of(job: JobContext, context: BatchContext) -> Layout:
    """Return the layout of the batch."""
    key = (context.query, context.layout)
    if key not in _layouts:
        _layouts.clear()
        _layouts[key] = Layout.load(Store(Path(job.checkpoint)).read(f"layouts/{context.layout}"))
    return _layouts[key]
