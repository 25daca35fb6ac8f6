"""A worker: runs the replicas of its slots on the log. Gateway and secondary are two roles of this one host.

`tsunagi.standby.replica` decides what to do. The host carries it out, each action within a bounded time.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import secrets
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path

from structlog.stdlib import BoundLogger

from tsunagi.owner.deciders import make_deciders
from tsunagi.recovery.model import Model
from tsunagi.recovery.store import load_from_store, publish, publish_refit
from tsunagi.runtime import metrics
from tsunagi.runtime.beat_routes import CellRoutes
from tsunagi.runtime.cells import read_cells
from tsunagi.runtime.clock import Clock
from tsunagi.runtime.heartbeat import Heartbeats
from tsunagi.runtime.keys import fingerprint
from tsunagi.runtime.log import (
    ACKS,
    CONTEXTS,
    HEARTBEATS,
    PLAN,
    RECOVERED,
    TUPLES,
    Log,
    LogError,
    OffsetLostError,
    Position,
    Record,
    Traffic,
)
from tsunagi.runtime.message_reading import read_message
from tsunagi.runtime.messages import Ack, Assignment, Heartbeat, Plan
from tsunagi.runtime.plan import MOVE
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import Settings
from tsunagi.slot.wish import Wish
from tsunagi.standby import actions as act
from tsunagi.standby.costs import Wire
from tsunagi.standby.replica import Replica
from tsunagi.standby.shared import Shared
from tsunagi.standby.stages.base import ReplicaStage
from tsunagi.worker.acks import SlotAcks
from tsunagi.worker.cpu_wait import CpuWait
from tsunagi.worker.gauges import Gauges
from tsunagi.worker.hearing import Hearing
from tsunagi.worker.lifelines import Lifelines
from tsunagi.worker.overload import Overload
from tsunagi.worker.pace import Pace
from tsunagi.worker.past import OnePast
from tsunagi.worker.plan_book import PlanBook
from tsunagi.worker.shelf import Renewal, Shelf
from tsunagi.worker.slot_reader import IDLE_READS, MAX_RECORDS, READ_S, SlotReader
from tsunagi.worker.writer import PARTITION_OF_ONE, Writer

WARM_S = 1.4
"""Seconds in which a starting worker fetches from each topic that a takeover reads. A client's first fetch of a topic
takes a second, later ones milliseconds."""
IDLE_S = 0.02
"""Longest wait for records in a turn of the loop, seconds, while no replica has anything to do."""
GATHER_S = 0.002
"""How long a turn of the loop waits for more records once there is one, seconds. Every output is later by so much, and
single records that come in a stream take fewer turns."""
BUSY_S = 0.001
"""Longest wait for records in a turn of the loop, seconds, while a promotion or a speculation is under way."""
ANNOUNCE_S = 0.2
"""Longest wait until the broker has an announcement, seconds. After that it is made again."""


class ReplicaHost:
    """One worker process: its loop, its readers and its replicas.

    Args:
        log: the Kafka cluster, or a log in memory.
        limit: the rate that it keeps to, tuples/s, like a smaller machine; None = as fast as it can.
        threads: whether threads read models, and waits for a core are counted. In virtual time neither may be, since
            both take real time.
        lifelines: tell which owners' processes may be dead; None = heartbeats alone do.
    """

    def __init__(
        self,
        settings: Settings,
        node: str,
        table: SensorTable,
        log: Log,
        clock: Clock,
        logger: BoundLogger,
        *,
        limit: float | None = None,
        threads: bool = True,
        lifelines: Lifelines | None = None,
    ) -> None:
        self.settings = settings
        self.node = node
        self.replicas: dict[int, Replica] = {}
        self.incarnation = clock.now_us() * 1000
        self._clock = clock
        self._cpu_wait = CpuWait() if threads else CpuWait(lambda: 0.0)
        self._pace = None if limit is None else Pace(limit)
        self._logger = logger
        self._gauges = Gauges()
        self._wire = Wire()
        self._renewal = Renewal(settings.recovery.store)
        self._table_serial = 0  # of the sensors table by which the slots of this worker go
        self._shelf = Shelf(partial(load_from_store, settings.recovery.store), at_once=not threads)
        self._plan = PlanBook(
            settings, node, table, logger, auth=fingerprint(settings), model_sha256=self._publish_model()
        )
        self._writer = Writer(log, node, settings.standby.context_bytes, self.incarnation, self._plan.words, logger)
        self._main = log.reader()
        interval_s = settings.standby.heartbeat_s
        self._hearing = Hearing(log, node, self.incarnation, interval_s)
        self._reader = SlotReader(log, logger)
        self._overload = Overload(self._main, self._reader, logger)
        self._past = OnePast(log)
        self._lifelines = lifelines
        self._topic_id = log.topic_id(TUPLES)
        self._cells = read_cells(log)
        self._acks = SlotAcks(
            log, several=self._cells.count > 1, main=self._main, past=self._reader, take_in=self._dispatch
        )
        routes = CellRoutes(self._cells, interval_s)
        self.heartbeats = Heartbeats(
            log, node, "worker", interval_s, self._fill, incarnation=self.incarnation, routes=routes
        )
        self._open()

    # ---- start and end -----------------------------------------------------------------------------------------

    def _open(self) -> None:
        begun = [*self._acks.first(), Position(PLAN, PARTITION_OF_ONE, self._reader.range(PLAN, PARTITION_OF_ONE)[0])]
        self._hearing.open(self._cells, self._reader.range)
        self._main.assign(begun)
        self._catch_up_on(*(position.topic for position in begun))
        self._warm_up()

    def _warm_up(self) -> None:
        """Make both readers fetch once from each topic that a takeover reads (`WARM_S` says why)."""
        pulled = []
        for topic in (TUPLES, CONTEXTS, RECOVERED):
            first, end = self._reader.range(topic, 0)
            pulled.append(Position(topic, 0, max(first, end - 1)))
        self._reader.follow(pulled)
        self._main.add(pulled[0])
        for _ in range(IDLE_READS):
            self._reader.fetch(WARM_S / IDLE_READS / 2)
            for record in self._main.read(MAX_RECORDS, WARM_S / IDLE_READS / 2):
                if record.topic != TUPLES:
                    self._dispatch(record)
        self._main.remove(TUPLES, 0)
        self._reader.follow([])

    def _catch_up_on(self, *topics: str) -> None:
        """Read all that these topics hold now, so that each replica starts with the newest acknowledgements."""
        ends = {topic: self._reader.range(topic, PARTITION_OF_ONE)[1] for topic in topics}
        seen = {topic: self._reader.range(topic, PARTITION_OF_ONE)[0] for topic in topics}
        idle = 0
        while any(seen[topic] < ends[topic] for topic in topics) and idle < IDLE_READS:
            records = self._main.read(MAX_RECORDS, READ_S / IDLE_READS)
            idle = 0 if records else idle + 1  # compaction may have removed the last records, so the end may never come
            for record in records:
                self._dispatch(record)
                if record.topic in seen:
                    seen[record.topic] = record.offset + 1

    def start(self) -> None:
        """Begin to send heartbeats."""
        self.heartbeats.start()

    def close(self, *, died: bool = False) -> None:
        """Stop.

        Args:
            died: an exception ends the process, and a record may be to blame. Then no heartbeat says that the node
                leaves: the last one, which names the record, is evidence for a quarantine.
        """
        self.heartbeats.leaving = not died
        with contextlib.suppress(LogError):
            self.heartbeats.close(last_word=not died)
        for client in (self._writer, self._main, self._hearing, self._reader, self._past):
            client.close()

    def ready(self) -> tuple[bool, str]:
        """Return for /readyz whether all slots are ready, and why not."""
        reasons = [f"slot {slot}: {replica.unready()}" for slot, replica in self.replicas.items() if replica.unready()]
        if self._plan.placement is None:
            reasons.append("no placement in `plan` yet")
        return not reasons, "; ".join(reasons)

    # ---- the loop ----------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Do one turn: read what came, let each replica act, and carry out its actions.

        Raises:
            LogError: an output could not be written, so the process must end.
            OffsetLostError: the log has lost records that this node follows.
        """
        wait_s = IDLE_S if all(replica.waits for replica in self.replicas.values()) else BUSY_S
        overload = self._overload
        if overload.begin(self.replicas.values()):
            wait_s = 0.0
        records = self._main.read(MAX_RECORDS, wait_s, gather_s=GATHER_S)
        tuples: dict[int, list[Record]] = {}
        self._hearing.follow(self.replicas, self._reader.range)
        self._acks.follow(self.replicas)
        for record in itertools.chain(self._hearing.read(MAX_RECORDS), records):
            if record.topic == TUPLES:
                tuples.setdefault(record.partition, []).append(record)
            else:
                self._dispatch(record)
        now = self._clock.monotonic()
        overload.on_read(len(records), now)
        if self._lifelines is not None:
            self._lifelines.watch(self.replicas.values(), self._hearing, now)
        for slot, batch in tuples.items():
            replica = self.replicas.get(slot)
            if replica is not None:
                self._carry_out(replica, replica.on_records(batch, now, self._clock.now_us()))
        for replica in overload.order(self.replicas.values()):
            self._turn(replica)
            overload.hold(replica, now)
        self._release()
        if self._gauges.due(now):
            traffic = self._reader.traffic()
            self._gauges.refresh(self.replicas.values(), traffic, now)
            metrics.OVERLOADED_S.set(overload.seconds)
            self._measure_wire(traffic)
        self._renewal.step((replica.slot for replica in self.replicas.values()), now)
        self._writer.poll()
        if self._writer.fatal is not None:
            raise self._writer.fatal

    def _measure_wire(self, traffic: Sequence[Traffic]) -> None:
        """Measure how many bytes came over the network for each byte that standbys read (`Wire`)."""
        received = sum(item.received_bytes for item in traffic)
        factor = self._wire.update(received, sum(replica.intake.take_pulled() for replica in self.replicas.values()))
        for replica in self.replicas.values():
            replica.intake.wire = factor

    def _turn(self, replica: Replica) -> None:
        """Let a replica act, and measure how long its records take."""
        began, before = self._clock.monotonic(), replica.processor.processed
        stands_by = replica.stage is not ReplicaStage.OWN
        todo = replica.step(began, self._clock.now_us(), spare=self._overload.has_time(replica, began))
        done = replica.processor.processed - before
        if done:
            least_s = 0.0
            if self._pace is not None:
                tuples = done * replica.intake.tuples_per_record
                self._clock.sleep(self._pace.rest_s(tuples, began, self._clock.monotonic()))
                least_s = self._pace.cost_s(tuples)
            ended = self._clock.monotonic()
            replica.on_worked(max(least_s, ended - began), done, ended)
            if stands_by:
                self._overload.on_stood_by(began, ended)
        self._carry_out(replica, todo)

    def _dispatch(self, record: Record) -> None:
        """Take in a record of `heartbeats`, `acks` or `plan`; one that cannot be read is counted and skipped."""
        now = self._clock.monotonic()
        if record.topic == HEARTBEATS:
            if (beat := read_message(Heartbeat, record, self._logger)) is None:
                return
            self.heartbeats.heard(beat)
            if not self._hearing.on_heartbeat(beat, record.partition, now):
                return
            if beat.role == "edge" and beat.leaving:
                for replica in self.replicas.values():
                    replica.on_leaving(beat.node, beat.incarnation, beat.step)
        elif record.topic == ACKS:
            if (ack := read_message(Ack, record, self._logger)) is not None:
                self._on_ack(ack, now)
        elif record.topic == PLAN and (plan := read_message(Plan, record, self._logger)) is not None:
            self._on_plan(plan, record.offset)

    def _on_ack(self, ack: Ack, now: float) -> None:
        slot = self._acks.news(ack)
        if slot is not None and slot in self.replicas:
            self.replicas[slot].on_ack(ack, now)

    def _on_plan(self, plan: Plan, offset: int) -> None:
        if not self._plan.on_plan(plan, offset):
            return
        if plan.WhichOneof("body") == "target":
            replica = self.replicas.get(plan.target.slot)
            if replica is not None:
                replica.batching.set_target(self._plan.target(plan.target.slot))
            return
        # In a large fleet most assignments are others'; in a small one each record lets all wishes be made anew.
        one = self._cells.count > 1 and plan.WhichOneof("body") == "assignment"
        only = plan.assignment.slot if one else None
        for assignment, wish in self._plan.wishes(only):
            if assignment.slot in self.replicas:
                self._wish(self.replicas[assignment.slot], wish)
            else:
                self._take_up(assignment, wish)
        for slot, replica in self.replicas.items():
            given = self._plan.given_away(slot) if only in (None, slot) else None
            if given is not None:  # until it is released, it must not claim a slot that it should not own
                self._wish(replica, replace(replica.wish, owner=given.owner, move=given.reason == MOVE))

    def _wish(self, replica: Replica, wish: Wish) -> None:
        replica.on_wish(wish, self._coming(wish))

    def _coming(self, wish: Wish) -> threading.Event | None:
        """Begin to make the model of a wish ready; return what is set then, None = it is ready, or there is none."""
        return self._shelf.prepare(wish.model_sha256, wish.config.model_names) if wish.model_sha256 else None

    def _take_up(self, assignment: Assignment, wish: Wish) -> None:
        slot, now = assignment.slot, self._clock.monotonic()
        shared = Shared(
            slot,
            self.node,
            wish,
            self.settings,
            self._hearing.detector(slot),
            partial(self._model_for, slot),
            lambda: secrets.randbits(63),
            now,
            partial(make_deciders, self.settings, past=self._past),
            topic_id=self._topic_id,
            preparing=self._coming(wish),
            record_s=0.0 if self._pace is None else self._pace.cost_s(wish.tuples_per_batch),
        )
        replica = Replica(shared, now)
        self._acks.learn(slot)
        for ack in self._acks.of_slot(slot):
            replica.on_ack(ack, now)
        replica.batching.set_target(self._plan.target(slot))
        self.replicas[slot] = replica
        self._logger.info("slot taken up", slot=slot, owner=assignment.owner, secondary=assignment.secondary)

    def _release(self) -> None:
        """Release slots that the plan gives to other nodes, once another node watches their owner."""
        for slot, replica in list(self.replicas.items()):
            assignment = self._plan.given_away(slot)
            if assignment is None or replica.stage is not ReplicaStage.WATCH:
                continue
            if self._followed(assignment, replica):
                self._logger.info("slot released", slot=slot, owner=assignment.owner, secondary=assignment.secondary)
                del self.replicas[slot]

    def _followed(self, assignment: Assignment, replica: Replica) -> bool:
        """Return whether the planned secondary is ready or, if none is planned, the planned owner owns the slot."""
        slot, detector = replica.slot_id, self._hearing.detector(replica.slot_id)
        if assignment.secondary:
            return detector.stands_by(assignment.secondary, slot)
        return replica.owner == assignment.owner and bool(detector.owner_beat(assignment.owner, slot))

    # ---- actions -----------------------------------------------------------------------------------------------

    def _carry_out(self, replica: Replica, todo: list[act.Action]) -> None:
        pending = list(todo)
        while pending:
            action = pending.pop(0)
            try:
                replica.on_request(self._clock.monotonic())
                pending += self._do(replica, action)
            except OffsetLostError as error:
                replica.on_failed(self._clock.monotonic(), str(error))
            except LogError as error:
                self._logger.debug(
                    "log did not answer", slot=replica.slot_id, action=type(action).__name__, detail=str(error)
                )
                replica.on_failed(self._clock.monotonic())

    def _do(self, replica: Replica, action: act.Action) -> list[act.Action]:  # noqa: C901 - one case an action
        slot = replica.slot_id
        match action:
            case act.AskEnd():
                first, end = self._reader.range(TUPLES, slot)
                return replica.on_end(first, end, self._clock.monotonic())
            case act.Fetch(offset, upto):
                return replica.on_fetched(self._reader.inputs(slot, offset, upto), self._clock.monotonic())
            case act.CheckRecords(begin, upto):
                first, end = self._reader.range(TUPLES, slot)
                begin, upto = max(first, begin), min(end, upto)
                found = self._reader.inputs(slot, begin, upto) if begin < upto else []
                return replica.on_checked(first, end, found, self._clock.monotonic())
            case act.ReadContext(offset, upto):
                reader = self._reader
                context = reader.context(slot, offset) if upto is None else reader.find_context(slot, offset, upto)
                first, _ = self._reader.range(TUPLES, slot)
                return replica.on_context(context, first, self._clock.monotonic())
            case act.ReadTail(wanted, before, below, acknowledged, end):
                lost = acknowledged is not None and not self._reader.stands(slot, acknowledged, end - 1)
                if lost:
                    before, below = end, acknowledged
                generation, name, appended_us = self._reader.tail(slot, wanted, before, below)
                return replica.on_tail(generation, name, self._clock.monotonic(), appended_us, lost=lost)
            case act.Follow(offset):
                self._overload.follow(slot, offset)
            case act.Unfollow():
                self._overload.unfollow(slot)
            case act.Append(record):
                self._writer.append(slot, record)
            case act.StoreModel(model):
                self._store_refit(replica, model)
            case act.Request(helpers):
                self._writer.request(slot, helpers)
            case act.Emit(outputs, generation):
                self._writer.emit(replica, outputs, generation)
            case act.SaveContext(value, term):
                self._writer.save_context(replica, value, term)
            case act.NoContext(detail):
                metrics.CONTEXTS_FAILED.labels(slot=str(slot)).inc()
                self._logger.error("no context can be written; outputs go on", slot=slot, detail=detail)
            case act.SendAck(ack):
                self._writer.send_ack(slot, ack, self._acks.cells.of(slot))
            case act.Announce():
                if not self._announce():
                    replica.on_unannounced()
            case act.TakeoverComplete():
                self._report(slot, action)
            case act.Note(event, detail, grave):
                (self._logger.error if grave else self._logger.info)(event, slot=slot, detail=detail)
            case act.EndProcess(detail):
                self._writer.end(f"slot {slot}: {detail}")
        return []

    def _announce(self) -> bool:
        """Send a heartbeat that names the next records, and wait for it; return whether the broker has it."""
        return self.heartbeats.send(wait_s=ANNOUNCE_S)

    # ---- what it says of itself --------------------------------------------------------------------------------

    def _fill(self, beat: Heartbeat) -> None:
        now = self._clock.monotonic()
        replicas = list(self.replicas.values())
        beat.slots.extend(replica.beat(now) for replica in replicas)
        beat.overloaded_ms = round(self._overload.seconds * 1000)
        if not any(replica.differs for replica in replicas):
            self._table_serial = self._plan.table_serial
        beat.table = self._table_serial
        working = [part for part in beat.slots if part.busy_limit_us]
        self._cpu_wait.take_off(working, now)
        if not working:
            return
        # One loop serves all slots. While it is on one, heartbeats must say that it is busy for the others as well.
        longest = max(working, key=attrgetter("busy_us"))
        for part in beat.slots:
            if not part.busy_limit_us and part.busy_offset < 0:
                part.busy_us, part.busy_limit_us = longest.busy_us, longest.busy_limit_us

    def _report(self, slot: int, takeover: act.TakeoverComplete) -> None:
        catch_up_s = self._clock.monotonic() - takeover.owned_at
        self._gauges.takeover(slot, takeover.detect_s, takeover.promote_s, catch_up_s)
        pause_s = self._clock.monotonic() - takeover.claimed_at
        if takeover.reason == MOVE:
            metrics.HANDOVER_PAUSE_S.labels(slot=str(slot)).observe(pause_s)
        self._logger.info(
            "takeover",
            slot=slot,
            epoch=takeover.epoch,
            reason=takeover.reason,
            old_owner=takeover.old_owner,
            detect_s=round(takeover.detect_s, 4),
            promote_s=round(takeover.promote_s, 4),
            catch_up_s=round(catch_up_s, 4),
            pause_s=round(pause_s, 4) if takeover.reason == MOVE else None,
            estimated_s=round(takeover.estimated_s, 4) if math.isfinite(takeover.estimated_s) else None,
            records=takeover.records,
        )

    def _publish_model(self) -> str:
        path = self.settings.recovery.model
        if not path:
            return ""
        sha256, model = publish(Path(path), self.settings.recovery.store)
        self._shelf.put(sha256, model)
        return sha256

    def _store_refit(self, replica: Replica, model: Model) -> None:
        settings = self.settings
        try:
            sha256 = publish_refit(model, settings.recovery.store, 2 * settings.kafka.retention_s)
        except OSError as error:
            self._logger.warning("a refit could not be stored", slot=replica.slot_id, detail=str(error))
            return
        metrics.REFITS.labels(slot=str(replica.slot_id)).inc()
        replica.on_stored(sha256)

    def _model_for(self, slot: int, sha256: str) -> Model:
        """Return a model with its part for the slot's sensors ready; see `Shelf.get`."""
        return self._shelf.get(sha256, self.replicas[slot].wish.config.model_names)
