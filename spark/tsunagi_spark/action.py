"""The one Spark action of a batch: decode records, send blocks to the cores, order them and send the results."""

from __future__ import annotations

import json
import re
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tsunagi.runtime.log import LogError
from tsunagi.runtime.settings import Settings
from tsunagi_spark.blocks import SQL
from tsunagi_spark.identity import LogChangedError
from tsunagi_spark.layout import LayoutError
from tsunagi_spark.limit import BatchTooLargeError
from tsunagi_spark.state import StateError
from tsunagi_spark.task_context import BATCH, BatchContext, JobContext
from tsunagi_spark.tasks import REPORT_SQL, decoding, merging, ordering, warming

_OURS: tuple[type[Exception], ...] = (StateError, LogError, LayoutError, BatchTooLargeError, LogChangedError)
"""Errors of this package that a task may raise, and that the driver handles by their class."""
_NAMES = "|".join(kind.__name__ for kind in _OURS)
"""The names of these errors, for a pattern."""
_NAMED = re.compile(rf"^(?:tsunagi|tsunagi_spark)\.[\w.]*\b({_NAMES}): (.*)$", re.MULTILINE)
"""Finds such an error in the traceback of a Python worker: its name and its message."""


def ordered(records: DataFrame, job: JobContext, cores: int) -> DataFrame:
    """Return the stream of the cores' reports: records are decoded, sent to the cores as blocks, ordered and sent.

    It is part of the query's plan, into which Spark only puts each batch. To build it anew around the records of every
    batch took the driver 80 ms. What differs between batches is in a local property.
    """
    return (
        records.coalesce(cores)
        .mapInArrow(decoding(job), SQL)
        .repartitionById(cores, "core")
        .mapInArrow(ordering(job), REPORT_SQL)
    )


def act(
    reports: DataFrame, job: JobContext, context: BatchContext, *, merge: bool = False, cores: int = 1
) -> list[dict[str, Any]]:
    """Run the one action of a batch; return the reports of the cores.

    Args:
        reports: a batch of the stream that `ordered` has made.
        merge: whether a group is cut or there are queries; there are reports of the merge and the query cores then.
        cores: the number of query cores.
    """
    reports.sparkSession.sparkContext.setLocalProperty(BATCH, context.as_text())
    if context.program and not context.direct:
        reports = reports.repartitionById(cores, "core").mapInArrow(merging(job), REPORT_SQL)
    elif merge:
        reports = reports.repartition(1).mapInArrow(merging(job), REPORT_SQL)
    return [json.loads(row["report"]) for row in reports.collect()]


def warm(session: SparkSession, settings: Settings) -> None:
    """Start the Python workers and load what a batch needs, so that the first batch need not wait for it."""
    stage, cores = warming(settings.kafka), settings.spark.cores
    frame = session.range(0, cores, numPartitions=cores)
    frame.mapInArrow(stage, SQL).repartitionById(cores, "core").mapInArrow(stage, SQL).collect()


def named(error: Exception) -> Exception:
    """Return the error of this package in which a Python worker's traceback ends, or else the error itself."""
    found = _NAMED.search(str(error)) if isinstance(error, PySparkException) else None
    if found is None:
        return error
    return {kind.__name__: kind for kind in _OURS}[found[1]](found[2])
