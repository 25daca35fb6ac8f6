"""What the stages of a replica have in common.

Terms: A *context* is the whole state of the slot at one offset of its log. A *Level-1-Ack* names the *resume point*:
the newest context whose outputs are all in `recovered`. A *Level-0-Ack* says up to which input the outputs are in
`recovered`. The *epoch* is the number of an ownership: each takeover adds one. The *generation* is the number of the
slot's log: a new one begins when the log has lost records (docs/explanation/standby.md).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import ClassVar, NamedTuple

from tsunagi.runtime.log import RECOVERED, Record
from tsunagi.runtime.marks import NO_MARK, LogMark, digest_of
from tsunagi.runtime.messages import Context
from tsunagi.runtime.names import NO_NAME, Name
from tsunagi.standby import actions as act
from tsunagi.standby.promotion import Promotion
from tsunagi.standby.requests import RETRY_S
from tsunagi.standby.shared import Shared

PAUSE_S = 1.0
"""If the log lacks what a replica needs, the replica asks for it again after this time, seconds."""


class ReplicaStage(Enum):
    """How far a replica is on its way to own the slot (tsunagi.standby.replica says what each stage does)."""

    START = "rebuilding"
    WATCH = "standby"
    SURVEY = "promoting"
    CLAIM = "claiming"
    TAIL = "taking over"
    BURY = "burying"
    OWN = "primary"


class StageTurn(NamedTuple):
    """What a stage returns for an event.

    Attributes:
        actions: what the shell has to do.
        stage: the stage that the replica enters; None = it stays in its stage.
        promotion: handed to the new stage if that belongs to a promotion.
    """

    actions: Sequence[act.Action] = ()
    stage: ReplicaStage | None = None
    promotion: Promotion | None = None


STAY = StageTurn()
"""The shell has nothing to do, and the replica stays in its stage."""


class StageHandler(ABC):
    """What a replica does in one stage. It is made when the stage is entered. Times are monotonic seconds.

    A handler changes only itself and `shared`, the data of all stages. The replica enters the stage that a turn names.
    """

    kind: ClassVar[ReplicaStage]

    def __init__(self, shared: Shared) -> None:
        self.shared = shared

    @property
    def bounded(self) -> bool:
        """Whether records beyond what memory should hold are not kept, so that they must be read again."""
        return True

    @property
    def urgent(self) -> bool:
        """Whether something is under way that the loop should not keep waiting, such as a promotion."""
        return True

    def enter(self, now: float) -> list[act.Action]:
        """Return what to do as the stage begins."""
        del now
        return []

    def leave(self, why: str) -> list[act.Action]:
        """Return what to do when the stage ends because the slot's state here cannot be used any more."""
        del why
        return []

    @abstractmethod
    def step(self, now: float) -> StageTurn:
        """Do what is due."""

    # ---- answers -----------------------------------------------------------------------------------------------

    def on_end(self, first: int, end: int, now: float) -> StageTurn:
        """Answer to `AskEnd`: the log's first offset and its end."""
        shared = self.shared
        asked = shared.requests.answered()
        if asked is not None:
            shared.batching.costs.on_asked(now - asked)
        shared.intake.first, shared.intake.end = first, end
        turn = self._short(end, now)
        return self._at_end(first, end, now) if turn is None else turn

    def on_context(self, context: Context | None, first: int, now: float) -> StageTurn:
        """Answer to `ReadContext`; None = that place holds no context any more, or another one.

        A context whose epoch is older than that of the log before it is not used: epochs never go down.
        """
        shared, intake = self.shared, self.shared.intake
        shared.requests.answered()
        intake.first = first
        unfit = context is None or context.offset < first or intake.contradicts(context)
        if context is None or unfit or not self._fits(context, now):
            return self._gone_on_without(first, now)
        before = intake.unprocessed(context.offset - 1)
        if before is not None and (turn := self._compare(before, context.digest, now)) is not None:
            return turn
        try:
            restored = shared.processor.restore(context)
        except (ValueError, TypeError, LookupError) as error:
            # The context is no state of this slot, so it counts as missing. It must not end each worker that reads it.
            note = act.Note("unusable context", f"slot {shared.slot_id}, before offset {context.offset}: {error}")
            turn = self._gone_on_without(first, now)
            return turn._replace(actions=[note, *turn.actions])
        if not restored:
            if shared.processor.awaited is None:
                shared.requests.pause(now, PAUSE_S)
            return STAY
        slot = shared.slot
        intake.jump(slot.position, slot.register, context.digest)
        shared.trust.restored = True
        slot.register.quarantined |= shared.scan.quarantined
        shared.silent.clear(slot.position)
        return self._at_context(now)

    def on_fetched(self, records: list[Record], now: float) -> StageTurn:
        """Answer to `Fetch`.

        Raises:
            LogError: no new record came. The caller should report the request as failed, so that it is made again.
        """
        shared, intake = self.shared, self.shared.intake
        asked = shared.requests.answered()
        before = intake.scanned
        if records and records[0].offset == intake.scanned - 1:
            if (turn := self._compare(records[0], intake.digest, now)) is not None:
                return turn
            shared.trust.restored = False
        intake.on_pulled(records)
        if (turn := self._receive(records, now)) is not None:
            return turn
        return self._at_fetched(len(records), asked, before, now)

    def on_checked(self, first: int, end: int, records: Sequence[Record], now: float) -> StageTurn:
        """Answer to `CheckRecords`: the log's first offset and end, and those of the records that it holds."""
        shared, intake = self.shared, self.shared.intake
        shared.requests.answered()
        intake.first = first
        if (turn := self._short(end, now)) is not None:
            return turn
        shared.processor.fault.answered()
        found = {record.offset: record for record in records}
        upto = max(found, default=first)
        while intake.breaks and intake.breaks[0].offset <= upto:
            read = intake.breaks.popleft()
            # Retention may have deleted the record.
            if (record := found.get(read.offset)) is None:
                continue
            if (turn := self._compare(record, digest_of(read), now)) is not None:
                return turn
        return self._at_checked(now)

    def on_tail(self, generation: int, name: Name, now: float, appended_us: int, *, lost: bool) -> StageTurn:
        """Answer to `ReadTail`: the name of the last record of `recovered` (`NO_NAME` if it is empty).

        Args:
            appended_us: when the log appended the input that caused this output, microseconds; 0 = not known.
            lost: `recovered` has lost its end. `name` is then the last output that is known to be left.
        """
        shared = self.shared
        shared.requests.answered()
        tail = name if generation == shared.scan.generation else NO_NAME
        if shared.trust.outputs_short(now, is_short=lost):
            return self._outputs_lost(tail, now)
        if lost:
            shared.requests.pause(now, RETRY_S)
            return STAY
        return self._at_tail(generation, name, appended_us, now)

    def on_records(self, records: list[Record], now: float) -> StageTurn:
        """Take in records that came by following the log (`Follow`)."""
        del records, now
        return STAY

    def on_failed(self, now: float) -> StageTurn:
        """Take in that the outstanding request failed: the log did not answer."""
        self.shared.requests.failed(now)
        return STAY

    def on_unannounced(self) -> None:  # noqa: B027 - most stages announce nothing
        """Take in that the last `Announce` failed. Its records must be announced again before they are processed."""

    # ---- what a stage does with an answer ----------------------------------------------------------------------

    def _at_end(self, first: int, end: int, now: float) -> StageTurn:
        """Go on after `AskEnd`: the log reaches from `first` to `end`, and its end is not before what was read."""
        del first, end, now
        return STAY

    def _at_context(self, now: float) -> StageTurn:
        """Go on after `ReadContext`: the slot now has the state of the context."""
        del now
        return STAY

    def _without_context(self, first: int, now: float) -> StageTurn:
        """Go on without the context that was asked for, with an older one or with the log from `first` on."""
        del first, now
        return STAY

    def _at_fetched(self, count: int, asked: float | None, before: int, now: float) -> StageTurn:
        """Go on after `Fetch`.

        Args:
            count: how many records were read.
            asked: when they were asked for; None = nothing was asked for.
            before: the offset of the next record to read, as it was before this answer.
        """
        del count, asked, before, now
        return STAY

    def _at_checked(self, now: float) -> StageTurn:
        """Go on after `Check`: the log still holds what was read of it."""
        del now
        return STAY

    def _at_tail(self, generation: int, name: Name, appended_us: int, now: float) -> StageTurn:
        """Go on after `ReadTail`: `name` is the last output in `recovered`."""
        del generation, name, appended_us, now
        return STAY

    def _gone_on_without(self, first: int, now: float) -> StageTurn:
        self.shared.trust.forget_context(self.shared.intake.take_level1())
        return self._without_context(first, now)

    # ---- whether the log is the one that was read ----------------------------------------------------------------

    def _short(self, end: int, now: float) -> StageTurn | None:
        """Return what to do if the log ends before an offset that was read or acknowledged, else None."""
        shared, intake = self.shared, self.shared.intake
        acknowledged = 0 if intake.level1 is None else intake.level1.offset
        known = max(intake.scanned, shared.slot.position, acknowledged)
        believed = shared.trust.short(now, is_short=end < known)
        if end >= known:
            return None
        # Outputs are named by offsets. On a log that lost its end, offsets mean other records, so no output is written
        # (architecture, "Whose log a position is of").
        why = f"the log ends at {end}, but records up to {known} were read: it lost records"
        shared.processor.fault.say(why)
        shared.requests.pause(now, PAUSE_S)
        return self._contradicted(why, end, now, right_to=end) if believed else self._doubted(why)

    def _doubted(self, why: str) -> StageTurn:
        """Go on while the log seems to have lost records, but not yet for long enough to be believed."""
        del why
        return STAY

    def _compare(self, record: Record, digest: int, now: float) -> StageTurn | None:
        """Compare a record with the digest of the one read there before; return what to do if they differ."""
        why = LogMark("", digest).contradicts(LogMark("", digest_of(record)))
        return self._contradicted(why, record.offset, now, right_to=record.offset) if why else None

    def _fits(self, context: Context, now: float) -> bool:
        """Return whether a context may belong to this log, and is the one that the Level-1-Ack (if any) names."""
        trust, level1 = self.shared.trust, self.shared.intake.level1
        if level1 is not None and level1.offset != context.offset:
            return False
        mark = LogMark(context.topic_id, 0)
        if why := mark.contradicts(NO_MARK._replace(topic_id=trust.topic_id)):
            if not trust.contradiction:
                trust.contradict(why, 0, context.offset, now, right_to=0, scan=self.shared.scan)
            return False
        return trust.usable(context.offset, context.generation)

    def _receive(self, records: list[Record], now: float) -> StageTurn | None:
        """Take in records that were read; return what to do if a new generation makes the state useless, else None."""
        shared = self.shared
        founding = shared.scan.founding
        book = shared.slot.book
        shared.intake.on_records(records, bounded=self.bounded, columns=book is not None and not book.in_steps)
        shared.slot.register.quarantined |= shared.scan.quarantined
        return None if shared.scan.founding is founding else self._on_founded(now)

    def _on_founded(self, now: float) -> StageTurn | None:
        """Take in that a new generation begins.

        Returns:
            None if the slot's state can go on: it does not reach beyond the generation's `begin`, and for a blank
            generation it has begun exactly there. Else what to do to build the state anew.
        """
        shared, scan, slot = self.shared, self.shared.scan, self.shared.slot
        founding = scan.founding
        assert founding is not None  # noqa: S101 - the caller has seen it
        shared.trust.founded(scan, by_us=scan.owner == shared.node)
        if founding.blank:
            fits = slot.origin == slot.position == founding.begin
            if fits:
                slot.begin_at(founding.begin, scan.founded_at)
        else:
            fits = slot.position <= founding.begin
        if not fits:
            return self._again(scan.declared, now)
        shared.silent.clear(slot.position)
        level1 = shared.intake.level1
        if level1 is not None and not shared.trust.usable(level1.offset, level1.generation):
            shared.intake.level1 = None
        return None

    def _contradicted(self, why: str, upto: int, now: float, *, right_to: int, known_to: int = 0) -> StageTurn:
        """Build the state anew: the log is not the one that this node, or the writer of a context, has read.

        Args:
            upto: contexts and acknowledgements beyond this offset are not believed.
            right_to: the log that is there has not been found to differ below this offset.
            known_to: the log had reached to this offset at least, as an output or an acknowledgement says.
        """
        intake = self.shared.intake
        lost_to = max(intake.scanned, known_to, 0 if intake.level1 is None else intake.level1.offset)
        self.shared.trust.contradict(why, upto, lost_to, now, right_to=right_to, scan=self.shared.scan)
        return self._again(why, now)

    def _foreign_output(self, name: Name, now: float) -> StageTurn:
        """Build the state anew: the log does not hold the record that the last output is named after."""
        why = f"the last output is named after a record at offset {name.offset} that the log does not hold"
        right_to = self.shared.intake.scanned
        return self._contradicted(why, name.offset, now, right_to=right_to, known_to=name.offset + 1)

    def _outputs_lost(self, last: Name, now: float) -> StageTurn:
        """Have the outputs behind `last` written again in a new generation, since `recovered` has lost them.

        Under their old names readers might drop them as repeats: they may have read later outputs already.
        """
        upto = max(last.offset, self.shared.scan.began)
        why = f"`{RECOVERED}` lost its end: outputs of the record at offset {upto} or of later ones"
        shared = self.shared
        shared.trust.contradict(why, upto, 0, now, right_to=shared.intake.scanned, scan=shared.scan)
        return self._again(why, now)

    def _again(self, why: str, now: float) -> StageTurn:
        """Forget the state, and build it anew from what the log and `contexts` hold."""
        shared, trust, intake = self.shared, self.shared.trust, self.shared.intake
        left = self.leave("the state is built anew")
        shared.processor.work.calm()
        shared.forget(trust.begin)
        level1 = intake.level1
        if level1 is not None and not trust.usable(level1.offset, level1.generation):
            trust.place, intake.level1 = level1.context_offset, None
        trust.renew()
        shared.requests.pause(now, 0.0)
        return StageTurn([*left, act.Note("the state is built anew", why, grave=True)], ReplicaStage.START)


class ReadingStage(StageHandler):
    """A stage that reads the slot's log."""

    checks: ClassVar[bool] = False
    """Whether each fetch begins one record earlier, so that this record is compared with the one read there before."""
    keeps: ClassVar[bool] = True
    """Whether it reads records again that were scanned and not kept. Otherwise it goes on behind them."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._target = 0

    def step(self, now: float) -> StageTurn:
        """Make the request that is due, unless an answer is outstanding or a pause is not over."""
        if self.shared.requests.wait(now) or not self.shared.processor.may_ask():
            return STAY
        return self._due(now)

    def _due(self, now: float) -> StageTurn:
        return StageTurn(self.shared.requests.ask(now, act.AskEnd()))

    def _read_context(self, now: float, place: int | None, upto: int | None = None) -> StageTurn:
        return StageTurn(self.shared.requests.ask(now, act.ReadContext(place, upto)))

    def _fetch_to(self, end: int, now: float) -> StageTurn:
        """Fetch the records below `end` that have not been read, or the first of them if they are many."""
        intake = self.shared.intake
        self._target = end
        begin = intake.next if self.keeps and not intake.full else intake.scanned
        checks = begin == intake.scanned and self._compares()
        if end <= begin and not checks:
            return self._nothing_to_fetch(now)
        intake.pulls += 1
        fetch = act.Fetch(begin - checks, min(max(end, begin), begin + intake.most))
        return StageTurn(self.shared.requests.ask(now, fetch))

    def _nothing_to_fetch(self, now: float) -> StageTurn:
        return self.on_fetched([], now)

    def _compares(self) -> bool:
        """Return whether the next fetch begins with the record that was read last, so that it is compared."""
        intake = self.shared.intake
        return (self.shared.trust.restored or self.checks) and intake.digest != 0 and intake.first < intake.scanned

    def _is_gone(self, first: int, now: float) -> StageTurn | None:
        """Return what to do if retention has deleted the record to read next (the log begins at `first`), else None."""
        shared, trust, intake = self.shared, self.shared.trust, self.shared.intake
        if first <= intake.next:
            return None
        held = not shared.detector.settled(now) or shared.held(now)
        if trust.forsaken(now, held=held):
            return self._begin_blank(first, now)
        needed = f"the log begins at {first}, needed from {intake.next}"
        shared.processor.fault.say(f"retention has passed the resume point: {needed}")
        shared.requests.pause(now, PAUSE_S)
        return STAY

    def _begin_blank(self, first: int, now: float) -> StageTurn:
        """Stand by with the log from `first` on, to begin a new generation: nobody owns the slot or has its state."""
        shared, left = self.shared, self.leave("the log has lost its beginning")
        shared.trust.begin_blank(first)
        shared.forget(first)
        shared.succession.give_time(now)
        why = f"the log begins at {first}, there is no context, and nobody holds the slot"
        return StageTurn([*left, act.Note("a new generation is to begin", why, grave=True)], ReplicaStage.WATCH)


class GatheringStage(ReadingStage):
    """A stage that goes on from a context where that is cheaper than the log."""

    def _at_end(self, first: int, end: int, now: float) -> StageTurn:
        """Read a context if that is cheaper than to read or process what stands before it, else read on."""
        shared, intake = self.shared, self.shared.intake
        self._target = end
        place = intake.jump_place(first, blank=shared.slot.position == 0)
        if place is None:
            place = intake.leap_place(shared.slot.position, shared.processor.record_s)
        return self._read(first, now) if place is None else self._read_context(now, place)

    def _at_context(self, now: float) -> StageTurn:
        return self._read(min(self.shared.intake.first, self.shared.intake.next), now)

    def _without_context(self, first: int, now: float) -> StageTurn:
        return self._read(first, now)

    @abstractmethod
    def _read(self, first: int, now: float) -> StageTurn:
        """Read on. `first`, the first offset of the log, is beyond `next` if retention has deleted what comes next."""
