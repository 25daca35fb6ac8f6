"""`python -m tsunagi_spark.archive`: archives the driver's classes, so that it starts in half the CPU time.

Java's class data sharing (JDK 13 and later) keeps the classes that a training run has loaded and checked. Without the
archive, or with one of another Java or Spark, everything works too, only slower: Java ignores it then.
"""

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

from tsunagi.jars.java import find_java
from tsunagi.runtime.settings import Settings, SparkSettings
from tsunagi_spark.session import ARCHIVE, QUIET, start_session

_BATCHES = 5
"""Batches of the training run: a few, so that everything a batch needs has been loaded."""
_WAIT_S = 60.0
"""Longest wait for the training batches, for the end of Java, and for its check of the archive, in seconds each."""


def make(path: Path = ARCHIVE) -> None:
    """Run Spark for a few small batches, and write the classes that it has loaded to `path`.

    Raises:
        RuntimeError: Java wrote no archive, or no batch was run.
    """
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    settings = Settings(spark=SparkSettings(master="local[2]"))
    session = start_session(settings, java_options=f"-XX:ArchiveClassesAtExit={fresh} {QUIET}")
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
    check = [find_java(), f"-XX:SharedArchiveFile={fresh}", "-version"]
    if not fresh.exists() or subprocess.run(check, capture_output=True, timeout=_WAIT_S, check=False).returncode:
        fresh.unlink(missing_ok=True)  # an archive cut short by a full disk would end every JVM that opens it
        raise RuntimeError(f"{path}: Java wrote no archive that it can read")
    fresh.replace(path)


def _batch(frame: DataFrame, _: int) -> None:
    """Load what a batch of the job needs (tsunagi_spark.action), through stages that do nothing."""
    frame.collect()


def _pass(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.slice(0, 0)


if __name__ == "__main__":
    make()
    sys.stdout.write(f"{ARCHIVE}: {ARCHIVE.stat().st_size // 1_000_000} MB\n")
