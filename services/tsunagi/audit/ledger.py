"""Takes the records of a run in as they are read, and finds what was lost, doubled, out of order or wrong. No I/O."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tsunagi.audit.blocks import BlockBook
from tsunagi.audit.causes import Disturbance, Judge
from tsunagi.audit.evidence import Aside, AuditedOutput, parse, read_batch, read_block, read_record
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
"""How many outputs of a slot are kept. Repeats, and batches that are set aside later, are compared with them. The limit
bounds the memory of a long run."""


class AuditLedger:
    """Takes in the records of all topics, those of each partition in log order.

    Args:
        slots: the number of slots.
        placement: uint32[n], the slot of each sensor.
        values: whether a measured row must have exactly the value of its reading.
        kept: how many outputs of a slot are kept, as `KEPT`.
        grace_s, delta: the values of [steps] grace_s, in seconds, and [recovery] delta.

    Attributes:
        tally: the findings.
        judge: judges changes of owner, batches that were set aside, and bounds.
        roles: who owns which slot, and what the nodes say about themselves.
        times: when the outputs of each slot were appended.
        rows: compares `recovered` with `results`.
        readings: accounts for the batches of each slot.
        base: the step from which rows and readings are judged; -1 before the judging has begun.
        edges: when the newest batch with readings of each edge was appended, in microseconds since 1970.
        edge_slots: the slots to which each edge sends.
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
        """Take a record in, and judge it."""
        try:
            if record.topic == TUPLES:
                self._on_log(record)
            elif record.topic == RECOVERED:
                for output in read_record(record.partition, record):
                    self._on_output(output)
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
        """Begin to judge rows and readings, from the step after the newest one in `recovered` and `results`."""
        self.base = max([*self.slot_steps().values(), *self._blocks.newest().values()]) + 1
        self.rows.begin(self.base)
        for book in self.readings.values():
            book.begin(self.base)
        self.roles.take_changes()

    def after(self, cause: Disturbance) -> None:
        """Judge what happened since the last call, given that this disturbance was set meanwhile."""
        self.judge.cause(cause)
        for before, owner in self.roles.take_changes():
            self.judge.changed(before, owner)
        tuples = sum(book.readings for book in self.readings.values())
        for book in self.readings.values():
            self.judge.refused(book.take_refused(), self.step_us, tuples)

    def advance(self) -> None:
        """Compare the rows of the steps that `recovered` and `results` have both passed. Call it after each read."""
        self.rows.advance(self.slot_steps(), self._blocks.newest())
        self.roles.settle(self.times)

    # ---- questions

    @property
    def step_us(self) -> int:
        """Length of a step, in microseconds, as the results show it; 0 before the first result."""
        return self._blocks.step_us

    def slot_steps(self) -> dict[int, int]:
        """Return the newest step in `recovered` of each slot that has any."""
        return {slot: book.newest.step for slot, book in self._outputs.items() if book.newest is not None}

    def frontier(self) -> int:
        """Return the step up to which every group has results; -1 before the first result."""
        return min(self._blocks.newest().values(), default=-1)

    def outstanding(self, before_us: int) -> str:
        """Return in words what was written before that time and is not accounted for yet; "" if nothing is left."""
        waiting = sum(len(book.unaccounted(before_us)) for book in self.readings.values())
        steps = self.rows.behind(before_us // self.step_us - 1) if self.step_us else 0
        parts = [f"{waiting} batches that stand nowhere yet"] if waiting else []
        parts += [f"{steps} steps whose results are incomplete"] if steps else []
        return ", ".join(parts)

    def expire(self, before_us: int) -> None:
        """Count as lost what was written before that time and is not accounted for."""
        for book in self.readings.values():
            book.expire(before_us)
        if self.step_us:
            self.rows.expire(before_us // self.step_us - 1)

    def finish(self) -> None:
        """Judge what could have changed until now: the last steps, and the bounds."""
        for book in self.readings.values():
            book.finish()
        self.judge.finish()

    def counts(self) -> dict[str, int]:
        """Return how much was judged, by kind."""
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
        """Return the longest silence of these slots, in seconds; None if none of them wrote anything."""
        return longest(self.times[slot].silence_s(from_us, to_us, self.step_us) for slot in slots)

    # ---- records

    def _on_log(self, record: Record) -> None:
        slot = record.partition
        self.readings[slot].read_to(record.offset + 1)
        message = parse(LogRecord, record)
        if message is None:
            return  # it goes to dead-letters: the services do not use it, so it has no readings that could be lost
        body = message.WhichOneof("body")
        if body == "ownership":
            self.roles.take_ownership(slot, record.offset, record.appended_us, message.ownership)
        elif body == "model":
            self._outputs[slot].model_changed()
        elif body == "batch":
            batch = message.batch
            if len(batch.value) != 2 * len(batch.sensor):
                return  # the batch is damaged, so it goes to dead-letters
            if batch.sensor:
                self.edges[batch.edge] = record.appended_us
            self.edge_slots.setdefault(batch.edge, set()).add(slot)
            self.readings[slot].take(read_batch(slot, record, batch))

    def _on_output(self, output: AuditedOutput) -> None:
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
