"""Marks: they tell whether a position that was kept still belongs to the same log.

An offset has a meaning within one log only. A topic that was deleted and made anew, or that lost its end in a power
cut and grew past it again, has other records under the same offsets. So whoever keeps an offset (a context, an
acknowledgement, an edge's place in a topic, a checkpoint, a file of results) keeps a `LogMark` with it, and compares
the mark with the log before it uses the offset.
"""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Callable
from typing import NamedTuple

from tsunagi.runtime.log import LogError, OffsetLostError, Position, Reader, Record

_PLACE = struct.Struct("<qqii")
"""The form of a record's offset, append time, and lengths of key and value, among the bytes that are hashed."""
_NO_BYTES = -1
"""Stands for the length of a key or value that the record does not have."""
READ_S = 5.0
"""A record that the log holds must come within this time, in seconds; after it the log counts as not answering."""

POLL_S = 0.05
"""One read waits this long, in seconds, before the log is asked whether it still holds the record."""


class LogMark(NamedTuple):
    """The identity of the log in front of one offset.

    Attributes:
        topic_id: the id that the cluster gave the topic when it was made (`Log.topic_id`); "" if it is not known.
        digest: `digest_of` the record just before the offset; 0 if it is not known, or if there is no such record.
    """

    topic_id: str
    digest: int

    def contradicts(self, found: LogMark) -> str:
        """Return "" if both marks may be of the same log, else the reason in words. Unknown parts are not compared."""
        if self.topic_id and found.topic_id and self.topic_id != found.topic_id:
            return f"the topic was made anew: its id is {found.topic_id}, expected {self.topic_id}"
        if self.digest and found.digest and self.digest != found.digest:
            return "the log lost its end and grew again: another record stands before the position than the one read"
        return ""


BREAK_US = 250_000
"""Shortest time for which a log is away that loses its end, in microseconds: a broker starts again, or another becomes
the leader. So a log has not lost its end between two records that it appended within this time."""

NO_MARK = LogMark("", 0)
"""The mark of a position that was kept without one, by an early release. It contradicts nothing."""


def digest_of(record: Record) -> int:
    """Return a 64-bit hash, never 0, of a record's offset, append time, key and value.

    The append time, which the log itself sets, tells apart two records with the same bytes.
    """
    key, value = record.key, record.value
    sizes = (_NO_BYTES if part is None else len(part) for part in (key, value))
    found = hashlib.blake2b(_PLACE.pack(record.offset, record.appended_us, *sizes), digest_size=8)
    found.update(key or b"")
    found.update(value or b"")
    return int.from_bytes(found.digest(), "little") or 1


def record_before(reader: Reader, position: Position, clock: Callable[[], float] = time.monotonic) -> Record | None:
    """Return the record just before a position; None if the log does not have it: it was deleted, or is yet to come.

    Args:
        reader: a reader that is used only for this. Its assignment is replaced, and is empty afterwards.
        position: the position.
        clock: returns seconds that never jump.

    Raises:
        LogError: the log did not answer.
    """
    topic, partition, offset = position
    first, end = reader.range(topic, partition)
    if not first < offset <= end:
        return None
    reader.assign([Position(topic, partition, offset - 1)])
    deadline = clock() + READ_S
    try:
        while clock() < deadline:
            records = reader.read(1, POLL_S)
            if records:  # if compaction has removed the record, the next one comes
                return records[0] if records[0].offset == offset - 1 else None
            if offset == end and reader.range(topic, partition)[1] < end:
                return None
    except OffsetLostError:
        return None
    finally:
        reader.assign([])
    raise LogError(f"{topic}/{partition}: the log holds offset {offset - 1} and did not deliver it in {READ_S:.0f} s")
