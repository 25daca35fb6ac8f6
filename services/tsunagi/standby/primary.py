"""The primary's side of a slot (A-SAS, algorithm 1): outputs, acknowledgements, contexts, control records.

Terms: A *context* is the slot's whole state at one offset of its log. A *Level-0-Ack* says that `recovered` has the
outputs of all inputs below an offset. A *Level-1-Ack* names the *resume point*: a context whose outputs are all in
`recovered`, so that nobody needs the log before it. The *epoch* is the number of an ownership, the *generation* that of
the slot's log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from tsunagi.runtime.columns import octets
from tsunagi.runtime.messages import (
    EXACT,
    QUALITY_NAMES,
    VERSION,
    Ack,
    HelperRequest,
    Late,
    Level0Ack,
    Level1Ack,
    LogRecord,
    ModelChange,
    SlotSettings,
)
from tsunagi.runtime.names import Name
from tsunagi.runtime.settings import Settings
from tsunagi.slot.deciding import Decider, Decision, OwnerView, Repeats, control
from tsunagi.slot.frames import Frame
from tsunagi.slot.outputs import Output
from tsunagi.slot.ownership import Register
from tsunagi.slot.packed import Packed, PackedRows
from tsunagi.slot.plain_outputs import PlainOutputs
from tsunagi.slot.slot import Slot
from tsunagi.standby import actions as act
from tsunagi.standby.queue import PendingQueue, unwritten

QUALITIES = len(QUALITY_NAMES)
"""Number of qualities that a value may have."""

STALE_SHARE = 0.25
"""An idle slot writes its context again after this share of the retention, before retention deletes the old one."""


class Primary:
    """Writes for one term of an owner. It is made when the node becomes the owner, and dropped when that ends.

    Args:
        pending: outputs that this node has sent and the broker has not acknowledged, from earlier terms as well.
        tail: name of the last output in `recovered` at the takeover. Outputs up to it are not written again.
        deciders: decide what this owner writes beside settings and models. They are asked in this order.
        generation: the number of the slot's log in this term.
        topic_id: the id of the topic `tuples`, which is written into contexts.
        term: the epoch in which this node owns the slot.

    Attributes:
        emitted: how many outputs were written to `recovered` in this term.
        quality_counts: int64[4], how many of their values have each `Quality`.
        query_rows: how many rows of queries over tuples were written, by query.
        side_counts: how many records were written to other topics, by "topic/reason".
        level0_offset, level1_offset: the offsets of the slot's log in the newest acknowledgements sent; -1 = none yet.
    """

    def __init__(
        self,
        slot: int,
        node: str,
        settings: Settings,
        pending: PendingQueue,
        tail: Name,
        now: float,
        deciders: Sequence[Decider] = (),
        *,
        generation: int = 0,
        topic_id: str = "",
        term: int = 0,
    ) -> None:
        self.deciders = tuple(deciders)
        self.pending = pending
        self.pending.begin(generation, tail)
        self.emitted = 0
        self.query_rows: Counter[str] = Counter()
        self.side_counts: dict[str, int] = {}
        self.quality_counts = np.zeros(QUALITIES, np.int64)
        self._slot_id = slot
        self._node = node
        self._settings = settings
        self.tail = tail
        self._term = term
        self._generation = generation
        self._topic_id = topic_id
        self._ack_at = now
        self._context_at = now
        self._saving: tuple[int, Name, int, int] | None = None  # on its way: (position, last name, bytes, appended_us)
        self._resume: Level1Ack | None = None  # the newest saved context; sent once its outputs have arrived
        self._acknowledged: Level1Ack | None = None
        self._stale_s = settings.kafka.retention_s * STALE_SHARE
        self.level0_offset = -1
        self.level1_offset = -1
        self._repeats = Repeats()

    def emit(self, outputs: Sequence[Output]) -> list[act.Action]:
        """Write those of the outputs that are not in `recovered` yet, and count them."""
        if isinstance(outputs, PlainOutputs) and outputs.first > self.tail:
            self.pending.sent(outputs, self._generation)
            self.emitted += len(outputs)
            self.quality_counts[EXACT] += len(outputs) * outputs.rows
            return [act.Emit(outputs, self._generation)]
        wanted = tuple(outputs)
        if wanted and wanted[0].name <= self.tail:  # names ascend
            wanted = tuple(unwritten(wanted, self.tail))
        if not wanted:
            return []
        self.pending.sent(wanted, self._generation)
        exact, packed = 0, bytearray()
        for output in wanted:
            body = output.body
            if isinstance(body, Packed):
                self.emitted += 1
                if body.columns.exact:
                    exact += body.end - body.begin
                else:
                    packed += body.quality
            elif isinstance(body, PackedRows):
                self.emitted += 1
                self.query_rows[body.query] += body.rows
            elif isinstance(body, Frame):
                self.emitted += 1
                self.quality_counts += np.bincount(body.quality, minlength=QUALITIES)[:QUALITIES]
            else:
                if isinstance(body, Late):
                    for decider in self.deciders:
                        decider.on_late(body.batch)
                reason = f"{output.topic}/{body.reason}"
                self.side_counts[reason] = self.side_counts.get(reason, 0) + 1
        self.quality_counts[EXACT] += exact
        if packed:
            self.quality_counts += np.bincount(octets(bytes(packed)), minlength=QUALITIES)[:QUALITIES]
        return [act.Emit(wanted, self._generation)]

    @property
    def saving(self) -> bool:
        """Whether a context is on its way to the broker."""
        return self._saving is not None

    def on_context_saved(self, place: int, scan: Register) -> None:
        """Take in that the broker has the context that was to be saved.

        Args:
            place: its offset in `contexts`; -1 = it cannot be read there.
            scan: the slot's ownership.
        """
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

    def decide(self, view: OwnerView) -> list[act.Action]:
        """Write what only the owner may write: settings, the model, and what its deciders say.

        Call it only when all records that were read are processed.
        """
        slot, wish, epoch = view.slot, view.wish, view.epoch
        if slot.settings.hash != wish.config.hash:
            if not self._repeats.due("settings", view.now):
                return []
            settings = SlotSettings(epoch=epoch, hash=wish.config.hash, text=wish.config.text())
            return [act.Append(control(settings=settings))]
        todo: list[act.Action] = []
        # The slot stands still from this record on until its owner has the model, so the owner gets it first.
        if slot.base_sha256 != wish.model_sha256 and view.model_ready and self._repeats.due("model", view.now):
            todo.append(act.Append(control(model=ModelChange(epoch=epoch, sha256=wish.model_sha256))))
        return [*todo, *(_carried_out(decision) for decider in self.deciders for decision in decider.decide(view))]

    def stop(self, slot: Slot) -> None:
        """End the term: tell the deciders to stop."""
        for decider in self.deciders:
            decider.stop(slot)

    def acknowledge(self, slot: Slot, scan: Register, now: float, *, sure: bool = True) -> list[act.Action]:
        """Send Level-0-Acks and Level-1-Acks at their interval (algorithm 1, lines 12-15), and contexts at theirs.

        An owner that is behind its log does so as well. Otherwise its standby would have ever more to process.

        Args:
            sure: whether the log is known to be the one that was read. A context of records that the log has lost
                must not be saved: whoever goes on from it would compare only the record before it.
        """
        todo = self._save_context(slot, now) if sure else []
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
            return []  # the last context waits for its outputs; newer ones would replace it for ever
        if self._resume is not None and slot.position <= self._resume.offset and now - self._context_at < self._stale_s:
            return []  # nothing is new, and retention will not delete the last context soon
        self._context_at = now
        try:
            context = slot.context()
        except Exception as error:  # noqa: BLE001 - a user's operator may raise anything
            # Outputs do not need contexts. An owner that died of this error would die of it again after each restart.
            return [act.NoContext(f"before offset {slot.position}: {type(error).__name__}: {error}")]
        context.topic_id = self._topic_id
        value = context.SerializeToString()
        self._saving = slot.position, slot.last_name, len(value), slot.appended_us
        return [act.SaveContext(value, self._term)]


def _carried_out(decision: Decision) -> act.Action:
    if isinstance(decision, LogRecord):
        return act.Append(decision)
    return act.Request(decision) if isinstance(decision, HelperRequest) else act.StoreModel(decision)
