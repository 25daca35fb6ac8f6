"""A worker: runs the replicas of its slots on the log. Gateway and secondary are two roles of this one host.

All thought is in `tsunagi.standby.replica`; here its actions are carried out, each within a bounded time.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from structlog.stdlib import BoundLogger

from tsunagi.owner.deciders import make_deciders
from tsunagi.recovery.model import Model
from tsunagi.recovery.store import load_from_store, publish, publish_refit, renew_refits
from tsunagi.runtime import columns, metrics
from tsunagi.runtime.clock import Clock
from tsunagi.runtime.door import decode
from tsunagi.runtime.heartbeat import Heartbeats
from tsunagi.runtime.keys import fingerprint
from tsunagi.runtime.log import (
    ACKS,
    CONTEXTS,
    HEARTBEATS,
    PLAN,
    RECOVERED,
    TUPLES,
    Delivered,
    Log,
    LogError,
    OffsetLostError,
    Position,
    Record,
    Traffic,
)
from tsunagi.runtime.messages import (
    VERSION,
    Ack,
    Assignment,
    Context,
    Heartbeat,
    LogRecord,
    Plan,
    Recovered,
)
from tsunagi.runtime.names import NO_NAME, Name, unpack_key
from tsunagi.runtime.plan import MOVE
from tsunagi.runtime.reading import read_message
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import Settings
from tsunagi.slot.slot import Output
from tsunagi.slot.wish import Wish
from tsunagi.standby import actions as act
from tsunagi.standby.costs import Wire
from tsunagi.standby.detector import Detector
from tsunagi.standby.parts import join, split
from tsunagi.standby.replica import Replica
from tsunagi.standby.stages.base import Stage
from tsunagi.worker.gauges import Gauges
from tsunagi.worker.pace import Pace
from tsunagi.worker.plan_book import PlanBook
from tsunagi.worker.shelf import Shelf

READ_S = 1.0
IDLE_READS = 20
"""What has not come from a topic within `READ_S`, seconds, in `IDLE_READS` reads, is taken for not there: compaction
may have taken the records at its end."""
WARM_S = 1.4
"""Time in which a worker that starts fetches once from everything that a takeover reads, seconds: a client's first
fetch of a topic takes a second, and the later ones milliseconds."""
IDLE_S = 0.02
"""Longest wait for records in a turn of the loop, seconds, where no replica has anything to do."""
BUSY_S = 0.001
"""Longest wait for records in a turn of the loop, seconds, while a replica waits for an answer or catches up."""
PULL_WAIT_S = 0.005
"""So long the broker may hold a pull that finds nothing, seconds. A standby asks for records that are there."""
FULL_S = 0.05
"""Between two tries to hand outputs to a producer whose queue is full, seconds."""
BEATS_BACK = 2000
"""Heartbeats that a worker reads back when it starts: some seconds of a fleet of a hundred nodes."""
STANDBY_SHARE = 0.1
"""Of a worker's time, while its own slots have more than it can take in. Their outputs come first: two workers, each
the other's standby, that fell behind would have twice the work until they have caught up, and so never would."""
ANNOUNCE_S = 0.2
"""An announcement that the log does not have within this time, in seconds, is made again, and waited for again."""
RENEW_S = 60.0
"""The store is told so often, in seconds, which models are in force here, so that it keeps them."""
MAX_RECORDS = 500
"""Records that are taken from a reader at once. More would keep the loop from its other slots for too long."""
TRIED_CONTEXTS = 200
"""Records of `contexts` that are looked through for one that is whole, from where it should be."""

PARTITION_OF_ONE = 0
"""The partition of a topic that has one: `acks`, `heartbeats`, `plan`."""


class Receipt:
    """Hears what becomes of outputs of one topic that were sent together: the last one's fate is all the others'."""

    __slots__ = ("_host", "_outputs", "_replica")

    def __init__(self, host: Host, replica: Replica, outputs: Sequence[Output]) -> None:
        self._host = host
        self._replica = replica
        self._outputs = outputs

    def __call__(self, error: LogError | None, offset: int) -> None:
        if error is None:
            self._replica.on_delivered(self._outputs, offset)
        else:
            self._host.fail(f"{self._outputs[-1].topic}, slot {self._replica.slot_id}", error)


class ContextReceipt:
    """Hears where the first and the last part of a context stand, and tells whether they stand in a row.

    Args:
        parts: how many there are.
        done: is told the first one's place; -1 = another record stands among them, and the context is none.
    """

    def __init__(self, parts: int, done: Callable[[int], None]) -> None:
        self._parts = parts
        self._done = done
        self._begin = -1

    def first(self, place: int) -> None:
        """Take in where the first part stands."""
        self._begin = place
        if self._parts == 1:
            self._done(place)

    def last(self, place: int) -> None:
        """Take in where the last of several parts stands."""
        self._done(self._begin if place - self._begin == self._parts - 1 else -1)


class Host:
    """One worker process.

    Args:
        log: the cluster, as this node sees it.
        limit: tuples/s that it does not exceed, as a smaller machine would; None = as fast as it can.
        threads: models are read beside the loop. In virtual time they must not be: a thread takes real time.
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
    ) -> None:
        self.settings = settings
        self.node = node
        self.table = table
        self.replicas: dict[int, Replica] = {}
        self.incarnation = clock.now_us() * 1000
        # Of control records. An epoch is one process's, so the clock need not be right; its claim begins the count.
        self._serials = itertools.count(self.incarnation)
        self._clock = clock
        self._pace = None if limit is None else Pace(limit)
        self._logger = logger
        self._fatal: LogError | None = None
        self._gauges = Gauges()
        self._wire = Wire()
        self._full = self._behind = False  # the last read brought all that it may; there was more than one brings
        self._standby_at = 0.0  # until then what only a standby does waits while it is behind
        self._renew_at = 0.0
        self._acks: dict[tuple[int, str], Ack] = {}
        self._shelf = Shelf(self._load, at_once=not threads)
        self._plan = PlanBook(
            settings, node, table, logger, auth=fingerprint(settings), model_sha256=self._publish_model()
        )
        self._outputs = log.producer()
        self._control = log.producer(durable=False)
        self._main = log.reader()
        self._pull = log.reader(wait_s=PULL_WAIT_S, measured=True)
        self._ask = log.reader(measured=True)
        self.detector = Detector(node, self.incarnation, settings.standby.heartbeat_s)
        self.heartbeats = Heartbeats(
            log, node, "worker", settings.standby.heartbeat_s, self._fill, incarnation=self.incarnation
        )
        self._topic_id = log.topic_id(TUPLES)
        self._open()

    # ---- start and end -----------------------------------------------------------------------------------------

    def _open(self) -> None:
        beats_first, beats_end = self._ask.range(HEARTBEATS, PARTITION_OF_ONE)
        acks_first, _ = self._ask.range(ACKS, PARTITION_OF_ONE)
        plan_first, _ = self._ask.range(PLAN, PARTITION_OF_ONE)
        self._main.assign(
            [
                # What dead nodes said last is evidence (which record they were on), so start a little back.
                Position(HEARTBEATS, PARTITION_OF_ONE, max(beats_first, beats_end - BEATS_BACK)),
                Position(ACKS, PARTITION_OF_ONE, acks_first),
                Position(PLAN, PARTITION_OF_ONE, plan_first),
            ]
        )
        self._catch_up_on(ACKS, PLAN)
        self._warm_up()

    def _warm_up(self) -> None:
        """Make both readers fetch from every topic that a takeover reads.

        A client answers for a topic that it has fetched from within some milliseconds, for a fresh one after a second.
        """
        pulled = []
        for topic in (TUPLES, CONTEXTS, RECOVERED):
            first, end = self._ask.range(topic, 0)
            pulled.append(Position(topic, 0, max(first, end - 1)))
        self._pull.assign(pulled)
        self._main.add(pulled[0])
        for _ in range(IDLE_READS):
            self._pull.read(MAX_RECORDS, WARM_S / IDLE_READS / 2)
            for record in self._main.read(MAX_RECORDS, WARM_S / IDLE_READS / 2):
                if record.topic != TUPLES:
                    self._dispatch(record)
        self._main.remove(TUPLES, 0)
        self._pull.assign([])

    def _catch_up_on(self, *topics: str) -> None:
        """Read what `topics` hold now, so that no replica starts without the newest acknowledgements."""
        ends = {topic: self._ask.range(topic, PARTITION_OF_ONE)[1] for topic in topics}
        seen = {topic: self._ask.range(topic, PARTITION_OF_ONE)[0] for topic in topics}
        idle = 0
        while any(seen[topic] < ends[topic] for topic in topics) and idle < IDLE_READS:
            records = self._main.read(MAX_RECORDS, READ_S / IDLE_READS)
            idle = 0 if records else idle + 1  # compaction may have taken the last offsets, so an end may never come
            for record in records:
                self._dispatch(record)
                if record.topic in seen:
                    seen[record.topic] = record.offset + 1

    def start(self) -> None:
        """Begin to send heartbeats."""
        self.heartbeats.start()

    def close(self, *, died: bool = False) -> None:
        """Stop in good order.

        Args:
            died: an exception ends the process, perhaps by the fault of a record. Then it does not say that it leaves:
                what a dead owner was on when it was last heard is the evidence by which a record is quarantined.
        """
        self.heartbeats.leaving = not died
        with contextlib.suppress(LogError):
            self.heartbeats.close(last_word=not died)
        with contextlib.suppress(LogError):
            self._outputs.flush(2.0)
        for client in (self._outputs, self._control, self._main, self._pull, self._ask):
            client.close()

    def ready(self) -> tuple[bool, str]:
        """Return (ready, why not) for /readyz."""
        reasons = [f"slot {slot}: {replica.unready()}" for slot, replica in self.replicas.items() if replica.unready()]
        if self._plan.placement is None:
            reasons.append("no placement in `plan` yet")
        return not reasons, "; ".join(reasons)

    # ---- the loop ----------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One turn: read what came, let every replica act, carry it out.

        Raises:
            LogError: an output could not be written; the process must end.
            OffsetLostError: the log lost records that this node owns or follows.
        """
        settled = all(replica.waits for replica in self.replicas.values())
        busy = any(replica.behind for replica in self.replicas.values())
        at_once = busy or self._full
        records = self._main.read(MAX_RECORDS, 0.0 if at_once else IDLE_S if settled else BUSY_S)
        # A read that may wait is full at a high rate, too; one that may not says that more than it took was there.
        self._full = len(records) == MAX_RECORDS
        self._behind = busy or (at_once and self._full)
        tuples: dict[int, list[Record]] = {}
        for record in records:
            if record.topic == TUPLES:
                tuples.setdefault(record.partition, []).append(record)
            else:
                self._dispatch(record)
        now = self._clock.monotonic()
        for slot, batch in tuples.items():
            replica = self.replicas.get(slot)
            if replica is not None:
                self._carry_out(replica, replica.on_records(batch, now, self._clock.now_us()))
        for replica in sorted(self.replicas.values(), key=lambda replica: replica.stage is not Stage.OWN):
            self._turn(replica)
        self._release()
        if self._gauges.due(now):
            traffic = [reader.traffic() for reader in (self._pull, self._ask)]
            self._gauges.refresh(self.replicas.values(), traffic, now)
            self._measure_wire(traffic)
        if now >= self._renew_at:
            self._renew_at = now + RENEW_S
            in_force = [replica.slot.model_sha256 for replica in self.replicas.values()]
            renew_refits(self.settings.recovery.store, filter(None, in_force))
        self._outputs.poll()
        self._control.poll()
        if self._fatal is not None:
            raise self._fatal

    def _measure_wire(self, traffic: Sequence[Traffic]) -> None:
        """Compare what standing by should have cost on the network with what came; all slots share the clients."""
        received = sum(item.received_bytes for item in traffic)
        factor = self._wire.update(received, sum(replica.intake.take_pulled() for replica in self.replicas.values()))
        for replica in self.replicas.values():
            replica.intake.wire = factor

    def _turn(self, replica: Replica) -> None:
        """Let a replica act, and measure what a record costs it."""
        began, before = self._clock.monotonic(), replica.processor.processed
        stands_by = replica.stage is not Stage.OWN
        spare = began >= self._standby_at or not self._behind
        todo = replica.step(began, self._clock.now_us(), spare=spare)
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
                self._standby_at = ended + (ended - began) * (1.0 / STANDBY_SHARE - 1.0)
        self._carry_out(replica, todo)

    def _dispatch(self, record: Record) -> None:
        """Take in a record of heartbeats, acks or plan; one that cannot be read is counted and passed over."""
        now = self._clock.monotonic()
        if record.topic == HEARTBEATS:
            beat = read_message(Heartbeat, record, self._logger)
            if beat is None:
                return
            self.heartbeats.heard(beat)
            if not self.detector.on_heartbeat(beat, now):
                return
            if beat.role == "edge" and beat.leaving:
                for replica in self.replicas.values():
                    replica.on_leaving(beat.node, beat.incarnation, beat.step)
        elif record.topic == ACKS:
            ack = read_message(Ack, record, self._logger)
            if ack is not None:
                self._on_ack(ack, now)
        elif record.topic == PLAN:
            plan = read_message(Plan, record, self._logger)
            if plan is not None:
                self._on_plan(plan, record.offset)

    def _on_ack(self, ack: Ack, now: float) -> None:
        kind = ack.WhichOneof("body")
        if kind is None:
            return
        body = ack.level0 if kind == "level0" else ack.level1
        if body.node == "spark":
            return
        key = (body.slot, kind)
        known = self._acks.get(key)
        if known is not None:
            old = known.level0 if kind == "level0" else known.level1
            if (old.epoch, old.offset) > (body.epoch, body.offset):
                return
        self._acks[key] = ack
        replica = self.replicas.get(body.slot)
        if replica is not None:
            replica.on_ack(ack, now)

    def _on_plan(self, plan: Plan, offset: int) -> None:
        if not self._plan.take_in(plan, offset):
            return
        if plan.WhichOneof("body") == "target":
            replica = self.replicas.get(plan.target.slot)
            if replica is not None:
                replica.batching.aim(self._plan.target(plan.target.slot))
            return
        for assignment, wish in self._plan.wishes():
            if assignment.slot in self.replicas:
                self.replicas[assignment.slot].on_wish(wish)
            else:
                self._take_up(assignment, wish)
        for slot, replica in self.replicas.items():
            given = self._plan.given_away(slot)
            if given is not None:  # until it is let go of, it must not claim what it was once wished to own
                replica.on_wish(replace(replica.wish, owner=given.owner, move=given.reason == MOVE))

    def _take_up(self, assignment: Assignment, wish: Wish) -> None:
        slot, now = assignment.slot, self._clock.monotonic()
        replica = Replica(
            slot,
            self.node,
            wish,
            self.settings,
            self.detector,
            partial(self._model_for, slot),
            lambda: secrets.randbits(63),
            now,
            partial(make_deciders, self.settings),
            topic_id=self._topic_id,
            preparing=self._shelf.prepare(wish.model_sha256, wish.config.names) if wish.model_sha256 else None,
            record_s=0.0 if self._pace is None else self._pace.cost_s(wish.tuples_per_batch),
        )
        for (of_slot, _), ack in self._acks.items():
            if of_slot == slot:
                replica.on_ack(ack, now)
        replica.batching.aim(self._plan.target(slot))
        self.replicas[slot] = replica
        self._logger.info("slot taken up", slot=slot, owner=assignment.owner, secondary=assignment.secondary)

    def _release(self) -> None:
        """Let go of slots for which the plan has others, once their secondary is ready: nobody is left unwatched."""
        for slot, replica in list(self.replicas.items()):
            assignment = self._plan.given_away(slot)
            if assignment is None or replica.stage is not Stage.WATCH:
                continue
            if self._followed(assignment, replica):
                self._logger.info("slot released", slot=slot, owner=assignment.owner, secondary=assignment.secondary)
                del self.replicas[slot]

    def _followed(self, assignment: Assignment, replica: Replica) -> bool:
        """Return whether the slot is as safe without this node; where the plan has no secondary, once it is owned."""
        if assignment.secondary:
            return self.detector.stands_by(assignment.secondary, replica.slot_id)
        return replica.owner == assignment.owner and bool(self.detector.owner_beat(assignment.owner, replica.slot_id))

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
                first, end = self._ask.range(TUPLES, slot)
                return replica.on_end(first, end, self._clock.monotonic())
            case act.Fetch(offset, upto):
                records = self._read_range(Position(TUPLES, slot, offset), upto, beyond=True)
                if not records:
                    raise LogError(f"{TUPLES}/{slot}: nothing came of {offset}..{upto}")
                return replica.on_fetched(records, self._clock.monotonic())
            case act.Check(offset):
                first, end = self._ask.range(TUPLES, slot)
                found = self._read_range(Position(TUPLES, slot, offset - 1), offset) if first < offset <= end else []
                if first < offset <= end and not found:
                    raise LogError(f"{TUPLES}/{slot}: nothing came of {offset - 1}")
                return replica.on_checked(first, end, found[0] if found else None, self._clock.monotonic())
            case act.ReadContext(offset, upto):
                context = self._read_context(slot, offset) if upto is None else self._find_context(slot, offset, upto)
                first, _ = self._ask.range(TUPLES, slot)
                return replica.on_context(context, first, self._clock.monotonic())
            case act.ReadTail(before, below, acknowledged, end):
                lost = acknowledged is not None and not self._stands(slot, acknowledged, end - 1)
                if lost:
                    before, below = end, acknowledged
                generation, name, appended_us = self._read_tail(slot, before, below)
                return replica.on_tail(generation, name, self._clock.monotonic(), appended_us, lost=lost)
            case act.Follow(offset):
                self._main.add(Position(TUPLES, slot, offset))
            case act.Unfollow():
                self._main.remove(TUPLES, slot)
            case act.Append(record):
                record.serial = next(self._serials)
                with contextlib.suppress(BufferError):  # it may get lost: the replica asks again
                    self._control.send(TUPLES, slot, b"!" + self.node.encode(), record.SerializeToString())
                    self._control.poll()
                kind = record.WhichOneof("body")
                say = self._logger.debug if kind == "punctuation" else self._logger.info
                say("control record", slot=slot, kind=kind, body=_text(record))
            case act.StoreModel(model):
                self._store_refit(replica, model)
            case act.Request(helpers):
                with contextlib.suppress(BufferError):
                    place = f"helpers/{slot}"
                    plan = Plan(version=VERSION, helpers=helpers, serial=self._plan.words.next(place))
                    self._control.send(PLAN, PARTITION_OF_ONE, place.encode(), plan.SerializeToString())
                    self._control.poll()
                self._logger.info("helpers asked for", slot=slot, sensors=columns.sensors(helpers.sensor).tolist())
            case act.Emit(outputs, generation):
                for topic, run in groupby(outputs, attrgetter("topic")):
                    self._emit(replica, topic, tuple(run), generation)
            case act.SaveContext(value, term):
                metrics.CONTEXT_BYTES.labels(slot=str(slot)).set(len(value))
                metrics.CONTEXTS_WRITTEN.labels(slot=str(slot)).inc()
                pairs = [(str(slot).encode(), part) for part in split(value, self.settings.standby.context_bytes)]
                saved = ContextReceipt(len(pairs), partial(replica.on_context_saved, term=term))
                self._write(CONTEXTS, slot, pairs[:1], partial(self._reported, CONTEXTS, saved.first))
                self._write(CONTEXTS, slot, pairs[1:], partial(self._reported, CONTEXTS, saved.last))
            case act.NoContext(detail):
                metrics.CONTEXTS_FAILED.labels(slot=str(slot)).inc()
                self._logger.error("no context can be written; outputs go on", slot=slot, detail=detail)
            case act.SendAck(ack):
                level = "level0" if ack.WhichOneof("body") == "level0" else "level1"
                key = f"{slot}/{level}/{self.node}".encode()
                report = partial(self._reported, ACKS, None)
                self._write(ACKS, PARTITION_OF_ONE, [(key, ack.SerializeToString())], report)
            case act.Announce():
                if not self._announce():
                    replica.on_unannounced()
            case act.Takeover():
                self._report(slot, action)
            case act.Note(event, detail, grave):
                (self._logger.error if grave else self._logger.info)(event, slot=slot, detail=detail)
            case act.End(detail):
                self._fatal = self._fatal or LogError(f"slot {slot}: {detail}")
        return []

    def _announce(self) -> bool:
        """Say what comes next, and wait until the log has it; return whether it has."""
        return self.heartbeats.send(wait_s=ANNOUNCE_S)

    def _read_range(self, position: Position, upto: int, *, beyond: bool = False) -> list[Record]:
        """Read [position.offset, upto); assigned for that time only, or the client would go on prefetching.

        Args:
            beyond: take as well what came with it, which would have to be fetched again.
        """
        records: list[Record] = []
        idle = 0
        self._pull.assign([position])
        try:
            following = position.offset
            while idle < IDLE_READS and following < upto:
                # No more than is left is asked for: a client waits for all that it is asked for.
                got = self._pull.read(min(MAX_RECORDS, upto - following), READ_S / IDLE_READS)
                idle = 0 if got else idle + 1
                records += got
                following = got[-1].offset + 1 if got else following
            if beyond and following >= upto:
                records += self._pull.read(MAX_RECORDS, 0.0)
        finally:
            self._pull.assign([])
        return records if beyond else [record for record in records if record.offset < upto]

    def _find_context(self, slot: int, place: int | None, upto: int) -> Context | None:
        """Return the newest context at this place (None = the end) or before it whose position is not beyond `upto`.

        Positions ascend as good as always, so it is found by halving.
        """
        first, end = self._ask.range(CONTEXTS, slot)
        low, high = first, end if place is None else min(end, place + 1)
        while low < high:
            middle = (low + high) // 2
            found = self._read_part(slot, middle)
            if found is not None and found.offset <= upto:
                low = middle + 1
            else:
                high = middle
        for at in range(low - 1, max(first, low - 1 - TRIED_CONTEXTS) - 1, -1):
            found = self._read_context(slot, at)
            if found is not None and found.offset <= upto:
                return found
        return None

    def _read_context(self, slot: int, offset: int | None) -> Context | None:
        """Return the whole context that begins at this place of `contexts`; None = none does."""
        found = None if offset is None else self._read_part(slot, offset)
        if offset is None or found is None or found.parts == 0:
            return found
        parts = []
        for number in range(found.parts):  # as many as it says: perhaps more than there are records in the world
            part = found if number == 0 else self._read_part(slot, offset + number)
            if part is None or (part.part, part.parts, part.offset) != (number, found.parts, found.offset):
                break
            parts.append(part)
        return join(parts)

    def _read_part(self, slot: int, offset: int) -> Context | None:
        first, end = self._ask.range(CONTEXTS, slot)
        if not first <= offset < end:
            return None
        records = self._read_range(Position(CONTEXTS, slot, offset), offset + 1)
        if not records:
            raise LogError(f"{CONTEXTS}/{slot}: nothing came of {offset}")
        return read_message(Context, records[0], self._logger)

    def _stands(self, slot: int, name: Name, place: int) -> bool:
        """Return whether an output stands at this place of `recovered`; what retention has taken did."""
        first, end = self._ask.range(RECOVERED, slot)
        if not first <= place < end:
            return place < first
        records = self._read_range(Position(RECOVERED, slot, place), place + 1)
        if not records:
            raise LogError(f"{RECOVERED}/{slot}: nothing came of {place}")
        found = _named(records[0])
        return found is not None and found[1] == name

    def _read_tail(self, slot: int, before: int | None = None, below: Name | None = None) -> tuple[int, Name, int]:
        """Return generation and name of the last output in `recovered`, and when its input was appended.

        What is no output of this slot, but a stranger's, names nothing.

        Args:
            before: look before this offset; None = from the end.
            below: look for an output that comes before this one in the order of names; None = for any.
        """
        first, end = self._ask.range(RECOVERED, slot)
        end = end if before is None else min(end, before)
        count = 1
        while end > first:
            begin = max(first, end - count)
            records = self._read_range(Position(RECOVERED, slot, begin), end)
            if not records:
                raise LogError(f"{RECOVERED}/{slot}: nothing came of {begin}..{end}")
            for record in reversed(records):
                found = _named(record)
                if found is not None and (below is None or found[1] < below):
                    return found
            end, count = begin, MAX_RECORDS
        return 0, NO_NAME, 0

    def _emit(self, replica: Replica, topic: str, outputs: Sequence[Output], generation: int) -> None:
        """Write outputs of one topic; where they cannot be written the process ends, or they would be missing."""
        slot = replica.slot_id
        partition = slot if topic == RECOVERED else PARTITION_OF_ONE
        pairs = [output.encode(slot, generation) for output in outputs]
        try:
            self._write(topic, partition, pairs, Receipt(self, replica, outputs))
        except LogError as error:
            self.fail(f"{topic}, slot {slot}", error)

    def _write(self, topic: str, partition: int, pairs: Sequence[tuple[bytes, bytes]], report: Delivered) -> None:
        """Write (key, value) gap-free: a full queue is waited for, a failed delivery ends the process."""
        while pairs and self._fatal is None:
            pairs = pairs[self._outputs.send_run(topic, partition, pairs, report) :]
            if pairs:
                self._outputs.poll(FULL_S)

    def _reported(self, topic: str, done: Callable[[int], None] | None, error: LogError | None, offset: int) -> None:
        if error is not None:
            self.fail(topic, error)
        elif done is not None:
            done(offset)

    def fail(self, what: str, error: LogError) -> None:
        """End the process: something could not be written."""
        self._fatal = self._fatal or LogError(f"{what}: {error}")

    # ---- what it says of itself --------------------------------------------------------------------------------

    def _fill(self, beat: Heartbeat) -> None:
        now = self._clock.monotonic()
        beat.slots.extend(replica.beat(now) for replica in list(self.replicas.values()))
        working = [part for part in beat.slots if part.busy_limit_us]
        if not working:
            return
        # One loop serves all slots: while it is on one, nobody must wonder why it reads nothing of the others.
        longest = max(working, key=attrgetter("busy_us"))
        for part in beat.slots:
            if not part.busy_limit_us and part.busy_offset < 0:
                part.busy_us, part.busy_limit_us = longest.busy_us, longest.busy_limit_us

    def _report(self, slot: int, takeover: act.Takeover) -> None:
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
        """Return a model with the slot's part of it ready; see `Shelf.get`."""
        return self._shelf.get(sha256, self.replicas[slot].wish.config.names)

    def _load(self, sha256: str) -> Model:
        return load_from_store(self.settings.recovery.store, sha256)


def _text(record: LogRecord) -> str:
    text = str(record).replace("\n", " ")
    return text if len(text) < 200 else text[:200] + "..."


def _named(record: Record) -> tuple[int, Name, int] | None:
    """Return (generation, name, when its input was appended) of an output; None = it is none."""
    try:
        generation, slot, name = unpack_key(record.key)
        message = decode(Recovered, record.value)
    except ValueError:
        return None
    named = (message.generation, message.slot, message.offset, message.index)
    return (generation, name, message.appended_us) if named == (generation, slot, *name) else None
