"""The scaler on the log: it writes the table in force, the placement, the first plan, and secondaries after takeovers.

`plan` holds wishes. A takeover needs nothing from the scaler, and a second scaler does no harm: the older one ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from structlog.stdlib import BoundLogger

from tsunagi.runtime import columns, metrics
from tsunagi.runtime.cells import SUMMARY, read_cells
from tsunagi.runtime.clock import Clock, SteadyClock
from tsunagi.runtime.fleet_change import differs
from tsunagi.runtime.fleet_table import KEY, pack_table, unpack_or_none
from tsunagi.runtime.heartbeat import HeartbeatFilter, Heartbeats
from tsunagi.runtime.log import ACKS, HEARTBEATS, PLAN, Log, LogError, Position, Record
from tsunagi.runtime.message_reading import read_message
from tsunagi.runtime.messages import VERSION, Ack, Assignment, Heartbeat, Placement, Plan
from tsunagi.runtime.plan import Words
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import Settings
from tsunagi.scaler.elastic import Elastic
from tsunagi.scaler.fleet_metrics import FleetMetrics
from tsunagi.scaler.launchers import make_launcher
from tsunagi.scaler.leadership import Leadership
from tsunagi.scaler.mover import Mover
from tsunagi.scaler.pace import between_looks
from tsunagi.scaler.placing import budget_warning, place_sensors, with_slots
from tsunagi.scaler.planner import Planner
from tsunagi.scaler.policy_runner import Ponder, at_once
from tsunagi.standby.detector import Detector

READ_S = 0.05
"""Longest wait of one read for records, in seconds."""
IDLE_READS = 40
"""After this many reads in a row without a record, what is still missing of `plan` is taken for not there."""
PATIENCE_S = 8.0
"""The first plan waits this many seconds for all workers, then it takes those that are there."""
BEATS_BACK = 20_000
"""Heartbeats before the end of the topic that a starting scaler reads, so that it knows at once who is there."""
NODE = "scaler"
"""The name of all scalers. Of two that run, the one that began later acts."""


class Scaler:
    """One scaler process."""

    def __init__(
        self,
        settings: Settings,
        table: SensorTable,
        log: Log,
        clock: Clock,
        logger: BoundLogger,
        config: Path | None = None,
        ponder: Ponder = at_once,
    ) -> None:
        self._settings = settings
        self._table = table
        self._clock = clock
        self._logger = logger
        self._fatal: LogError | None = None
        self._words = Words()
        self._placement: Placement | None = None
        self._mover = Mover(settings.slide_us)
        self._looks_at = 0.0  # when it looks at all nodes and slots next
        self._placed = 0  # how many rows of the table have a slot
        incarnation = clock.now_us() * 1000
        self._heard = HeartbeatFilter()
        self.detector = Detector(NODE, incarnation, settings.standby.heartbeat_s)
        self.heartbeats = Heartbeats(
            log, NODE, "scaler", settings.standby.heartbeat_s, lambda _beat: None, incarnation=incarnation
        )
        scaler = settings.scaler
        self.rivals = Leadership(NODE, incarnation, scaler.dead_s)
        self._reader = log.reader()
        cells = read_cells(log)
        self.planner = Planner(
            settings.slots.count, scaler.kept(settings.slots.count), scaler.dead_s, PATIENCE_S, self.detector, cells
        )
        launcher = None if scaler.launcher == "none" else make_launcher(settings, config)
        # Decisions and paid hours follow this clock: a wall clock that jumps must neither delay nor hurry them.
        self._steady = SteadyClock(clock)
        now, now_s = clock.monotonic(), self._steady.now_us() / 1e6
        self.elastic = Elastic(settings, self.planner, launcher, logger, PATIENCE_S, now, now_s, ponder)
        self._producer = log.producer()
        self.outside = FleetMetrics(settings, clock)
        plan_first, plan_end = self._reader.range(PLAN, 0)
        beats_first, self._beats_end = self._reader.range(HEARTBEATS, SUMMARY)
        acks = {cell: self._reader.range(ACKS, cell) for cell in range(log.partitions(ACKS) if cells.count > 1 else 1)}
        self._acks_end = {cell: end for cell, (_, end) in acks.items()}
        self._reader.assign(
            [
                Position(PLAN, 0, plan_first),
                # Nodes that died shortly before this start are still listed; the plan is made of the heartbeats that
                # come now.
                Position(HEARTBEATS, SUMMARY, max(beats_first, self._beats_end - BEATS_BACK)),
                *(Position(ACKS, cell, first) for cell, (first, _) in acks.items()),
            ]
        )
        self._read_plan(plan_first, plan_end)
        for slot, assignment in self.planner.assignments.items():
            if self._words.in_force(f"assignment/{slot}")[1] > self._words.in_force(f"move/{slot}")[1]:
                self.elastic.seen_to(assignment)
        self._compare(table)
        self._place()

    def start(self) -> None:
        """Begin to send heartbeats."""
        self.heartbeats.start()

    def close(self) -> None:
        """Stop in good order."""
        self.heartbeats.leaving = True
        self.heartbeats.close()
        self.elastic.close()
        with contextlib.suppress(LogError):
            self._producer.flush(2.0)
        self._producer.close()
        self._reader.close()

    def step(self) -> None:
        """Take one turn: read what came, write the wishes that follow.

        Raises:
            LogError: a wish could not be written.
            ReplacedError: another scaler was started later; this one must end.
        """
        for record in self._reader.read(500, READ_S):
            self._dispatch(record)
        now = self._clock.monotonic()
        if now >= self._looks_at:
            self._looks_at = now + between_looks(self.planner.slots, self.planner.cells.count)
            self._look(now)
        self._producer.poll()
        if self._fatal is not None:
            raise self._fatal

    def _look(self, now: float) -> None:
        """Look at all nodes and slots, and write the wishes that follow."""
        alive = self.planner.alive(now)
        leads = self.rivals.leads(now)
        metrics.LEADS.set(float(leads))
        if leads and len(self._table) > self._placed:
            self._place()
        if leads and self._placement is not None and len(self._table) <= self._placed:
            self._move_on(self._placement, now)
        if leads and self.detector.settled(now):
            self.elastic.turn(alive, now)  # first, since it drops the goal of a slot that was taken over
            self._plan(alive, now)
            asked = self.elastic.ask(alive, self._steady.now_us() / 1e6)
            if asked is not None:
                self._write("workers", Plan(version=VERSION, workers=asked, serial=self._words.next("workers")))
        metrics.WORKERS.labels(state="alive").set(len(alive))
        metrics.WORKERS.labels(state="wanted").set(self.elastic.rescale.total(alive))
        metrics.PLAN_SERIAL.set(self.planner.serial)
        self.outside.export(alive, now)

    def _plan(self, alive: Mapping[str, Heartbeat], now: float) -> None:
        for assignment in self.planner.decide(alive, now):
            self._logger.info(
                "plan",
                slot=assignment.slot,
                owner=assignment.owner,
                secondary=assignment.secondary,
                reason=assignment.reason,
            )
            self._write(f"assignment/{assignment.slot}", Plan(version=VERSION, assignment=assignment))

    def _dispatch(self, record: Record) -> None:
        if record.topic == HEARTBEATS:
            beat = read_message(Heartbeat, record, self._logger)
            if beat is not None and self._heard.news(beat):
                self.outside.on_heartbeat(beat, record, old=record.offset < self._beats_end)
                if record.offset >= self._beats_end:
                    now = self._clock.monotonic()
                    self.heartbeats.heard(beat)
                    self.detector.on_heartbeat(beat, now)
                    self.rivals.on_heartbeat(beat, now)
                    self.elastic.on_heartbeat(beat, now)
        elif record.topic == ACKS:
            ack = read_message(Ack, record, self._logger)
            if ack is not None:
                self.outside.on_ack(ack, record, old=record.offset < self._acks_end[record.partition])
        else:
            plan = read_message(Plan, record, self._logger)
            if plan is not None:
                self._on_plan(plan, record.offset)

    def _on_plan(self, plan: Plan, offset: int) -> None:
        if not self._words.take(plan, offset):
            return
        kind = plan.WhichOneof("body")
        if kind == "assignment":
            assignment = Assignment()
            assignment.CopyFrom(plan.assignment)
            self.planner.on_assignment(assignment)
        elif kind == "placement":
            self._placement = plan.placement
            for part in (self.planner, self.elastic, self.outside):
                part.grow(plan.placement.slots)
        elif kind == "workers":
            self.elastic.on_workers(plan.workers)
        elif kind == "move":
            self.elastic.on_move(plan.move)
        elif kind == KEY:
            self._table = unpack_or_none(plan.table, self._logger) or self._table

    def _read_plan(self, seen: int, end: int) -> None:
        idle = 0
        while seen < end and idle < IDLE_READS:
            records = self._reader.read(500, READ_S)
            idle = 0 if records else idle + 1
            for record in records:
                self._dispatch(record)
                if record.topic == PLAN:
                    seen = record.offset + 1

    def _compare(self, file: SensorTable) -> None:
        """Say if the file is not what is in force: its user may wonder."""
        if differs(self._table, file):
            path = str(self._settings.sensors)
            self._logger.warning("the file differs from the sensors table in force: see tsunagi apply", path=path)

    def _place(self) -> None:
        """Write the placement if there is none, or if the table in force has more sensors than are placed.

        The first table in force is that of the file.

        Raises:
            SensorsError: the sensors have been placed for another fleet than the table's.
        """
        known = self._placement
        before = columns.sensors(b"" if known is None else known.slot)
        settings = self._settings if known is None else with_slots(self._settings, known.slots)
        if known is not None:
            self._table.check_placed(len(before), known.table_sha256)
        if self._words.in_force(KEY) == (0, -1):
            table = pack_table(self._table, by="scaler")
            self._write(KEY, Plan(version=VERSION, table=table, serial=self._words.next(KEY)))
        self._placed = len(self._table)
        if len(before) == len(self._table):
            return
        placed = place_sensors(settings, self._table).copy()
        placed[: len(before)] = before
        placement = Placement()
        if known is not None:
            placement.CopyFrom(known)  # what it says of the last move
        placement.serial = self._words.next("placement")
        placement.slots = settings.slots.count
        placement.slot = columns.pack_sensors(placed)
        placement.table_sha256 = self._table.digest()
        self._logger.info("placement", sensors=len(placed), slots=placement.slots)
        self._write("placement", Plan(version=VERSION, placement=placement))
        warning = "" if known is not None else budget_warning(settings, self._table, placed)
        if warning:
            self._logger.warning("too few slots", detail=warning)

    def _move_on(self, placement: Placement, now: float) -> None:
        """Take the next step of a move of sensors between slots, if there is one to take."""
        after = self._mover.turn(placement, self.detector.beats().values(), now)
        if after is not None:
            after.serial = self._words.next("placement")
            self._logger.info("sensors move between slots", phase=after.move, from_us=after.from_us)
            self._write("placement", Plan(version=VERSION, placement=after))

    def _write(self, key: str, plan: Plan) -> None:
        def delivered(error: LogError | None, _offset: int) -> None:
            if error is not None:
                self._fatal = error

        self._producer.send(PLAN, 0, key.encode(), plan.SerializeToString(), delivered)
