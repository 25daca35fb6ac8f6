"""The batch's one action in Spark: decode, hand blocks to the cores, order and send."""

from __future__ import annotations

import json
import re
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from services.runtime.log import LogError
from services.runtime.settings import Settings
from spark.blocks import SQL
from spark.layout import LayoutError
from spark.state import StateError
from spark.tasks import REPORT_SQL, BatchContext, decoding, ordering, warming

_NAMED = re.compile(r"^(?:spark|services)\.[\w.]*\b(StateError|LogError|LayoutError): (.*)$", re.MULTILINE)


def act(frame: DataFrame, context: BatchContext, cores: int) -> list[dict[str, Any]]:
    """Run the batch's one action: decode, hand blocks to the cores, order and send; return the cores' reports."""
    done = (
        frame.coalesce(cores)
        .mapInArrow(decoding(context), SQL)
        .repartitionById(cores, "core")
        .mapInArrow(ordering(context), REPORT_SQL)
        .collect()
    )
    return [json.loads(row["report"]) for row in done]


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
    kind = {"StateError": StateError, "LogError": LogError, "LayoutError": LayoutError}[found[1]]
    return kind(found[2])
