"""Rows that wait for the file or commit that they belong to: those of one partition and one span of event time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tsunagi.runtime.times import microseconds_of
from tsunagi.sink.rows import Place, SinkBatch, SinkRows

MOST_ROWS = 1_000_000
"""Rows of one partition that wait in memory at most, some 300 bytes each."""


@dataclass(slots=True)
class LakeSpan:
    """Rows of one partition, either all of one span of event time, or all late truths that came in one span of time.

    Attributes:
        correcting: whether they are late truths, which are of any event time.
        chunk: the number of the span.
        first, next: the records that it was made of: the first, and the one behind the last.
        topic_id: the id of their topic.
    """

    correcting: bool
    chunk: int
    first: int
    next: int
    topic_id: str
    rows: int = 0
    parts: list[SinkRows] = field(default_factory=list)


class LakeSpans:
    """What waits of each partition.

    Args:
        length_s: length of a span, in seconds of event time; for truths of the clock.
    """

    def __init__(self, length_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._length_us = round(length_s * 1e6)
        self._clock = clock
        self._waiting: dict[Place, LakeSpan] = {}
        self._batch: SinkBatch | None = None
        self._taken = 0  # parts of that batch that were taken in

    def clear(self) -> None:
        """Forget what waits."""
        self._waiting.clear()
        self._batch = None

    def take(self, batch: SinkBatch) -> Iterator[tuple[Place, LakeSpan]]:
        """Take the rows of a batch in; yield the spans that they complete.

        A span counts as stored once the next one is asked for. When storing fails, the same batch comes again: then the
        span is yielded again, and no row is taken in twice.
        """
        if batch is not self._batch:
            self._batch, self._taken = batch, 0
        for part in batch.parts[self._taken :]:
            place = part.origin.topic, part.origin.partition
            time_us = round(self._clock() * 1e6) if part.correcting else microseconds_of(part.rows[0][0])
            correcting, chunk = part.correcting, time_us // self._length_us
            waiting = self._waiting.get(place)
            is_other = waiting is not None and (correcting, chunk) != (waiting.correcting, waiting.chunk)
            if waiting is not None and (is_other or waiting.rows >= MOST_ROWS):
                waiting.next = max(waiting.next, part.origin.offset)
                yield place, waiting
                del self._waiting[place]
                waiting = None
            if waiting is None:
                advance = batch.advances.get(place)
                topic_id = advance.after.topic_id if advance else ""
                first = part.origin.offset
                waiting = self._waiting[place] = LakeSpan(correcting, chunk, first, first + 1, topic_id)
            waiting.parts.append(part)
            waiting.rows += len(part)
            waiting.next = max(waiting.next, part.origin.offset + 1)
            self._taken += 1
        for place, advance in batch.advances.items():
            if (span := self._waiting.get(place)) is not None:
                span.next = max(span.next, advance.after.offset)
        present = round(self._clock() * 1e6) // self._length_us
        for place, span in list(self._waiting.items()):
            if span.correcting and span.chunk < present:
                yield place, span
                del self._waiting[place]

    def rest(self) -> Iterator[tuple[Place, LakeSpan]]:
        """Yield all that waits, whether it is complete or not."""
        for place in list(self._waiting):
            yield place, self._waiting[place]
            del self._waiting[place]
