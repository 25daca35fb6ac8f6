"""No batch is larger than `[spark] max_bytes`, however large records become and whatever was planned before."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PythonException

from tests.spark.world import FIRST_STEP, World, write_table
from tests.unit.spark.small_job import layout_of
from tests.unit.spark.test_checkpoint import LAST, Place
from tsunagi.runtime.settings import KafkaSettings, Settings, SlotsSettings, SparkSettings
from tsunagi_spark.action import named
from tsunagi_spark.limit import BatchTooLargeError, ByteCount
from tsunagi_spark.service import with_smaller_batches
from tsunagi_spark.state import Store
from tsunagi_spark.task_context import BatchContext, JobContext
from tsunagi_spark.tasks import decode_records

MAX_BYTES = 1_000_000
SLOTS = 4
Sizes = list[tuple[int, int]]


def read(sizes: list[int]) -> int:
    """Read records as one task does; return the bytes that it took in."""
    count, total = ByteCount(MAX_BYTES), 0
    for size in sizes:
        total += size
        count.add(size, SLOTS)
    return total


@given(st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 300_000)), min_size=1, max_size=6))
def test_any_run_of_sizes_is_read_in_batches_within_the_limit(runs: Sizes) -> None:
    sizes = [size for length, size in runs for _ in range(length)]
    asked, done, refused = 20_000, 0, 0
    while done < len(sizes):
        batch = sizes[done : done + max(asked, SLOTS)]
        try:
            total = read(batch)
        except BatchTooLargeError as error:
            refused += 1
            asked = error.records(MAX_BYTES, asked)
            continue
        assert total <= MAX_BYTES or len(batch) <= 16
        done += len(batch)
    assert refused <= 15, "each time at most half is asked for"


def test_a_task_stops_at_once_and_its_error_says_how_many_there_may_be() -> None:
    with pytest.raises(BatchTooLargeError, match="found 21 records of 1050000 bytes, expected 1000000") as raised:
        read([50_000] * 10_000)
    assert raised.value.records(MAX_BYTES, 20_000) == 10
    trace = f"Traceback (most recent call last):\ntsunagi_spark.limit.BatchTooLargeError: {raised.value}\n"
    found = named(PythonException(trace))
    assert isinstance(found, BatchTooLargeError)
    assert found.records(MAX_BYTES, 20_000) == 10
    assert BatchTooLargeError("cut off").records(MAX_BYTES, 9) == 4


@pytest.mark.parametrize(("limit", "fits"), [(1_000_000, True), (2_000, False)])
def test_records_are_counted_where_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, fits: bool
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _file: None)
    settings = Settings(
        sensors=tmp_path / "s.csv", slots=SlotsSettings(count=2), spark=SparkSettings(checkpoint=tmp_path / "cp")
    )
    world = World(settings, write_table(tmp_path / "s.csv", sensors=8, groups=2))
    store = Store(settings.spark.checkpoint)
    store.prepare(2)
    store.write("layouts/1", layout_of(world).dump())
    pairs = [world.record(1, FIRST_STEP + number) for number in range(40)]
    table = pa.table(
        {
            "partition": pa.array([1] * 40, pa.int32()),
            "offset": pa.array(range(40), pa.int64()),
            "key": pa.array([key for key, _ in pairs], pa.binary()),
            "value": pa.array([value for _, value in pairs], pa.binary()),
            "timestamp": pa.array(np.zeros(40, "datetime64[us]")),
        }
    )
    job = JobContext(str(tmp_path / "cp"), 2_000_000, 30, "blocks", 9, (), KafkaSettings(), limit, 0)
    context = BatchContext(f"q{limit}", 0, 1, 0, {}, (), frozenset(), frozenset())
    decoded = decode_records(job, context, iter(table.to_batches(max_chunksize=7)))
    if fits:
        assert sum(batch.num_rows for batch in decoded) == 2
    else:
        with pytest.raises(BatchTooLargeError, match=r"found 17 records of \d\d\d\d bytes, expected 2000"):
            list(decoded)


def test_what_was_planned_before_is_cut_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _file: None)
    place = Place(tmp_path)
    place.offsets(LAST + 1)
    place.store.write_json(f"driver/before-{LAST + 1}", {"layout": 1})
    error = BatchTooLargeError("found 2000 records of 290000000 bytes, expected 134217728")
    settings = with_smaller_batches(place.settings, place.store, error)
    assert settings.spark.max_offsets == 925
    assert settings.spark.max_offsets * 145_000 * 2 <= settings.spark.max_bytes
    assert (place.root / "offsets" / str(LAST)).exists()
    assert not (place.root / "offsets" / str(LAST + 1)).exists()
    assert place.store.find(f"driver/before-{LAST + 1}") is None
    assert place.store.find(f"driver/before-{LAST}") is not None
