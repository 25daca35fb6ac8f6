"""The primary's side of a slot (algorithm 1): outputs, acknowledgements, resume contexts, control records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType

import numpy as np

from tsunagi.owner.calibrator import Calibrator
from tsunagi.owner.closer import Closer
from tsunagi.owner.helping import Helping
from tsunagi.owner.reach import AT_ONCE
from tsunagi.owner.refitter import Refitter
from tsunagi.recovery.filter import Recovery
from tsunagi.runtime.columns import octets, pack_sensors
from tsunagi.runtime.messages import (
    EXACT,
    QUALITY_NAMES,
    VERSION,
    Ack,
    EdgeOut,
    HelperRequest,
    Helpers,
    Late,
    Level0Ack,
    Level1Ack,
    LogRecord,
    ModelChange,
    SlotSettings,
    TupleBatch,
)
from tsunagi.runtime.names import Name
from tsunagi.runtime.settings import Settings
from tsunagi.runtime.task import Task
from tsunagi.slot.frames import Frame
from tsunagi.slot.ownership import Register
from tsunagi.slot.packed import Packed
from tsunagi.slot.recover import Recover
from tsunagi.slot.slot import Announce, Output, Slot
from tsunagi.slot.steps import NEVER, StepBook
from tsunagi.slot.tuples import TupleBook
from tsunagi.standby import actions as act
from tsunagi.standby.queue import PendingQueue, unwritten
from tsunagi.standby.wish import Wish

QUALITIES = len(QUALITY_NAMES)

READ_BACK_S = 1.0
"""A control record that has not come back by then is written again."""


REFIT_INVERSES = 6.0
"""A refit takes less than this many inverses of a matrix of the filter's sensors, n^3 multiplications each."""

STALE_SHARE = 0.25
"""A slot that has been idle for this share of the retention writes its context again, before retention deletes it."""


class Primary:
    """Made when a replica becomes the primary, dropped when it reads of its fall.

    Args:
        pending: what the node has sent and does not know to be delivered, from earlier terms as well.
        tail: name of the last record of `recovered` when it took over: nothing up to it is written again.
        announce: is told before it does something that takes so many multiplications.

    Attributes:
        emitted: outputs written in this term.
        quality_counts: int64[4], values in them by `Quality`.
        side_counts: records for other topics, by "topic/reason".
        calibrator: what measures how wide bounds must be; None = nothing is recovered, or not calibrated.
        helping: what chooses sensors of other slots; None = nothing is recovered.
        topic_id: of `tuples`.
        refitter: what follows the data; None = nothing is recovered, or not refitted.
        level0_offset, level1_offset: where the newest acknowledgements sent stand in `tuples`, -1 = none yet.
    """

    def __init__(
        self,
        slot: int,
        node: str,
        settings: Settings,
        pending: PendingQueue,
        tail: Name,
        now: float,
        announce: Announce = lambda _operations: None,
    ) -> None:
        self.topic_id = ""
        self.pending = pending
        self.pending.last = tail
        self.emitted = 0
        self.side_counts: dict[str, int] = {}
        self.quality_counts = np.zeros(QUALITIES, np.int64)
        self._slot_id = slot
        self._node = node
        self._settings = settings
        self._tail = tail
        self._closer = Closer(settings.steps, now)
        self._ack_at = now
        self._context_at = now
        self._saving: tuple[int, Name, int, int] | None = None  # on its way: (position, last name, bytes, appended_us)
        self._resume: Level1Ack | None = None  # saved; acknowledged once the outputs before it are
        self._acknowledged: Level1Ack | None = None
        self._stale_s = settings.kafka.retention_s * STALE_SHARE
        self.level0_offset = -1
        self.level1_offset = -1
        self._wished_at: dict[str, float] = {}
        self.calibrator: Calibrator | None = None
        self.helping: Helping | None = None
        self.refitter: Refitter | None = None
        self._announce = announce
        self._measured: Recovery | None = None
        self._refitting: Task[Refitter] | None = None
        self._stored = "", ""  # SHA-256 of a refit that is not in force yet, and of what it is a refit of

    def emit(self, outputs: Iterable[Output], generation: int) -> list[act.Action]:
        """Write what is not in `recovered` yet."""
        wanted = tuple(outputs)
        if wanted and wanted[0].name <= self._tail:  # names ascend
            wanted = tuple(unwritten(wanted, self._tail))
        if not wanted:
            return []
        self.pending.sent(wanted)
        exact, packed = 0, bytearray()
        for output in wanted:
            body = output.body
            if isinstance(body, Packed):
                self.emitted += 1
                if body.columns.exact:
                    exact += body.end - body.begin
                else:
                    packed += body.quality
            elif isinstance(body, Frame):
                self.emitted += 1
                self.quality_counts += np.bincount(body.quality, minlength=QUALITIES)[:QUALITIES]
            else:
                if isinstance(body, Late) and self.calibrator is not None:
                    self.calibrator.late(body.batch)
                reason = f"{output.topic}/{body.reason}"
                self.side_counts[reason] = self.side_counts.get(reason, 0) + 1
        self.quality_counts[EXACT] += exact
        if packed:
            self.quality_counts += np.bincount(octets(bytes(packed)), minlength=QUALITIES)[:QUALITIES]
        return [act.Emit(wanted, generation)]

    def on_batch(self, batch: TupleBatch, now: float) -> None:
        """Take note of a batch that was processed."""
        self._closer.on_batch(batch.edge, batch.step, now)

    def on_leaving(self, edge: str, incarnation: int, step: int) -> None:
        """A process of an edge has stopped in good order after this step."""
        self._closer.on_leaving(edge, incarnation, step)

    @property
    def saving(self) -> bool:
        """Whether a context is on its way."""
        return self._saving is not None

    def on_context_saved(self, place: int, scan: Register) -> None:
        """The broker has the context that was to be saved, at this place; -1 = it cannot be read there."""
        if self._saving is None:
            return
        position, name, size, appended_us = self._saving
        self._saving = None
        if place < 0:
            return
        self._resume = Level1Ack(
            slot=self._slot_id,
            node=self._node,
            epoch=scan.epoch,
            generation=scan.generation,
            offset=position,
            context_offset=place,
            last_offset=name.offset,
            last_index=name.index,
            context_bytes=size,
            appended_us=appended_us,
        )

    def decide(
        self,
        slot: Slot,
        wish: Wish,
        now: float,
        *,
        connected: bool,
        lost: Mapping[str, float] = MappingProxyType({}),
        silent: Callable[[str], bool] = lambda _edge: False,
    ) -> list[act.Action]:
        """Write what only the owner may: settings, model, edges out, steps moved on. Call it only when caught up.

        Args:
            connected, lost: as `Closer.decide` has them.
            silent: whether an edge of other slots has gone silent.
        """
        epoch = slot.register.epoch
        if slot.settings.hash != wish.config.hash:
            if not self._may_write("settings", now):
                return []
            settings = SlotSettings(epoch=epoch, hash=wish.config.hash, text=wish.config.text())
            return [act.Append(LogRecord(version=VERSION, settings=settings))]
        todo: list[act.Action] = []
        if slot.base_sha256 != wish.model_sha256 and self._may_write("model", now):
            model = ModelChange(epoch=epoch, sha256=wish.model_sha256)
            todo.append(act.Append(LogRecord(version=VERSION, model=model)))
        todo += self._measure(slot, wish, now)
        todo += self._help(slot, wish, now, silent)
        if slot.book is None or isinstance(slot.book, TupleBook):
            return todo  # without steps nobody is waited for, and nothing waits to be closed
        for decision in self._closer.decide(slot.book, now, slot.appended_us, connected=connected, lost=lost):
            decision.epoch = epoch
            if isinstance(decision, EdgeOut):
                todo.append(act.Append(LogRecord(version=VERSION, edge_out=decision)))
            else:
                todo.append(act.Append(LogRecord(version=VERSION, punctuation=decision)))
        return todo

    def _measure(self, slot: Slot, wish: Wish, now: float) -> list[act.Action]:
        """Watch the filter in force: what its bounds must be multiplied by, who fails alone, and how the data move."""
        recover = slot.recover
        recovery = recover.recovery if recover is not None else None
        settings = self._settings.recovery
        if recover is None or recovery is None:
            self.calibrator = self.refitter = self._refitting = None
            return []
        if self._measured is not recovery:
            self._measured = recovery
            self.calibrator = self.refitter = self._refitting = None
            if settings.calibrate:
                self.calibrator = Calibrator(recover, recovery, wish.config, wish.groups, suspects=settings.suspects)
            if settings.refit:
                edges = [wish.config.edges[place] for place in recover.places]
                least_steps = round(settings.refit_s * 1e6 / wish.config.slide_us)
                work = partial(Refitter, recovery, edges, least_steps=least_steps)
                self._refitting = Task(work, "refitter", at_once=len(edges) <= AT_ONCE)
            self._watch(recover)
        if self._refitting is not None and self._refitting.done.is_set():
            self.refitter, self._refitting = self._refitting.result(), None
            self._watch(recover)
        todo = self._refit(slot, now)
        return todo if self.calibrator is None else [*todo, *self._calibrate(self.calibrator, slot, wish, now)]

    def _watch(self, recover: Recover) -> None:
        watching = (self.calibrator, self.refitter)
        operations = 0.0 if self.refitter is None else self.refitter.operations
        recover.watch(*(watcher.observe for watcher in watching if watcher is not None), operations=operations)

    def _calibrate(self, calibrator: Calibrator, slot: Slot, wish: Wish, now: float) -> list[act.Action]:
        """Write what bounds must be multiplied by, and who is not believed."""
        todo: list[act.Action] = []
        calibrator.aim(wish.config.delta)
        for verdict in calibrator.judged():
            if self._may_write(f"sensor {verdict.sensor}", now):
                verdict.epoch, verdict.model = slot.register.epoch, slot.base_sha256
                todo.append(act.Append(LogRecord(version=VERSION, sensor_out=verdict)))
        factors = calibrator.factors()
        if factors is None or not self._may_write("calibrated", now):
            return todo
        calibrated = factors.write(epoch=slot.register.epoch, model=slot.base_sha256)
        return [*todo, act.Append(LogRecord(version=VERSION, calibrated=calibrated))]

    def _refit(self, slot: Slot, now: float) -> list[act.Action]:
        """Store a refit that is due, and put it in force once it is stored."""
        if self.refitter is not None and self.refitter.is_due:
            self._announce(REFIT_INVERSES * float(len(self.refitter.recovery.model)) ** 3)
        model = None if self.refitter is None else self.refitter.due()
        if model is not None:
            return [act.StoreModel(model)]
        sha256, of = self._stored
        if not sha256 or of != slot.base_sha256 or slot.model_sha256 == sha256:
            self._stored = "", ""
            return []
        if not self._may_write("refit", now):
            return []
        change = ModelChange(epoch=slot.register.epoch, sha256=sha256, refit_of=of)
        return [act.Append(LogRecord(version=VERSION, model=change))]

    def on_stored(self, sha256: str, slot: Slot) -> None:
        """The store has a refit."""
        self._stored = sha256, slot.base_sha256

    def _help(self, slot: Slot, wish: Wish, now: float, silent: Callable[[str], bool]) -> list[act.Action]:
        """Ask for sensors of other slots while what was lost needs them, and let the recovery use them."""
        recover = slot.recover
        model, book = slot.model, slot.book
        if recover is None or recover.recovery is None or model is None or wish.table is None:
            self.helping = None
            return []
        if not isinstance(book, StepBook):
            return []
        if self.helping is None or not self.helping.fits(recover, model, wish.config):
            self.helping = Helping(recover, model, wish.config, wish.table)
        out = {name: book.cursor - 1 - edge.last_step for name, edge in book.edges.items() if edge.out_from != NEVER}
        wanted = self.helping.decide(out, silent, wish.helpers, now)
        todo: list[act.Action] = []
        epoch, ids = slot.register.epoch, pack_sensors(np.array(wanted.sensors, dtype=np.uint32))
        if wanted.sensors != wish.requested and self._may_write("request", now):
            request = HelperRequest(slot=self._slot_id, epoch=epoch, sensor=ids, from_step=book.cursor)
            todo.append(act.Request(request))
        if ids != slot.helpers.sensor and self._may_write("helpers", now):
            helpers = Helpers(epoch=epoch, model=slot.base_sha256, sensor=ids, name=wanted.names, edge=wanted.edges)
            todo.append(act.Append(LogRecord(version=VERSION, helpers=helpers)))
        return todo

    def stop(self, slot: Slot) -> None:
        """Measure no more: the term is over."""
        if slot.recover is not None:
            slot.recover.watch()

    def acknowledge(self, slot: Slot, scan: Register, now: float) -> list[act.Action]:
        """Level-0- and Level-1-Acks at their interval (algorithm 1, lines 12-15), resume contexts at theirs.

        Behind its log as well: a standby whose log is not trimmed then has the more to do the less its own owner can.
        """
        todo = self._save_context(slot, now)
        if now - self._ack_at < self._settings.standby.ack_s:
            return todo
        self._ack_at = now
        floor = self.pending.floor(slot.position)
        if floor > self.level0_offset:
            self.level0_offset = floor
            level0 = Level0Ack(
                slot=self._slot_id,
                node=self._node,
                epoch=scan.epoch,
                generation=scan.generation,
                offset=floor,
                last_offset=self.pending.last.offset,
                last_index=self.pending.last.index,
                recovered_end=self.pending.last_end,
            )
            todo.append(act.SendAck(Ack(version=VERSION, level0=level0)))
        if self._resume is not None and self._resume is not self._acknowledged and self._resume.offset <= floor:
            self.level1_offset, self._acknowledged = self._resume.offset, self._resume
            todo.append(act.SendAck(Ack(version=VERSION, level1=self._resume)))
        return todo

    def _save_context(self, slot: Slot, now: float) -> list[act.Action]:
        standby = self._settings.standby
        if now - self._context_at < standby.context_s or self._saving is not None or slot.book is None:
            return []
        if self._resume is not None and self.level1_offset < self._resume.offset:
            return []  # the last one still waits for its outputs: a newer one would wait for ever
        if self._resume is not None and slot.position <= self._resume.offset and now - self._context_at < self._stale_s:
            return []  # nothing new; but what retention deletes must be there again before
        self._context_at = now
        try:
            context = slot.context()
        except Exception as error:  # noqa: BLE001 - an operator of somebody's own may raise anything
            # Outputs do not hang on contexts. Whoever died of it would die of it again as soon as it is caught up.
            return [act.NoContext(f"before offset {slot.position}: {type(error).__name__}: {error}")]
        context.topic_id = self.topic_id
        value = context.SerializeToString()
        self._saving = slot.position, slot.last_name, len(value), slot.appended_us
        return [act.SaveContext(value)]

    def _may_write(self, what: str, now: float) -> bool:
        if now - self._wished_at.get(what, -math.inf) < READ_BACK_S:
            return False
        self._wished_at[what] = now
        return True
