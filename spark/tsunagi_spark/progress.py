"""What the driver reports about its batches: Spark's progress to Prometheus, and where the frontier is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import structlog

from tsunagi.runtime import metrics
from tsunagi.runtime.messages import QueryBeat, SparkBeat
from tsunagi_spark.frontier import NEVER, SlotMark
from tsunagi_spark.layout import Layout


class Stages:
    """Exports how long each stage of Spark's batches takes: asking for offsets, planning, the action, the commit.

    It looks now and then instead of listening: PySpark passes an event to a listener field by field, which kept the JVM
    busy for a third of a core at two batches a second.
    """

    def __init__(self) -> None:
        self._seen = -1
        self._logger = structlog.get_logger("tsunagi.spark")

    def look(self, progress: Mapping[str, Any] | None) -> None:
        """Export the query's last progress, unless it was exported before."""
        if progress is None or progress["batchId"] == self._seen:
            return
        self._seen = progress["batchId"]
        stages = {stage: milliseconds / 1000 for stage, milliseconds in progress["durationMs"].items()}
        for stage, seconds in stages.items():
            metrics.SPARK_STAGE_S.labels(stage).set(seconds)
        self._logger.debug("stages", batch=self._seen, seconds=stages)


def describe(
    layout: Layout,
    marks: Mapping[int, SlotMark],
    delivered: Iterable[int],
    overdue: frozenset[int],
    reports: Iterable[Mapping[str, Any]],
) -> SparkBeat:
    """Return where the job stands after a batch, for a heartbeat; the caller adds the times."""
    held = [slot for slot in range(layout.slots) if layout.held[:, slot].any()]
    steps = {slot: marks.get(slot, SlotMark()).step for slot in held}
    newest = max(steps.values(), default=NEVER)
    behind = [slot for slot in held if slot in overdue and steps[slot] < newest]
    counted = {slot: step for slot, step in steps.items() if slot not in behind}
    least = min(counted.values(), default=newest)
    latest = [(report["sent_us"] - report["appended_us"][-1]) for report in reports if report["appended_us"]]
    return SparkBeat(
        frontier=max(min((step for step in delivered if step != NEVER), default=-1), -1),
        newest=max(newest, -1),
        held_by=[slot for slot, step in counted.items() if step == least < newest],
        left_behind=behind,
        carried=sum(report.get("carried", 0) for report in reports),
        order=layout.order,
        cut=int(layout.cut.sum()),
        latency_us=max(latest, default=0),
    )


def show(beat: SparkBeat, layout: Layout, marks: Mapping[int, SlotMark], reports: Iterable[Mapping[str, Any]]) -> None:
    """Set the metrics that say the same."""
    metrics.SPARK_CARRIED.set(beat.carried)
    for slot in range(layout.slots):
        if layout.held[:, slot].any():
            step = marks.get(slot, SlotMark()).step
            metrics.FRONTIER_HELD_BY.labels(str(slot)).set(0 if step == NEVER else beat.newest - step)
    for report in reports:
        if "taken" in report:
            metrics.SPARK_CORE_ROWS.labels(str(report["core"])).inc(report["taken"])
        else:
            metrics.SPARK_MERGED_ROWS.inc(report["rows"])
        for appended_us in report["appended_us"]:
            metrics.SPARK_LATENCY_S.observe(max(0.0, (report["sent_us"] - appended_us) / 1e6))


def show_queries(beat: SparkBeat, reports: Iterable[Mapping[str, Any]], refused: Mapping[str, str]) -> None:
    """Say in a heartbeat and in metrics what is known of each query in CQL.

    Args:
        beat: the heartbeat, which is filled in.
        reports: the reports of the query cores.
        refused: why statements are not in force, by name.
    """
    found: dict[str, dict[str, Any]] = {}
    for report in reports:
        for name, figures in report["queries"].items():
            known = found.setdefault(name, dict.fromkeys(figures, 0) | {"since": figures["since"], "fault": ""})
            for key in ("rows", "late", "state_bytes"):
                known[key] += figures[key]
            known["fault"] = known["fault"] or figures["fault"]
            known["filled_to"] = figures["filled_to"]
    for name, figures in found.items():
        beat.query.add(name=name, **figures)
    beat.query.extend(QueryBeat(name=name, fault=why) for name, why in refused.items())
    gauges = (metrics.QUERY_ROWS, metrics.QUERY_STATE_BYTES, metrics.QUERY_LATE_ROWS, metrics.QUERY_STOPPED)
    for gauge in gauges:
        gauge.clear()  # a query that was dropped has no series any more
    for item in beat.query:
        values = (item.rows, item.state_bytes, item.late, int(bool(item.fault)))
        for gauge, value in zip(gauges, values, strict=True):
            gauge.labels(item.name).set(value)
