"""One slot on one node: standby, promotion, primary (A-SAS, algorithms 1 and 2) without I/O.

A replica is a plain object. Records, acknowledgements and a clock go in; actions come out of `step` and are answered
by the `on_...` methods. The gateway's host runs it on Kafka, the simulator on an in-memory log under virtual time.

Stages
    START    build the state once: the newest context and what follows it
    WATCH    standby: read the log by batches of B tuples, process silently what the primary has survived, watch it
    SURVEY   suspicion or wish: read the log to its end, without processing
    CLAIM    own promotion appended; reading until it, or somebody else's, comes back
    TAIL     owner by the log: asking for the last name in `recovered`
    BURY     owner: two owners died on one record; reading until its Quarantine comes back
    OWN      primary

Only what is read back from the slot's log changes who owns it. A node that reads of its fall is a standby again.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from enum import Enum
from itertools import islice, takewhile

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.store import PendingError
from tsunagi.runtime.log import DEAD_LETTERS, RECOVERED, TUPLES, LogError, Record
from tsunagi.runtime.marks import NO_MARK, Mark, digest_of
from tsunagi.runtime.messages import (
    VERSION,
    Ack,
    Context,
    Founding,
    Level0Ack,
    LogRecord,
    Ownership,
    Quarantine,
    SlotBeat,
    TupleBatch,
)
from tsunagi.runtime.names import NO_NAME, Name
from tsunagi.runtime.settings import Settings
from tsunagi.slot.ownership import Register
from tsunagi.slot.slot import LoadModel, Output, Slot
from tsunagi.standby import actions as act
from tsunagi.standby.batching import Batching
from tsunagi.standby.detector import MIN_STALL_S, STALL_RECORDS, Detector
from tsunagi.standby.intake import Intake
from tsunagi.standby.primary import Primary
from tsunagi.standby.promotion import DEATHS, Promotion
from tsunagi.standby.queue import PendingQueue, SilentQueue
from tsunagi.standby.speculation import POLL_S as SPECULATION_POLL_S
from tsunagi.standby.speculation import Speculated, Speculation
from tsunagi.standby.trust import Trust
from tsunagi.standby.wish import Wish
from tsunagi.standby.workload import Workload

CHUNK = 500
"""Records processed between two looks at the clock, at most."""

CHUNK_S = 0.1
"""Time between two looks at the clock, by the measured cost of a record."""

READ_BACK_S = 1.0
"""A claim that has not come back by then is given up; if the suspicion stands, another follows."""

RETRY_S = 0.2
"""After a question that the log has not answered the next one is asked so much later, seconds."""

ASK_S = 1.0
"""How often a standby asks for the log's end itself, though the owner's heartbeats say it."""

TOLD_INTERVALS = 2.0
"""So many heartbeats without one of the owner's, and a standby asks at every look."""

COST_WEIGHT = 0.02
COST_PERIOD_S = 1.0
"""Of a new measurement of what a record costs: by records, or by time where that is more."""

DIFFERS_PATIENCE = 4.0
"""A secondary whose settings differ from the slot's waits so many times longer: one whose do not comes first."""


HELD_S = 3.0
"""A node that was heard within this time, and said that it holds a slot, may hold it still."""

MOVE_S = 0.1
MOVE_PATIENCE_S = 5.0
MOVE_INTERVALS = 3.0
"""Before a planned takeover a standby processes what the owner has, until no more than `MOVE_S` of work is left; it
does not wait longer than that for it, since a slower machine than the owner may never come so far. An owner that has
not been heard for so many heartbeats may have died of a record: a planned takeover would not announce it."""


class Stage(Enum):
    """See the module."""

    START = "rebuilding"
    WATCH = "standby"
    SURVEY = "promoting"
    CLAIM = "claiming"
    TAIL = "taking over"
    BURY = "burying"
    OWN = "primary"


_BEAT_ROLE = {Stage.START: "rebuilding", Stage.WATCH: "standby", Stage.OWN: "primary"}


class Replica:
    """The state of one slot on one node. All times are monotonic seconds of the caller's clock.

    Attributes:
        preparing: set once the model is ready that the plan has for the slot; None = nobody prepares it.
        spare: whether the node has time for what only a standby does: to read and process before a promotion.
    """

    def __init__(
        self,
        slot: int,
        node: str,
        wish: Wish,
        settings: Settings,
        detector: Detector,
        load_model: LoadModel,
        new_generation: Callable[[], int],
        now: float,
    ) -> None:
        self.slot_id = slot
        self.node = node
        self.wish = wish
        self.stage = Stage.START
        self.work = Workload()
        self.slot = Slot(slot, load_model, self.work.announce)
        self.intake = Intake(max(1.0, len(wish.config.sensors) / max(1, len(set(wish.config.edges)))))
        self.silent = SilentQueue()
        self.pending = PendingQueue()
        self.primary: Primary | None = None
        self.speculated = Speculated()
        self.fault = ""
        self.spare = True
        self.preparing: threading.Event | None = None
        self.processed = 0
        self.record_s = 0.0
        self._worked_at = now
        self.busy: tuple[int, int, float] | None = None  # the loop is on (from, announced until, since)
        self.trust = Trust(now)
        self.batching = Batching(settings.standby, slot, stepwise=settings.paper.batch_steps)
        self._settings = settings
        self._detector = detector
        self._load_model = load_model
        self._new_generation = new_generation
        self._level0: Level0Ack | None = None
        self._known_epoch = 0
        self._watched_epoch = 0
        self._vetted_epoch = 0
        self._lost_saves = 0
        self._blocked = False  # the next record names a model that this node lacks
        self._awaited: threading.Event | None = None  # set once the model is ready that this slot goes on with
        self._term = 0  # the epoch it is, or was last, the primary of
        self._known_owner = ""
        self._since = now
        self._context_waits = False  # the model awaited is that of a context
        self._asked: float | None = None  # when the outstanding request was made
        self._retry_at = 0.0
        self._poll_at = 0.0
        self._ask_by = 0.0  # the log's end is asked for by then, whatever the owner says of it;
        self._told_until = 0.0  # before this it says enough
        self._told: SlotBeat | None = None  # the heartbeat by which the log's end was heard last
        self._costed: SlotBeat | None = None  # the one by which the owner's costs were
        self._promotion: Promotion | None = None
        self._speculation: Speculation | None = None
        self._after_context: Stage = Stage.WATCH
        self._target = 0
        self._tail = NO_NAME
        self._us = 0
        # Where `recovered` has lost its end: before this place, and before the output of this name.
        self._written_since: tuple[int, Name] | None = None
        self._wished_at: float | None = None  # when it was first wished to take over from an owner that lives

    # ---- what it says of itself --------------------------------------------------------------------------------

    @property
    def role(self) -> str:
        """Primary | standby | promoting | rebuilding."""
        return _BEAT_ROLE.get(self.stage, "promoting")

    @property
    def waits(self) -> bool:
        """Whether nothing is urgent: neither a promotion nor a speculation is under way, or its model is being read."""
        return self._awaited is not None or (self.stage in (Stage.WATCH, Stage.OWN) and self._speculation is None)

    @property
    def behind(self) -> bool:
        """Whether it owns the slot and could process more at once."""
        return self.stage is Stage.OWN and bool(self.intake.backlog) and self._awaited is None

    @property
    def scan(self) -> Register:
        """Ownership as of the end of what was read."""
        return self.intake.scan

    @property
    def epoch(self) -> int:
        """The newest epoch known."""
        return max(self.scan.epoch, self._known_epoch)

    @property
    def owner(self) -> str:
        """The owner of the newest epoch known."""
        return self.scan.owner if self.scan.epoch >= self._known_epoch else self._known_owner

    @property
    def lag(self) -> int:
        """Records from the position to the log's end, as far as known."""
        return max(0, max(self.intake.end, self.intake.next) - self.slot.position)

    def unready(self) -> str:
        """Return "" if the replica owns the slot or could take it over now, else why not."""
        if self.fault:
            return self.fault
        if self.stage is Stage.START:
            return "building its state"
        if self._awaited is not None or (self.preparing is not None and not self.preparing.is_set()):
            return "its model is being read"
        if self.trust.blank:
            return "neither an owner nor a context is left: a new generation is to begin"
        if self._differs():
            return "its settings differ from those in the slot's log"
        return ""

    def _differs(self) -> bool:
        """Return whether this node would compute something else than the slot's log says."""
        return bool(self.slot.settings.hash) and self.slot.settings.hash != self.wish.config.hash

    def beat(self, now: float) -> SlotBeat:
        """Return its part of the heartbeat; called from the heartbeats' own thread, once for each heartbeat.

        An owner speaks for its own term alone: of a newer one it may have heard by an acknowledgement, before it has
        read of its fall, and that term is another node's.
        """
        stage = self.stage
        busy = self.busy
        reason = self.unready()
        since, due = self.work.look(now)
        if busy is not None:
            if since is None:  # before its first turn on what it has announced: the pause may have lasted for long
                due = max(due, busy[2] + MIN_STALL_S)
            since = busy[2]
        return SlotBeat(
            slot=self.slot_id,
            role=_BEAT_ROLE.get(stage, "promoting"),
            epoch=self._term if stage is Stage.OWN else self.epoch,
            position=self.slot.position,
            busy_offset=-1 if busy is None else busy[0],
            busy_until=-1 if busy is None or busy[1] == busy[0] else busy[1],
            busy_us=0 if since is None else round((now - since) * 1e6),
            busy_limit_us=0 if since is None else max(1, round((due - since) * 1e6)),
            ready=not reason,
            reason=reason,
            step=self.slot.cursor - 1,
            record_us=self.record_s * 1e6,
            batch_size=0 if math.isinf(self.batching.batch_tuples) else int(self.batching.batch_tuples),
            lag=self.lag,
            record_tuples=self.intake.tuples_per_record,
            send_us=self.intake.send_s * 1e6 if stage is Stage.OWN else 0.0,
            wait_us=self.intake.take_wait_us() if stage is Stage.OWN else 0,
            taking_up=stage is Stage.OWN and self._promotion is not None,
            declared=self.trust.contradiction or self.scan.declared,
        )

    # ---- the clock ---------------------------------------------------------------------------------------------

    def step(self, now: float, now_us: int) -> list[act.Action]:
        """Do what is due; return what the shell has to do."""
        self._us = now_us
        if self.stage is Stage.OWN:
            return self._own(now)
        if self._asked is not None or now < self._retry_at or (self._context_waits and self._awaits()):
            return []
        self._context_waits = False
        if self.stage is Stage.START:
            return self._ask(now, act.AskEnd())
        if self.stage is Stage.WATCH:
            return self._watch(now)
        promotion = self._promotion
        assert promotion is not None  # noqa: S101 - every other stage has one
        if self.stage is Stage.SURVEY:
            return self._ask(now, act.AskEnd())
        if self.stage in (Stage.CLAIM, Stage.BURY):
            if now > promotion.deadline:
                if self.stage is Stage.BURY:
                    return self._bury(promotion, now)
                return self._give_up(now, "the claim did not come back")
            return self._ask(now, act.AskEnd())
        return self._ask(now, self._read_tail())

    def _ask(self, now: float, action: act.Action) -> list[act.Action]:
        self._asked = now
        return [action]

    # ---- answers -----------------------------------------------------------------------------------------------

    def on_request(self, now: float) -> None:
        """The outstanding request goes out now: what was processed in the turn that asks for it took no part of it."""
        if self._asked is not None:
            self._asked = now

    def on_failed(self, now: float) -> None:
        """The outstanding request failed (the log did not answer): try again a little later."""
        self._asked = None
        self._retry_at = now + RETRY_S
        self._ask_by = now  # where the log begins and ends may be other than we think
        if self.stage is Stage.SURVEY:
            self.stage = Stage.WATCH  # when the log answers again, the old owner may well have been heard again
            self._promotion = None

    def on_end(self, first: int, end: int, now: float) -> list[act.Action]:
        """Answer to `AskEnd`."""
        if self._asked is not None:
            self.batching.costs.on_asked(now - self._asked)
        self._asked = None
        self.intake.first, self.intake.end = first, end
        if (short := self._short(end, now)) is not None:
            return short
        if self.stage is Stage.WATCH:
            if first > self.intake.next and self.intake.jump_place(first) is None:
                return self._start_reading(first, now)  # what it would need is gone: it must not look ready
            if not self._blocked:
                self.fault = ""
            return self._look(now)
        if self.stage is Stage.START or self.stage is Stage.SURVEY:
            self._target = end
            place = self.intake.jump_place(first, blank=self.slot.position == 0)
            if place is None:
                place = self.intake.leap_place(self.slot.position, self.record_s)
            if place is not None:
                return self._go_on_from(place, now)
            return self._start_reading(first, now)
        return self._fetch_to(end, now)

    def _start_reading(self, first: int, now: float) -> list[act.Action]:
        if self._may_search():
            self._after_context = Stage.START
            known = (self.intake.end, self.trust.upto, self.trust.acknowledged)
            upto = min(offset for offset in known if offset is not None)
            return self._ask(now, act.ReadContext(self.trust.place, upto))
        if first > self.intake.next:
            if self.trust.forsaken(now, held=not self._detector.settled(now) or self._held(now)):
                return self._begin_blank(first, now)
            self.fault = (
                f"retention has passed the resume point: the log begins at {first}, needed from {self.intake.next}"
            )
            self._retry_at = now + 1.0
            return []
        self.fault = ""
        if self.stage is Stage.START:
            if self._checks():
                self._target = self.intake.next
                return self._fetch_to(self._target, now)
            self.stage = Stage.WATCH
            self._since = now
            return []
        return self._fetch_to(self._target, now)

    def _short(self, end: int, now: float) -> list[act.Action] | None:
        """Return what to do if the log ends before what was read or acknowledged of it, else None."""
        acknowledged = 0 if self.intake.level1 is None else self.intake.level1.offset
        known = max(self.intake.next, self.slot.position, acknowledged)
        believed = self.trust.short(now, is_short=end < known)
        if end >= known:
            return None
        # Names hold only while offsets do, so there are no outputs on a log that lost its end
        # (architecture, "Whose log a position is of").
        self.fault = f"the log ends at {end}, but records up to {known} were read: it lost records"
        self._retry_at = now + 1.0
        return self._contradicted(self.fault, end, now) if believed else self._end_speculation(self.fault)

    def _go_on_from(self, place: int, now: float) -> list[act.Action]:
        """Ask for the context at this place, to go on from it in the stage it is asked in."""
        self._after_context = self.stage
        return self._ask(now, act.ReadContext(place))

    def on_context(self, context: Context | None, first: int, now: float) -> list[act.Action]:
        """Answer to `ReadContext`; None = there is none at that place any more, or another one.

        One that says less of who owns the slot than the log before it is none: epochs do not run backwards.
        """
        self._asked = None
        self.intake.first = first
        if (
            context is None
            or context.offset < first
            or self.intake.contradicts(context)
            or not self._fits(context, now)
        ):
            return self._without_context(first, now)
        slot = Slot(self.slot_id, self._load_model, self.work.announce)
        self._awaited = None
        self.work.begin(STALL_RECORDS * self.record_s)
        try:
            slot.restore(context)
        except PendingError as error:
            self._await(error)
            self._context_waits = True  # it is read once more when the model is there
            return []
        except ModelError as error:
            self.fault = str(error)
            self._retry_at = now + 1.0
            return []
        except (ValueError, TypeError, LookupError) as error:
            # Whoever wrote it, it is no state of this slot: as good as none. It must not end everybody who comes by.
            note = act.Note("unusable context", f"slot {self.slot_id}, before offset {context.offset}: {error}")
            return [note, *self._without_context(first, now)]
        finally:
            self._end_work()
        self.fault = ""
        self._blocked = False
        self.slot = slot
        self.intake.jump(slot.position, slot.register, context.digest)
        self.trust.restored = True
        slot.register.quarantined |= self.scan.quarantined
        self.silent.clear()
        if self._after_context is Stage.WATCH:
            return self._fetch_to(self.intake.end, now)
        return self._start_reading(min(first, self.intake.next), now)

    def _without_context(self, first: int, now: float) -> list[act.Action]:
        """Go on without the context that was asked for: by an older one, once, or by what the log holds."""
        level1, self.intake.level1 = self.intake.level1, None
        if level1 is None:
            self.trust.searched = True
        else:  # older ones were acknowledged before it
            self.trust.place, self.trust.acknowledged = level1.context_offset - 1, level1.offset
        return self._start_reading(first, now) if self._after_context is not Stage.WATCH else []

    def on_fetched(self, records: list[Record], now: float) -> list[act.Action]:
        """Answer to `Fetch`.

        Raises:
            LogError: nothing came but the record that was read before; it is to be asked for again, after a while.
        """
        asked, self._asked = self._asked, None
        before = self.intake.next
        todo: list[act.Action] | None = None
        if records and records[0].offset == self.intake.next - 1:
            todo = self._compare(records[0], self.intake.digest, now)
            if todo is not None:
                return todo
            self.trust.restored = False
        self.intake.on_pulled(records)
        todo = self._take_in(records, now)
        if todo is not None:
            return todo
        if self.stage is Stage.START:
            self.stage = Stage.WATCH
            self._since = now
            return []
        if self.stage is Stage.WATCH:
            if asked is not None:
                self.batching.costs.on_pull(now, now - asked, len(records))
            return []
        if self.intake.next < self._target:
            return self._fetch_on(before, now)
        promotion = self._promotion
        if promotion is None:
            return []
        if self.stage is Stage.SURVEY:
            return self._claim(promotion, now)
        if self.stage is Stage.CLAIM and self.scan.epoch >= promotion.claimed:
            if self.scan.owner != self.node or self.scan.epoch > promotion.claimed:
                return self._give_up(now, f"{self.scan.owner} was first")
            promotion.owned_at = now
            promotion.catch_up_to = self.intake.next
            self.stage = Stage.TAIL
            return self._ask(now, self._read_tail())
        if self.stage is Stage.BURY:
            if self.scan.owner != self.node:
                return self._give_up(now, f"{self.scan.owner} took over")
            if promotion.suspects is not None and promotion.suspects[0] in self.scan.quarantined:
                return self._become_primary(promotion, now)
        return []

    def on_tail(
        self, generation: int, name: Name, now: float, appended_us: int = 0, *, lost: bool = False
    ) -> list[act.Action]:
        """Answer to `ReadTail`: the name of the last record of `recovered` (`NO_NAME` if it is empty).

        Args:
            appended_us: when the log appended the record that caused it; 0 = not known.
            lost: `recovered` has lost its end, and this is the last output that is known to be left.
        """
        self._asked = None
        believed = self.trust.outputs_short(now, is_short=lost)
        if believed or (self.stage is Stage.OWN and self._written_since is not None):
            return self._outputs_lost(name if generation == self.scan.generation else NO_NAME, now)
        if lost:
            self._retry_at = now + RETRY_S
            return []
        speculation, promotion = self._speculation, self._promotion
        if self.stage is Stage.WATCH and speculation is not None:
            speculation.begin(generation, name)
            return []
        if self.stage is not Stage.TAIL or promotion is None:
            return []
        self._tail = name if generation == self.scan.generation else NO_NAME
        processed = name.offset < self.slot.position
        if self._tail != NO_NAME and (
            (processed and appended_us and self.silent.contradicts(name, appended_us))
            or not self.intake.caused(name.offset, appended_us)
        ):
            why = f"the last output is named after a record at offset {name.offset} that the log does not hold"
            return self._contradicted(why, name.offset, now)
        suspects = promotion.suspects if promotion.proven else None
        if suspects is not None and self._tail.offset < suspects[0] and not self.intake.claims(suspects[0]):
            return self._bury(promotion, now)
        return self._become_primary(promotion, now)

    def on_unannounced(self) -> None:
        """The log does not have the last `Announce`: what it was to say must be said before it is processed.

        Else a death would be held against the records announced before, which this process has survived.
        """
        if self.busy is None:
            return
        if self._promotion is not None and self._promotion.announced is not None:
            self._promotion.announced = self.busy[0]
        if self._speculation is not None:
            self._speculation.announced = self.busy[0]

    def _outputs_lost(self, last: Name, now: float) -> list[act.Action]:
        """`recovered` has lost what came behind this output: it is written again, in a new generation.

        Not under its names: readers that have read what was written since would take it for repeats.
        """
        upto = max(last.offset, self.scan.began)
        why = f"`{RECOVERED}` lost its end: outputs of the record at offset {upto} or of later ones"
        self.trust.contradict(why, upto, 0, now)
        return self._begin_again(why, now)

    def _read_tail(self) -> act.ReadTail:
        """Ask for the last output, and whether that is still there which an owner was last told to have arrived."""
        level0 = self._level0
        if level0 is None or level0.generation != self.scan.generation or not level0.recovered_end:
            return act.ReadTail()
        return act.ReadTail(acknowledged=Name(level0.last_offset, level0.last_index), end=level0.recovered_end)

    def on_records(self, records: list[Record], now: float, now_us: int) -> list[act.Action]:
        """What came of following the log."""
        if self.stage is not Stage.OWN:
            return []
        if (todo := self._take_in(records, now)) is not None:
            return todo
        self.intake.on_followed(records, now_us)
        if self.scan.owner != self.node or self.scan.epoch != self._term:
            return self._fall(now)  # another node, or a newer process of this node's name
        return []

    def on_delivered(self, outputs: Sequence[Output], place: int = -1) -> None:
        """The broker has outputs of one topic that were emitted in a row, the last of them at this place of it."""
        self.pending.delivered_run(outputs)
        last = outputs[-1]
        if last.topic == RECOVERED and place >= 0 and not self.pending.place(last.name, place):
            self._written_since = place, outputs[0].name

    def on_stored(self, sha256: str) -> None:
        """The store has a model that was to be stored."""
        if self.primary is not None:
            self.primary.on_stored(sha256, self.slot)

    def on_context_saved(self, place: int) -> None:
        """The broker has the context that was to be saved, at this place; -1 = it cannot be read there."""
        if self._lost_saves:
            self._lost_saves -= 1  # of a term that is over; contexts arrive in the order in which they were sent
        elif self.primary is not None:
            self.primary.on_context_saved(place, self.scan)

    def on_ack(self, ack: Ack, now: float) -> None:
        """An acknowledgement of this slot: the greatest of the newest epoch counts."""
        kind = ack.WhichOneof("body")
        if kind == "level0":
            if ack.level0.node == "spark":
                return
            self._learn(ack.level0.epoch, ack.level0.node, now)
            old = self._level0
            if old is None or (ack.level0.epoch, ack.level0.offset) > (old.epoch, old.offset):
                self._level0 = ack.level0
                self._trim()
        elif kind == "level1":
            self._learn(ack.level1.epoch, ack.level1.node, now)
            if self.trust.usable(ack.level1.offset, ack.level1.generation):
                self.intake.on_level1(ack.level1)

    def _trim(self) -> None:
        """Forget what the downstream has; what it had of the generation before is not what is in the queue."""
        level0 = self._level0
        if level0 is not None and (level0.generation == self.scan.generation or level0.epoch > self.scan.epoch):
            self.silent.trim(level0.offset)

    def on_worked(self, seconds: float, records: int, now: float) -> None:
        """The loop has spent this time on records of the slot.

        The running mean forgets with time as well as with records, so that a slot with few of them is not told by what
        its records cost a minute ago.
        """
        cost_s = seconds / records
        weight = max(COST_WEIGHT * records, 1.0 - math.exp(-(now - self._worked_at) / COST_PERIOD_S))
        self.record_s += min(1.0, weight) * (cost_s - self.record_s)
        self._worked_at = now
        if self.stage is Stage.WATCH:
            self.batching.costs.on_processed(now, seconds, records)

    def on_leaving(self, edge: str, incarnation: int, step: int) -> None:
        """A process of an edge has stopped in good order after this step."""
        if self.primary is not None:
            self.primary.on_leaving(edge, incarnation, step)

    # ---- standby -----------------------------------------------------------------------------------------------

    def _watch(self, now: float) -> list[act.Action]:
        if self.epoch > self._watched_epoch:  # a new owner, of whom nothing may have been heard yet, has all its time
            self._watched_epoch, self._since = self.epoch, now
        owner = self.owner
        if not self._moving():
            self._wished_at = None
        beat = self._detector.owner_beat(owner, self.slot_id) if owner else None
        if beat is not None:
            self._learn(beat.epoch, owner, now)
            if beat is not self._costed:
                self._costed = beat
                self.batching.costs.on_owner(beat.record_us / 1e6, beat.send_us / 1e6)
            self.trust.forgive(now)
            # While it speculates nothing may be passed over in silence: what is written has no gaps. Of a log that is
            # not what it was, all that follows from the state found may have to be written again.
            unsure = bool(self.trust.contradiction) or self.trust.blank
            if self._speculation is None and not unsure and (self.spare or self._moving()):
                self._process_silently(self._survived(beat))
        self.batching.decide(now)
        if not self.fault:
            reason, silence = self._suspect(owner, now)
            if reason:
                return self._begin(reason, silence, now)
            sure = not self.trust.contradiction and not self.trust.blank
            if sure and self._settings.standby.speculate and (todo := self._speculate(owner, now)):
                return todo
        elif self._speculation is not None:
            return self._end_speculation(self.fault)
        if not self._detector.connected(now):
            return []
        if self.intake.breaks and self.trust.due(now):
            return self._ask(now, act.Check(self.intake.breaks[-1].offset + 1))
        if beat is not None and beat is not self._told and now < self._ask_by and not self.fault:
            self._told = beat
            return self._hear_end(beat, now)
        if now >= max(self._poll_at, min(self._told_until, self._ask_by)):
            self._poll_at = now + self._settings.standby.poll_s
            self._ask_by = now + ASK_S
            return self._ask(now, act.AskEnd())
        return []

    def _hear_end(self, beat: SlotBeat, now: float) -> list[act.Action]:
        """Pull by what the owner says of the log's end; asking the broker for it would cost more requests than pulls.

        Nothing is lost by it: what the owner has not said to have survived is not processed before a promotion.
        """
        self._told_until = now + TOLD_INTERVALS * self._settings.standby.heartbeat_s
        self.intake.end = max(self.intake.end, beat.position + beat.lag)
        return self._look(now)

    def _look(self, now: float) -> list[act.Action]:
        """Take in where the log ends, and pull if it holds a batch."""
        self.batching.costs.on_place(now, self.intake.place())
        return self._pull(self.intake.first, self.intake.end, now)

    def _speculate(self, owner: str, now: float) -> list[act.Action]:
        """At a weak suspicion write what the owner should have written; see `tsunagi.standby.speculation`."""
        speculation = self._speculation
        silence = 0.0
        if owner and owner != self.node and not self._differs():
            silence = self._detector.owner_silence(owner, self.slot_id, self._since, now)
        if speculation is None and self._detector.announced(self.slot_id, self.epoch):
            return []  # somebody has died of records that come next: who owns the slot finds out of which
        if silence <= self._settings.standby.speculate_s:
            return [] if speculation is None else self._end_speculation(f"{owner} is heard again")
        if speculation is None:
            speculation = self._speculation = Speculation(self.speculated, self.silent, self.pending)
        if not speculation.begun:
            return self._ask(now, self._read_tail())
        if self.intake.backlog or (self.scan.generation and speculation.owes):
            return self._process_ahead(speculation, now)
        if now < self._poll_at:
            return []
        self._poll_at = now + SPECULATION_POLL_S
        return self._ask(now, act.AskEnd())

    def _process_ahead(self, speculation: Speculation, now: float) -> list[act.Action]:
        """Process what the owner is not known to have survived: announced first, since it may have died of it."""
        backlog = self.intake.backlog
        if backlog and backlog[0][0].offset >= speculation.announced:
            speculation.announced = self.intake.next
            self.busy = (backlog[0][0].offset, speculation.announced, now)
            return [act.Announce()]
        outputs: list[Output] = []
        done = 0
        while backlog and backlog[0][0].offset < speculation.announced and done < self._chunk():
            found = self._apply(self._chunk() - done, speculation.announced)
            if found is None:  # what was processed before it is written nevertheless: nobody would make it again
                return [*speculation.emit(outputs, self.scan.generation), *self._end_speculation(self.fault)]
            outputs += found[0]
            done += found[1]
            if self.work.heavy:
                break
        if not backlog:
            self.busy = None
        return speculation.emit(outputs, self.scan.generation)

    def _end_speculation(self, why: str, *, in_vain: bool = True) -> list[act.Action]:
        speculation, self._speculation = self._speculation, None
        self.busy = None
        if speculation is None:
            return []
        speculation.end(in_vain=in_vain)
        return [act.Note("speculation ends", why)]

    def _suspect(self, owner: str, now: float) -> tuple[str, float]:
        """Return ("", _), or why this node should own the slot now and for how long nobody has, seconds."""
        detector, wish = self._detector, self.wish
        wished = wish.owner == self.node and detector.settled(now)
        if not owner and wished:
            return "plan", 0.0
        if self.trust.contradiction and owner == self.node and detector.settled(now):
            return "contradiction", 0.0  # it has found it itself, and is the first to know where to begin again
        # Before the first owner, the one whom the plan names is waited for as long as an owner that has gone silent.
        silence = detector.owner_silence(owner or wish.owner, self.slot_id, self._since, now)
        differs = self._differs()
        limit_s = self._settings.standby.detect_s * (DIFFERS_PATIENCE if differs else 1.0)
        if silence > limit_s:
            return ("plan" if not owner else "restart" if owner == self.node else "silent"), silence
        if owner == self.node or differs:
            return "", 0.0
        if detector.settled(now):
            if owner and detector.left(owner):
                return "left", silence
            slot, since = self.slot_id, self._since
            if detector.stalled(owner, slot, since) or detector.stuck(owner, slot, since, self.intake.end, now):
                return "stalled", silence
        alive = silence <= MOVE_INTERVALS * self._settings.standby.heartbeat_s
        return ("move" if wished and alive and self._moving() and self._caught_up(now) else ""), 0.0

    def _moving(self) -> bool:
        """Return whether the plan wishes that this node takes over from an owner that lives."""
        return self.wish.move and self.wish.owner == self.node and self.owner not in ("", self.node)

    def _caught_up(self, now: float) -> bool:
        """Return whether a planned takeover would find little left to process, so that outputs pause for a moment.

        Never while the owner itself has not caught up: it announces what its predecessor may have died of, a planned
        takeover does not, and deaths that are not announced would never prove which record kills.
        """
        if self._wished_at is None:
            self._wished_at = now
        beat = self._detector.owner_beat(self.owner, self.slot_id)
        if beat is not None and beat.epoch == self.epoch and beat.taking_up:
            return False
        if now - self._wished_at > MOVE_PATIENCE_S:
            return True
        if beat is None or beat.epoch != self.epoch:
            return False
        return (beat.position - self.slot.position) * max(self.record_s, beat.record_us / 1e6) <= MOVE_S

    def _survived(self, beat: SlotBeat) -> int:
        """Return the offset below which the owner has survived every record by processing it.

        A new owner may have passed a record over because it quarantined it. It has read its own Quarantine before it
        goes on, so its position says nothing until we have read as far as it had.
        """
        if self.intake.next >= beat.position + beat.lag:
            self._vetted_epoch = max(self._vetted_epoch, beat.epoch)
        return beat.position if self._vetted_epoch >= beat.epoch else 0

    def _pull(self, first: int, end: int, now: float) -> list[act.Action]:
        """Read the range when it holds B tuples; what a Level-1-Ack trimmed before is not counted and not read."""
        leap = self.intake.leap_place(self.slot.position, self.record_s)
        if leap is not None and self._speculation is None and not self.trust.contradiction:
            return self._go_on_from(leap, now)
        if end <= self.intake.next:
            return []
        enough = self.spare and self.intake.held_tuples(first) >= self.batching.batch_tuples
        # With other settings than the slot's it could not take over; its own may stand in what it has not read yet.
        if self._speculation is None and not enough and not self._moving() and not self._differs():
            return []
        place = self.intake.jump_place(first)
        if place is not None:
            return self._go_on_from(place, now)
        return self._fetch_to(end, now)

    def _fetch_to(self, end: int, now: float) -> list[act.Action]:
        self._target = end
        checks = self._checks()
        if end <= self.intake.next and not checks:
            return self.on_fetched([], now) if self.stage is not Stage.WATCH else []
        self.intake.pulls += 1
        return self._ask(now, act.Fetch(self.intake.next - checks, max(end, self.intake.next)))

    def _fetch_on(self, before: int, now: float) -> list[act.Action]:
        """Fetch the rest of what was asked for. At once only if something came: the log may not show it yet."""
        if self.intake.next == before:
            raise LogError(f"{TUPLES}/{self.slot_id}: nothing came of {before}..{self._target}")
        return self._fetch_to(self._target, now)

    def _take_in(self, records: list[Record], now: float) -> list[act.Action] | None:
        """Take in what was read; return what to do instead of going on if a new generation changes the state."""
        founding = self.scan.founding
        self.intake.take_in(records)
        self.slot.register.quarantined |= self.scan.quarantined
        return None if self.scan.founding is founding else self._on_founded(now)

    def _process_silently(self, upto: int) -> None:
        """Process what the primary has survived: a record that killed it must not kill its secondary as well."""
        done = 0
        while self.intake.backlog and self.intake.backlog[0][0].offset < upto and done < self._chunk():
            found = self._apply(self._chunk() - done, upto)
            if found is None:
                return
            outputs, count = found
            self.silent.add(outputs)
            done += count
            if self.work.heavy:
                break
        if done:
            self._trim()

    def _learn(self, epoch: int, owner: str, now: float) -> None:
        if epoch > self.epoch:
            self._known_epoch, self._known_owner = epoch, owner
            self._since = now

    # ---- promotion ---------------------------------------------------------------------------------------------

    def _begin(self, reason: str, silence: float, now: float) -> list[act.Action]:
        owner = self.owner
        promotion = Promotion(reason, owner, self.epoch, now, silence)
        if self.batching.verdict is not None:
            promotion.estimated_s = self.batching.verdict.estimate.recovery_s
        promotion.gather_evidence(self._detector, self.slot_id, self.slot.position)
        self._promotion = promotion
        self.stage = Stage.SURVEY
        return [
            *self._end_speculation("promotion", in_vain=False),
            act.Note("promotion begins", f"{reason}: owner {owner!r}, epoch {self.epoch}"),
            *self._ask(now, act.AskEnd()),
        ]

    def _claim(self, promotion: Promotion, now: float) -> list[act.Action]:
        if self.scan.epoch > promotion.epoch and self.scan.owner != promotion.old_owner:
            return self._give_up(now, f"{self.scan.owner} owns it since epoch {self.scan.epoch}")
        if self.trust.blank and self._held(now):
            return self._begin_again("somebody holds the slot after all", now)
        if self.intake.breaks:
            return self._ask(now, act.Check(self.intake.breaks[-1].offset + 1))
        founding = self._founding()
        blank = founding is not None and founding.blank
        epoch = max(self.epoch, self.intake.seen_epoch) if blank else self.scan.epoch
        generation = 0 if founding is not None else self.scan.generation
        promotion.claimed, promotion.claimed_at = epoch + 1, now
        promotion.deadline = now + READ_BACK_S
        self.stage = Stage.CLAIM
        claim = Ownership(
            epoch=promotion.claimed,
            node=self.node,
            generation=generation or self._new_generation(),
            first_step=self._first_step(blank=blank),
            settings_hash=self.wish.config.hash,
            founding=founding,
        )
        return [act.Append(LogRecord(version=VERSION, ownership=claim))]

    def _first_step(self, *, blank: bool) -> int:
        """The first step of a new slot: the oldest that an edge has sent, unless its clock is far off the log's.

        Of a slot that is begun anew the log has waited, be it for days: its clock is that of the first batch.
        """
        since_us = self.intake.first_us if blank and self.intake.first_us else self.intake.appended_us
        clock_step = (since_us or self._us) // self.wish.config.slide_us + 1
        oldest = self.intake.oldest_step
        reach = self._settings.steps.max_skew_steps + round(10 / self._settings.steps.slide_s)
        if oldest is not None and clock_step - reach <= oldest <= clock_step:
            return oldest
        return clock_step

    def _give_up(self, now: float, why: str) -> list[act.Action]:
        if self._promotion is None or self.scan.epoch > self._promotion.epoch:
            self._since = now  # a new owner has all its time; the old one's silence counts on
        self._promotion = None
        self.stage = Stage.WATCH
        self._poll_at = now
        return [act.Note("promotion given up", why)]

    def _bury(self, promotion: Promotion, now: float) -> list[act.Action]:
        self.stage = Stage.BURY
        promotion.deadline = now + READ_BACK_S
        offset = promotion.suspects[0] if promotion.suspects is not None else -1
        letter = Quarantine(epoch=self.scan.epoch, offset=offset)
        return [
            act.Note("quarantine", f"two owners died on the record at offset {offset}"),
            act.Append(LogRecord(version=VERSION, quarantine=letter)),
        ]

    def _become_primary(self, promotion: Promotion, now: float) -> list[act.Action]:
        self._term = self._known_epoch = self.scan.epoch
        self.stage = Stage.OWN  # after its term: a heartbeat may be written at any moment
        self._known_owner = self.node
        self.primary = Primary(self.slot_id, self.node, self._settings, self.pending, self._tail, now, self._begin_long)
        self.primary.topic_id = self.trust.topic_id
        promotion.records = len(self.intake.backlog)
        emit = self.primary.emit(self.silent.take(self._tail), self.scan.generation)
        return [act.Follow(self.intake.next), *emit]

    # ---- primary -----------------------------------------------------------------------------------------------

    def _own(self, now: float) -> list[act.Action]:
        primary, promotion = self.primary, self._promotion
        assert primary is not None  # noqa: S101 - made when the stage was entered
        if self._written_since is not None:
            return [act.ReadTail(*self._written_since)] if now >= self._retry_at else []
        if self._known_epoch > self._term and self._detector.overdue(self._since, now):
            return [act.End(f"{self._known_owner} owns it since epoch {self._known_epoch}, but its log does not come")]
        if promotion is not None and self._must_announce(promotion):
            return self._announce(promotion, now)
        todo = primary.emit(self._process(primary, promotion, now), self.scan.generation)
        if promotion is not None and self.slot.position >= promotion.catch_up_to:
            todo.append(promotion.report(self.scan.epoch))
            self._promotion = None
            if promotion.announced is not None:
                self.busy = None
                todo.append(act.Announce())  # survived: nobody must hold these records against them
        elif promotion is not None and self._must_announce(promotion):
            todo += self._announce(promotion, now)  # at once: each turn that one record takes is silence
        if not self.intake.backlog:
            self.busy = None
            if self.slot.register.epoch != self._term:
                # Nothing it decides would count. A process that starts anew goes on from what the log says.
                return [act.End(f"its state says epoch {self.slot.register.epoch}, but it owns it since {self._term}")]
            connected = self._detector.connected(now)
            lost, silent = self._lost_edges(now), lambda edge: self._silent(edge, now)
            try:
                todo += primary.decide(self.slot, self.wish, now, connected=connected, lost=lost, silent=silent)
            finally:
                if self.work.on:
                    self.work.end()
        todo += primary.acknowledge(self.slot, self.scan, now)
        if self.intake.breaks and self.trust.due(now):
            todo.append(act.Check(self.intake.breaks[-1].offset + 1))
        return todo

    def _lost_edges(self, now: float) -> dict[str, float]:
        """Return `lost` of `Closer.decide`, of the edges that the open step waits for."""
        book = self.slot.book
        waiting = [] if book is None else book.awaited(book.cursor)
        due_s = TOLD_INTERVALS * self._settings.standby.heartbeat_s  # by then another should have come
        return {edge: now - self._detector.age(edge, now) + due_s for edge in waiting if self._silent(edge, now)}

    def _silent(self, edge: str, now: float) -> bool:
        return self._detector.lost(edge, self._settings.standby.detect_s, now)

    def _must_announce(self, promotion: Promotion) -> bool:
        """Return whether a predecessor may have died of what comes next, and nobody has been told of it yet."""
        if promotion.reason not in DEATHS or not self.intake.backlog:
            return False
        return promotion.announced is None or self.intake.backlog[0][0].offset >= promotion.announced

    def _announce(self, promotion: Promotion, now: float) -> list[act.Action]:
        """After a predecessor's death, say which records come next before processing them.

        See architecture, "A record that kills".
        """
        first = self.intake.backlog[0][0].offset
        promotion.announced = min(first + promotion.next_part(first, len(self.intake.backlog)), self.intake.next)
        self.busy = (first, promotion.announced, now)
        return [act.Announce()]

    def _process(self, primary: Primary, promotion: Promotion | None, now: float) -> list[Output]:
        outputs: list[Output] = []
        until = None if promotion is None else promotion.announced
        done = 0
        while (
            self.intake.backlog and done < self._chunk() and (until is None or self.intake.backlog[0][0].offset < until)
        ):
            record, (message, _, kind) = self.intake.backlog[0]
            batch = message.batch if message is not None and kind == "batch" else None
            if until is None:
                self.busy = (record.offset, record.offset, now)
            stale = batch is not None and self._stale(batch)
            found = self._apply(self._chunk() - done, self.intake.next if until is None else until)
            if found is None:
                self.busy = None  # it waits for a model: nobody must think that the record killed it
                break
            made, count = found
            outputs += made
            # A batch that was refused is no sign of life: an edge whose clock is fast would be waited for, for ever.
            refused = any(output.topic == DEAD_LETTERS for output in made)
            if batch is not None and not refused and not stale:
                primary.on_batch(batch, now)
            done += count
            if self.work.heavy:
                break
        return outputs

    def _stale(self, batch: TupleBatch) -> bool:
        """Return whether a batch's edge had delivered this step, or a later one, before.

        Whoever can append to the log can append an old batch again, and must not keep its dead edge waited for.
        """
        book = self.slot.book
        edge = None if book is None else book.edges.get(batch.edge)
        return edge is not None and batch.step <= edge.last_step

    def _apply(self, limit: int, upto: int) -> tuple[list[Output], int] | None:
        """Process the next record, or so many as can go together: at most `limit`, below the offset `upto`.

        Returns:
            What follows, and how many records it were; None = not yet: this node lacks a model that the log names.
        """
        if self._awaits():
            return None
        backlog = self.intake.backlog
        items = takewhile(lambda item: item[0].offset < upto, islice(backlog, limit))
        self.work.begin(STALL_RECORDS * self.record_s)
        try:
            outputs, count = self.slot.apply_run(items)
        except PendingError as error:
            self._await(error)
            return None
        except ModelError as error:
            self.fault = str(error)
            self._blocked = True
            return None
        finally:
            self._end_work()
        self.fault = ""
        self._blocked = False
        for _ in range(count):
            backlog.popleft()
        self.processed += count
        if outputs and outputs[0].name.offset < self.scan.began:  # the generation before has written them
            outputs = [output for output in outputs if output.name.offset >= self.scan.began]
        return outputs, count

    def _await(self, error: PendingError) -> None:
        """Wait for a model that is being read beside the loop; the other slots go on.

        The work that was announced for it lasts as long, so that nobody takes this node for stuck, nor waits for ever.
        """
        self._awaited = error.ready

    def _awaits(self) -> bool:
        """Return whether the model that the slot goes on with is not ready yet."""
        if self._awaited is not None and self._awaited.is_set():
            self._awaited = None
            self.work.end()
        return self._awaited is not None

    def _begin_long(self, operations: float) -> None:
        """Begin a turn of one long work, which no record brings."""
        self.work.begin(0.0)
        self.work.announce(operations)

    def _end_work(self) -> None:
        if self._awaited is None:
            self.work.end()

    def _chunk(self) -> int:
        """Return how many records fit between two looks at the clock."""
        return CHUNK if self.record_s * CHUNK <= CHUNK_S else max(1, int(CHUNK_S / self.record_s))

    # ---- whether the log is the one that was read ---------------------------------------------------------------

    def _checks(self) -> bool:
        """Return whether the next read begins with the record read last, to compare it."""
        wanted = self.trust.restored or self.stage is Stage.CLAIM
        return wanted and self.intake.digest != 0 and self.intake.first < self.intake.next

    def _compare(self, record: Record, digest: int, now: float) -> list[act.Action] | None:
        """Compare a record with the one read at its place before; return what to do if it is another."""
        why = Mark("", digest).contradicts(Mark("", digest_of(record)))
        return self._contradicted(why, record.offset, now) if why else None

    def on_checked(self, first: int, end: int, record: Record | None, now: float) -> list[act.Action]:
        """Answer to `Check`: the log's (first, end), and the record asked for if it holds it."""
        self._asked = None
        self.intake.first = first
        if (short := self._short(end, now)) is not None:
            return short
        self.fault = self.fault if self._blocked else ""
        read = next((item for item in self.intake.breaks if record is not None and item.offset == record.offset), None)
        if record is None or read is None:
            self.intake.breaks.clear()  # retention has passed them
        else:
            self.intake.breaks.remove(read)
            todo = self._compare(record, digest_of(read), now)
            if todo is not None:
                return todo
        return self._claim(self._promotion, now) if self.stage is Stage.SURVEY and self._promotion else []

    def _fits(self, context: Context, now: float) -> bool:
        """Return whether a context may be of this log, and is the one that was acknowledged."""
        level1 = self.intake.level1
        if level1 is not None and level1.offset != context.offset:
            return False
        mark = Mark(context.topic_id, 0)
        if why := mark.contradicts(NO_MARK._replace(topic_id=self.trust.topic_id)):
            if not self.trust.contradiction:
                self.trust.contradict(why, 0, context.offset, now)
            return False
        return self.trust.usable(context.offset, context.generation)

    def _may_search(self) -> bool:
        """Return whether an older context may be the place to begin: there is no state, and the newest does not fit.

        Never a newer one than has been acknowledged: outputs that follow from what is before it may be missing.
        """
        stateless = self.stage is Stage.START and self.slot.book is None and self.intake.level1 is None
        known = self.trust.upto is not None or self.trust.acknowledged is not None
        return stateless and not self.trust.searched and known

    def _contradicted(self, why: str, upto: int, now: float) -> list[act.Action]:
        """The log is not the one that this node, or whoever wrote a context, has read: begin again by what is there."""
        level1 = self.intake.level1
        lost_to = max(self.intake.next, self._tail.offset + 1, 0 if level1 is None else level1.offset)
        self.trust.contradict(why, upto, lost_to, now)
        return self._begin_again(why, now)

    def _begin_again(self, why: str, now: float) -> list[act.Action]:
        """Forget the state, and build it anew from what the log and `contexts` hold."""
        todo = self._end_speculation("the state is built anew")
        if self.stage is Stage.OWN:
            todo.append(act.Unfollow())
        self._lost_saves += self.primary is not None and self.primary.saving
        self.primary = self._promotion = self.busy = None
        self._forget_state(self.trust.begin)
        level1 = self.intake.level1
        if level1 is not None and not self.trust.usable(level1.offset, level1.generation):
            self.trust.place, self.intake.level1 = level1.context_offset, None
        self.trust.renew()
        self.stage = Stage.START
        self._retry_at = now
        return [*todo, act.Note("the state is built anew", why, grave=True)]

    def _forget_state(self, begin: int) -> None:
        self.slot = Slot(self.slot_id, self._load_model, self.work.announce)
        self._awaited, self._context_waits = None, False
        self.work.end()
        self.slot.begin_at(begin)
        self.intake.begin_at(begin)
        self.silent.clear()
        self._tail = NO_NAME
        self._written_since = None
        self._vetted_epoch = 0
        self._blocked = False
        self.fault = ""

    def _begin_blank(self, first: int, now: float) -> list[act.Action]:
        """Nobody owns the slot, nobody has its state: stand by with what retention has left, and found a generation."""
        self._promotion = None
        self.trust.lost_to = max(self.trust.lost_to, first)
        self.trust.blank = True
        self._forget_state(first)
        self.stage = Stage.WATCH
        self._since = now
        why = f"the log begins at {first}, there is no context, and nobody holds the slot"
        return [act.Note("a new generation is to begin", why, grave=True)]

    def _held(self, now: float) -> bool:
        """Return whether another node owns the slot, or has its state."""
        return any(
            part.slot == self.slot_id and part.ready and not beat.leaving
            for node, beat in self._detector.beats().items()
            if self._detector.age(node, now) < HELD_S
            for part in beat.slots
        )

    def _founding(self) -> Founding | None:
        """Return what a claim must declare: that the log is not what it was; None = it goes on as it was."""
        # Epochs are known that the log has never heard of: it is another one.
        anew = self.scan.epoch == 0 and self._known_epoch > 0
        if not (self.trust.blank or self.trust.contradiction or anew):
            return None
        blank = self.trust.blank or self.scan.epoch == 0
        begin = self.slot.position
        lost_from = begin if self._level0 is None or not self.trust.blank else min(self._level0.offset, begin)
        reason = self.trust.contradiction or "neither an owner nor a context was left"
        return Founding(begin=begin, blank=blank, lost_from=lost_from, lost_to=self.trust.lost_to, reason=reason)

    def _on_founded(self, now: float) -> list[act.Action] | None:
        """A new generation begins: a state that goes beyond its first record, or that it does not know, is no use."""
        founding, at = self.scan.founding, self.scan.founded_at
        assert founding is not None  # noqa: S101 - the caller has seen it
        self.trust.founded(founding, self.scan.generation)
        self.trust.foundings += self.scan.owner == self.node
        if founding.blank:
            fits = self.slot.origin == self.slot.position == founding.begin
            if fits:
                self.slot.begin_at(founding.begin, at)
        else:
            fits = self.slot.position <= founding.begin
        if not fits:
            return self._begin_again(self.scan.declared, now)
        self.silent.clear()
        level1 = self.intake.level1
        if level1 is not None and not self.trust.usable(level1.offset, level1.generation):
            self.intake.level1 = None
        return None

    def _fall(self, now: float) -> list[act.Action]:
        """Another node owns the slot: be its secondary, so that nobody is left unwatched."""
        self._lost_saves += self.primary is not None and self.primary.saving
        self.stage = Stage.WATCH
        self._promotion = None
        if self.primary is not None:
            self.primary.stop(self.slot)
        self.primary = None
        self.busy = None
        self.silent.clear()
        self._poll_at = now
        return [act.Note("deposed", f"{self.scan.owner} owns the slot since epoch {self.scan.epoch}"), act.Unfollow()]
