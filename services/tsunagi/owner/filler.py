"""The owner fills queries over tuples with the past of its slot's log (`tsunagi query add --from`).

It reads the log from where the query begins, and appends the batches once more, in order, as `Past` records. All
replicas fill the query when they read these (`tsunagi.slot.filled`). One record is on its way at a time. Between two of
them the owner leaves as much time as the last one took, so the others of its queries and slots have at least half.
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
MOST_RECORDS = 500
"""Most records that are read at once."""
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
        self._rests_until = 0.0

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
        has = item.upto, item.kept_from
        if self._sent is not None:
            before, sent_at = self._sent
            if before == has and now - sent_at < READ_BACK_S:
                return []
            if before != has:
                self._rests_until = now + (now - sent_at)
            self._sent = None
        if now < self._rests_until:
            return []
        with suppress(LogError):  # it does not answer: the next turn asks again
            found = self._reading.next(slot)
            if found is not None:
                found.epoch = view.epoch
                self._sent = has, now
                return [control(past=found)]
        return []

    def stop(self, slot: Slot) -> None:
        self._past.give_back(slot.slot)
        self._reading = self._sent = None


class _Reading:
    """Reads the log of one slot for one query."""

    def __init__(self, item: FilledQuery, reader: Reader, slot: Slot) -> None:
        self.item = item
        self._reader = reader
        self._records: deque[Record] = deque()  # read, and not yet known to be processed
        self._search: _Search | None = None
        self._read_to = NONE  # the record that is read next; NONE = nothing is assigned
        config = slot.config
        self._ahead_us = 0 if config is None else config.max_ahead_us

    def next(self, slot: Slot) -> Past | None:
        """Return what comes next of the past; None = it has not been read yet.

        Raises:
            LogError: the log does not answer.
        """
        item = self.item
        begin = item.upto
        if begin == NONE:
            if self._search is None:
                wanted_us = item.from_us - self._ahead_us - EARLIER_US
                self._search = _Search(self._reader, slot.slot, wanted_us, slot.position)
            begin = self._search.go_on()
            if begin == NONE:
                return None
        end = slot.position if item.kept_from == NONE else item.kept_from
        upto = self._read(slot.slot, begin, end)
        if upto == NONE:
            return None
        found = Past(query=item.name, from_us=item.from_us, begin=begin, upto=upto)
        for record in takewhile(lambda record: record.offset < upto, self._records):
            batch = None if record.offset in slot.register.quarantined else _batch_of(record)
            if batch is not None:
                found.batch.append(batch)
                found.appended_us.append(record.appended_us)
        return found

    def _read(self, slot: int, begin: int, end: int) -> int:
        """Read on; return the offset up to which there is enough for a record, or all up to `end`; NONE = not yet."""
        while self._records and self._records[0].offset < begin:
            self._records.popleft()
        if self._read_to == NONE or (self._records[0].offset if self._records else self._read_to) != begin:
            self._records.clear()
            self._read_to = begin
            self._reader.assign([Position(TUPLES, slot, begin)])
        size = 0
        for record in self._records:
            if record.offset >= end:
                return end
            size += len(record.value or b"")
            if size >= MOST_BYTES:
                return record.offset + 1
        if self._read_to >= end:
            return end
        try:
            records = self._reader.read(MOST_RECORDS, 0.0)
        except OffsetLostError:
            first, _ = self._reader.range(TUPLES, slot)
            if first <= begin:
                raise
            structlog.get_logger("tsunagi.worker").warning(
                "the log has dropped records before a query was filled with them",
                slot=slot,
                query=self.item.name,
                records=first - begin,
            )
            self._read_to = NONE
            return min(first, end)
        if records:
            self._records += records
            self._read_to = records[-1].offset + 1
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
        self._low = reader.range(TUPLES, slot)[0]
        self._high = max(self._low, end)
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
            except OffsetLostError:
                self._low, self._asked = self._reader.range(TUPLES, self._slot)[0], NONE
                self._high = max(self._low, self._high)
                continue
            if not records:
                return NONE
            if records[0].appended_us < self._wanted_us:
                self._low = records[0].offset + 1
            else:
                self._high = middle
        return self._low


def _batch_of(record: Record) -> TupleBatch | None:
    message: LogRecord | None
    message, _, kind = parse(record)
    return message.batch if message is not None and kind == "batch" else None
