"""One slot on one node: standby, promotion, primary (A-SAS, algorithms 1 and 2) without I/O.

A replica is a plain object. Records, acknowledgements and a clock go in. Actions come out of `step`, and their answers
go in by the `on_...` methods. The worker's host runs it on Kafka, the simulator on a log in memory in virtual time.

Stages (tsunagi.standby.stages)
    START    build the state once, from the newest context (the slot's whole state at one offset of its log)
    WATCH    standby: read the log when it holds B tuples, process without writing what the owner has survived
    SURVEY   the owner is suspected, or the plan wishes a takeover: read the log to its end without processing it
    CLAIM    the claim is appended: read until it, or another node's claim, comes back
    TAIL     owner by the log: ask for the name of the last output in `recovered`
    BURY     owner by the log, two owners died on one record: append its Quarantine and read until that comes back
    OWN      primary

Only what is read back from the slot's log changes who owns it. A node that reads another's claim is a standby again.
Each ownership has a number, its *epoch*. Each log has a number, its *generation*: a new one begins when the log has
lost records. A *Level-0-Ack* says up to which input the outputs are in `recovered`, a *Level-1-Ack* from which context
(resume point) on the log is still needed.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import NamedTuple

from tsunagi.runtime.cells import SUMMARY_S, cells_for
from tsunagi.runtime.log import RECOVERED, Record
from tsunagi.runtime.messages import Ack, Context, QueryBeat, SlotBeat
from tsunagi.runtime.names import Name
from tsunagi.slot.outputs import Output
from tsunagi.slot.ownership import Register
from tsunagi.slot.plain_outputs import PlainOutputs
from tsunagi.slot.slot import Slot
from tsunagi.slot.wish import Wish
from tsunagi.standby import actions as act
from tsunagi.standby.batching import Batching
from tsunagi.standby.intake import Intake
from tsunagi.standby.primary import Primary
from tsunagi.standby.processor import Processor
from tsunagi.standby.promotion import Promotion
from tsunagi.standby.queue import PendingQueue, SilentQueue
from tsunagi.standby.shared import Shared
from tsunagi.standby.speculation import Speculated
from tsunagi.standby.stages.base import ReplicaStage, StageHandler, StageTurn
from tsunagi.standby.stages.own import OwnStage
from tsunagi.standby.stages.promote import BuryStage, ClaimStage, SurveyStage, TailStage
from tsunagi.standby.stages.rebuild import RebuildStage
from tsunagi.standby.stages.watch import WatchStage
from tsunagi.standby.trust import Trust

_ROLE = {ReplicaStage.START: "rebuilding", ReplicaStage.WATCH: "standby", ReplicaStage.OWN: "primary"}
"""The role that heartbeats name for a stage. In all other stages it is `promoting`."""

_PROMOTING = {
    ReplicaStage.SURVEY: SurveyStage,
    ReplicaStage.CLAIM: ClaimStage,
    ReplicaStage.TAIL: TailStage,
    ReplicaStage.BURY: BuryStage,
}
"""The stages of a promotion before this node owns the slot."""

PUBLISH_S = 0.01
"""The loop publishes what heartbeats may say so often, in seconds, and at once where a heartbeat follows or another
stage begins: at a high rate the loop has a thousand turns a second, and there are ten heartbeats."""

WAY_INTERVALS = 2.0
"""A heartbeat tells the longest delay of a record on its way to the owner in this many heartbeat intervals.

More than one interval, so that no record falls between two heartbeats. The scaler hears it, in large fleets in the
summary.
"""


class Published(NamedTuple):
    """What heartbeats say of a replica. The loop replaces it after each event, and the heartbeats' thread reads it."""

    role: str
    epoch: int
    position: int
    reason: str
    step: int
    record_us: float
    batch_size: int
    lag: int
    tuples_per_record: float
    send_us: float
    wait_us: int
    taking_up: bool
    declared: str
    queries: tuple[QueryBeat, ...]
    move_us: int


class Replica:
    """The state of one slot on one node. All times are monotonic seconds of the caller's clock.

    Args:
        shared: what all stages share; nobody else changes it from now on.
        now: the time.
    """

    def __init__(self, shared: Shared, now: float) -> None:
        self.slot_id = shared.slot_id
        self.node = shared.node
        self._shared = shared
        self._handler: StageHandler = RebuildStage(self._shared)
        self._published = self._publish(now)
        self._publish_at = now + PUBLISH_S

    # ---- what it says of itself --------------------------------------------------------------------------------

    @property
    def stage(self) -> ReplicaStage:
        """The stage that the replica is in."""
        return self._handler.kind

    @property
    def role(self) -> str:
        """The role that heartbeats name: primary, standby, promoting or rebuilding."""
        return _ROLE.get(self.stage, "promoting")

    @property
    def waits(self) -> bool:
        """Whether the loop may wait: nothing is under way that waits for the loop, or the model is still being read."""
        return self.processor.awaited is not None or not self._handler.urgent

    @property
    def behind(self) -> bool:
        """Whether this node owns the slot and has read records that it could process at once."""
        return self.stage is ReplicaStage.OWN and bool(self.intake.backlog) and self.processor.awaited is None

    @property
    def outdated(self) -> bool:
        """Whether others have named a newer owner, whose claim this node has not read yet."""
        return self._shared.succession.outdated

    @property
    def differs(self) -> bool:
        """Whether this node owns the slot and the slot's log has not had the settings yet that the node wishes."""
        return self.stage is ReplicaStage.OWN and self._shared.differs

    @property
    def primary(self) -> Primary | None:
        """The part that writes as the owner; None = this node does not own the slot."""
        return self._handler.primary if isinstance(self._handler, OwnStage) else None

    @property
    def wish(self) -> Wish:
        """What the plan wishes for the slot."""
        return self._shared.wish

    @property
    def slot(self) -> Slot:
        """The slot's state."""
        return self._shared.slot

    @property
    def processor(self) -> Processor:
        """The part that processes the slot's records."""
        return self._shared.processor

    @property
    def intake(self) -> Intake:
        """The part that keeps what was read of the slot's log."""
        return self._shared.intake

    @property
    def silent(self) -> SilentQueue:
        """Outputs that were computed and not written."""
        return self._shared.silent

    @property
    def pending(self) -> PendingQueue:
        """Outputs that were written and that the broker has not acknowledged yet."""
        return self._shared.pending

    @property
    def trust(self) -> Trust:
        """Whether what this node knows belongs to the log that is there now."""
        return self._shared.trust

    @property
    def batching(self) -> Batching:
        """Chooses B, the batch size: how many tuples the log holds before a secondary reads them."""
        return self._shared.batching

    @property
    def speculated(self) -> Speculated:
        """The counts of speculations so far."""
        return self._shared.speculated

    @property
    def scan(self) -> Register:
        """The slot's ownership, as of the last record that was read."""
        return self._shared.scan

    @property
    def epoch(self) -> int:
        """The newest epoch known."""
        return self._shared.succession.epoch

    @property
    def owner(self) -> str:
        """The owner of the newest epoch known."""
        return self._shared.succession.owner

    @property
    def lag(self) -> int:
        """How many records of the log are not processed yet, as far as the log's end is known."""
        return self._shared.lag

    def unready(self) -> str:
        """Return why the replica could not take the slot over now; "" = it owns the slot or could take it over."""
        shared = self._shared
        if shared.processor.fault.text:
            return shared.processor.fault.text
        if self.stage is ReplicaStage.START:
            return "building its state"
        if shared.processor.awaited is not None or (shared.preparing is not None and not shared.preparing.is_set()):
            return "its model is being read"
        if shared.trust.blank:
            return "neither an owner nor a context is left: a new generation is to begin"
        return "its settings differ from those in the slot's log" if shared.differs else ""

    def beat(self, now: float) -> SlotBeat:
        """Return the replica's part of a heartbeat. The heartbeats' own thread calls it, once for each heartbeat.

        It reads only what the loop has published, and what the loop works on.
        """
        said = self._published
        since, due, records = self.processor.work.snapshot(now)
        return SlotBeat(
            slot=self.slot_id,
            role=said.role,
            epoch=said.epoch,
            position=said.position,
            busy_offset=-1 if records is None else records.first,
            busy_until=-1 if records is None or records.until == records.first else records.until,
            busy_us=0 if since is None else round((now - since) * 1e6),
            busy_limit_us=0 if since is None else max(1, round((due - since) * 1e6)),
            ready=not said.reason,
            reason=said.reason,
            step=said.step,
            record_us=said.record_us,
            batch_size=said.batch_size,
            lag=said.lag,
            record_tuples=said.tuples_per_record,
            send_us=said.send_us,
            wait_us=said.wait_us,
            taking_up=said.taking_up,
            declared=said.declared,
            query=said.queries,
            move_us=said.move_us,
        )

    def _publish(self, now: float) -> Published:
        """Return what heartbeats say from now on.

        An owner names the epoch of its own term. It may know a newer epoch from an acknowledgement before it has read
        the other node's claim, and that epoch belongs to the other node.
        """
        shared, intake, slot = self._shared, self._shared.intake, self._shared.slot
        owns = self.stage is ReplicaStage.OWN
        batch = shared.batching.batch_tuples
        settings = shared.settings
        several = cells_for(settings.slots.count, settings.standby.cells) > 1
        since = now - WAY_INTERVALS * (SUMMARY_S if several else settings.standby.heartbeat_s)
        return Published(
            role=self.role,
            epoch=shared.succession.term if owns else shared.succession.epoch,
            position=slot.position,
            reason=self.unready(),
            step=slot.cursor - 1,
            record_us=shared.processor.record_s * 1e6,
            batch_size=0 if math.isinf(batch) else int(batch),
            lag=shared.lag,
            tuples_per_record=intake.tuples_per_record,
            send_us=intake.send_s * 1e6 if owns else 0.0,
            wait_us=intake.longest_way_us(since) if owns else 0,
            taking_up=isinstance(self._handler, OwnStage) and self._handler.promotion is not None,
            declared=shared.trust.contradiction or shared.scan.declared,
            queries=_queries(slot) if owns else (),
            move_us=slot.config.ready_for_us(slot.cursor) if owns and slot.config is not None else 0,
        )

    # ---- stages ------------------------------------------------------------------------------------------------

    def _go_on(self, turn: StageTurn, now: float) -> list[act.Action]:
        """Enter the stage that a turn names, and publish what heartbeats say; return what the shell has to do."""
        todo = list(turn.actions)
        if turn.stage is not None:
            self._handler = self._make(turn.stage, turn.promotion, now)
            todo += self._handler.enter(now)
        if turn.stage is not None or now >= self._publish_at or any(isinstance(item, act.Announce) for item in todo):
            self._publish_at = now + PUBLISH_S
            self._published = self._publish(now)
        return todo

    def _make(self, stage: ReplicaStage, promotion: Promotion | None, now: float) -> StageHandler:
        if stage is ReplicaStage.START:
            return RebuildStage(self._shared)
        if stage is ReplicaStage.WATCH:
            return WatchStage(self._shared)
        assert promotion is not None  # noqa: S101 - a turn that names such a stage has one
        if stage is ReplicaStage.OWN:
            return OwnStage(self._shared, promotion, now)
        return _PROMOTING[stage](self._shared, promotion)

    # ---- events ------------------------------------------------------------------------------------------------

    def step(self, now: float, now_us: int, *, spare: bool = True) -> list[act.Action]:
        """Do what is due; return what the shell has to do.

        Args:
            now_us: the node's wall clock, microseconds.
            spare: whether the node has time to process records of this slot now, unless a promotion needs them.
        """
        self._shared.wall_us, self._shared.spare = now_us, spare
        return self._go_on(self._handler.step(now), now)

    def on_request(self, now: float) -> None:
        """Take in that the outstanding request goes out now. Its duration counts from here."""
        self._shared.requests.sent(now)

    def on_failed(self, now: float, fault: str = "") -> None:
        """Take in that the outstanding request failed (the log did not answer); it is made again a little later.

        Args:
            fault: why the replica could not take the slot over now; "" = nothing prevents it.
        """
        if fault:
            self.processor.fault.say(fault)
        self._go_on(self._handler.on_failed(now), now)

    def on_end(self, first: int, end: int, now: float) -> list[act.Action]:
        """Answer to `AskEnd`: the log's first offset and its end."""
        return self._go_on(self._handler.on_end(first, end, now), now)

    def on_context(self, context: Context | None, first: int, now: float) -> list[act.Action]:
        """Answer to `ReadContext`; None = that place holds no context any more, or another one."""
        return self._go_on(self._handler.on_context(context, first, now), now)

    def on_fetched(self, records: list[Record], now: float) -> list[act.Action]:
        """Answer to `Fetch`.

        Raises:
            LogError: no new record came. The caller should report it by `on_failed`, so that the request is repeated.
        """
        return self._go_on(self._handler.on_fetched(records, now), now)

    def on_checked(self, first: int, end: int, records: Sequence[Record], now: float) -> list[act.Action]:
        """Answer to `CheckRecords`: the log's first offset and end, and those of the records that it holds."""
        return self._go_on(self._handler.on_checked(first, end, records, now), now)

    def on_tail(
        self, generation: int, name: Name, now: float, appended_us: int = 0, *, lost: bool = False
    ) -> list[act.Action]:
        """Answer to `ReadTail`: the name of the last record of `recovered` (`NO_NAME` if it is empty).

        Args:
            appended_us: when the log appended the input that caused this output, microseconds; 0 = not known.
            lost: `recovered` has lost its end. `name` is then the last output that is known to be left.
        """
        return self._go_on(self._handler.on_tail(generation, name, now, appended_us, lost=lost), now)

    def on_records(self, records: list[Record], now: float, now_us: int) -> list[act.Action]:
        """Take in records that came by following the log (`Follow`)."""
        self._shared.wall_us = now_us
        return self._go_on(self._handler.on_records(records, now), now)

    def on_unannounced(self) -> None:
        """Take in that the last `Announce` failed. Its records must be announced again before they are processed.

        Otherwise a death of this process would count against the records announced before, which it has survived.
        """
        self._handler.on_unannounced()

    def on_delivered(self, outputs: Sequence[Output], generation: int, place: int = -1) -> None:
        """Take in that the broker has outputs of one topic that were emitted in a row.

        Args:
            generation: the generation with which they were emitted.
            place: the offset of the last one in that topic; -1 = not known.
        """
        self.pending.delivered_run(outputs, generation)
        last = outputs[-1]
        if last.topic != RECOVERED or place < 0:
            return
        records = outputs.records if isinstance(outputs, PlainOutputs) else len(outputs)
        if not self.pending.place(last.name, generation, place, records):
            self.pending.lost = place, outputs[0].name

    def on_stored(self, sha256: str) -> None:
        """Take in that the model of `StoreModel` is in the store."""
        for decider in () if self.primary is None else self.primary.deciders:
            decider.on_stored(sha256, self.slot)

    def on_context_saved(self, place: int, term: int) -> None:
        """Take in that the broker has a context.

        Args:
            place: its offset in `contexts`; -1 = it cannot be read there.
            term: the epoch of the owner that wrote it.
        """
        if self.primary is not None and term == self._shared.succession.term:
            self.primary.on_context_saved(place, self.scan)

    def on_leaving(self, edge: str, incarnation: int, step: int) -> None:
        """Take in that a process of an edge has stopped in good order after this step."""
        for decider in () if self.primary is None else self.primary.deciders:
            decider.on_leaving(edge, incarnation, step)

    def on_ack(self, ack: Ack, now: float) -> None:
        """Take in an acknowledgement of this slot. The one with the greatest (epoch, offset) counts."""
        shared, kind = self._shared, ack.WhichOneof("body")
        if kind == "level0":
            if ack.level0.node == "spark":
                return
            shared.succession.learn(ack.level0.epoch, ack.level0.node, now)
            old = shared.level0
            if old is None or (ack.level0.epoch, ack.level0.offset) > (old.epoch, old.offset):
                shared.level0 = ack.level0
                shared.trim()
        elif kind == "level1":
            shared.succession.learn(ack.level1.epoch, ack.level1.node, now)
            if shared.trust.usable(ack.level1.offset, ack.level1.generation):
                shared.intake.on_level1(ack.level1)

    def on_worked(self, seconds: float, records: int, now: float) -> None:
        """Take in that the loop has spent this time, in seconds, on processing so many records of the slot."""
        self.processor.on_worked(seconds, records, now)
        if self.stage is ReplicaStage.WATCH:
            self.batching.costs.on_processed(now, seconds, records)

    def on_wish(self, wish: Wish, coming: threading.Event | None = None) -> None:
        """Take in what the plan wishes for the slot from now on.

        Args:
            coming: set once the model of the wish is ready; None = it is, or nobody prepares it.
        """
        self._shared.wish, self._shared.coming = wish, coming


def _queries(slot: Slot) -> tuple[QueryBeat, ...]:
    """Return what there is to say of the slot's queries: how far some are filled, and which have stopped."""
    stream = None if slot.chain is None else slot.chain.stream
    if stream is None:
        return ()
    beats = {
        item.name: QueryBeat(name=item.name, since=item.from_us, filled_to=0 if item.done else item.newest_us or -1)
        for item in stream.filled
    }
    beats |= {name: QueryBeat(name=name, fault=why) for name, why in stream.faults.items()}
    return tuple(beats.values())
