"""A worker's metrics. They are read from its replicas about once a second, so that no tuple costs anything.

A Level-0-Ack says that `recovered` has the outputs of all inputs below an offset. A Level-1-Ack names the context (the
slot's whole state at one offset of its log) from which on the log is still needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import structlog
from prometheus_client import Counter, Gauge

from tsunagi.owner.calibrator import Calibrator
from tsunagi.owner.deciders import CalibrationDecider, HelperDecider
from tsunagi.owner.helping import REASONS
from tsunagi.runtime import metrics
from tsunagi.runtime.log import LATE, TUPLES, Traffic
from tsunagi.runtime.messages import QUALITY_NAMES
from tsunagi.slot.edges import NEVER
from tsunagi.standby.primary import Primary
from tsunagi.standby.replica import Replica

if TYPE_CHECKING:
    from tsunagi.slot.stream import SlotStream

REFRESH_S = 1.0
"""Seconds between two refreshes of the metrics."""

TERM = "term"
"""The first part of the key of a counter whose source counts from an owner's promotion on."""

# Gauges of a slot while the node hosts it. They are removed when the slot is released.
SLOT_GAUGES = (
    metrics.ROLE,
    metrics.EPOCH,
    metrics.POSITION,
    metrics.LAG_RECORDS,
    metrics.STEP_CLOSED,
    metrics.RECORD_COST_S,
    metrics.EDGES_OUT,
    metrics.LEVEL0_POSITION,
    metrics.LEVEL1_POSITION,
    metrics.CONTEXT_BYTES,
    metrics.STANDBY_READY,
    metrics.STANDBY_BATCH_TUPLES,
)
# Gauges of what it costs a standby to stand by.
COST_GAUGES = (
    metrics.STANDBY_BANDWIDTH,
    metrics.STANDBY_RECOVERY_S,
    metrics.STANDBY_SEND_S,
    metrics.STANDBY_PROCESS_S,
    metrics.STANDBY_SENDS,
    metrics.STANDBY_TUPLE_BYTES,
    metrics.STANDBY_TAKEOVER_S,
)
LIMITS = ("bandwidth", "recovery")
"""The limits that a standby may have."""


class Gauges:
    """Exports the metrics, and keeps the last values, since counters are increased by differences."""

    def __init__(self) -> None:
        self._next_at = 0.0
        self._last: dict[tuple[str, ...], float] = {}
        self._slots: set[int] = set()
        self._terms: dict[str, Primary] = {}
        self._owned: dict[str, set[tuple[Gauge, tuple[str, ...]]]] = {}  # gauges that only an owner has, by slot
        self._told: dict[tuple[str, str], str] = {}  # why a query has stopped, by slot and name
        self._logger = structlog.get_logger("tsunagi.worker")

    def due(self, now: float) -> bool:
        """Return whether the last export was at least `REFRESH_S` ago."""
        return now >= self._next_at

    def refresh(self, replicas: Iterable[Replica], traffic: Sequence[Traffic], now: float) -> None:
        """Export the state of all replicas.

        Args:
            traffic: what the readers by which the node stands by have read and asked: ranges and ends of logs.
        """
        self._next_at = now + REFRESH_S
        hosted = set()
        for replica in replicas:
            hosted.add(replica.slot_id)
            self._export(replica)
        self._count(metrics.STANDBY_RECEIVED, ("received",), sum(item.received_bytes for item in traffic))
        self._count(metrics.STANDBY_REQUESTS, ("requests",), sum(item.requests for item in traffic))
        for slot in self._slots - hosted:
            self._forget(str(slot))
        self._slots = hosted

    def takeover(self, slot: int, *seconds: float) -> None:
        """Export a takeover; `seconds` are the lengths of its phases, in the order of `metrics.PHASES`."""
        metrics.TAKEOVERS.labels(slot=str(slot)).inc()
        for phase, took in zip(metrics.PHASES, seconds, strict=True):
            metrics.TAKEOVER_S.labels(slot=str(slot), phase=phase).observe(took)

    def _export(self, replica: Replica) -> None:
        slot = str(replica.slot_id)
        book = replica.slot.book
        metrics.ROLE.labels(slot=slot).state(replica.role)
        metrics.EPOCH.labels(slot=slot).set(replica.epoch)
        metrics.POSITION.labels(slot=slot).set(replica.slot.position)
        metrics.LAG_RECORDS.labels(slot=slot).set(replica.lag)
        metrics.RECORD_COST_S.labels(slot=slot).set(replica.processor.record_s)
        metrics.STANDBY_READY.labels(slot=slot).set(float(replica.role == "standby" and not replica.unready()))
        metrics.STANDBY_BATCH_TUPLES.labels(slot=slot).set(replica.batching.batch_tuples)
        self._export_costs(slot, replica)
        if book is not None:
            metrics.STEP_CLOSED.labels(slot=slot).set(book.cursor - 1)
            metrics.EDGES_OUT.labels(slot=slot).set(sum(edge.out_from != NEVER for edge in book.edges.values()))
        self._count(metrics.VOID_CONTROL.labels(slot=slot), ("void", slot), replica.slot.register.void)
        trust = replica.trust
        self._count(metrics.CONTRADICTIONS.labels(slot=slot), ("contradictions", slot), trust.contradictions)
        self._count(metrics.GENERATIONS_BEGUN.labels(slot=slot), ("generations", slot), trust.foundings)
        self._count(metrics.STANDBY_PULLS.labels(slot=slot), ("pulls", slot), replica.intake.pulls)
        self._count(metrics.STANDBY_BYTES.labels(slot=slot), ("bytes", slot), replica.intake.read_bytes)
        self._count(metrics.STANDBY_TRIMMED.labels(slot=slot), ("trimmed", slot), replica.intake.trimmed)
        speculated = replica.speculated
        for name, counter, count in (
            ("speculations", metrics.SPECULATIONS, speculated.begun),
            ("in vain", metrics.SPECULATIONS_IN_VAIN, speculated.in_vain),
            ("ahead", metrics.SPECULATIVE_OUTPUTS, speculated.outputs),
            ("repeats", metrics.SPECULATIVE_REPEATS, speculated.repeats),
        ):
            self._count(counter.labels(slot=slot), (name, slot), count)
        if replica.primary is not None:
            began = self._terms.get(slot) is not replica.primary
            self._export_primary(slot, replica.primary)
            self._export_recovery(slot, replica, replica.primary, began=began)
        else:
            self._forget_owned(slot)

    def _export_costs(self, slot: str, replica: Replica) -> None:
        verdict = replica.batching.verdict
        if verdict is None or replica.role != "standby":
            self._forget_costs(slot)  # an owner does not stand by
            return
        estimate, target = verdict.estimate, replica.batching.target
        metrics.STANDBY_BANDWIDTH.labels(slot=slot).set(estimate.bandwidth)
        metrics.STANDBY_RECOVERY_S.labels(slot=slot).set(estimate.recovery_s)
        metrics.STANDBY_SEND_S.labels(slot=slot).set(estimate.send_s)
        metrics.STANDBY_PROCESS_S.labels(slot=slot).set(estimate.process_s)
        metrics.STANDBY_SENDS.labels(slot=slot).set(estimate.sends_per_s)
        metrics.STANDBY_TUPLE_BYTES.labels(slot=slot).set(estimate.tuple_bytes)
        metrics.STANDBY_TAKEOVER_S.labels(slot=slot).set(estimate.takeover_s)
        metrics.STANDBY_LIMIT.labels(slot=slot, limit="bandwidth").set(target.max_bandwidth)
        metrics.STANDBY_LIMIT.labels(slot=slot, limit="recovery").set(target.max_recovery_s)
        metrics.STANDBY_LIMIT_OK.labels(slot=slot, limit="bandwidth").set(float(verdict.bandwidth_ok))
        metrics.STANDBY_LIMIT_OK.labels(slot=slot, limit="recovery").set(float(verdict.recovery_ok))

    def _export_primary(self, slot: str, primary: Primary) -> None:
        if self._terms.get(slot) is not primary:  # a primary counts from its promotion on
            self._terms[slot] = primary
            self._last = {key: value for key, value in self._last.items() if key[:2] != (TERM, slot)}
        self._count(metrics.OUTPUTS_SENT.labels(slot=slot), (TERM, slot, "outputs"), primary.emitted)
        for quality, values in zip(QUALITY_NAMES, primary.quality_counts.tolist(), strict=True):
            counter = metrics.VALUES_RECOVERED.labels(slot=slot, quality=quality)
            self._count(counter, (TERM, slot, quality), values)
        for gauge, offset in (
            (metrics.LEVEL0_POSITION, primary.level0_offset),
            (metrics.LEVEL1_POSITION, primary.level1_offset),
        ):
            if offset >= 0:
                gauge.labels(slot=slot).set(offset)
        for query, rows in primary.query_rows.items():
            self._count(metrics.SLOT_QUERY_ROWS.labels(slot=slot, query=query), (TERM, slot, f"query/{query}"), rows)
        for reason, count in primary.side_counts.items():
            topic, _, why = reason.partition("/")
            counter = (
                metrics.LATE.labels(slot=slot, reason=why)
                if topic == LATE
                else metrics.DEAD_LETTERS.labels(topic=TUPLES, reason=why)
            )
            self._count(counter, (TERM, slot, reason), count)

    def _export_recovery(self, slot: str, replica: Replica, primary: Primary, *, began: bool) -> None:
        book, chain = replica.slot.book, replica.slot.chain
        counted: list[tuple[Counter, tuple[str, ...], float]] = []
        if chain is not None and chain.recover is not None:
            counted.append((metrics.WITHHELD.labels(slot=slot), (slot, "withheld"), chain.recover.withheld))
        if chain is not None and chain.stream is not None:
            self._export_queries(slot, chain.stream)
        if book is not None and book.in_steps:
            self._say(metrics.HELPERS, float(len(book.helpers)), slot)
            for state, count in zip(("used", "late"), book.helper_readings, strict=True):
                counter = metrics.HELPER_READINGS.labels(slot=slot, state=state)
                counted.append((counter, (slot, "helpers", state), count))
        for counter, key, value in counted:
            if began:
                self._last[key] = value  # what was counted as a standby was not written, so leave it out
            self._count(counter, key, value)
        for decider in primary.deciders:
            if isinstance(decider, HelperDecider) and decider.helping is not None:
                unmet = dict(decider.helping.wanted.unmet)
                for reason in REASONS:
                    self._say(metrics.UNMET, float(unmet.get(reason, 0)), slot, reason)
            elif isinstance(decider, CalibrationDecider) and decider.calibrator is not None:
                self._export_calibration(slot, decider.calibrator)

    def _export_queries(self, slot: str, stream: SlotStream) -> None:
        gauges = (metrics.SLOT_QUERY_STATE_BYTES, metrics.SLOT_QUERY_STOPPED)
        sizes = dict(stream.sizes)
        for gauge, labels in [item for item in self._owned.get(slot, ()) if item[0] in gauges]:
            if labels[1] not in sizes:  # it was dropped
                gauge.remove(*labels)
                self._owned[slot].remove((gauge, labels))
        for query, size in sizes.items():
            why = stream.faults.get(query, "")
            self._say(metrics.SLOT_QUERY_STATE_BYTES, float(size), slot, query)
            self._say(metrics.SLOT_QUERY_STOPPED, float(bool(why)), slot, query)
            if why and self._told.get((slot, query)) != why:
                self._logger.error("query stopped", slot=slot, query=query, detail=why)
            self._told[slot, query] = why

    def _export_calibration(self, slot: str, calibrator: Calibrator) -> None:
        self._say(metrics.DISTRUSTED, float(calibrator.recovery.distrusted.sum()), slot)
        self._say(metrics.RECOVERY_OUTAGE_STEPS, float(calibrator.recovery.longest_outage), slot)
        coverage = calibrator.coverage
        medians, tried = calibrator.median_factors().tolist(), calibrator.tried_steps().tolist()
        for number, group in enumerate(calibrator.groups):
            labels = {"slot": slot, "group": group}
            self._say(metrics.CALIBRATION_FACTOR, medians[number], slot, group)
            self._say(metrics.RECOVERY_TRIED_STEPS, tried[number], slot, group)
            for name, counter, counts in (
                ("truths", metrics.RECOVERY_TRUTHS, coverage.truths),
                ("within", metrics.RECOVERY_TRUTHS_WITHIN, coverage.within),
            ):
                self._count(counter.labels(**labels), (TERM, slot, name, group), float(counts[number]))
        for (kind, name), truths, within in zip(coverage.names, *coverage.by_class.tolist(), strict=True):
            for counter, count in (
                (metrics.RECOVERY_TRUTHS_BY, truths),
                (metrics.RECOVERY_TRUTHS_WITHIN_BY, within),
            ):
                self._count(counter.labels(slot, kind, name), (TERM, slot, str(counter), kind, name), float(count))
        worst = coverage.worst_sensor()
        if worst is not None:
            self._say(metrics.RECOVERY_WORST_SENSOR, worst[1], slot)

    def _count(self, counter: Counter, key: tuple[str, ...], value: float) -> None:
        before = self._last.get(key, 0.0)
        counter.inc(value - before if value >= before else value)
        self._last[key] = value

    def _say(self, gauge: Gauge, value: float, *labels: str) -> None:
        """Set a gauge that only an owner has; the first label is the slot."""
        gauge.labels(*labels).set(value)
        self._owned.setdefault(labels[0], set()).add((gauge, labels))

    def _forget_owned(self, slot: str) -> None:
        for gauge, labels in self._owned.pop(slot, ()):
            gauge.remove(*labels)

    def _forget(self, slot: str) -> None:
        """Remove the gauges of a slot that is not hosted any more. Otherwise it would look like a ready standby."""
        for gauge in SLOT_GAUGES:
            gauge.remove(slot)
        self._forget_costs(slot)
        self._forget_owned(slot)

    def _forget_costs(self, slot: str) -> None:
        for gauge in COST_GAUGES:
            gauge.remove(slot)
        for limit in LIMITS:
            for gauge in (metrics.STANDBY_LIMIT, metrics.STANDBY_LIMIT_OK):
                gauge.remove(slot, limit)
