"""OWN, the stage of a primary: follow the log, write the outputs, and decide what only the owner may decide."""

from __future__ import annotations

from collections.abc import Sequence

from tsunagi.runtime.log import DEAD_LETTERS, Record
from tsunagi.runtime.messages import TupleBatch
from tsunagi.runtime.names import NO_NAME, Name
from tsunagi.slot.deciding import OwnerView
from tsunagi.slot.outputs import Output
from tsunagi.slot.parsing import alone
from tsunagi.slot.plain_outputs import PlainOutputs
from tsunagi.standby import actions as act
from tsunagi.standby.primary import Primary
from tsunagi.standby.promotion import DEATHS, Promotion
from tsunagi.standby.shared import Shared
from tsunagi.standby.stages.base import STAY, ReplicaStage, StageHandler, StageTurn

DUE_INTERVALS = 2.0
"""An edge that lives sends another heartbeat within this many intervals of its heartbeats."""


class OwnStage(StageHandler):
    """One term of this node as the slot's owner. A term lasts from a promotion to the next owner's.

    Attributes:
        primary: writes the outputs, acknowledgements, contexts and control records.
        promotion: the promotion that began the term; None = the node has caught up with what the log held then.
    """

    kind = ReplicaStage.OWN

    def __init__(self, shared: Shared, promotion: Promotion, now: float) -> None:
        super().__init__(shared)
        shared.succession.own()
        promotion.records = len(shared.intake.backlog)
        self.promotion: Promotion | None = promotion
        self.primary = Primary(
            shared.slot_id,
            shared.node,
            shared.settings,
            shared.pending,
            promotion.tail,
            now,
            shared.make_deciders(now, shared.processor.announce_long),
            generation=shared.scan.generation,
            topic_id=shared.trust.topic_id,
            term=shared.succession.term,
        )

    @property
    def bounded(self) -> bool:
        # What this stage follows comes once, so it is kept (tsunagi.worker.overload bounds it). Once another node owns
        # the slot, only its claim is wanted, and this node reads the rest again when it stands by.
        return self.shared.succession.outdated

    @property
    def urgent(self) -> bool:
        return any(decider.urgent for decider in self.primary.deciders)

    def enter(self, now: float) -> list[act.Action]:
        del now
        shared = self.shared
        silent = shared.silent.take(self.primary.tail)
        return [act.Follow(shared.intake.next), *self.primary.emit(silent)]

    def leave(self, why: str) -> list[act.Action]:
        del why
        self.shared.processor.work.calm()
        self.primary.stop(self.shared.slot)
        return [act.Unfollow()]

    def step(self, now: float) -> StageTurn:
        shared, intake, work = self.shared, self.shared.intake, self.shared.processor.work
        primary, promotion = self.primary, self.promotion
        if shared.pending.lost is not None:
            if shared.requests.paused(now):
                return STAY
            return StageTurn([act.ReadTail(shared.scan.generation, *shared.pending.lost)])
        if shared.succession.outdated and shared.detector.overdue(shared.succession.since, now):
            owner, epoch = shared.succession.owner, shared.succession.epoch
            return StageTurn(
                [
                    act.EndProcess(
                        f"{owner} owns the slot since epoch {epoch}, but the slot's log does not bring its claim"
                    )
                ]
            )
        if promotion is not None and self._must_announce(promotion):
            return StageTurn(self._announce(promotion, now))
        todo = [action for outputs in self._process(now) for action in primary.emit(outputs)]
        if promotion is not None and shared.slot.position >= promotion.catch_up_to:
            todo.append(promotion.report(shared.scan.epoch))
            self.promotion = None
            if promotion.announced is not None:
                work.calm()
                todo.append(act.Announce())  # this process has survived the records: none of them may be quarantined
        elif promotion is not None and self._must_announce(promotion):
            todo += self._announce(promotion, now)  # at once, since the slot is silent until it has caught up
        if not intake.backlog and intake.next == intake.scanned:
            work.calm()
            term = shared.succession.term
            if shared.slot.register.epoch != term:
                # Control records with the wrong epoch are void. A new process builds its state from the log.
                why = f"its state says epoch {shared.slot.register.epoch}, but it owns it since {term}"
                return StageTurn([act.EndProcess(why)])
            try:
                todo += primary.decide(self._view(now))
            finally:
                if work.on:
                    work.end()
        todo += primary.acknowledge(shared.slot, shared.scan, now, sure=not intake.breaks)
        if intake.breaks and shared.trust.due(now):
            todo.append(act.CheckRecords(*intake.doubtful()))
        return StageTurn(todo)

    def on_records(self, records: list[Record], now: float) -> StageTurn:
        shared = self.shared
        if (turn := self._receive(records, now)) is not None:
            return turn
        shared.intake.on_followed(records, now, shared.wall_us)
        scan = shared.scan
        if scan.owner == shared.node and scan.epoch == shared.succession.term:
            return STAY
        # Another node owns the slot, or a newer process with this node's name does. Stand by, so that somebody watches
        # the new owner.
        note = act.Note("deposed", f"{scan.owner} owns the slot since epoch {scan.epoch}")
        unfollow = self.leave(note.detail)
        shared.silent.clear(shared.slot.position)
        return StageTurn([note, *unfollow], ReplicaStage.WATCH)

    def on_unannounced(self) -> None:
        records = self.shared.processor.work.on_records
        if self.promotion is not None and self.promotion.announced is not None and records is not None:
            self.promotion.announced = records.first

    def _at_tail(self, generation: int, name: Name, appended_us: int, now: float) -> StageTurn:
        del appended_us
        if self.shared.pending.lost is None:
            return STAY
        return self._outputs_lost(name if generation == self.shared.scan.generation else NO_NAME, now)

    def _view(self, now: float) -> OwnerView:
        """Return what the deciders see. Its `lost` are the silent edges that the open step waits for."""
        shared, detector, book = self.shared, self.shared.detector, self.shared.slot.book
        standby = shared.settings.standby

        def silent(edge: str) -> bool:
            return detector.lost(edge, standby.detect_s, now)

        waiting = [] if book is None else book.awaited(book.cursor)
        due_s = DUE_INTERVALS * standby.edge_heartbeat_s  # an edge that lives has sent the next one by then
        lost = {edge: now - detector.age(edge, now) + due_s for edge in waiting if silent(edge)}
        ready = shared.coming is None or shared.coming.is_set()
        return OwnerView(shared.slot, shared.wish, now, detector.connected(now), lost, silent, model_ready=ready)

    # ---- records that may kill ---------------------------------------------------------------------------------

    def _must_announce(self, promotion: Promotion) -> bool:
        """Return whether a dead owner may have died of the next record, and this node has not announced it yet."""
        backlog = self.shared.intake.backlog
        if promotion.reason not in DEATHS or not backlog:
            return False
        return promotion.announced is None or backlog[0][0].offset >= promotion.announced

    def _announce(self, promotion: Promotion, now: float) -> list[act.Action]:
        """Announce the records that come next after an owner's death, before this node processes them.

        See architecture, "A record that kills".
        """
        intake = self.shared.intake
        first = intake.backlog[0][0].offset
        promotion.announced = min(first + promotion.next_part(first, len(intake.backlog)), intake.next)
        self.shared.processor.work.take_up(first, promotion.announced, now)
        return [act.Announce()]

    def _process(self, now: float) -> list[Sequence[Output]]:
        """Process records; return the outputs, in parts."""
        processor, intake, backlog = self.shared.processor, self.shared.intake, self.shared.intake.backlog
        if self.promotion is None and not self.shared.spare:
            processor.work.calm()  # it waits for other slots of this worker, which have older records
            return []
        until = None if self.promotion is None else self.promotion.announced
        outputs: list[Sequence[Output]] = []
        done, chunk = 0, processor.chunk()
        while backlog and done < chunk and (until is None or backlog[0][0].offset < until):
            record, parsed = backlog[0]
            message, _, kind = alone(record, parsed)
            batch = message.batch if message is not None and kind == "batch" else None
            if until is None:
                processor.work.take_up(record.offset, record.offset, now)
            stale = batch is not None and self._stale(batch)
            found = processor.apply(processor.rest(done), intake.next if until is None else until)
            if found is None:
                processor.work.calm()  # the loop waits for a model: if the process dies now, the record is not to blame
                break
            made, count = found
            outputs.append(made)
            # A refused batch is no sign of life. An edge whose clock is fast would otherwise be waited for for ever.
            plain = isinstance(made, PlainOutputs)
            refused = not plain and any(output.topic == DEAD_LETTERS for output in made)
            if batch is not None and not refused and not stale:
                for decider in self.primary.deciders:
                    decider.on_batch(batch, now)
            done += count
            if processor.work.heavy:
                break
        return outputs

    def _stale(self, batch: TupleBatch) -> bool:
        """Return whether the edge of this batch has already delivered the batch's step or a later one.

        An old batch may be appended to the log again. It must not count as a sign of life of its edge.
        """
        book = self.shared.slot.book
        edge = None if book is None else book.edges.get(batch.edge)
        return edge is not None and batch.step <= edge.last_step
