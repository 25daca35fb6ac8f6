"""What a replica has read of its slot's log and not processed yet (A-SAS: the input part).

Records are scanned for ownership the moment they are read, long before they are processed: who owns the slot is known
from the end of what was read, and a Quarantine is known before the record that it names is reached.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from tsunagi.runtime.log import Record
from tsunagi.runtime.marks import BREAK_US, digest_of
from tsunagi.runtime.messages import Context, Level1Ack
from tsunagi.slot.ownership import Register
from tsunagi.slot.parsing import Parsed, parse
from tsunagi.standby.costs import LogExtent

RECORD_OVERHEAD_BYTES = 70
"""Of a record on the wire, beside its value."""

WEIGHT = 0.05
"""Of a record in a running mean."""

MAX_BREAKS = 4
"""So many breaks in the log's times, the newest, are remembered until they are compared with the log."""

LEAP_S = 1.0
"""A standby that has so much to process before the resume point takes the context instead."""


class Intake:
    """The part of a slot's log between `position` (processed) and `next` (read).

    Attributes:
        scan: ownership as of `next`.
        first, end: the log's, as last heard.
        oldest_step: of the batches read while nobody owned the slot.
        appended_us: when the log appended the newest record read, 0 = none yet.
        tuples_per_record, bytes_per_record: running means, control records included.
        read_bytes: values read, whether pulled or followed; pulled_bytes: what pulls should have cost on the network
            since they were taken.
        wire: what they do cost, as a factor.
        send_s: S_time as an owner measures it: a tuple's part of the way from the log's append to being read, running
            mean; 0 = nothing has been followed yet.
        level1: the newest Level-1-Ack known: where the state can be had without what stands before.
        breaks: records between which and the next one the log's times make a jump, and which were read before it: if
            the log has lost its end and grown again, then there.
        seen_epoch: the greatest of any claim read, void ones as well.
        first_us: when the log appended the first batch read, 0 = none yet.
    """

    def __init__(self, tuples_per_record: float) -> None:
        self.scan = Register()
        self.backlog: deque[tuple[Record, Parsed]] = deque()
        self.next = 0
        self.first = 0
        self.end = 0
        self.oldest_step: int | None = None
        self.seen_epoch = 0
        self.first_us = 0
        self.appended_us = 0
        self.breaks: deque[Record] = deque(maxlen=MAX_BREAKS)
        self._newest: Record | None = None
        self._digest = 0
        self.level1: Level1Ack | None = None
        self.read_bytes = 0
        self.pulled_bytes = 0.0
        self.wire = 1.0
        self.send_s = 0.0
        self._ways: deque[tuple[float, int]] = deque()  # (when, how long on its way, us) of what each read brought
        self.pulls = 0
        self.jumps = 0
        self.trimmed = 0
        self.tuples_per_record = tuples_per_record
        self.bytes_per_record = 16.0 * tuples_per_record + RECORD_OVERHEAD_BYTES

    def take_in(self, records: Iterable[Record]) -> None:
        """Keep what was read, in log order; what was read before is passed over."""
        tuples = size = count = 0
        following, backlog = self.next, self.backlog
        for record in records:
            if record.offset < following:
                continue
            parsed = parse(record)
            message, _, kind = parsed
            if message is not None and kind == "batch":
                batch = message.batch
                tuples += len(batch.value) >> 3
                self.first_us = self.first_us or record.appended_us
                if self.scan.epoch == 0:
                    step = batch.step
                    self.oldest_step = step if self.oldest_step is None else min(step, self.oldest_step)
            elif message is not None:
                if kind == "ownership":
                    self.seen_epoch = max(self.seen_epoch, message.ownership.epoch)
                self.scan.read(record.offset, message)
            size += len(record.value or b"")
            count += 1
            backlog.append((record, parsed))
            following = record.offset + 1
        if count:
            first, last = backlog[-count][0], self._newest
            if last is not None and abs(first.appended_us - last.appended_us) >= BREAK_US:
                self.breaks.append(last)
            self._newest = backlog[-1][0]
            self.next, self.appended_us = following, self._newest.appended_us
            self._measure(count, size, tuples)

    @property
    def digest(self) -> int:
        """`digest_of` the record before `next`, 0 = not known."""
        return self._digest if self._newest is None else digest_of(self._newest)

    def caused(self, offset: int, appended_us: int) -> bool:
        """Return whether an output may follow from the record at this offset, appended then (0 = not known).

        What was processed before is not kept, and has been compared with the log already.
        """
        if offset >= self.next:
            return False
        if not appended_us or not self.backlog or offset < self.backlog[0][0].offset:
            return True
        found = next((record for record, _ in self.backlog if record.offset == offset), None)
        return found is not None and found.appended_us == appended_us

    def begin_at(self, offset: int) -> None:
        """Forget what was read, and read from here on."""
        self.scan = Register()
        self.backlog.clear()
        self.next = offset
        self.oldest_step, self.first_us = None, 0
        self._newest, self._digest = None, 0
        self.breaks.clear()

    def on_pulled(self, records: Sequence[Record]) -> None:
        """Count what reading them should have cost on the network."""
        self.pulled_bytes += sum(len(record.value or b"") + RECORD_OVERHEAD_BYTES for record in records)

    def on_followed(self, records: Sequence[Record], now: float, now_us: int) -> None:
        """Take in how long what one read brought was on its way, by the clocks of the log and of this node.

        The paper's S_time, measured at the primary; it assumes machines that are alike, so their clocks as well.
        """
        if not records:
            return
        way_us = now_us - records[0].appended_us
        self._ways.append((now, way_us))
        way_s = max(0, way_us) / 1e6
        tuples = max(1.0, len(records) * self.tuples_per_record)
        self.send_s += (1.0 - (1.0 - WEIGHT) ** len(records)) * (way_s / tuples - self.send_s)

    def longest_way_us(self, since: float) -> int:
        """Return the longest way of a record that was followed since then, microseconds by both clocks; 0 = of none."""
        while self._ways and self._ways[0][0] < since:
            self._ways.popleft()
        return max((way_us for _, way_us in self._ways), default=0)

    def take_pulled(self) -> float:
        """Return `pulled_bytes` since the last call."""
        found, self.pulled_bytes = self.pulled_bytes, 0.0
        return found

    def jump(self, position: int, register: Register, digest: int = 0) -> None:
        """Go on from a context; what was read behind it stays. `digest`: of the record before it."""
        self.jumps += 1
        self.pulled_bytes += 0 if self.level1 is None else self.level1.context_bytes
        if position <= self.next:
            while self.backlog and self.backlog[0][0].offset < position:
                self.backlog.popleft()
            return
        self.trimmed += position - self.next
        self.scan = register.copy()
        self.backlog.clear()
        self.next = position
        self._newest, self._digest = None, digest
        self.breaks.clear()

    def contradicts(self, context: Context) -> bool:
        """Return whether a context of what has not been read yet names an older epoch than what was read."""
        same = context.generation == self.scan.generation
        return same and context.offset >= self.next and context.epoch < self.scan.epoch

    def claims(self, offset: int) -> bool:
        """Return whether the record at this offset, read and not processed, decides who owns the slot."""
        return any(record.offset == offset and kind == "ownership" for record, (_, _, kind) in self.backlog)

    def on_level1(self, ack: Level1Ack) -> None:
        """Take in a Level-1-Ack: the greatest of the newest epoch counts, of equal ones the last."""
        known = self.level1
        if known is None or (ack.epoch, ack.offset) >= (known.epoch, known.offset):
            self.level1 = ack

    def take_level1(self) -> Level1Ack | None:
        """Return the newest Level-1-Ack known, and forget it."""
        found, self.level1 = self.level1, None
        return found

    def jump_place(self, first: int, *, blank: bool = False) -> int | None:
        """Return where in `contexts` to go on from if that is better than reading on, else None.

        It is when what stands before has been deleted (`first` is the first offset kept), when there is no state yet,
        or when the context is smaller than what would have to be read.
        """
        level1 = self.level1
        if level1 is None or level1.offset <= self.next:
            return None
        skipped = min(level1.offset, self.end) - self.next
        if blank or first > self.next or level1.context_bytes < skipped * self.bytes_per_record:
            return level1.context_offset
        return None

    def leap_place(self, position: int, record_s: float) -> int | None:
        """Return where in `contexts` to go on from if processing what was read would take much longer, else None.

        Args:
            position: what has been processed.
            record_s: what a record costs.
        """
        level1 = self.level1
        if level1 is None or level1.offset <= position:
            return None
        skipped = level1.offset - position
        if skipped * record_s > LEAP_S and level1.context_bytes < skipped * self.bytes_per_record:
            return level1.context_offset
        return None

    def held_tuples(self, first: int) -> float:
        """Return how many tuples the output queue of N_u holds for us: from the resume point or `next` on."""
        start = self.next if self.jump_place(first) is None or self.level1 is None else self.level1.offset
        return max(0, self.end - start) * self.tuples_per_record

    def extent(self) -> LogExtent:
        """Return what the cost models go by."""
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
        """Take in size and tuples of records; control records have none, and stand between the others."""
        self.read_bytes += size
        weight = 1.0 - (1.0 - WEIGHT) ** count
        self.tuples_per_record += weight * (tuples / count - self.tuples_per_record)
        self.bytes_per_record += weight * (size / count + RECORD_OVERHEAD_BYTES - self.bytes_per_record)
