"""An edge's metrics, updated once a turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tsunagi.edge.publish import EdgePublisher
from tsunagi.edge.source import Source
from tsunagi.runtime import metrics


class Counts:
    """The edge's metrics. A counter is increased by what was added since the last turn."""

    def __init__(self, edge: str) -> None:
        self.rows_skipped = metrics.EDGE_ROWS_SKIPPED.labels(edge)
        self.steps_skipped = metrics.EDGE_STEPS_SKIPPED.labels(edge)
        self._edge = edge
        self._rows = metrics.EDGE_ROWS.labels(edge)
        self._batches = metrics.EDGE_BATCHES.labels(edge)
        self._spool = metrics.EDGE_SPOOL_RECORDS.labels(edge)
        self._spool_bytes = metrics.EDGE_SPOOL_BYTES.labels(edge)
        self.clock_jumps = metrics.EDGE_CLOCK_JUMPS.labels(edge)
        self._disk = metrics.EDGE_DISK_FAILS.labels(edge)
        self._dropped = metrics.EDGE_SPOOL_DROPPED.labels(edge)
        self._step = metrics.EDGE_STEP.labels(edge)
        self._unplaced = metrics.EDGE_UNPLACED.labels(edge)
        self._lent = metrics.EDGE_LENT.labels(edge)
        self._filtered = metrics.EDGE_FILTERED.labels(edge)
        self._contradicted = metrics.EDGE_SOURCE_CONTRADICTED.labels(edge)
        self._connected = metrics.EDGE_SOURCE_CONNECTED.labels(edge)
        self._queue = metrics.EDGE_SOURCE_QUEUE.labels(edge)
        self._last: Counter[str] = Counter()

    def update(self, rows: int, publisher: EdgePublisher, unusable: Mapping[str, int]) -> None:
        """Update the metrics of readings, batches and the spool."""
        self._rows.inc(rows)
        self._batches.inc(self._since("batches", publisher.delivered))
        self._unplaced.inc(self._since("unplaced", publisher.unplaced_values))
        self._lent.inc(self._since("lent", publisher.lent_values))
        self._spool.set(publisher.depth)
        self._spool_bytes.set(publisher.spool.disk_bytes)
        self._dropped.inc(self._since("dropped", publisher.spool.dropped))
        if publisher.last_step is not None:
            self._step.set(publisher.last_step)
        for reason, count in unusable.items():
            metrics.EDGE_UNUSABLE.labels(self._edge, reason).inc(self._since(reason, count))

    def note_filtered(self, count: int) -> None:
        """Update the metric of tuples that no query uses."""
        self._filtered.inc(self._since("filtered", count))

    def look(self, source: Source, disk: str) -> None:
        """Update the metrics of the source's connection and of the disk."""
        self._disk.set(bool(disk))
        self._connected.set(not source.trouble)
        self._contradicted.set(bool(source.fault))
        self._queue.set(source.waiting)

    def _since(self, name: str, count: int) -> int:
        difference = count - self._last[name]
        self._last[name] = count
        return difference
