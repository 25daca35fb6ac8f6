"""WATCH, the stage of a secondary: read the log in batches, process it without writing, and watch the owner.

Terms: B, the batch size, is how many tuples the log holds unread before the secondary reads them. A *Level-1-Ack* names
the *resume point*: nobody needs the log before it, since a context (the slot's state there) is stored. A *Level-0-Ack*
says up to which input the outputs are in `recovered`. The *epoch* is the number of an ownership.
"""

from __future__ import annotations

from tsunagi.runtime.messages import SlotBeat
from tsunagi.runtime.names import Name
from tsunagi.standby import actions as act
from tsunagi.standby.promotion import Promotion
from tsunagi.standby.shared import Shared
from tsunagi.standby.speculation import POLL_S as SPECULATION_POLL_S
from tsunagi.standby.speculation import Speculation
from tsunagi.standby.stages.base import STAY, ReadingStage, ReplicaStage, StageTurn

ASK_S = 1.0
"""A standby asks the broker for the log's end at this interval, seconds, although the owner's heartbeats tell it."""

TOLD_INTERVALS = 2.0
"""A standby asks the broker each `poll_s` once the owner has been silent for this many heartbeat intervals."""

DIFFERS_PATIENCE = 4.0
"""Factor on `detect_s` for a secondary whose settings differ from the slot's: one with equal settings comes first."""

MOVE_S = 0.1
"""A planned takeover begins when the standby is at most this much work behind the owner, seconds of processing."""

MOVE_PATIENCE_S = 5.0
"""A planned takeover waits at most this long, seconds: a standby on a slower machine may never catch up."""

MOVE_INTERVALS = 3.0
"""A planned takeover needs an owner that was heard within this many heartbeat intervals.

An owner that is silent for longer may have died of a record, and a planned takeover announces no records.
"""


class WatchStage(ReadingStage):
    """Reads the log when it holds B tuples, and processes only records that the owner has survived."""

    kind = ReplicaStage.WATCH

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._speculation: Speculation | None = None
        self._poll_at = 0.0
        self._ask_by = 0.0  # the broker is asked for the log's end by then, whatever heartbeats say
        self._told_until = 0.0  # until then the last heartbeat tells the log's end well enough
        self._told: SlotBeat | None = None  # the heartbeat from which the log's end was taken last
        self._costed: SlotBeat | None = None  # the heartbeat from which the owner's costs were taken last
        self._wished_at: float | None = None  # since when the plan has wished a takeover from an owner that lives
        self._vetted_epoch = 0  # epoch of the newest owner whose Quarantine records have all been read

    @property
    def urgent(self) -> bool:
        return self._speculation is not None

    def leave(self, why: str) -> list[act.Action]:
        return self._end_speculation(why)

    def on_failed(self, now: float) -> StageTurn:
        self._ask_by = now  # the log may begin and end elsewhere than is known here
        return super().on_failed(now)

    def on_unannounced(self) -> None:
        records = self.shared.processor.work.on_records
        if self._speculation is not None and records is not None:
            self._speculation.announced = records.first

    def _due(self, now: float) -> StageTurn:
        shared, detector, trust = self.shared, self.shared.detector, self.shared.trust
        fault = shared.processor.fault
        shared.succession.watch(now)
        owner = shared.succession.owner
        if not shared.moving():
            self._wished_at = None
        beat = detector.owner_beat(owner, shared.slot_id) if owner else None
        if beat is not None:
            self._hear_owner(beat, owner, now)
        shared.batching.decide(now)
        if not fault.text:
            reason, silence = self._suspect(owner, now)
            if reason:
                return self._promote(reason, silence, now)
            may = not shared.doubted and shared.settings.standby.speculate
            if may and (turn := self._speculate(owner, now)).actions:
                return turn
        elif self._speculation is not None:
            return StageTurn(self._end_speculation(fault.text))
        if not detector.connected(now):
            return STAY
        if shared.intake.breaks and trust.due(now):
            return StageTurn(shared.requests.ask(now, act.CheckRecords(*shared.intake.doubtful())))
        if beat is not None and beat is not self._told and now < self._ask_by and not fault.text:
            self._told = beat
            return self._hear_end(beat, now)
        if now >= max(self._poll_at, min(self._told_until, self._ask_by)):
            self._poll_at = now + shared.settings.standby.poll_s
            self._ask_by = now + ASK_S
            return StageTurn(shared.requests.ask(now, act.AskEnd()))
        return STAY

    def _hear_owner(self, beat: SlotBeat, owner: str, now: float) -> None:
        """Take in a heartbeat of the owner, and process the records that the owner has survived."""
        shared = self.shared
        shared.succession.learn(beat.epoch, owner, now)
        if beat is not self._costed:
            self._costed = beat
            shared.batching.costs.on_owner(beat.record_us / 1e6)
        shared.trust.forgive(now)
        # During a speculation outputs are written without a gap, so no record may be processed silently. If the log is
        # doubted, all outputs of the state that was found may have to be written again.
        if self._speculation is None and not shared.doubted and (shared.spare or shared.moving()):
            self._process_silently(self._survived(beat))

    def _process_silently(self, upto: int) -> None:
        """Process, without writing, the records below `upto`, which the owner has survived.

        A record that killed the owner must not kill its secondary as well.
        """
        before = self.shared.processor.processed
        self.shared.silent.add(self.shared.processor.apply_up_to(upto))
        if self.shared.processor.processed != before:
            self.shared.trim()

    def _survived(self, beat: SlotBeat) -> int:
        """Return the offset below which the owner has processed and survived every record; 0 = not known.

        A new owner may have skipped a record that it quarantined. Its Quarantine stands in the log before the end that
        it names as the primary, so its position counts only once this node has read to that end. An owner that is still
        being promoted may name its own epoch before it has appended the Quarantine.
        """
        if beat.role == "primary" and self.shared.intake.scanned >= beat.position + beat.lag:
            self._vetted_epoch = max(self._vetted_epoch, beat.epoch)
        return beat.position if self._vetted_epoch >= beat.epoch else 0

    # ---- reading -----------------------------------------------------------------------------------------------

    def _at_end(self, first: int, end: int, now: float) -> StageTurn:
        del end
        if self.shared.intake.jump_place(first) is None and (turn := self._is_gone(first, now)) is not None:
            return turn  # retention has deleted what it needs, so it must not look ready
        self.shared.processor.fault.answered()
        return self._look(now)

    def _doubted(self, why: str) -> StageTurn:
        return StageTurn(self._end_speculation(why))

    def _hear_end(self, beat: SlotBeat, now: float) -> StageTurn:
        """Read the log up to the end that the owner's heartbeat names, if it holds a batch.

        To ask the broker for the end would cost more requests than the reads do. The heartbeat's end may be old. That
        does no harm: what the owner has not reported as survived is not processed before a promotion.
        """
        self._told_until = now + TOLD_INTERVALS * self.shared.settings.standby.heartbeat_s
        self.shared.intake.end = max(self.shared.intake.end, beat.position + beat.lag)
        return self._look(now)

    def _look(self, now: float) -> StageTurn:
        """Take in where the log ends, and read it if it holds B tuples.

        Records before the resume point of a Level-1-Ack are neither counted nor read if its context is cheaper.
        """
        shared, intake = self.shared, self.shared.intake
        shared.batching.costs.on_extent(now, intake.extent())
        leap = intake.leap_place(shared.slot.position, shared.processor.record_s)
        if leap is not None and self._speculation is None and not shared.trust.contradiction:
            return self._read_context(now, leap)
        if intake.end <= intake.next:
            return STAY
        enough = shared.spare and intake.held_tuples(intake.first) >= shared.batching.batch_tuples
        # A node whose settings differ from the slot's, or without a state, cannot take over. The log may hold its
        # settings or a new generation further on, so it reads without waiting for B tuples.
        unfit = shared.differs or shared.trust.blank
        if intake.full and not (unfit or shared.moving() or self._vetted_epoch < shared.succession.epoch):
            return STAY  # what the owner has not survived is not processed before a promotion, so it is not needed yet
        if self._speculation is None and not enough and not shared.moving() and not unfit:
            return STAY
        place = intake.jump_place(intake.first)
        return self._fetch_to(intake.end, now) if place is None else self._read_context(now, place)

    def _nothing_to_fetch(self, now: float) -> StageTurn:
        del now
        return STAY

    def _at_context(self, now: float) -> StageTurn:
        return self._fetch_to(self.shared.intake.end, now)

    def _without_context(self, first: int, now: float) -> StageTurn:
        del first, now
        return STAY

    def _at_fetched(self, count: int, asked: float | None, before: int, now: float) -> StageTurn:
        del before
        if asked is not None:
            self.shared.batching.costs.on_pull(now, now - asked, count)
        return STAY

    def _at_tail(self, generation: int, name: Name, appended_us: int, now: float) -> StageTurn:
        del now
        if self._speculation is not None:
            self._speculation.begin(generation, name, appended_us)
        return STAY

    # ---- suspicion ---------------------------------------------------------------------------------------------

    def _promote(self, reason: str, silence: float, now: float) -> StageTurn:
        shared, succession, verdict = self.shared, self.shared.succession, self.shared.batching.verdict
        promotion = Promotion(reason, succession.owner, succession.epoch, now, silence)
        if verdict is not None:
            promotion.estimated_s = verdict.estimate.recovery_s
        promotion.gather_evidence(shared.detector, shared.slot_id, shared.slot.position)
        note = act.Note("promotion begins", f"{reason}: owner {promotion.old_owner!r}, epoch {promotion.epoch}")
        return StageTurn([*self._end_speculation("promotion", in_vain=False), note], ReplicaStage.SURVEY, promotion)

    def _suspect(self, owner: str, now: float) -> tuple[str, float]:
        """Return why this node should own the slot now ("" = it should not), and the owner's silence in seconds."""
        shared, detector, wish = self.shared, self.shared.detector, self.shared.wish
        slot, since, standby = shared.slot_id, shared.succession.since, shared.settings.standby
        wished = wish.owner == shared.node and detector.settled(now)
        if not owner and wished:
            return "plan", 0.0
        if shared.trust.contradiction and owner == shared.node and detector.settled(now):
            return "contradiction", 0.0  # this node found the contradiction, so it knows where to begin
        if shared.succession.came_late and detector.settled(now):
            return "restart", 0.0
        # Where nobody has owned the slot, the node that the plan names gets as much time as a silent owner.
        silence = detector.owner_silence(owner or wish.owner, slot, since, now)
        limit_s = standby.detect_s * (DIFFERS_PATIENCE if shared.differs else 1.0)
        if silence > limit_s:
            return ("plan" if not owner else "restart" if owner == shared.node else "silent"), silence
        if owner == shared.node or shared.differs:
            return "", 0.0
        if detector.settled(now):
            if owner and detector.left(owner):
                return "left", silence
            if detector.stalled(owner, slot, since) or detector.stuck(owner, slot, since, shared.intake.end, now):
                return "stalled", silence
        alive = silence <= MOVE_INTERVALS * standby.heartbeat_s
        return ("move" if wished and alive and shared.moving() and self._caught_up(now) else ""), 0.0

    def _caught_up(self, now: float) -> bool:
        """Return whether a planned takeover would have little to process, so that outputs pause only for a moment.

        It is False while the owner itself has not caught up. Such an owner announces the records of which its
        predecessor may have died. A planned takeover announces none, and without announcements two deaths do not prove
        which record kills.
        """
        if self._wished_at is None:
            self._wished_at = now
        shared, succession = self.shared, self.shared.succession
        beat = shared.detector.owner_beat(succession.owner, shared.slot_id)
        if beat is not None and beat.epoch == succession.epoch and (beat.taking_up or beat.role != "primary"):
            return False
        if now - self._wished_at > MOVE_PATIENCE_S:
            return True
        if beat is None or beat.epoch != succession.epoch:
            return False
        record_s = max(shared.processor.record_s, beat.record_us / 1e6)
        return (beat.position - shared.slot.position) * record_s <= MOVE_S

    # ---- speculation -------------------------------------------------------------------------------------------

    def _speculate(self, owner: str, now: float) -> StageTurn:
        """Write what the owner should have written if the owner is silent; see `tsunagi.standby.speculation`."""
        shared, detector, speculation = self.shared, self.shared.detector, self._speculation
        why = self._weak_suspicion(owner, now)
        if speculation is None and detector.announced(shared.slot_id, shared.succession.epoch):
            return STAY  # a process may have died of the next records; the next owner finds out which of them kills
        if not why:
            return STAY if speculation is None else StageTurn(self._end_speculation(f"{owner} is heard again"))
        begun: list[act.Action] = []
        if speculation is None:
            speculation = self._speculation = Speculation(shared.speculated, shared.silent, shared.pending)
            begun.append(act.Note("speculation begins", f"{owner} {why}"))
        if shared.intake.breaks:
            # Nothing may be written before it is known that the log has not lost its end and grown again.
            return StageTurn([*begun, *shared.requests.ask(now, act.CheckRecords(*shared.intake.doubtful()))])
        if not speculation.begun:
            speculation.asked = shared.scan.generation
            return StageTurn([*begun, *shared.requests.ask(now, shared.read_tail())])
        if shared.intake.backlog or (shared.scan.generation and speculation.owes):
            return self._process_ahead(speculation, now)
        if now < self._poll_at:
            return STAY
        self._poll_at = now + SPECULATION_POLL_S
        return StageTurn(shared.requests.ask(now, act.AskEnd()))

    def _weak_suspicion(self, owner: str, now: float) -> str:
        """Return why the owner may be dead; "" = nothing says so, or this node must not write for it."""
        shared, detector = self.shared, self.shared.detector
        # An owner that was never heard may have died together with the log's end. A takeover would find that out.
        heard = detector.owner_beat(owner, shared.slot_id) is not None
        if not heard or owner == shared.node or shared.differs:
            return ""
        if detector.hinted(owner, now):
            return "has ended a connection"
        silence = detector.owner_silence(owner, shared.slot_id, shared.succession.since, now)
        return "is silent" if silence > shared.settings.standby.speculate_s else ""

    def _process_ahead(self, speculation: Speculation, now: float) -> StageTurn:
        """Process records that the owner may have died of. They are announced first."""
        shared, processor, backlog = self.shared, self.shared.processor, self.shared.intake.backlog
        if backlog and backlog[0][0].offset >= speculation.announced:
            speculation.announced = shared.intake.next
            processor.work.take_up(backlog[0][0].offset, speculation.announced, now)
            return StageTurn([act.Announce()])
        outputs = processor.apply_up_to(speculation.announced)
        shared.silent.add(outputs)
        if not speculation.knows_tail(shared.scan.generation):
            speculation.begin_anew()
            return STAY
        if (name := speculation.foreign(shared.slot.position, shared.scan.generation)) is not None:
            return self._foreign_output(name, now)
        todo = speculation.emit(outputs, shared.scan.generation)
        shared.trim()  # an acknowledgement may have come before these records were processed
        if processor.fault.blocked or processor.awaited is not None:
            # The outputs made so far are written nevertheless: this node does not make them a second time.
            return StageTurn([*todo, *self._end_speculation(processor.fault.text)])
        if not backlog:
            processor.work.calm()
        return StageTurn(todo)

    def _end_speculation(self, why: str, *, in_vain: bool = True) -> list[act.Action]:
        speculation, self._speculation = self._speculation, None
        self.shared.processor.work.calm()
        if speculation is None:
            return []
        speculation.end(in_vain=in_vain)
        return [act.Note("speculation ends", why)]
