"""The records of a slot's log that a replica has read and not processed yet (the input part of A-SAS).

Records are scanned for ownership when they are read, long before they are processed. So the replica knows the owner as
of the last record read, and a Quarantine before it processes the record that this names. While about `HELD_BYTES` of
records wait in memory, further ones are scanned and not kept: they are read again when there is room. Otherwise a slot
whose owner has been overloaded for an hour would end each process that takes it over.

Terms: A *context* is the slot's whole state at one offset of its log. A *Level-1-Ack* names the *resume point*: a
context whose outputs are all in `recovered`, so that nobody needs the log before it. The *epoch* is the number of an
ownership, the *generation* that of the slot's log. B is how many tuples the log holds before a secondary reads them.
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections import deque
from collections.abc import Sequence
from itertools import repeat
from operator import attrgetter

from tsunagi.runtime.log import Record
from tsunagi.runtime.marks import BREAK_US, digest_of
from tsunagi.runtime.messages import Context, Level1Ack
from tsunagi.slot.ownership import Register
from tsunagi.slot.parsing import ParsedMany, parse, parse_run
from tsunagi.slot.plain import PlainBatches
from tsunagi.standby.costs import LogExtent

RECORD_OVERHEAD_BYTES = 70
"""Bytes that a record takes on the network beside its value."""

WEIGHT = 0.05
"""Weight of one record in a running mean."""

COMPARED = 500
"""At most so many records are read again at once, to be compared with those read before."""

HELD_BYTES = 16 << 20
"""About so many bytes of a slot's records wait in memory at most."""

KEPT_BYTES = 2000
"""Bytes that a record which waits takes in memory beside its value."""

LEAP_S = 1.0
"""A standby takes the context instead if the records before the resume point need longer than this, seconds."""


class Intake:
    """The records of a slot's log that were read and not processed: those from the slot's position up to `next`.

    Attributes:
        scan: the slot's ownership as of the last record scanned.
        backlog: the records that were read and not processed, with what they were parsed to.
        next: offset of the next record to read and keep.
        scanned: offset of the next record to scan. Those from `next` on have been scanned and not kept.
        first, end: the log's first offset and its end, as last heard.
        oldest_step: the oldest step of the batches read while nobody owned the slot; None = there were none.
        appended_us: when the log appended the newest record read, microseconds; 0 = none was read yet.
        tuples_per_record, bytes_per_record: running means over all records, control records included.
        read_bytes: bytes of all values read, whether pulled or followed.
        pulled_bytes: bytes that pulls should have taken on the network since the last `take_pulled`.
        wire: bytes that came over the network for each byte of `pulled_bytes`.
        send_s: S_time as an owner measures it: seconds from a record's append until it is read, divided by the tuples
            that came with it; a running mean, 0 = nothing has been followed yet.
        level1: the newest Level-1-Ack known; None = none.
        breaks: the last records before jumps in the log's times, in log order. If the log has lost its end and grown
            again, that happened behind one of them. What was read behind it may be right again, so each is compared.
        seen_epoch: the greatest epoch of all claims read, including void ones.
        first_us: when the log appended the first batch read, microseconds; 0 = none was read yet.
        pulls, jumps: how many pulls were made, and how many contexts were taken.
        trimmed: how many records were never read since a context replaced them.
    """

    def __init__(self, tuples_per_record: float) -> None:
        self.scan = Register()
        self.backlog: deque[tuple[Record, ParsedMany]] = deque()
        self.next = 0
        self.scanned = 0
        self.first = 0
        self.end = 0
        self.oldest_step: int | None = None
        self.seen_epoch = 0
        self.first_us = 0
        self.appended_us = 0
        self.breaks: deque[Record] = deque()
        self._newest: Record | None = None  # the last one scanned
        self._kept: Record | None = None  # the last one kept
        self._times = array("q")  # of the records from `_times_from` to `scanned`: when each was appended, microseconds
        self._times_from = 0
        self._digest = 0
        self.level1: Level1Ack | None = None
        self.read_bytes = 0
        self.pulled_bytes = 0.0
        self.wire = 1.0
        self.send_s = 0.0
        self._ways: deque[tuple[float, int]] = deque()  # of each read: (when, us since its first append)
        self.pulls = 0
        self.jumps = 0
        self.trimmed = 0
        self.tuples_per_record = tuples_per_record
        self.bytes_per_record = 16.0 * tuples_per_record + RECORD_OVERHEAD_BYTES

    @property
    def held_bytes(self) -> float:
        """About how many bytes the records that wait take in memory."""
        return len(self.backlog) * (self.bytes_per_record + KEPT_BYTES)

    @property
    def full(self) -> bool:
        """Whether no further records should be kept."""
        return self.held_bytes >= HELD_BYTES

    @property
    def half_empty(self) -> bool:
        """Whether a reader that has stopped since it was full should go on."""
        return self.held_bytes < HELD_BYTES / 2

    @property
    def most(self) -> int:
        """How many records may be read at once, at least 1."""
        return max(1, int(HELD_BYTES / (self.bytes_per_record + KEPT_BYTES)))

    def on_records(self, records: Sequence[Record], *, bounded: bool = False, columns: bool = False) -> None:
        """Keep records that were read, in log order; those that were read before are skipped.

        Args:
            bounded: scan the records and do not keep them while the backlog is full. They must then be read again.
            columns: whether batches that are alike are read as columns, since the slot processes them together.
        """
        if records and self.next < self.scanned:
            again = [record for record in records if record.offset < self.scanned]
            self._keep_again(again, bounded=bounded)
            records = records[len(again) :]
        keep = self.next == self.scanned and not (bounded and self.full)
        records = _from(records, self.scanned)
        if not records:
            return
        self._note_break(self._newest, records[0])
        tuples = at = 0
        for count, parsed in parse_run(records) if columns else ((1, parse(record)) for record in records):
            part, at = records[at : at + count], at + count
            tuples += self._scan(part[0], parsed)
            if keep:
                self.backlog.extend(zip(part, repeat(parsed)))
        if not keep:
            for place, record in enumerate(records):
                self._remember(record, fresh=place == 0 and self.next == self.scanned)
        newest = records[-1]
        self._newest, self.scanned, self.appended_us = newest, newest.offset + 1, newest.appended_us
        if keep:
            self.next, self._kept = self.scanned, newest
        self._measure(len(records), sum([len(record.value or b"") for record in records]), tuples)

    def _scan(self, record: Record, parsed: ParsedMany) -> int:
        """Take in what a record, or several as columns from this one on, say of the slot; return how many tuples."""
        message, _, kind = parsed
        if message is None:
            return 0
        if isinstance(message, PlainBatches):
            step, tuples = int(message.steps.min()), len(message) * message.rows
        elif kind == "batch":
            batch = message.batch
            step, tuples = batch.step, (len(batch.value) >> 3) + sum(events.rows for events in batch.events)
        else:
            if kind == "ownership":
                self.seen_epoch = max(self.seen_epoch, message.ownership.epoch)
            self.scan.read(record.offset, message)
            return 0
        self.first_us = self.first_us or record.appended_us
        if self.scan.epoch == 0:
            self.oldest_step = step if self.oldest_step is None else min(step, self.oldest_step)
        return tuples

    def _keep_again(self, records: Sequence[Record], *, bounded: bool) -> None:
        """Keep records that were scanned before. The log may have lost its end and grown again since."""
        count = 0
        for record in records:
            if record.offset < self.next:
                continue
            if record.offset > self.next or (bounded and self.full):
                return  # what comes next was not asked for, or there is no room
            if not count:
                self._note_break(self._kept, record)
            count += 1
            self.backlog.append((record, parse(record)))
            self.next, self._kept = record.offset + 1, record
            self.read_bytes += len(record.value or b"")

    def _remember(self, record: Record, *, fresh: bool) -> None:
        """Remember when a record was appended that is not kept; `fresh` = all before it are kept."""
        if fresh:
            self._times, self._times_from = array("q"), record.offset
        self._times.extend([0] * (record.offset - self._times_from - len(self._times)))  # no records stand there
        self._times.append(record.appended_us)

    def _note_break(self, last: Record | None, record: Record) -> None:
        """Note the last record read if the log's times make a jump from it to this one, which was read behind it."""
        if last is not None and abs(record.appended_us - last.appended_us) >= BREAK_US:
            insort(self.breaks, last, key=attrgetter("offset"))

    @property
    def digest(self) -> int:
        """The digest (`digest_of`) of the record before `scanned`; 0 = not known."""
        return self._digest if self._newest is None else digest_of(self._newest)

    def unprocessed(self, offset: int) -> Record | None:
        """Return the record at this offset if it was read and not processed, else None."""
        return next((record for record, _ in self.backlog if record.offset == offset), None)

    def doubtful(self) -> tuple[int, int]:
        """Return the offsets [first, upto) of what is to be read again, so that the oldest breaks can be compared."""
        first = self.breaks[0].offset
        return first, max(record.offset for record in self.breaks if record.offset < first + COMPARED) + 1

    def caused(self, offset: int, appended_us: int) -> bool:
        """Return whether the record at this offset may have caused an output that names it.

        Records that were processed are not kept, so they count as the cause.

        Args:
            appended_us: when that record was appended, as the output says; 0 = not known.
        """
        if offset >= self.scanned:
            return False
        if offset >= self.next:
            return not appended_us or self._times[offset - self._times_from] == appended_us
        if not appended_us or not self.backlog or offset < self.backlog[0][0].offset:
            return True
        found = self.unprocessed(offset)
        return found is not None and found.appended_us == appended_us

    def begin_at(self, offset: int) -> None:
        """Forget what was read, and read from this offset on."""
        self.scan = Register()
        self.backlog.clear()
        self.next = self.scanned = offset
        self.oldest_step, self.first_us = None, 0
        self._newest = self._kept = None
        self._digest = 0
        self.breaks.clear()

    def on_pulled(self, records: Sequence[Record]) -> None:
        """Count the bytes that these records should have taken on the network."""
        self.pulled_bytes += sum(len(record.value or b"") + RECORD_OVERHEAD_BYTES for record in records)

    def on_followed(self, records: Sequence[Record], now: float, now_us: int) -> None:
        """Measure how long the records of one read were on their way, by the clocks of the log and of this node.

        This is the paper's S_time, measured at the primary. Like the paper it assumes equal machines, clocks included.

        Args:
            now_us: this node's wall clock, microseconds.
        """
        if not records:
            return
        way_us = now_us - records[0].appended_us
        self._ways.append((now, way_us))
        way_s = max(0, way_us) / 1e6
        tuples = max(1.0, len(records) * self.tuples_per_record)
        self.send_s += (1.0 - (1.0 - WEIGHT) ** len(records)) * (way_s / tuples - self.send_s)

    def longest_way_us(self, since: float) -> int:
        """Return the longest time that a record followed since then was on its way, microseconds; 0 = none came."""
        while self._ways and self._ways[0][0] < since:
            self._ways.popleft()
        return max((way_us for _, way_us in self._ways), default=0)

    def take_pulled(self) -> float:
        """Return `pulled_bytes`, and set it to 0."""
        found, self.pulled_bytes = self.pulled_bytes, 0.0
        return found

    def jump(self, position: int, register: Register, digest: int = 0) -> None:
        """Go on from a context; records that were read behind it are kept.

        Args:
            position: the offset of the first record that the context's state does not contain.
            register: the ownership as of that offset.
            digest: the digest of the record before that offset; 0 = not known.
        """
        self.jumps += 1
        self.pulled_bytes += 0 if self.level1 is None else self.level1.context_bytes
        if position <= self.next:
            while self.backlog and self.backlog[0][0].offset < position:
                self.backlog.popleft()
            return
        self.trimmed += position - self.next
        self.scan = register.copy()
        self.backlog.clear()
        self.next = self.scanned = position
        self._newest = self._kept = None
        self._digest = digest
        self.breaks.clear()

    def contradicts(self, context: Context) -> bool:
        """Return whether a context beyond what was read names an older epoch than the log does."""
        same = context.generation == self.scan.generation
        return same and context.offset >= self.scanned and context.epoch < self.scan.epoch

    def claims(self, offset: int) -> bool:
        """Return whether the record at this offset is an Ownership record that was read and not processed."""
        return any(record.offset == offset and kind == "ownership" for record, (_, _, kind) in self.backlog)

    def on_level1(self, ack: Level1Ack) -> None:
        """Take in a Level-1-Ack. The one with the greatest (epoch, offset) counts, of equal ones the last."""
        known = self.level1
        if known is None or (ack.epoch, ack.offset) >= (known.epoch, known.offset):
            self.level1 = ack

    def take_level1(self) -> Level1Ack | None:
        """Return the newest Level-1-Ack known, and forget it; None = none is known."""
        found, self.level1 = self.level1, None
        return found

    def jump_place(self, first: int, *, blank: bool = False) -> int | None:
        """Return the offset in `contexts` of the newest resume point if that is better than reading on, else None.

        It is better if the log lacks what would be read next, if there is no state yet, or if the context is smaller
        than the records before it.

        Args:
            first: the log's first offset.
            blank: whether the slot has no state yet.
        """
        level1 = self.level1
        if level1 is None or level1.offset <= self.next:
            return None
        skipped = min(level1.offset, self.end) - self.next
        if blank or first > self.next or level1.context_bytes < skipped * self.bytes_per_record:
            return level1.context_offset
        return None

    def leap_place(self, position: int, record_s: float) -> int | None:
        """Return the offset in `contexts` of the newest resume point if processing up to it takes too long, else None.

        Args:
            position: the offset below which all records have been processed.
            record_s: seconds that processing a record takes.
        """
        level1 = self.level1
        if level1 is None or level1.offset <= position:
            return None
        skipped = level1.offset - position
        if skipped * record_s > LEAP_S and level1.context_bytes < skipped * self.bytes_per_record:
            return level1.context_offset
        return None

    def held_tuples(self, first: int) -> float:
        """Return how many unread tuples the log holds: from the resume point on if a jump there is better, else `next`.

        In the A-SAS paper this is the length of the output queue at the upstream node N_u.
        """
        start = self.next if self.jump_place(first) is None or self.level1 is None else self.level1.offset
        return max(0, self.end - start) * self.tuples_per_record

    def extent(self) -> LogExtent:
        """Return what the cost models need to know of the log."""
        level1 = self.level1
        return LogExtent(
            end=self.end,
            resume=0 if level1 is None else level1.offset,
            context_bytes=0 if level1 is None else level1.context_bytes,
            record_tuples=self.tuples_per_record,
            record_bytes=self.bytes_per_record * self.wire,
            behind=self.held_tuples(self.first) + len(self.backlog) * self.tuples_per_record,
        )

    def _measure(self, count: int, size: int, tuples: int) -> None:
        """Update the running means with `count` records of `size` bytes and `tuples` tuples in all."""
        self.read_bytes += size
        weight = 1.0 - (1.0 - WEIGHT) ** count
        self.tuples_per_record += weight * (tuples / count - self.tuples_per_record)
        self.bytes_per_record += weight * (size / count + RECORD_OVERHEAD_BYTES - self.bytes_per_record)


def _from(records: Sequence[Record], following: int) -> Sequence[Record]:
    """Return the records from an offset on, each of which stands behind the one before."""
    offsets = [record.offset for record in records]
    if offsets and offsets[0] >= following and offsets == list(range(offsets[0], offsets[0] + len(offsets))):
        return records
    found = []
    for record in records:
        if record.offset >= following:
            found.append(record)
            following = record.offset + 1
    return found
