"""The owner fills queries over tuples with the past of its slot's log (`tsunagi query add --from`).

It reads the log from where the query begins, and appends the batches once more, in order, as `Past` records. All
replicas fill the query when they read these (`tsunagi.slot.filled`). One record is on its way at a time. While
it is, the owner has time for the rest of its work, so nothing waits longer than one such record takes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Protocol

import structlog

from tsunagi.runtime.log import TUPLES, LogError, OffsetLostError, Position, Reader, Record
from tsunagi.runtime.messages import LogRecord, Past, TupleBatch
from tsunagi.slot.deciding import READ_BACK_S, Decider, Decision, OwnerView, control
from tsunagi.slot.filled import NONE, FilledQuery
from tsunagi.slot.parsing import parse
from tsunagi.slot.slot import Slot

MOST_BYTES = 64_000
"""Most batches of one record, bytes: other records wait while it is processed."""
MOST_RECORDS = 250
"""Most records of the log that one record has the batches of, and that are read at once."""
EARLIER_US = 60_000_000
"""Reading begins so much earlier than the first tuple that may be wanted, microseconds. So the slot knows which of the
batches behind it are repeats: an edge that has started anew sends its last batches again."""


class PastReader(Protocol):
    """Reads the past of slots' logs, of one slot at a time. It never waits for records."""

    def take(self, slot: int) -> Reader | None:
        """Return the reader, which this slot has until it gives it back; None = another slot has it."""

    def give_back(self, slot: int) -> None:
        """Take in that this slot does not need the reader any more."""


class Filler(Decider):
    """Appends the past of a slot's log once more for one query after the other.

    Args:
        past: reads the past.
    """

    def __init__(self, past: PastReader) -> None:
        self._past = past
        self._reading: _Reading | None = None
        self._sent: tuple[tuple[int, int], float] | None = None  # what the slot had before the record, and when it went

    @property
    def urgent(self) -> bool:
        return self._reading is not None

    def decide(self, view: OwnerView) -> Sequence[Decision]:
        """Return the record with what comes next of the past, once the last one has been processed."""
        slot, now = view.slot, view.now
        stream = None if slot.chain is None else slot.chain.stream
        item = None if stream is None else next((item for item in stream.filled if not item.done), None)
        if item is None:
            self.stop(slot)
            return []
        if self._reading is None or self._reading.item is not item:
            self._reading = self._sent = None
            reader = self._past.take(slot.slot)
            if reader is None:
                return []
            self._reading = _Reading(item, reader, slot)
        with suppress(LogError):  # it does not answer: the next turn asks again
            self._reading.read_on(slot)
            if self._may_send(item, now):
                found = self._reading.next(slot)
                if found is not None:
                    found.epoch = view.epoch
                    self._sent = (item.upto, item.kept_from), now
                    return [control(past=found)]
        return []

    def _may_send(self, item: FilledQuery, now: float) -> bool:
        """Return whether the last record has been processed, or is taken for lost."""
        if self._sent is None:
            return True
        before, sent_at = self._sent
        return before != (item.upto, item.kept_from) or now - sent_at >= READ_BACK_S

    def stop(self, slot: Slot) -> None:
        self._past.give_back(slot.slot)
        self._reading = self._sent = None


class _Reading:
    """Reads the log of one slot for one query."""

    def __init__(self, item: FilledQuery, reader: Reader, slot: Slot) -> None:
        self.item = item
        self._reader = reader
        ahead_us = 0 if slot.config is None else slot.config.max_ahead_us
        wanted_us = item.from_us - ahead_us - EARLIER_US
        self._search = None if item.upto != NONE else _Search(reader, slot.slot, wanted_us, slot.position)
        self._begin = item.upto  # the record with which the past goes on; NONE = the search for the first one goes on
        self._records: deque[Record] = deque()  # read, and not yet known to be processed
        self._read_to = NONE  # the record that is read next; NONE = nothing is assigned

    def read_on(self, slot: Slot) -> None:
        """Take what has been read meanwhile.

        Raises:
            LogError: the log does not answer.
        """
        if self.item.upto != NONE or self._search is None:
            self._begin = self.item.upto
        else:
            self._begin = self._search.go_on()
        begin = self._begin
        while self._records and self._records[0].offset < begin:
            self._records.popleft()
        if begin == NONE or len(self._records) >= MOST_RECORDS:
            return
        if self._read_to == NONE or (self._records[0].offset if self._records else self._read_to) != begin:
            self._records.clear()
            self._read_to = begin
            self._reader.assign([Position(TUPLES, slot.slot, begin)])
        try:
            records = self._reader.read(MOST_RECORDS, 0.0)
        except OffsetLostError:
            self._read_to = NONE
            return
        if records:
            self._records += records
            self._read_to = records[-1].offset + 1

    def next(self, slot: Slot) -> Past | None:
        """Return what comes next of the past, as far as `read_on` has read; None = it has not been read yet.

        Raises:
            LogError: the log does not answer.
        """
        item, begin = self.item, self._begin
        if begin == NONE:
            return None
        upto = self._upto(slot, begin)
        if upto == NONE:
            return None
        found = Past(query=item.name, from_us=item.from_us, begin=begin, upto=upto)
        for record in takewhile(lambda record: record.offset < upto, self._records):
            batch = None if record.offset in slot.register.quarantined else _batch_of(record)
            if batch is not None:
                found.batch.append(batch)
                found.appended_us.append(record.appended_us)
        return found

    def _upto(self, slot: Slot, begin: int) -> int:
        """Return the offset up to which there is enough for a record, or all that there is; NONE = not yet."""
        item = self.item
        end = slot.position if item.kept_from == NONE else item.kept_from
        size = 0
        for count, record in enumerate(self._records, 1):
            if record.offset >= end:
                return end
            size += len(record.value or b"")
            if size >= MOST_BYTES or count == MOST_RECORDS:
                return record.offset + 1
        if self._read_to >= end:
            return end
        if self._read_to == NONE:
            first, _ = self._reader.range(TUPLES, slot.slot)
            if first > begin:
                structlog.get_logger("tsunagi.worker").warning(
                    "the log has dropped records before a query was filled with them",
                    slot=slot.slot,
                    query=item.name,
                    records=first - begin,
                )
                return min(first, end)
        return NONE


class _Search:
    """Finds the first record that the log appended at a time or later, by bisection, without waiting.

    Args:
        wanted_us: the time, microseconds.
        end: an offset before which to search.
    """

    def __init__(self, reader: Reader, slot: int, wanted_us: int, end: int) -> None:
        self._reader = reader
        self._slot = slot
        self._wanted_us = wanted_us
        self._low, self._high = 0, end
        self._asked = NONE

    def go_on(self) -> int:
        """Return the offset of the record; NONE = it is not found yet.

        Raises:
            LogError: the log does not answer.
        """
        while self._low < self._high:
            middle = (self._low + self._high) // 2
            if self._asked != middle:
                self._asked = middle
                self._reader.assign([Position(TUPLES, self._slot, middle)])
            try:
                records = self._reader.read(1, 0.0)
            except OffsetLostError:  # retention has deleted it
                self._low, self._asked = max(self._low, self._reader.range(TUPLES, self._slot)[0]), NONE
                continue
            if not records:
                return NONE
            self._asked = NONE
            if records[0].appended_us < self._wanted_us:
                self._low = records[0].offset + 1
            else:
                self._high = middle
        return self._low


def _batch_of(record: Record) -> TupleBatch | None:
    message: LogRecord | None
    message, _, kind = parse(record)
    return message.batch if message is not None and kind == "batch" else None
