"""One day through Spark, ordered by one of P-SORT's methods on so many cores, and what each core had to do.

Cores are counted by their work: each of a method's P-SORT cores splits its share of the input and works on its sensors'
rows; the merge core, if there is one, merges. Together they are the C cores. A core's busy time is the CPU time of its
own tasks, and the busiest core sets the pace: speed-up is the one core's busy time over the busiest's. So sixteen cores
can be looked at on a machine that has two.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from pyspark.sql import SparkSession

from tests.bench.outcome import fresh
from tests.bench.psort.day import Day
from tests.bench.psort.stages import PART_SQL, Plan, merging, ordering, splitting
from tsunagi.runtime.settings import Settings, SparkSettings
from tsunagi_spark.blocks import SQL
from tsunagi_spark.law import RowCosts
from tsunagi_spark.layout import Layout, Order
from tsunagi_spark.session import start_session


class Costs(NamedTuple):
    """CPU seconds a row: to split it, to process it (P of the law), to merge it (M)."""

    split_s: float
    process_s: float
    merge_s: float


@dataclass(frozen=True)
class Arrangement:
    """How a method uses its cores.

    Attributes:
        layout: of the cores that process.
        merges: one more core merges.
        max_load, merged_share: of the law, 0..1.
    """

    layout: Layout
    merges: bool
    max_load: float
    merged_share: float

    def predicted(self, costs: Costs) -> float:
        """Return the law's speed-up, with the input split evenly over the cores that process."""
        processing = costs.split_s / self.layout.cores + self.max_load * costs.process_s
        return (costs.split_s + costs.process_s) / max(processing, self.merged_share * costs.merge_s)


class Outcome(NamedTuple):
    """What a pass came to; CPU seconds of the tasks themselves.

    Attributes:
        busy_s: by core; the last one merges, if one does.
        cpu_s: of all processes, Spark's JVM included.
        judged: see `stages.judge`, summed over the cores; empty unless asked for.
    """

    wall_s: float
    cpu_s: float
    busy_s: list[float]
    split_s: float
    order_s: float
    merge_s: float
    rows: int
    merged: int
    judged: dict[str, int]


def arrange(day: Day, method: Order, cores: int) -> Arrangement:
    """Choose how a method uses `cores` cores.

    `full` gives one to the merge, `optimised` where that leaves less to the busiest core than whole machines do.
    """
    if method in ("none", "basic") or cores == 1:
        return _arrangement(day, day.layout(cores, "basic" if cores == 1 else method))
    if method == "full":
        return _arrangement(day, day.layout(cores - 1, method))
    found = [_arrangement(day, day.layout(cores, "basic")), _arrangement(day, day.layout(cores - 1, method))]
    usual = RowCosts()
    return min(found, key=lambda item: max(item.max_load * usual.process_s, item.merged_share * usual.merge_s))


def _arrangement(day: Day, layout: Layout) -> Arrangement:
    rates = day.readings / day.rows
    loads = [float(rates[layout.sensor_core == core].sum()) for core in range(layout.cores)]
    share = float(rates[layout.cut[layout.group_of]].sum())
    return Arrangement(layout, bool(layout.cut.any()), max(loads), share)


@contextmanager
def session(master: str) -> Iterator[SparkSession]:
    """Start Spark with the job's own options."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    # The merge core gets a day at once, which a batch never is: what it takes is to be kept for the next pass, too.
    options = {"spark.log.level": "ERROR", "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)}
    settings = Settings(spark=SparkSettings(master=master, memory="3g", options=options))
    found = start_session(settings)
    try:
        yield found
    finally:
        found.stop()


def run(spark: SparkSession, day: Day, arrangement: Arrangement, work: Path, *, check: bool) -> Outcome:
    """Order the day once.

    Raises:
        RuntimeError: (when checked) rows are lost, doubled or out of order.
    """
    reports = work / "reports"
    fresh(reports)
    layout = arrangement.layout
    plan = Plan(day, layout, reports, check)
    frame = (
        spark.range(0, layout.cores, numPartitions=layout.cores)
        .mapInArrow(splitting(plan), SQL)
        .repartitionById(layout.cores, "core")
        .mapInArrow(ordering(plan), PART_SQL)
    )
    if arrangement.merges:
        frame = frame.repartition(1).mapInArrow(merging(plan), PART_SQL)
    before, began = _cpu_s(), time.perf_counter()
    frame.collect()
    wall_s, cpu_s = time.perf_counter() - began, _cpu_s() - before
    split, order, merge = (
        _reports(reports, *stage)
        for stage in (("split", layout.cores), ("order", layout.cores), ("merge", int(arrangement.merges)))
    )
    busy = [one["cpu_s"] + other["cpu_s"] for one, other in zip(split, order, strict=True)]
    busy += [item["cpu_s"] for item in merge]
    found = Outcome(
        wall_s=wall_s,
        cpu_s=cpu_s,
        busy_s=busy,
        split_s=sum(item["cpu_s"] for item in split),
        order_s=sum(item["cpu_s"] for item in order),
        merge_s=sum(item["cpu_s"] for item in merge),
        rows=sum(item["rows"] for item in order),
        merged=sum(item["rows"] for item in merge),
        judged=_judged([*order, *merge]) if check else {},
    )
    if check:
        _verify(found, arrangement, day)
    return found


def _verify(found: Outcome, arrangement: Arrangement, day: Day) -> None:
    judged = found.judged
    wrong = {"out": judged["out"] - day.rows, "inversions": judged["inversions"]}
    if arrangement.merges and arrangement.merged_share > 1 - 1e-9:
        wrong["inversions_in_all"] = judged["inversions_in_all"]
    if any(wrong.values()):
        raise RuntimeError(f"{arrangement.layout.order} on {arrangement.layout.cores} cores: found {wrong}, expected 0")


def _judged(reports: list[dict[str, Any]]) -> dict[str, int]:
    return {
        name: sum(item[name] for item in reports) for name in ("inversions", "inversions_in_all", "q1", "q2", "out")
    }


def _reports(directory: Path, stage: str, count: int) -> list[dict[str, Any]]:
    return [json.loads((directory / f"{stage}-{core}.json").read_text(encoding="utf-8")) for core in range(count)]


def _cpu_s() -> float:
    """Return the CPU time of all that this process has started: JVM and Python workers."""
    times = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
    return sum(item.user + item.system for item in times)
