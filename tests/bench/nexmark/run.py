"""NEXMark: how many events a second do queries in CQL take, and how many PySpark Structured Streaming's?

    python -m tests.bench.nexmark.run --events 2000000 --out out/nexmark.json

Runs the engine of queries alone, in this process, and then Structured Streaming on two threads (`local[2]`), on the
same events in the same batches. The engine's rows are made, not encoded or sent. Structured Streaming's go to the sink
`noop`, and it reads Parquet files, one a batch. q4 is an aggregate of an aggregate without a window, which Structured
Streaming does not have. One JSON object comes out:

    engine, spark   events a second of each query, median of `--rounds`; `spread` has the least and the greatest
    cpu             CPU microseconds for an event of the engine
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tests.bench import outcome
from tests.bench.nexmark.events import BEGIN_US, KINDS, STEP_US, Events, generate
from tests.bench.nexmark.queries import CQL, STREAMS
from tsunagi.query.planning import make_program
from tsunagi.query.running import Queries

FIRST = BEGIN_US // STEP_US


def engine(name: str, events: Mapping[str, Events], steps: int, batches: int) -> tuple[float, float]:
    """Return (wall seconds, CPU seconds) of a query on all events."""
    queries = Queries(make_program([("nexmark", f"{STREAMS};{CQL[name]}")], STEP_US))
    bounds = [FIRST + steps * number // batches for number in range(batches + 1)]
    inputs = [
        (low, high, {stream: some.rows(KINDS[stream], low, high) for stream, some in events.items()})
        for low, high in pairwise(bounds)
    ]
    began, cpu = time.perf_counter(), time.process_time()
    for low, high, streams in inputs:
        queries.advance(streams, low, high)
    spent = time.perf_counter() - began, time.process_time() - cpu
    assert not queries.faults, queries.faults
    return spent


Stream = Callable[[str], DataFrame]
"""Returns a stream of events by its name, with a watermark."""


def _window(frame: DataFrame, slide: str = "10 seconds") -> DataFrame:
    return frame.withColumn("w", f.window("time", "10 seconds", slide))


def _q3(of: Stream) -> DataFrame:
    auctions = of("auction").where("category = 10").select("id", "seller", f.col("time").alias("a_time"))
    people = of("person").where("state IN ('OR', 'ID', 'CA')").withColumnRenamed("id", "p_id")
    near = f.expr("seller = p_id AND a_time > time - INTERVAL 10 MINUTES AND time > a_time - INTERVAL 10 MINUTES")
    return people.join(auctions, near)


def _q5(of: Stream) -> DataFrame:
    counts = of("bid").groupBy(f.window("time", "10 seconds", "2 seconds"), "auction").count()
    return counts.groupBy(f.window(f.window_time("window"), "2 seconds")).agg(
        f.max_by("auction", "count"), f.max("count")
    )


def _q7(of: Stream) -> DataFrame:
    most = f.max_by(f.struct("auction", "bidder", "price"), "price")
    return of("bid").groupBy(f.window("time", "10 seconds")).agg(most)


def _q8(of: Stream) -> DataFrame:
    people = _window(of("person")).select("id", "name", f.col("w").alias("p_w"))
    auctions = _window(of("auction")).select("seller", f.col("w").alias("a_w"))
    return people.join(auctions, f.expr("id = seller AND p_w = a_w"))


SPARK: Mapping[str, Callable[[Stream], DataFrame]] = {
    "q0": lambda of: of("bid").select("auction", "bidder", "price", "time"),
    "q1": lambda of: of("bid").select("auction", "bidder", f.expr("0.908 * price"), "time"),
    "q2": lambda of: of("bid").where("CAST(auction AS BIGINT) % 123 = 0").select("auction", "price"),
    "q3": _q3,
    "q5": _q5,
    "q7": _q7,
    "q8": _q8,
}
"""The same queries for Structured Streaming. q5 and q7 give one of those that share the greatest number."""


def write(events: Mapping[str, Events], directory: Path, steps: int, batches: int) -> None:
    """Write each stream as Parquet files, one for each batch."""
    for name, some in events.items():
        columns = {column: some.values(column) for column in KINDS[name] if column != "expires"}
        moments = pa.array(some.time_us, type=pa.timestamp("us", tz="UTC"))
        table = pa.table({**columns, "time": moments})
        batch = ((-(-some.time_us // STEP_US) - FIRST - 1) * batches // steps).clip(0, batches - 1)
        (directory / name).mkdir()
        for number in range(batches):
            part = table.filter(pa.array(batch == number))
            pq.write_table(part, directory / name / f"{number:05}.parquet")


def structured(spark: SparkSession, name: str, directory: Path) -> float:
    """Return the wall seconds of a query of Structured Streaming."""

    def of(stream: str) -> DataFrame:
        schema = spark.read.parquet(str(directory / stream)).schema
        found = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(directory / stream))
        return found.withWatermark("time", "0 seconds")

    with tempfile.TemporaryDirectory() as checkpoint:
        asked = SPARK[name](of).writeStream.format("noop").option("checkpointLocation", checkpoint)
        began = time.perf_counter()
        asked.trigger(availableNow=True).start().awaitTermination()
        return time.perf_counter() - began


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--rate", type=float, default=20_000.0, help="events a second of event time")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--queries", nargs="*", default=list(CQL))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    seconds = options.events / options.rate
    steps = round(seconds * 1000)
    events = generate(options.events, seconds, seed=1)
    found: dict[str, dict[str, Any]] = {"engine": {}, "spark": {}, "cpu": {}, "spread": {}}

    def note(who: str, name: str, spent: list[float]) -> None:
        rates = sorted(round(options.events / each) for each in spent)
        found[who][name] = round(statistics.median(rates))
        found["spread"][f"{who} {name}"] = [rates[0], rates[-1]]
        sys.stderr.write(f"{who} {name}: {rates} events/s\n")

    for name in options.queries:
        spent = [engine(name, events, steps, options.batches) for _ in range(options.rounds)]
        note("engine", name, [wall for wall, _ in spent])
        found["cpu"][name] = round(statistics.median(cpu for _, cpu in spent) / options.events * 1e6, 3)
    with tempfile.TemporaryDirectory() as work:
        write(events, Path(work), steps, options.batches)
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.sql.shuffle.partitions", 2)
            .config("spark.ui.enabled", "false")
            .config("spark.driver.memory", "2g")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        try:
            for name in (item for item in options.queries if item in SPARK):
                structured(spark, name, Path(work))  # the first one compiles
                note("spark", name, [structured(spark, name, Path(work)) for _ in range(options.rounds)])
        finally:
            spark.stop()
    settings = {key: value for key, value in vars(options).items() if key not in ("out", "queries")}
    result = {"bench": "nexmark", **settings, **found}
    outcome.write(result, options.out)
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
