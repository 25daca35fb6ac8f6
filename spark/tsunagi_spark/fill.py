"""Fills a query from what `recovered` still holds, some of it at each batch, until it has caught up with the others.

A query that is filled has a query core of its own, so the others do not wait for it. Until it has caught up, it takes
nothing from the P-SORT cores: what they have sent is in the log, and is read there, all slots at about the same step.
It has caught up when it has read as far as Spark had before the batch. Then it has all rows of the steps that groups
have delivered, and the P-SORT cores give it the others.

How far it comes in a batch depends on time. Which rows it gives does not: they have the same names and bytes whenever
they are computed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import structlog

from tsunagi.query.encoding import EncodedBlock
from tsunagi.query.readings import Readings
from tsunagi.runtime.door import UnusableError, decode
from tsunagi.runtime.log import RECOVERED, LogError, OffsetLostError, Position, Reader, Record
from tsunagi.runtime.messages import Recovered
from tsunagi_spark.complete_rows import CompleteRows, no_rows
from tsunagi_spark.decode import Arrived, SlotDecoder
from tsunagi_spark.frontier import NEVER, SlotMark
from tsunagi_spark.layout import Ints, Layout
from tsunagi_spark.query_core import QueryCore

_LEAST_S = 0.1
"""Least time for reading in a batch, in seconds."""
_MOST_S = 5.0
"""Most time for reading in a batch, in seconds."""
_SHARE = 0.25
"""Share of a step that is spent on reading: a batch has at least one step to work on."""
_RECORDS = 500
"""Most records that are read at once."""
_READ_S = 0.05
"""Longest wait for records, in seconds."""
_AHEAD_STEPS = 1_000
"""A slot that has been read so many steps further than another one waits for it: its rows are in memory."""
_FIND_S = 10.0
"""Longest wait for one record while the beginning is looked for, in seconds."""


def time_for(slide_us: int) -> float:
    """Return for how long, in seconds, a batch may read to fill a query."""
    return min(_MOST_S, max(_LEAST_S, _SHARE * slide_us / 1e6))


@dataclass(frozen=True, slots=True)
class Past:
    """What the job had done before the batch.

    Attributes:
        marks: how far each slot had been read.
        delivered: int64[groups], the last step that was sent for each group; NEVER if none.
        slide_us: length of a step, microseconds.
    """

    layout: Layout
    marks: Mapping[int, SlotMark]
    delivered: Ints
    slide_us: int

    def counts(self, slot: int) -> bool:
        """Return whether a slot has sensors."""
        return slot < self.layout.slots and bool(self.layout.held[:, slot].any())

    @property
    def upto(self) -> int:
        """The last step that all groups had delivered which have delivered any."""
        some = self.delivered[self.delivered != NEVER]
        return int(some.min()) if len(some) else NEVER


def fill(core: QueryCore, past: Past, reader: Reader, until_s: float, table: Readings) -> Iterator[EncodedBlock]:
    """Yield blocks of rows of the past; `core.filling` is None behind it if the core has caught up.

    Args:
        core: a query core that is being filled.
        reader: a reader that nobody else uses meanwhile.
        until_s: when to stop, by `time.monotonic`.

    Raises:
        LogError: the log does not answer.
    """
    assert core.filling is not None  # noqa: S101 - the caller asks a core that is being filled
    try:
        if not core.filling and past.marks:
            core.filling = {slot: _beginning(reader, slot, mark, core.begin) for slot, mark in past.marks.items()}
        log = _Log(reader, past, core.filling)
        while True:
            left = log.left()
            came, events = log.read(left) if left else (no_rows(), [])
            complete = min([past.upto, *(step for slot, step in log.steps(log.left()) if past.counts(slot))])
            first = int(came.rows["step"].min()) if len(came.rows["step"]) else NEVER
            yield from core.advance(came, first, complete, table, events)
            core.filling = log.marks()
            if not left:
                break
            if time.monotonic() > until_s:
                return
    finally:
        reader.assign([])  # nothing is fetched until the next batch
    # What groups have not delivered yet comes from the P-SORT cores.
    waiting = core.waiting
    group = past.layout.group_of[waiting.rows["sensor"]]
    delivered = np.full(len(past.layout.groups), NEVER, dtype=np.int64)
    delivered[: len(past.delivered)] = past.delivered
    core.waiting = waiting.some(waiting.rows["step"] <= delivered[group])
    core.filling = None


class _Log:
    """Reads `recovered` up to where Spark had read it."""

    def __init__(self, reader: Reader, past: Past, marks: Mapping[int, SlotMark]) -> None:
        self._reader = reader
        self._ends = {slot: mark.read_to for slot, mark in past.marks.items()}
        never = np.full(len(past.layout.groups), NEVER, dtype=np.int64)  # so no row is late
        self._decoders = {
            slot: SlotDecoder(slot, marks.get(slot, SlotMark()), past.layout, never, past.slide_us)
            for slot in past.marks
        }
        self._assigned: list[int] = []

    def marks(self) -> dict[int, SlotMark]:
        """Return how far each slot has been read."""
        return {slot: decoder.mark for slot, decoder in self._decoders.items()}

    def left(self) -> list[int]:
        """Return the slots of which something has still to be read."""
        return [slot for slot, decoder in self._decoders.items() if decoder.mark.read_to < self._ends[slot]]

    def steps(self, slots: Sequence[int]) -> list[tuple[int, int]]:
        """Return (slot, its newest step that was read)."""
        return [(slot, self._decoders[slot].mark.step) for slot in slots]

    def read(self, left: Sequence[int]) -> tuple[CompleteRows, list[bytes]]:
        """Return the rows and the events that come next of the slots that are not far ahead of others."""
        least = min(step for _, step in self.steps(left))
        near = [slot for slot, step in self.steps(left) if step <= least + _AHEAD_STEPS]
        if near != self._assigned:
            self._assign(near)
        try:
            records = self._reader.read(_RECORDS, _READ_S)
        except OffsetLostError:
            self._go_behind_what_is_lost(near)
            return no_rows(), []
        for record in records:
            if record.offset < self._ends[record.partition]:
                _add(self._decoders[record.partition], record)
        blocks = [block for decoder in self._decoders.values() for block in decoder.blocks()]
        rows = (CompleteRows(block.rows.columns(), block.steps, block.appended_us) for block in blocks)
        return CompleteRows.of([no_rows(), *rows]), [block.events for block in blocks if block.events]

    def _assign(self, slots: list[int]) -> None:
        self._assigned = slots
        self._reader.assign([Position(RECOVERED, slot, self._decoders[slot].mark.read_to) for slot in slots])

    def _go_behind_what_is_lost(self, slots: Sequence[int]) -> None:
        """Begin with the first record that the log still holds: its retention is faster than this reading."""
        for slot in slots:
            first = self._reader.range(RECOVERED, slot)[0]
            decoder = self._decoders[slot]
            if decoder.mark.read_to < first:
                structlog.get_logger("tsunagi.spark").warning(
                    "the log has dropped records before a query was filled with them",
                    slot=slot,
                    records=first - decoder.mark.read_to,
                )
                decoder.mark = decoder.mark._replace(read_to=first)
        self._assigned = []


def _add(decoder: SlotDecoder, record: Record) -> None:
    decoder.add(Arrived(record.partition, record.offset, record.key, record.value, record.appended_us))
    decoder.sidelined.clear()  # the job has told of these when it read them


def _beginning(reader: Reader, slot: int, mark: SlotMark, step: int) -> SlotMark:
    """Return the mark before the first record of a slot that has this step or a later one, by bisection.

    A slot's steps ascend in its log.

    Args:
        mark: how far Spark has read the slot.
    """
    low, high = reader.range(RECOVERED, slot)[0], mark.read_to
    while low < high:
        middle = (low + high) // 2
        found, offset = _step_at(reader, slot, middle, high)
        if found < step:
            low = offset + 1
        else:
            high = middle
    return SlotMark(read_to=low)


def _step_at(reader: Reader, slot: int, offset: int, end: int) -> tuple[int, int]:
    """Return (the step of the first record from an offset on that can be read, its offset).

    Behind the last record every step has been reached.

    Raises:
        LogError: the log does not answer.
    """
    reader.assign([Position(RECOVERED, slot, offset)])
    deadline_s = time.monotonic() + _FIND_S
    while time.monotonic() < deadline_s:
        for record in reader.read(1, _READ_S):
            if record.offset >= end:
                return -NEVER, end
            with suppress(UnusableError):  # the job has told of it
                return decode(Recovered, record.value).step, record.offset
    raise LogError(f"{RECOVERED}/{slot}: record {offset} did not come within {_FIND_S:g} s")
