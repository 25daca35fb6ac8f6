"""What a slot gives out: results, late batches, dead letters, each named by the record that caused it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tsunagi.runtime.log import DEAD_LETTERS, LATE, TUPLES, Record
from tsunagi.runtime.messages import VERSION, DeadLetter, Late, LogRecord, TupleBatch
from tsunagi.runtime.names import Name, pack_key
from tsunagi.slot.frames import Frame
from tsunagi.slot.packed import Packed

MAX_LETTER_BYTES = 65_536
"""A dead letter repeats this many bytes of its record's value at most. Uncut, a record as large as its topic takes
would make a letter too large for its own topic, and the owner would die of it, and the next one."""
MAX_LETTER_KEY_BYTES = 1024
"""A dead letter repeats this many bytes of its record's key at most."""
MAX_DETAIL = 1024
"""A dead letter has this many characters of detail at most."""
MAX_NAME = 80
"""A dead letter's detail names an edge by this many characters at most."""

_DEAD = frozenset({"unknown-edge", "unknown-sensor", "damaged", "ahead"})
"""Reasons for which a refused batch goes to dead-letters; for all others it is late."""


@dataclass(slots=True)
class Output:
    """Something to write, encoded only when it is written: a standby makes outputs that nobody will ever read."""

    name: Name
    topic: str
    epoch: int
    appended_us: int
    body: Frame | Packed | Late | DeadLetter

    def encode(self, slot: int, generation: int) -> tuple[bytes, bytes]:
        """Return (key, value)."""
        key = pack_key(generation, slot, self.name)
        body = Packed.of(self.body) if isinstance(self.body, Frame) else self.body
        if isinstance(body, Packed):
            return key, body.encode(slot, generation, self.name, self.epoch, self.appended_us)
        return key, body.SerializeToString()


class Letters:
    """Makes what a slot says of records that it cannot use, or that came too late.

    Attributes:
        counts: how many were made, by reason.
    """

    def __init__(self, slot: int) -> None:
        self.counts: Counter[str] = Counter()
        self._slot = slot

    def refused(self, name: Name, epoch: int, record: Record, batch: TupleBatch, reason: str, cursor: int) -> Output:
        """Return what becomes of a batch that does not count.

        Args:
            record: which brought it, or let it out.
            cursor: the first open step when it was refused.
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
        """Return the dead letter of a batch that waited in a step which a quarantined record has closed."""
        self.counts["quarantined"] += 1
        letter = DeadLetter(
            version=VERSION,
            topic=TUPLES,
            partition=self._slot,
            offset=batch.offset,
            reason="quarantined",
            detail=f"in a step that the record at offset {record.offset}, on which two owners died, has closed",
            key=batch.edge.encode()[:MAX_LETTER_KEY_BYTES],
            value=LogRecord(version=VERSION, batch=batch).SerializeToString()[:MAX_LETTER_BYTES],
        )
        return Output(name, DEAD_LETTERS, epoch, record.appended_us, letter)
