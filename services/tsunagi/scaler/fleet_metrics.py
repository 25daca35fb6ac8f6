"""Nodes and slots as the scaler sees them, published as metrics and as Prometheus' list of targets."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import Gauge

from tsunagi.runtime import metrics
from tsunagi.runtime.clock import Clock
from tsunagi.runtime.log import Record
from tsunagi.runtime.messages import Ack, Heartbeat
from tsunagi.runtime.settings import Settings
from tsunagi.scaler.pace import between_figures
from tsunagi.scaler.roster import Node, Roster, targets
from tsunagi.scaler.watch import SlotMonitor, by_slot


class SlotGauges:
    """Gauges with a value for each slot. Their children are kept: to look one up by its label takes far longer."""

    def __init__(self) -> None:
        self._children: dict[tuple[Gauge, int], Gauge] = {}

    def set(self, gauge: Gauge, slot: int, value: float) -> None:
        """Set a gauge's value for a slot."""
        child = self._children.get((gauge, slot))
        if child is None:
            child = self._children[gauge, slot] = gauge.labels(slot=str(slot))
        child.set(value)


class FleetMetrics:
    """Follows heartbeats and acknowledgements beside the planner; it decides nothing.

    Attributes:
        targets: the answer to ``/targets``; it is replaced as a whole, so that another thread may read it.
    """

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.targets = targets([])
        self._clock = clock
        self._roster = Roster()
        self._monitors: list[SlotMonitor] = []
        self.grow(settings.slots.count)
        self._slots = SlotGauges()
        self._aged: set[tuple[str, str]] = set()
        self._next_at = clock.monotonic()
        metrics.STEP_S.set(settings.slide_us / 1e6)
        metrics.RETENTION_S.set(settings.kafka.retention_s)

    def grow(self, slots: int) -> None:
        """Take note that there are so many slots, or more."""
        self._monitors += [SlotMonitor(slot) for slot in range(len(self._monitors), slots)]

    def on_heartbeat(self, beat: Heartbeat, record: Record, *, old: bool) -> None:
        """Take note of a heartbeat, also of the scaler's own; `old`: it was in the log before this scaler began."""
        self._roster.on_heartbeat(beat, self._at(record, old=old))

    def on_ack(self, ack: Ack, record: Record, *, old: bool) -> None:
        """Take note of an acknowledgement; one of a slot that this configuration does not have is ignored."""
        body = ack.level1 if ack.WhichOneof("body") == "level1" else ack.level0
        if ack.WhichOneof("body") is not None and body.slot < len(self._monitors):
            self._monitors[body.slot].on_ack(ack, record.appended_us, self._at(record, old=old), old=old)

    def export(self, alive: Mapping[str, Heartbeat], now: float) -> None:
        """Update metrics and targets, if it is time (`tsunagi.scaler.pace`).

        Args:
            alive: the living workers, by name.
            now: time in monotonic seconds.
        """
        if now < self._next_at:
            return
        self._next_at = now + between_figures(len(self._monitors))
        nodes = self._roster.nodes(now)
        self.targets = targets(nodes)
        self._export_nodes(nodes, now)
        for reason, count in self._roster.take_refused().items():
            metrics.HEARTBEATS_REFUSED.labels(reason=reason).inc(count)
        now_us, said = self._clock.now_us(), by_slot(alive)
        for slot, monitor in enumerate(self._monitors):
            snapshot = monitor.snapshot(said.get(slot, ()), now, now_us)
            self._slots.set(metrics.SLOT_PROTECTED, slot, float(snapshot.protected))
            if snapshot.silence_s is not None:
                self._slots.set(metrics.SLOT_SILENCE_S, slot, snapshot.silence_s)
            self._slots.set(metrics.SPARK_LAG_S, slot, snapshot.spark_lag_s)
            if snapshot.resume_age_s is not None:
                self._slots.set(metrics.SLOT_RESUME_AGE_S, slot, snapshot.resume_age_s)

    def _export_nodes(self, nodes: list[Node], now: float) -> None:
        for node in nodes:
            metrics.HEARTBEAT_AGE_S.labels(node=node.name, role=node.role).set(now - node.at)
        present = {(node.name, node.role) for node in nodes}
        for gone in self._aged - present:
            metrics.HEARTBEAT_AGE_S.remove(*gone)
        self._aged = present

    def _at(self, record: Record, *, old: bool) -> float:
        """Return when a record was appended, by this process's clock; one that comes while it reads counts as new."""
        now = self._clock.monotonic()
        return now - max(0.0, (self._clock.now_us() - record.appended_us) / 1e6) if old else now
