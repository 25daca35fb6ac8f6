"""All books of a run, fed with records as they are read: what was lost, doubled, out of order or wrong. No I/O."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tsunagi.audit.blocks import BlockBook
from tsunagi.audit.causes import Cause, Judge
from tsunagi.audit.evidence import Aside, Output, parse, read_batch, read_block, read_output
from tsunagi.audit.outputs import OutputBook
from tsunagi.audit.readings import ReadingBook
from tsunagi.audit.roles import Roles
from tsunagi.audit.rows import RowBook
from tsunagi.audit.silence import SlotTimes, longest
from tsunagi.audit.tally import Tally
from tsunagi.runtime.columns import Sensors, sensors
from tsunagi.runtime.door import UnusableError, decode
from tsunagi.runtime.log import DEAD_LETTERS, HEARTBEATS, LATE, PLAN, RECOVERED, RESULTS, TUPLES, Record
from tsunagi.runtime.messages import DeadLetter, Heartbeat, Late, LogRecord, Plan

KEPT = 2000
"""Outputs of a slot that are kept: repeats are compared with them, and batches that are set aside later."""


class Ledger:
    """Takes records in, whatever topic they are of; each partition's in log order.

    Args:
        placement: uint32[n], slot by sensor.
        values: whether a measured row must have the very value of its reading.
        kept: see `KEPT`.
        grace_s, delta: as [steps] and [recovery] say.

    Attributes:
        base: the step from which rows and readings are judged; -1 = not yet.
        edges: when the newest batch with readings of each edge was appended.
        edge_slots: which slots each edge feeds.
    """

    def __init__(
        self,
        slots: int,
        placement: Sensors,
        *,
        values: bool = True,
        kept: int = KEPT,
        grace_s: float = 0.5,
        delta: float = 0.9,
    ) -> None:
        self.tally = Tally()
        self.judge = Judge(self.tally, round(grace_s * 1e6), delta)
        self.roles = Roles(slots, self.tally)
        self.times = {slot: SlotTimes() for slot in range(slots)}
        self.rows = RowBook(slots, self.tally)
        self.readings = {slot: ReadingBook(self.tally, values=values, kept=kept) for slot in range(slots)}
        self.base = -1
        self.edges: dict[str, int] = {}
        self.edge_slots: dict[str, set[int]] = {}
        self._outputs = {slot: OutputBook(slot, placement, self.tally, kept) for slot in range(slots)}
        self._blocks = BlockBook(self.tally)

    def take(self, record: Record) -> None:
        """Take a record in."""
        try:
            if record.topic == TUPLES:
                self._on_log(record)
            elif record.topic == RECOVERED:
                self._on_output(read_output(record.partition, record))
            elif record.topic == RESULTS:
                self._on_block(record)
            elif record.topic == HEARTBEATS:
                beat = parse(Heartbeat, record)
                if beat is not None:
                    self.roles.take_beat(beat, record.appended_us)
            elif record.topic == PLAN:
                plan = parse(Plan, record)
                if plan is not None and plan.WhichOneof("body") == "assignment":
                    self.roles.take_assignment(plan.assignment)
            elif record.topic == LATE:
                self._on_late(decode(Late, record.value))
            elif record.topic == DEAD_LETTERS:
                self._on_dead(decode(DeadLetter, record.value))
        except UnusableError:
            if record.topic in (RECOVERED, RESULTS):
                place = f"{record.topic}/{record.partition}, offset {record.offset}"
                self.tally.amiss("unreadable", f"{place}: not readable")

    def begin(self) -> None:
        """Judge rows and readings from the step after the newest that anybody has written."""
        self.base = max([*self.slot_steps().values(), *self._blocks.newest().values()]) + 1
        self.rows.begin(self.base)
        for book in self.readings.values():
            book.begin(self.base)
        self.roles.take_changes()

    def after(self, cause: Cause) -> None:
        """Judge what happened since the last call, in which this was done."""
        self.judge.cause(cause)
        for before, owner in self.roles.take_changes():
            self.judge.changed(before, owner)
        tuples = sum(book.readings for book in self.readings.values())
        for book in self.readings.values():
            self.judge.refused(book.take_refused(), self.step_us, tuples)

    def advance(self) -> None:
        """Compare what both sides have passed; call it after each read."""
        self.rows.advance(self.slot_steps(), self._blocks.newest())
        self.roles.settle(self.times)

    # ---- questions

    @property
    def step_us(self) -> int:
        """Length of a step, as the results have it; 0 = none seen yet."""
        return self._blocks.step_us

    def slot_steps(self) -> dict[int, int]:
        """Return the newest step in `recovered` by slot, as far as there is one."""
        return {slot: book.newest.step for slot, book in self._outputs.items() if book.newest is not None}

    def frontier(self) -> int:
        """Return the step up to which every group has results; -1 = none seen yet."""
        return min(self._blocks.newest().values(), default=-1)

    def outstanding(self, before_us: int) -> str:
        """Return what of before that time stands nowhere yet; "" = nothing."""
        waiting = sum(len(book.unaccounted(before_us)) for book in self.readings.values())
        steps = self.rows.behind(before_us // self.step_us - 1) if self.step_us else 0
        parts = [f"{waiting} batches that stand nowhere yet"] if waiting else []
        parts += [f"{steps} steps whose results are incomplete"] if steps else []
        return ", ".join(parts)

    def expire(self, before_us: int) -> None:
        """Give up on what of before that time stands nowhere: it is lost."""
        for book in self.readings.values():
            book.expire(before_us)
        if self.step_us:
            self.rows.expire(before_us // self.step_us - 1)

    def finish(self) -> None:
        """Judge what could still have changed."""
        for book in self.readings.values():
            book.finish()
        self.judge.finish()

    def counts(self) -> dict[str, int]:
        """Return how much was judged."""
        books = self.readings.values()
        return {
            "batches": sum(book.batches for book in books),
            "readings": sum(book.readings for book in books),
            "aside": sum(book.aside for book in books),
            "slow": self.judge.late.slow,
            "bounds": self.judge.bounds.values,
            "bounds_held": self.judge.bounds.held,
            "steps": self.rows.compared,
            "rows": self.rows.rows,
            "repeats": self.tally.repeats,
            "unjudged": self.tally.unjudged,
        }

    def silence_s(self, slots: Iterable[int], from_us: int, to_us: int) -> float | None:
        """Return the longest silence of these slots; None = none of them wrote anything."""
        return longest(self.times[slot].silence_s(from_us, to_us, self.step_us) for slot in slots)

    # ---- records

    def _on_log(self, record: Record) -> None:
        slot = record.partition
        self.readings[slot].read_to(record.offset + 1)
        message = parse(LogRecord, record)
        if message is None:
            return  # dead-letters: the services do not use it, and it has no readings to lose
        body = message.WhichOneof("body")
        if body == "ownership":
            self.roles.take_ownership(slot, record.offset, record.appended_us, message.ownership)
        elif body == "model":
            self._outputs[slot].model_changed()
        elif body == "batch":
            batch = message.batch
            if len(batch.value) != 2 * len(batch.sensor):
                return  # damaged: dead-letters
            if batch.sensor:
                self.edges[batch.edge] = record.appended_us
            self.edge_slots.setdefault(batch.edge, set()).add(slot)
            self.readings[slot].take(read_batch(slot, record, batch))

    def _on_output(self, output: Output) -> None:
        book = self._outputs[output.slot]
        last = book.newest
        if not book.take(output):
            return
        if last is not None and output.epoch < last.epoch:
            self.tally.amiss("epoch", f"{output.place}: a new output of an older term, after epoch {last.epoch}")
        self.times[output.slot].add(output.written_us, output.epoch)
        self.readings[output.slot].close(output)
        self.rows.take_output(output)

    def _on_block(self, record: Record) -> None:
        block = read_block(record.partition, record)
        if self._blocks.take(block):
            self.rows.take_block(block)

    def _on_late(self, late: Late) -> None:
        if late.reason == "frontier":
            self.rows.left_behind(late.recovered.step, np.asarray(sensors(late.recovered.sensor)))
        elif late.slot in self.readings:
            self.readings[late.slot].set_aside(Aside(LATE, late.slot, late.offset, late.reason))

    def _on_dead(self, letter: DeadLetter) -> None:
        if letter.topic.endswith(TUPLES) and letter.partition in self.readings:
            aside = Aside(DEAD_LETTERS, letter.partition, letter.offset, letter.reason)
            self.readings[letter.partition].set_aside(aside)
