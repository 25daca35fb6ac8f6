"""One batch: decide, run the one action, keep the outcome, acknowledge.

What the driver decides before a batch (layout, slots left behind) is written to `before-N` before anything runs, so
that a batch that is run again after a crash decides the same. Its outcome is written to `after-N`, where batch N + 1
begins.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import structlog
from pyspark.sql import DataFrame

from tsunagi.runtime import metrics
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.log import RECOVERED, Log, LogError, OffsetLostError
from tsunagi.runtime.messages import Placement, SparkBeat
from tsunagi.runtime.placement import PlacementReader
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import Settings
from tsunagi.system.fleet_table import SensorsFile
from tsunagi_spark.acknowledge import Acknowledger
from tsunagi_spark.action import act, named, ordered
from tsunagi_spark.balance import Balancer, first_order
from tsunagi_spark.blocks import Counters
from tsunagi_spark.frontier import NEVER, SlotMark, Waiting
from tsunagi_spark.identity import LogChangedError, result_ends, written_faults
from tsunagi_spark.layout import Layout, LayoutError, make_layout, rate_of, same
from tsunagi_spark.programs import Programs, filled, opks_of, runs_direct, sums_up
from tsunagi_spark.progress import describe, show, show_queries
from tsunagi_spark.queries import span_steps
from tsunagi_spark.query_task import QUERIES, forget_ended
from tsunagi_spark.stall import Stall
from tsunagi_spark.standing import JobStanding
from tsunagi_spark.state import KEPT, CoreState, StateError, Store
from tsunagi_spark.task_context import BatchContext, JobContext
from tsunagi_spark.tasks import MERGE
from tsunagi_spark.windows import specs_of

Answer = TypeVar("Answer")
_SWEEP_BATCHES = 100
"""After so many batches the job looks whether files of queries are left that are gone."""


class StoppedError(Exception):
    """The job was asked to stop; the batch has not begun."""


@dataclass(frozen=True, slots=True)
class BatchDecision:
    """What the driver has decided for one batch."""

    layout: Layout
    overdue: frozenset[int]
    silent_s: dict[int, float]
    dropped: frozenset[int] = frozenset()
    program: int = 0
    direct: bool = False
    fills: tuple[str, ...] = ()
    opks: tuple[str, ...] = ()
    sums: bool = False


class Job:
    """The function that `foreachBatch` calls.

    Args:
        stopping: asked before each batch; if it returns true, the batch does not begin.

    Attributes:
        standing: where the job stands after the last batch.
        table_serial: the serial number of the sensors table that the last batch went by.
        beat: what heartbeats say about the job.
        failure: the error that ended the query, as it was raised here.
    """

    def __init__(
        self, settings: Settings, log: Log, store: Store, stopping: Callable[[], bool], query: Callable[[], str]
    ) -> None:
        self._settings = settings
        self._store = store
        self._stopping = stopping
        slide_us = settings.steps.slide_us
        self._context = JobContext(
            checkpoint=str(store.root.parent.absolute()),
            slide_us=slide_us,
            span=span_steps(settings.query.range_s, slide_us),
            form=settings.results.format,
            memory=round(settings.spark.rebalance_s * 1e6 / slide_us),
            specs=specs_of(settings.query.aggregates, settings.steps),
            kafka=settings.kafka,
            task_bytes=settings.spark.max_bytes // settings.spark.cores,
            query_bytes=round(settings.query.state_mb * 1e6),
            readings=settings.results.readings,
        )
        self._query = query
        self._programs = Programs(settings, store)
        self._placements = PlacementReader(log)
        self._ends = log.reader()
        self._acknowledger = Acknowledger(log)
        self._balancer = Balancer(settings.paper.order or settings.spark.order, settings.spark.rebalance_s)
        self._logger = structlog.get_logger("tsunagi.spark")
        self._id = ""
        self._layout: Layout | None = None
        self._made_of: tuple[Placement, SensorTable] | None = None  # what the layout in force was made of
        self._table: SensorTable | None = None
        self._file = SensorsFile(settings.sensors)
        self._began_s: float | None = None
        self._overdue: frozenset[int] = frozenset()
        self._stopped: set[str] = set()
        wait_s = settings.spark.wait_s
        self._waiting = Waiting(wait_s, cap_s=max(wait_s / 3, 2 * settings.steps.slide_s))
        self._stall = Stall()
        metrics.FRONTIER_STALL_S.set_function(self._stall.seconds)
        self.standing = JobStanding()
        self.table_serial = 0
        self.beat = SparkBeat()
        self.failure: Exception | None = None

    def placed(self) -> bool:
        """Return whether there is a placement to begin with.

        Raises:
            SensorsError, LayoutError: the placement does not fit the sensors table.
            QueryError: a statement of `[query] files` cannot be understood.
        """
        placement = self._placements.latest()
        if placement is None:
            return False
        spark = self._settings.spark
        current = self._load_layout(self.standing.layout) if self.standing.layout else None
        if current is not None:
            self._balancer.check(current)
        made = make_layout(self._sensors(), placement, spark.cores, spark.unknown_group, current)
        if current is None:  # a job that goes on refuses statements that do not fit any more, and runs the others
            self._programs.check(made.table)
        return True

    def reports(self, records: DataFrame) -> DataFrame:
        """Return the stream with whose batches the job is called: the reports of the cores on the records."""
        return ordered(records, self._context, self._settings.spark.cores)

    def close(self) -> None:
        """Release the connections."""
        self._acknowledger.close()
        self._placements.close()
        self._ends.close()

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Run one batch.

        Raises:
            StoppedError: the job was asked to stop.
            StateError, LogError, LayoutError: the state, the log or the layout cannot be used.
        """
        try:
            self._go_on()
            self._run(frame, batch)
        except Exception as error:
            self.failure = named(error)
            raise

    def _go_on(self) -> None:
        if self._stopping():
            raise StoppedError

    def _run(self, frame: DataFrame, batch: int) -> None:
        began_s = time.monotonic()
        if not self._id:
            self._id = self._query()
            self._store.write_json("query.json", {"id": self._id})
        before = self._before(batch)
        decision = self._decide(batch, before, began_s)
        self._began_s = began_s
        decided_s = time.monotonic()
        program, program_before = (self._programs.load(serial) for serial in (decision.program, before.program))
        direct = runs_direct(program, program_before, decision.layout)
        fills, opks = filled(program, program_before), opks_of(program, program_before)
        sums = sums_up(program, program_before)
        decision = replace(decision, direct=direct, fills=fills, opks=opks, sums=sums)
        context = BatchContext(
            query=self._id,
            batch=batch,
            layout=decision.layout.serial,
            layout_before=before.layout,
            marks=before.marks,
            delivered=tuple(before.delivered),
            overdue=decision.overdue,
            dropped=decision.dropped,
            program=decision.program,
            program_before=before.program,
            split=program is not None and bool(program.split),
            whole=program is not None and bool(program.whole or program.fills),
            direct=decision.direct,
            fills=decision.fills,
            opks=decision.opks,
            sums=decision.sums,
        )
        merge = bool(decision.layout.cut.any())
        reports = act(frame, self._context, context, merge=merge, cores=self._settings.spark.cores)
        acted_s = time.monotonic()
        ends = self._check(before, reports)
        after = self._after(batch, before, decision, reports)
        self.standing = replace(after, topic_ids=before.topic_ids, ends=ends, faults=before.faults)
        self._store.write_json(f"driver/after-{batch}", self.standing.as_json())
        self._acknowledger.write(self.standing.marks, before.topic_ids.get(RECOVERED, ""))
        self._clean(batch, decision)
        ended_s = time.monotonic()
        metrics.SPARK_BATCH_S.observe(ended_s - began_s)
        self.beat.batch, self.beat.batch_us = batch, round((ended_s - began_s) * 1e6)
        self._logger.debug(
            "batch",
            batch=batch,
            rows=sum(report["rows"] for report in reports),
            blocks=sum(report["blocks"] for report in reports),
            carried=sum(report.get("carried", 0) for report in reports),
            decide_s=round(decided_s - began_s, 4),
            act_s=round(acted_s - decided_s, 4),
            keep_s=round(ended_s - acted_s, 4),
            cores=[report["seconds"] for report in reports],
        )

    def _before(self, batch: int) -> JobStanding:
        if batch == 0:
            return self.standing if self.standing.batch < 0 else JobStanding(topic_ids=self.standing.topic_ids)
        if self.standing.batch == batch - 1:
            return self.standing
        return JobStanding.of(self._store.read_json(f"driver/after-{batch - 1}"))

    def _check(self, before: JobStanding, reports: list[dict[str, Any]]) -> dict[int, int]:
        """Check that the results written are in the log; return where `results` ends now.

        Raises:
            LogChangedError: they are not.
        """
        expected = dict(before.ends)
        for report in reports:
            for partition, count in report["sent_to"].items():
                expected[int(partition)] = expected.get(int(partition), 0) + count
        ends = self._patiently(lambda: result_ends(self._ends, expected))
        faults = written_faults(ends, expected)
        if faults:
            raise LogChangedError("; ".join(map(str, faults)))
        return ends

    def _decide(self, batch: int, before: JobStanding, now_s: float) -> BatchDecision:
        """Return the decision for a batch: a new one, or the one made when the batch ran before."""
        found = self._store.find(f"driver/before-{batch}")
        if found is not None:
            fields = json.loads(found)
            layout = self._load_layout(fields["layout"])
            silent_s = {int(slot): float(seconds) for slot, seconds in fields["silent_s"].items()}
            decision = BatchDecision(
                layout,
                frozenset(fields["overdue"]),
                silent_s,
                frozenset(fields.get("dropped", ())),
                fields.get("program", 0),
            )
        else:
            layout = self._newest_layout(before.layout, batch)
            self._waiting.silent_s = dict(before.silent_s)
            last_step = {
                slot: before.marks.get(slot, SlotMark()).step
                for slot in range(layout.slots)
                if layout.held[:, slot].any()
            }
            gone_s = 0.0 if self._began_s is None else now_s - self._began_s
            overdue = frozenset(
                slot for slot in self._waiting.elapse(gone_s, last_step) if not self._unread(slot, before)
            )
            dropped: frozenset[int] = frozenset()
            if before.carried > self._settings.spark.max_carried:
                dropped = frozenset(slot for slot, step in last_step.items() if step < max(last_step.values()))
                self._logger.warning(
                    "too many rows wait; slots left behind", rows=before.carried, slots=sorted(dropped), batch=batch
                )
            program = self._programs.newest(before.program, self._placements.statements, layout)
            decision = BatchDecision(layout, overdue, dict(self._waiting.silent_s), dropped, program)
            self._store.write_json(
                f"driver/before-{batch}",
                {
                    "layout": layout.serial,
                    "overdue": sorted(overdue),
                    "dropped": sorted(dropped),
                    "program": program,
                    "silent_s": {str(slot): seconds for slot, seconds in decision.silent_s.items()},
                },
            )
        for slot in sorted(decision.overdue - self._overdue):
            self._logger.warning("slot left behind", slot=slot, silent_s=round(decision.silent_s[slot], 1), batch=batch)
        self._overdue = decision.overdue
        return decision

    def _unread(self, slot: int, before: JobStanding) -> bool:
        """Return whether the slot has delivered more than was read: then this job is behind, not the slot."""
        end = self._patiently(lambda: self._ends.range(RECOVERED, slot)[1])
        if end <= before.marks.get(slot, SlotMark()).read_to:
            return False
        self._waiting.delivered(slot)
        return True

    def _newest_layout(self, serial: int, batch: int) -> Layout:
        """Return the layout in force, extended by what placement and sensors table have added."""
        current = self._load_layout(serial) if serial else None
        placement = self._patiently(self._placements.latest)
        self.table_serial = self._placements.table_serial
        if placement is None:
            if current is None:
                raise StateError("no placement on plan")
            return current
        table, known = self._sensors(), self._made_of
        if current is not None and known is not None and known[0] is placement and known[1] is table:
            wanted = current  # as in nearly every batch; to make the layout of 20,000 sensors takes 40 ms
        else:
            wanted = self._make_layout(placement, table, current)
        self._made_of = placement, table
        if current is not None and (wanted is current or same(current, wanted)):
            changed = self._balancer.propose(current, lambda: self._rates(batch - 1), time.monotonic())
            if changed is None:
                return current
            wanted = changed
            metrics.SPARK_TABLE_CHANGES.inc()
        self._store.write(f"layouts/{wanted.serial}", wanted.dump())
        self._layout = wanted
        self._logger.info(
            "layout",
            serial=wanted.serial,
            placement=wanted.placement,
            sensors=len(wanted),
            order=wanted.order,
            cut=int(wanted.cut.sum()),
            moved=0 if current is None else int((current.sensor_core != wanted.sensor_core[: len(current)]).sum()),
        )
        return wanted

    def _make_layout(self, placement: Placement, table: SensorTable, current: Layout | None) -> Layout:
        spark = self._settings.spark
        made = make_layout(table, placement, spark.cores, spark.unknown_group, current)
        if current is not None:
            return made
        rates = {number: rate_of(sensor) for number, sensor in enumerate(table.sensors[: len(made)])}
        wanted = self._settings.paper.order or spark.order
        order = first_order(wanted, made.group_of, spark.cores, rates, self._balancer.costs)
        return make_layout(table, placement, spark.cores, spark.unknown_group, order=order)

    def _rates(self, batch: int) -> Floats:
        """Return the number of rows delivered lately for each sensor, as the cores have counted them."""
        states = []
        for core in range(self._settings.spark.cores):
            name = f"core-{core}/state-{batch}"
            states.append(CoreState.load(self._store.read(name), self._store.root / name))
        return np.asarray(np.sum([state.rate for state in states], axis=0))

    def _patiently(self, ask: Callable[[], Answer]) -> Answer:
        """Ask the log as long as it takes: a broker that is away for some time does not end the job."""
        while True:
            try:
                return ask()
            except OffsetLostError:
                raise
            except LogError as error:
                self._go_on()
                self._logger.warning("the log does not answer; asking again", error=str(error))

    def _load_layout(self, serial: int) -> Layout:
        if self._layout is None or self._layout.serial != serial:
            self._layout = Layout.load(self._store.read(f"layouts/{serial}"))
        return self._layout

    def _sensors(self) -> SensorTable:
        """Return the sensors table in force: that of `plan` as far as it was read, or the file's if there is none."""
        table = self._file.read() if self._placements.table is None else self._placements.table
        if table is not self._table:
            self._check_groups(table)
            self._table = table
        return table

    def _check_groups(self, table: SensorTable) -> None:
        without = [sensor.name for sensor in table.present if not sensor.group]
        metrics.SPARK_UNGROUPED.set(len(without))
        if not without:
            return
        names = ", ".join(without[:5]) + (", ..." if len(without) > 5 else "")
        if self._settings.spark.ungrouped == "refuse":
            raise LayoutError(
                f"{self._settings.sensors}: {len(without)} sensors have no group ({names}); expected one of "
                'each, since [spark] ungrouped = "refuse"'
            )
        group = self._settings.spark.unknown_group
        self._logger.info("sensors without a group", sensors=len(without), names=names, group=group)

    def _after(
        self, batch: int, before: JobStanding, decision: BatchDecision, reports: list[dict[str, Any]]
    ) -> JobStanding:
        answered = [report for report in reports if report["core"] == QUERIES]
        reports = [report for report in reports if report["core"] != QUERIES]
        merged = [report for report in reports if report["core"] == MERGE]
        cores = {report["core"]: report for report in reports if report["core"] != MERGE}
        if set(cores) != set(range(self._settings.spark.cores)) or len(merged) != decision.layout.cut.any():
            raise StateError(f"batch {batch}: cores {sorted(cores)} reported, expected {self._settings.spark.cores}")
        each = self._settings.spark.cores
        expected = (each + (not decision.direct)) * (decision.program > 0) + len(decision.fills)
        expected += each * len(decision.opks) + decision.sums
        if len(answered) != expected:
            raise StateError(f"batch {batch}: {len(answered)} query cores reported")
        marks = dict(before.marks)
        silent_s = dict(decision.silent_s)
        totals = Counters(**{name: before.totals.get(name, 0) for name in Counters().as_dict()})
        came = Counters()
        for text, fields in cores[0]["slots"].items():  # every core was told all marks and counts
            slot = int(text)
            mark = SlotMark.of(fields["mark"])
            if mark.step != marks.get(slot, SlotMark()).step:
                silent_s[slot] = 0.0
                if slot in decision.overdue:
                    self._logger.info("slot counts again", slot=slot, step=mark.step, batch=batch)
            marks[slot] = mark
            came.add(Counters(**fields["counters"]))
        totals.add(came)
        delivered = [NEVER] * len(decision.layout.groups)
        for report in cores.values():
            for group, step in report["delivered"].items():
                delivered[int(group)] = step
        self._balancer.observe(list(cores.values()), merged)
        sent = {name: sum(report[name] for report in reports) for name in ("rows", "blocks")}
        _count(came, sent)
        self._show(decision.layout, delivered)
        self.beat = describe(
            decision.layout,
            marks,
            delivered,
            frozenset(slot for slot in decision.overdue if silent_s.get(slot)),
            reports,
        )
        show(self.beat, decision.layout, marks, reports)
        show_queries(self.beat, answered, self._programs.refused)
        self._tell_stopped()
        if came.dead_records or came.late_records:
            self._logger.warning("set aside", batch=batch, dead=came.dead_records, late_rows=came.late_rows)
        sums = {f"sent_{name}": before.totals.get(f"sent_{name}", 0) + count for name, count in sent.items()}
        carried = sum(report.get("carried", 0) for report in reports)
        return JobStanding(
            batch,
            marks,
            delivered,
            silent_s,
            decision.layout.serial,
            totals.as_dict() | sums,
            carried,
            program=decision.program,
        )

    def _tell_stopped(self) -> None:
        """Log the queries in CQL that have stopped, once each."""
        refused = self._programs.refused  # these are logged there
        stopped = {item.name: item.fault for item in self.beat.query if item.fault and item.name not in refused}
        for name in stopped.keys() - self._stopped:
            self._logger.error("query stopped", query=name, detail=stopped[name])
        self._stopped = set(stopped)

    def _show(self, layout: Layout, delivered: list[int]) -> None:
        steps = [(group, step) for group, step in zip(layout.groups, delivered, strict=True) if step != NEVER]
        for group, step in steps:
            metrics.FRONTIER_STEP.labels(group).set(step)
        self._stall.on_delivered(steps)

    def _clean(self, batch: int, decision: BatchDecision) -> None:
        layout = decision.layout.serial
        if batch % _SWEEP_BATCHES == 0:
            forget_ended(self._store, decision.fills, decision.opks, batch - KEPT)
        self._store.remove(f"driver/before-{batch - KEPT}")
        self._store.remove(f"driver/after-{batch - KEPT}")
        if layout > KEPT:
            self._store.remove(f"layouts/{layout - KEPT}")


def _count(came: Counters, sent: dict[str, int]) -> None:
    metrics.SPARK_ROWS.inc(sent["rows"])
    metrics.SPARK_BLOCKS.inc(sent["blocks"])
    metrics.SPARK_LATE_ROWS.inc(came.late_rows)
    metrics.SPARK_REPEATS.inc(came.repeats)
    metrics.SPARK_NAN_ROWS.inc(came.nan_rows)
    if came.placed:
        metrics.SPARK_INPUT_AGE_S.labels("gateway").set(came.gateway_us / came.placed / 1e6)
        metrics.SPARK_INPUT_AGE_S.labels("waiting").set(came.waited_us / came.placed / 1e6)
