"""What the stages of a replica have in common."""

from __future__ import annotations

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
"""A replica whose log lacks what it needs asks for it again after this time, seconds."""


class ReplicaStage(Enum):
    """Where a replica is on its way to own the slot (tsunagi.standby.replica says what each does)."""

    START = "rebuilding"
    WATCH = "standby"
    SURVEY = "promoting"
    CLAIM = "claiming"
    TAIL = "taking over"
    BURY = "burying"
    OWN = "primary"


class StageTurn(NamedTuple):
    """What comes of an event.

    Attributes:
        actions: what the shell has to do.
        stage: in which the replica goes on; None = in the same.
        promotion: goes with a stage that is part of one.
    """

    actions: Sequence[act.Action] = ()
    stage: ReplicaStage | None = None
    promotion: Promotion | None = None


STAY = StageTurn()
"""Nothing is to be done, and the stage stays."""


class StageHandler:
    """What a replica does in one stage. It is made when the stage is entered. Times are monotonic seconds.

    A handler changes what all stages share, and nothing else; the replica enters the stage that a turn names.
    """

    kind: ClassVar[ReplicaStage]

    def __init__(self, shared: Shared) -> None:
        self.shared = shared

    @property
    def urgent(self) -> bool:
        """Whether the loop should not wait for records: a promotion or a speculation is under way."""
        return True

    def enter(self, now: float) -> list[act.Action]:
        """Return what to do as the stage begins."""
        del now
        return []

    def leave(self, why: str) -> list[act.Action]:
        """Return what to do as the stage ends since the state is no use any more."""
        del why
        return []

    def step(self, now: float) -> StageTurn:
        """Do what is due."""
        raise NotImplementedError

    # ---- answers -----------------------------------------------------------------------------------------------

    def on_end(self, first: int, end: int, now: float) -> StageTurn:
        """Answer to `AskEnd`."""
        shared = self.shared
        asked = shared.requests.answered()
        if asked is not None:
            shared.batching.costs.on_asked(now - asked)
        shared.intake.first, shared.intake.end = first, end
        turn = self._short(end, now)
        return self._at_end(first, end, now) if turn is None else turn

    def on_context(self, context: Context | None, first: int, now: float) -> StageTurn:
        """Answer to `ReadContext`; None = there is none at that place any more, or another one.

        One that says less of who owns the slot than the log before it is none: epochs do not run backwards.
        """
        shared, intake = self.shared, self.shared.intake
        shared.requests.answered()
        intake.first = first
        unfit = context is None or context.offset < first or intake.contradicts(context)
        if context is None or unfit or not self._fits(context, now):
            return self._gone_on_without(first, now)
        try:
            restored = shared.processor.restore(context)
        except (ValueError, TypeError, LookupError) as error:
            # Whoever wrote it, it is no state of this slot: as good as none. It must not end everybody who comes by.
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
        shared.silent.clear()
        return self._at_context(now)

    def on_fetched(self, records: list[Record], now: float) -> StageTurn:
        """Answer to `Fetch`.

        Raises:
            LogError: nothing came but the record that was read before; it is to be asked for again, after a while.
        """
        shared, intake = self.shared, self.shared.intake
        asked = shared.requests.answered()
        before = intake.next
        if records and records[0].offset == intake.next - 1:
            if (turn := self._compare(records[0], intake.digest, now)) is not None:
                return turn
            shared.trust.restored = False
        intake.on_pulled(records)
        if (turn := self._take_in(records, now)) is not None:
            return turn
        return self._at_fetched(len(records), asked, before, now)

    def on_checked(self, first: int, end: int, record: Record | None, now: float) -> StageTurn:
        """Answer to `CheckRecord`: the log's (first, end), and the record asked for if it holds it."""
        shared, intake = self.shared, self.shared.intake
        shared.requests.answered()
        intake.first = first
        if (turn := self._short(end, now)) is not None:
            return turn
        shared.processor.fault.answered()
        read = next((item for item in intake.breaks if record is not None and item.offset == record.offset), None)
        if record is None or read is None:
            intake.breaks.clear()  # retention has passed them
        else:
            intake.breaks.remove(read)
            if (turn := self._compare(record, digest_of(read), now)) is not None:
                return turn
        return self._at_checked(now)

    def on_tail(self, generation: int, name: Name, now: float, appended_us: int, *, lost: bool) -> StageTurn:
        """Answer to `ReadTail`: the name of the last record of `recovered` (`NO_NAME` if it is empty).

        Args:
            appended_us: when the log appended the record that caused it; 0 = not known.
            lost: `recovered` has lost its end, and this is the last output that is known to be left.
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
        """What came of following the log."""
        del records, now
        return STAY

    def on_failed(self, now: float) -> StageTurn:
        """The outstanding request failed: the log did not answer."""
        self.shared.requests.failed(now)
        return STAY

    def on_unannounced(self) -> None:
        """The log does not have the last `Announce`: what it was to say must be said before it is processed."""

    # ---- what a stage does with an answer ----------------------------------------------------------------------

    def _at_end(self, first: int, end: int, now: float) -> StageTurn:
        """Go on: the log reaches from `first` to `end`, and nothing of it is missing."""
        del first, end, now
        return STAY

    def _at_context(self, now: float) -> StageTurn:
        """Go on: the state is that of a context."""
        del now
        return STAY

    def _without_context(self, first: int, now: float) -> StageTurn:
        """Go on without the context that was asked for: by an older one, once, or by what the log holds."""
        del first, now
        return STAY

    def _at_fetched(self, count: int, asked: float | None, before: int, now: float) -> StageTurn:
        """Go on: so many records were read, asked for at a time; the first one not read had been at `before`."""
        del count, asked, before, now
        return STAY

    def _at_checked(self, now: float) -> StageTurn:
        """Go on: the log holds what was read of it."""
        del now
        return STAY

    def _at_tail(self, generation: int, name: Name, appended_us: int, now: float) -> StageTurn:
        """Go on: this is the last output."""
        del generation, name, appended_us, now
        return STAY

    def _gone_on_without(self, first: int, now: float) -> StageTurn:
        self.shared.trust.forget_context(self.shared.intake.take_level1())
        return self._without_context(first, now)

    # ---- whether the log is the one that was read ----------------------------------------------------------------

    def _short(self, end: int, now: float) -> StageTurn | None:
        """Return what to do if the log ends before what was read or acknowledged of it, else None."""
        shared, intake = self.shared, self.shared.intake
        acknowledged = 0 if intake.level1 is None else intake.level1.offset
        known = max(intake.next, shared.slot.position, acknowledged)
        believed = shared.trust.short(now, is_short=end < known)
        if end >= known:
            return None
        # Names hold only while offsets do, so there are no outputs on a log that lost its end
        # (architecture, "Whose log a position is of").
        why = f"the log ends at {end}, but records up to {known} were read: it lost records"
        shared.processor.fault.say(why)
        shared.requests.pause(now, PAUSE_S)
        return self._contradicted(why, end, now) if believed else self._doubted(why)

    def _doubted(self, why: str) -> StageTurn:
        """Go on while it is not sure yet that the log has lost records."""
        del why
        return STAY

    def _compare(self, record: Record, digest: int, now: float) -> StageTurn | None:
        """Compare a record with the one read at its place before; return what to do if it is another."""
        why = LogMark("", digest).contradicts(LogMark("", digest_of(record)))
        return self._contradicted(why, record.offset, now) if why else None

    def _fits(self, context: Context, now: float) -> bool:
        """Return whether a context may be of this log, and is the one that was acknowledged."""
        trust, level1 = self.shared.trust, self.shared.intake.level1
        if level1 is not None and level1.offset != context.offset:
            return False
        mark = LogMark(context.topic_id, 0)
        if why := mark.contradicts(NO_MARK._replace(topic_id=trust.topic_id)):
            if not trust.contradiction:
                trust.contradict(why, 0, context.offset, now)
            return False
        return trust.usable(context.offset, context.generation)

    def _take_in(self, records: list[Record], now: float) -> StageTurn | None:
        """Take in what was read; return what to do instead of going on if a new generation changes the state."""
        shared = self.shared
        founding = shared.scan.founding
        shared.intake.take_in(records)
        shared.slot.register.quarantined |= shared.scan.quarantined
        return None if shared.scan.founding is founding else self._on_founded(now)

    def _on_founded(self, now: float) -> StageTurn | None:
        """A new generation begins: a state that goes beyond its first record, or that it does not know, is no use."""
        shared, scan, slot = self.shared, self.shared.scan, self.shared.slot
        founding = scan.founding
        assert founding is not None  # noqa: S101 - the caller has seen it
        shared.trust.founded(founding, scan.generation, by_us=scan.owner == shared.node)
        if founding.blank:
            fits = slot.origin == slot.position == founding.begin
            if fits:
                slot.begin_at(founding.begin, scan.founded_at)
        else:
            fits = slot.position <= founding.begin
        if not fits:
            return self._again(scan.declared, now)
        shared.silent.clear()
        level1 = shared.intake.level1
        if level1 is not None and not shared.trust.usable(level1.offset, level1.generation):
            shared.intake.level1 = None
        return None

    def _contradicted(self, why: str, upto: int, now: float, known_to: int = 0) -> StageTurn:
        """The log is not the one that this node, or whoever wrote a context, has read: begin again by what is there.

        Args:
            upto: nothing beyond this offset is believed.
            known_to: the end of the log that was, as far as an output or an acknowledgement has told.
        """
        intake = self.shared.intake
        lost_to = max(intake.next, known_to, 0 if intake.level1 is None else intake.level1.offset)
        self.shared.trust.contradict(why, upto, lost_to, now)
        return self._again(why, now)

    def _outputs_lost(self, last: Name, now: float) -> StageTurn:
        """`recovered` has lost what came behind this output: it is written again, in a new generation.

        Not under its names: readers that have read what was written since would take it for repeats.
        """
        upto = max(last.offset, self.shared.scan.began)
        why = f"`{RECOVERED}` lost its end: outputs of the record at offset {upto} or of later ones"
        self.shared.trust.contradict(why, upto, 0, now)
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
    """A stage that reads the log up to its end before it goes on."""

    checks: ClassVar[bool] = False
    """Compares the record before the first one that it reads with the one that was read there."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._target = 0

    def step(self, now: float) -> StageTurn:
        """Ask for the log's end, or whatever is due, unless an answer is outstanding."""
        if self.shared.requests.wait(now) or not self.shared.processor.may_ask():
            return STAY
        return self._due(now)

    def _due(self, now: float) -> StageTurn:
        return StageTurn(self.shared.requests.ask(now, act.AskEnd()))

    def _at_end(self, first: int, end: int, now: float) -> StageTurn:
        """Go on from a context if that is better than reading on from what was read."""
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

    def _read(self, first: int, now: float) -> StageTurn:
        """Read on: the log begins at `first`."""
        raise NotImplementedError

    def _read_context(self, now: float, place: int | None, upto: int | None = None) -> StageTurn:
        return StageTurn(self.shared.requests.ask(now, act.ReadContext(place, upto)))

    def _fetch_to(self, end: int, now: float) -> StageTurn:
        """Fetch what was not read up to an offset."""
        intake = self.shared.intake
        self._target = end
        checks = self._compares()
        if end <= intake.next and not checks:
            return self._nothing_to_fetch(now)
        intake.pulls += 1
        fetch = act.Fetch(intake.next - checks, max(end, intake.next))
        return StageTurn(self.shared.requests.ask(now, fetch))

    def _nothing_to_fetch(self, now: float) -> StageTurn:
        return self.on_fetched([], now)

    def _compares(self) -> bool:
        """Return whether the next read begins with the record read last, to compare it."""
        intake = self.shared.intake
        return (self.shared.trust.restored or self.checks) and intake.digest != 0 and intake.first < intake.next

    def _is_gone(self, first: int, now: float) -> StageTurn | None:
        """Return what to do if retention has taken what would be read next, else None."""
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
        """Nobody owns the slot, nobody has its state: stand by with what retention has left, and found a generation."""
        shared, left = self.shared, self.leave("the log has lost its beginning")
        shared.trust.begin_blank(first)
        shared.forget(first)
        shared.succession.give_time(now)
        why = f"the log begins at {first}, there is no context, and nobody holds the slot"
        return StageTurn([*left, act.Note("a new generation is to begin", why, grave=True)], ReplicaStage.WATCH)
