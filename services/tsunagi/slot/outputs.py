"""The outputs of a slot: recovered rows, late batches, dead letters. Each is named by the record that caused it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tsunagi.runtime.log import DEAD_LETTERS, LATE, TUPLES, Record
from tsunagi.runtime.messages import VERSION, DeadLetter, Late, LogRecord, TupleBatch
from tsunagi.runtime.names import Name, pack_key
from tsunagi.slot.frames import Frame
from tsunagi.slot.packed import Packed, PackedRows

MAX_LETTER_BYTES = 65_536
"""A dead letter repeats at most this many bytes of its record's value. Otherwise the largest record that `tuples` takes
would make a letter too large for `dead-letters`, and each owner would die of it."""
MAX_LETTER_KEY_BYTES = 1024
"""A dead letter repeats at most this many bytes of its record's key."""
MAX_DETAIL = 1024
"""A dead letter's detail has at most this many characters."""
MAX_NAME = 80
"""A dead letter's detail repeats at most this many characters of an edge's name."""

_DEAD = frozenset({"unknown-edge", "unknown-sensor", "damaged", "ahead"})
"""A batch refused for one of these reasons goes to `dead-letters`. For any other reason it goes to `late`."""


@dataclass(slots=True)
class Output:
    """A record to write. It is encoded when it is written, since most outputs of a standby are never written.

    Attributes:
        name: (offset of the input that caused it, index).
        topic: the topic that it goes to.
        epoch: the epoch (number of the ownership) as of that input.
        appended_us: when the log appended that input, microseconds.
        body: what is written.
    """

    name: Name
    topic: str
    epoch: int
    appended_us: int
    body: Frame | Packed | PackedRows | Late | DeadLetter

    def encode(self, slot: int, generation: int) -> tuple[bytes, bytes]:
        """Return the key and the value of the record; `generation` is the number of the slot's log."""
        key = pack_key(generation, slot, self.name)
        body = Packed.of(self.body) if isinstance(self.body, Frame) else self.body
        if isinstance(body, Packed | PackedRows):
            return key, body.encode(slot, generation, self.name, self.epoch, self.appended_us)
        return key, body.SerializeToString()


class Letters:
    """Makes the outputs for records that a slot cannot use or that came too late.

    Attributes:
        counts: how many such outputs were made, by reason.
    """

    def __init__(self, slot: int) -> None:
        self.counts: Counter[str] = Counter()
        self._slot = slot

    def refused(self, name: Name, epoch: int, record: Record, batch: TupleBatch, reason: str, cursor: int) -> Output:
        """Return the output for a batch that does not count: a dead letter or a late batch.

        Args:
            record: the record that brought the batch, or because of which it was dropped.
            cursor: the first open step when the batch was refused.
        """
        if reason in _DEAD:
            detail = f"edge {batch.edge[:MAX_NAME]!r}, step {batch.step}, first open step {cursor}"
            return self.dead(name, epoch, record, reason, detail)
        self.counts[reason] += 1
        late = Late(version=VERSION, slot=self._slot, offset=record.offset, reason=reason, batch=batch, cursor=cursor)
        return Output(name, LATE, epoch, record.appended_us, late)

    def dead(self, name: Name, epoch: int, record: Record, reason: str, detail: str) -> Output:
        """Return the dead letter of a record."""
        self.counts[reason] += 1
        letter = DeadLetter(
            version=VERSION,
            topic=TUPLES,
            partition=self._slot,
            offset=record.offset,
            reason=reason,
            detail=detail[:MAX_DETAIL],
            key=(record.key or b"")[:MAX_LETTER_KEY_BYTES],
            value=(record.value or b"")[:MAX_LETTER_BYTES],
        )
        return Output(name, DEAD_LETTERS, epoch, record.appended_us, letter)

    def buried(self, name: Name, epoch: int, record: Record, batch: TupleBatch) -> Output:
        """Return the dead letter of a batch that waited for a record which is quarantined now."""
        self.counts["quarantined"] += 1
        letter = DeadLetter(
            version=VERSION,
            topic=TUPLES,
            partition=self._slot,
            offset=batch.offset,
            reason="quarantined",
            detail=f"it waited for the record at offset {record.offset}, on which two owners died",
            key=batch.edge.encode()[:MAX_LETTER_KEY_BYTES],
            value=LogRecord(version=VERSION, batch=batch).SerializeToString()[:MAX_LETTER_BYTES],
        )
        return Output(name, DEAD_LETTERS, epoch, record.appended_us, letter)
