"""`python -m tsunagi_spark.archive`: archives the driver's classes (tsunagi.jars.archive)."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame

from tsunagi.jars.archive import keep, writing
from tsunagi.runtime.settings import Settings, SparkSettings
from tsunagi_spark.session import ARCHIVE, start_session

_BATCHES = 5
"""Batches of the training run: a few, so that everything a batch needs has been loaded."""
_WAIT_S = 60.0
"""Longest wait for the training batches, and for the end of Java, in seconds each."""


def make(path: Path = ARCHIVE) -> None:
    """Run Spark for a few small batches, and write the classes that it has loaded to `path`.

    Raises:
        RuntimeError: Java wrote no archive, or no batch was run.
    """
    settings = Settings(spark=SparkSettings(master="local[2]"))
    session = start_session(settings, java_options=" ".join(writing(path)))
    gateway: Any = SparkContext._gateway  # noqa: SLF001 - PySpark has no other way to its JVM's process
    java: subprocess.Popen[bytes] = gateway.proc
    columns = "value int"
    records = session.readStream.format("rate").load().selectExpr("cast(value as int) as value").coalesce(2)
    reports = records.mapInArrow(_pass, columns).repartitionById(2, "value").mapInArrow(_pass, columns)
    query = reports.writeStream.foreachBatch(_batch).start()
    deadline_s = time.monotonic() + _WAIT_S
    while query.isActive and len(query.recentProgress) < _BATCHES and time.monotonic() < deadline_s:
        time.sleep(0.2)
    query.stop()
    failed = query.exception()
    session.stop()
    if java.stdin is not None:
        java.stdin.close()  # the JVM ends when its input does, and writes the archive
    java.wait(_WAIT_S)
    if failed is not None:
        raise RuntimeError("the batches that Java was to learn from failed") from failed
    keep(path)


def _batch(frame: DataFrame, _: int) -> None:
    """Load what a batch of the job needs (tsunagi_spark.action), through stages that do nothing."""
    frame.collect()


def _pass(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.slice(0, 0)


if __name__ == "__main__":
    make()
    sys.stdout.write(f"{ARCHIVE}: {ARCHIVE.stat().st_size // 1_000_000} MB\n")
