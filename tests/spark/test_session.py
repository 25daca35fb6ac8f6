"""What a session's options come to in its Python workers."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import numpy as np

from tsunagi.runtime.settings import Settings, SparkSettings
from tsunagi_spark.session import start_session

COLUMN = 4 << 20
"""Bytes: more than glibc keeps by itself."""


def _clearing(_: int) -> tuple[int, int]:
    """Return pages that the kernel cleared for the first columns of a batch, and for those of ten more."""
    found = []
    for batches in (1, 10):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(batches):
            columns = [np.ones(COLUMN, dtype=np.uint8) for _ in range(20)]
            del columns
        found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return found[0], found[1]


def test_python_workers_keep_the_memory_of_a_batch_for_the_next(tmp_path: Path) -> None:
    session = start_session(Settings(spark=SparkSettings(master="local[1]", checkpoint=tmp_path)))
    try:
        context = session.sparkContext
        first, later = context.parallelize([0], 1).map(_clearing).collect()[0]
        assert context.parallelize([0], 1).map(lambda _: "MALLOC_TRIM_THRESHOLD_" in os.environ).collect() == [True]
    finally:
        session.stop()
    assert later < first / 10, f"{first} pages for the first batch, {later} for ten more"
