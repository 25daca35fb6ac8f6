"""A year of minutes in a lake: how many files a day has, and whether DuckDB, Polars and Spark read the same rows.

    python -m tests.bench.lake --days 365 --out out/lake.json

Readings of `--sensors` sensors, one a minute each, come in two partitions of `results`, and now and then a late truth.
Each minute is written as `tsunagi sink run` writes it, with a new process's eyes (`positions`) each thirty days. One
JSON object comes out:

    rows, write_s           rows of readings, and the time of all writes
    most_files_of_a_day     of a day that is over; `open_files` are those of the last day
    readers                 by name: {rows, sum, distinct, seconds}: all must say the same
    met                     whether they do, with two files a day
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from tests.bench import outcome
from tsunagi.runtime.log import LATE, RESULTS
from tsunagi.runtime.settings import Settings, SinkSettings
from tsunagi.sink.feed import CORRECTED, READING_SCHEMA
from tsunagi.sink.lake import LakeSink
from tsunagi.sink.make import make_sink
from tsunagi.sink.rows import Advance, RowOrigin, SinkBatch, SinkPosition, SinkRows

BEGIN = datetime(2025, 1, 1, tzinfo=UTC)
PARTITIONS = 2
ANEW_MINUTES = 30 * 24 * 60
TRUTH_MINUTES = 500


def part(minute: int, partition: int, sensors: int) -> SinkRows:
    moment = BEGIN + timedelta(minutes=minute)
    rows = [
        (moment, f"s{partition}-{sensor}", "g", "K", minute * 0.5 + sensor, 0.0, 0.0, "exact", 1, 0, 0.0, minute)
        for sensor in range(sensors)
    ]
    return SinkRows(READING_SCHEMA, rows, origin=RowOrigin(RESULTS, partition, minute))


def truth(minute: int) -> SinkRows:
    moment = BEGIN + timedelta(minutes=minute // 2)
    row = (moment, "s0-0", "g", "K", -1.0, 0.0, 0.0, CORRECTED, None, None, None, minute // 2)
    return SinkRows(READING_SCHEMA, [row], correcting=True, origin=RowOrigin(LATE, 0, minute))


def made(folder: Path) -> LakeSink:
    wanted = {"name": "lake", "kind": "lake", "lake": {"directory": str(folder), "files_s": 3600.0}}
    sink = make_sink(Settings(), SinkSettings.model_validate(wanted))
    assert isinstance(sink, LakeSink)
    sink.positions([*((RESULTS, number) for number in range(PARTITIONS)), (LATE, 0)])
    return sink


def write(folder: Path, minutes: int, sensors: int) -> None:
    sink = made(folder)
    for minute in range(minutes):
        if minute and minute % ANEW_MINUTES == 0:
            sink.flush()
            sink = made(folder)
        parts = [part(minute, partition, sensors) for partition in range(PARTITIONS)]
        if minute % TRUTH_MINUTES == TRUTH_MINUTES - 1:
            parts.append(truth(minute))
        advances = {
            (item.origin.topic, item.origin.partition): Advance(None, SinkPosition(item.origin.offset + 1, "id"))
            for item in parts
        }
        sink.write(SinkBatch(tuple(parts), advances))
    sink.flush()


def by_duckdb(pattern: str) -> tuple[int, float, int]:
    found = duckdb.connect().execute(
        "SELECT count(*), sum(value), count(DISTINCT (time, sensor)) FROM read_parquet(?)", [pattern]
    )
    rows, total, distinct = found.fetchall()[0]
    return int(rows), float(total), int(distinct)


def by_polars(pattern: str) -> tuple[int, float, int]:
    table = pl.scan_parquet(pattern)
    found = table.select(pl.len(), pl.col("value").sum(), pl.struct("time", "sensor").n_unique().alias("n")).collect()
    rows, total, distinct = found.row(0)
    return int(rows), float(total), int(distinct)


def by_spark(pattern: str) -> tuple[int, float, int]:
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        session.read.parquet(pattern.partition("/date=")[0]).createOrReplaceTempView("lake")
        row = session.sql("SELECT count(*), sum(value), count(DISTINCT time, sensor) FROM lake").collect()[0]
        return int(row[0]), float(row[1]), int(row[2])
    finally:
        session.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--sensors", type=int, default=1, help="of each of the two partitions")
    parser.add_argument("--work", type=Path, default=Path("out/bench-lake"))
    parser.add_argument("--out", type=Path, default=Path("out/lake.json"))
    given = parser.parse_args()
    outcome.fresh(given.work)
    folder = given.work.resolve() / "lake"
    began = time.monotonic()
    write(folder, given.days * 24 * 60, given.sensors)
    write_s = time.monotonic() - began
    days = sorted((folder / "readings").glob("date=*"))
    files = [len(list(day.iterdir())) for day in days]
    readers: dict[str, Callable[[str], tuple[int, float, int]]] = {
        "duckdb": by_duckdb,
        "polars": by_polars,
        "spark": by_spark,
    }
    found: dict[str, Any] = {"bench": "lake", "days": len(days), "write_s": round(write_s, 1), "readers": {}}
    for name, read in readers.items():
        began = time.monotonic()
        rows, total, distinct = read(f"{folder}/readings/date=*/*.parquet")
        seconds = round(time.monotonic() - began, 2)
        found["readers"][name] = {"rows": rows, "sum": total, "distinct": distinct, "seconds": seconds}
    said = {(item["rows"], item["sum"], item["distinct"]) for item in found["readers"].values()}
    rows = given.days * 24 * 60 * given.sensors * PARTITIONS
    found |= {"rows": rows, "most_files_of_a_day": max(files[:-1]), "open_files": files[-1]}
    found["met"] = (
        len(said) == 1 and next(iter(said))[::2] == (rows, rows) and found["most_files_of_a_day"] == PARTITIONS
    )
    outcome.write(found, given.out)
    sys.stderr.write(f"{found}\n")


if __name__ == "__main__":
    main()
