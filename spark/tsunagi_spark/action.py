"""The batch's one action in Spark: decode, hand blocks to the cores, order and send."""

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
from tsunagi_spark.tasks import BATCH, REPORT_SQL, BatchContext, JobContext, decoding, merging, ordering, warming

_OURS: tuple[type[Exception], ...] = (StateError, LogError, LayoutError, BatchTooLargeError, LogChangedError)
_NAMES = "|".join(kind.__name__ for kind in _OURS)
_NAMED = re.compile(rf"^(?:tsunagi|tsunagi_spark)\.[\w.]*\b({_NAMES}): (.*)$", re.MULTILINE)


def ordered(records: DataFrame, job: JobContext, cores: int) -> DataFrame:
    """Return the stream of the cores' reports: records are decoded, blocks handed to the cores, ordered and sent.

    It stands in the query's plan, which Spark then only fills in for each batch; put together anew around every batch's
    records it took the driver 80 ms. What differs from batch to batch is in a local property.
    """
    return (
        records.coalesce(cores)
        .mapInArrow(decoding(job), SQL)
        .repartitionById(cores, "core")
        .mapInArrow(ordering(job), REPORT_SQL)
    )


def act(reports: DataFrame, job: JobContext, context: BatchContext, *, merge: bool = False) -> list[dict[str, Any]]:
    """Run the batch's one action; return the cores' reports.

    Args:
        reports: the batch of the stream that `ordered` has made.
        merge: some group is cut; the reports' last is then the merge core's.
    """
    reports.sparkSession.sparkContext.setLocalProperty(BATCH, context.as_text())
    if merge:
        reports = reports.repartition(1).mapInArrow(merging(job), REPORT_SQL)
    return [json.loads(row["report"]) for row in reports.collect()]


def warm(session: SparkSession, settings: Settings) -> None:
    """Start the Python workers and load what a batch needs, before the first batch has to wait for it."""
    stage, cores = warming(settings.kafka), settings.spark.cores
    frame = session.range(0, cores, numPartitions=cores)
    frame.mapInArrow(stage, SQL).repartitionById(cores, "core").mapInArrow(stage, SQL).collect()


def named(error: Exception) -> Exception:
    """Return the error of ours that a Python worker's traceback ends in, or the error itself."""
    found = _NAMED.search(str(error)) if isinstance(error, PySparkException) else None
    if found is None:
        return error
    return {kind.__name__: kind for kind in _OURS}[found[1]](found[2])
