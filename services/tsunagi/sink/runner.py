"""Reads what a sink is to have, writes it, and goes on where it stopped. It is the loop of `tsunagi sink run`.

A write has rows and the positions that they bring the sink to. Positions are stored after the rows or together with
them, never before. So whatever is killed, no row is missing, and each row has a name by which a repeat is one.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, TypeVar

from structlog.stdlib import BoundLogger

from tsunagi.runtime import metrics
from tsunagi.runtime.log import DEAD_LETTERS, Log, LogError, OffsetLostError, Position, Record
from tsunagi.runtime.messages import VERSION, DeadLetter
from tsunagi.sink.base import FencedError, Refusal, RefusedError, Sink
from tsunagi.sink.feed import Names, RowFeed
from tsunagi.sink.rows import Advance, Place, RowOrigin, SinkBatch, SinkPosition, SinkRows

T = TypeVar("T")

MOST_RECORDS = 500
"""Most records that are read at once. With the client's own queue they are all that waits in memory."""
READ_S = 0.1
"""Longest wait of one read, in seconds."""
GATHER_S = 0.02
"""How long a read waits for more once there is a record, in seconds."""
LOOK_BACK = 1000
"""Records before the position of a partition that are read at the start, so that repeats of them are known by name."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
"""Pauses before a write to a target that was away is tried again, in seconds: each is twice the one before."""
WAIT_LINE_S = 5.0
"""Time between two lines in the sink's log while its target is away, in seconds."""
LAG_S = 1.0
"""Time between two questions for the ends of the partitions, in seconds."""
FLUSH_S = 30.0
"""Longest wait until the log has dead letters, in seconds."""
MAX_VALUE_BYTES = 65536
"""A dead letter keeps this many bytes of its row, from the first."""


class Sharing(Protocol):
    """Says which partitions this instance has, and keeps positions (`tsunagi.sink.membership.SinkGroup`)."""

    places: frozenset[Place]
    changes: int

    def poll(self, timeout_s: float = 0.0) -> None: ...
    def committed(self, places: Collection[Place]) -> dict[Place, SinkPosition]: ...
    def commit(self, positions: Mapping[Place, SinkPosition]) -> None: ...


class _Interrupted(Exception):  # noqa: N818 - it is no error
    """The partitions have changed, or the service ends: what is not written is read again."""


class SinkRunner:
    """Runs one instance of a sink.

    Args:
        name: the name of the sink.
        feeds: what makes rows of each topic.
        names: the names of sensors, which the feeds use.
        batch_rows: most rows of one write.
        stopping: tells whether to stop.

    Attributes:
        fault: why nothing is written now; "" = it is.
        lag: records of this instance's partitions that are not written yet.
        rows, refused: how many rows were written, and how many the target refused.
    """

    def __init__(
        self,
        name: str,
        log: Log,
        sharing: Sharing,
        sink: Sink,
        feeds: Callable[[], tuple[Names, Sequence[RowFeed]]],
        logger: BoundLogger,
        *,
        batch_rows: int,
        stopping: Callable[[], bool],
        wait: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.fault = "waits for its partitions"
        self.lag = self.rows = self.refused = 0
        self._name = name
        self._log = log
        self._sharing = sharing
        self._sink = sink
        self._make_feeds = feeds
        self._logger = logger
        self._batch_rows = batch_rows
        self._stopping = stopping
        self._wait = wait
        self._clock = clock
        self._reader = log.reader()
        self._ends = log.reader()
        self._letters = log.producer()
        self._changes = -1  # of the partitions that the following belongs to
        self._open = False
        self._names: Names | None = None
        self._feeds: dict[str, RowFeed] = {}
        self._ids: dict[str, str] = {}  # topic -> its id
        self._stored: dict[Place, SinkPosition | None] = {}  # what is kept of each partition
        self._begin: dict[Place, int] = {}  # where new rows begin; what is read before only tells names
        self._waiting: deque[Record] = deque()
        self._looked_at = -LAG_S
        self._told_at = -WAIT_LINE_S
        for metric in (metrics.SINK_ROWS, metrics.SINK_CORRECTIONS, metrics.SINK_REFUSED, metrics.SINK_LOST):
            metric.labels(name)

    def close(self) -> None:
        """Close all connections."""
        self._sink.close()
        self._reader.close()
        self._ends.close()
        self._letters.close()

    def turn(self) -> None:
        """Take one turn: see to the partitions, read, and write.

        Raises:
            LogError: this instance may not take part.
            SinkError: the target cannot be used.
        """
        self._sharing.poll()
        try:
            if self._sharing.changes and self._sharing.changes != self._changes:
                self._take_places()
            if self._clock() - self._looked_at >= LAG_S:
                self._look()
            self._read()
            if self._waiting:
                self._write_some()
        except _Interrupted:
            return
        except FencedError as error:
            self._logger.warning("another instance has these partitions now", detail=str(error))
            self._changes = -1
        except LogError as error:
            self.fault = f"the log does not answer: {error}"
            self._tell("the log does not answer", str(error))
            self._changes = -1
            self._wait(READ_S)

    # ---- partitions and positions

    def _take_places(self) -> None:
        """Begin to read the partitions that this instance has now."""
        self._changes, places = self._sharing.changes, sorted(self._sharing.places)
        self._waiting.clear()
        self._reader.assign([])
        kept = self._sink.positions if self._sink.keeps_positions else self._sharing.committed
        stored = self._persist(lambda: kept(places))
        self._names, feeds = self._make_feeds()
        self._feeds = {feed.topic: feed for feed in feeds}
        self._ids = {topic: self._log.topic_id(topic) for topic in self._feeds}
        self._stored = {place: stored.get(place) for place in places}
        self._begin = {place: self._beginning(place, stored.get(place)) for place in places}
        self._assign(self._begin)
        self.behind()
        self.fault = ""
        if places:
            self._logger.info("writes", partitions=[f"{topic}/{partition}" for topic, partition in places])

    def _beginning(self, place: Place, stored: SinkPosition | None) -> int:
        """Return the offset of the first record of a partition that is not written yet."""
        low, high = self._ends.range(*place)
        if stored is None:
            return low
        made = self._ids[place[0]]
        if stored.topic_id and made and stored.topic_id != made:
            return self._anew(place, low, f"the topic was made anew: its id is {made}, expected {stored.topic_id}")
        if stored.offset > high:
            return self._anew(place, low, f"the log lost its end: it ends at {high}, expected {stored.offset} or more")
        if stored.offset < low:
            self._lost(place, low - stored.offset)
        return max(low, stored.offset)

    def _anew(self, place: Place, low: int, detail: str) -> int:
        self._logger.error("read from its first record again", partition=f"{place[0]}/{place[1]}", detail=detail)
        return low

    def _lost(self, place: Place, count: int) -> None:
        metrics.SINK_LOST.labels(self._name).inc(count)
        self._logger.error(
            "records were deleted before they were written: `tsunagi replay` can make them anew from `tuples`",
            partition=f"{place[0]}/{place[1]}",
            records=count,
        )

    def _assign(self, offsets: Mapping[Place, int]) -> None:
        positions = []
        for place, offset in offsets.items():
            low, _ = self._ends.range(*place)
            positions.append(Position(*place, max(low, offset - LOOK_BACK)))
        self._reader.assign(positions)

    def _look(self) -> None:
        """Ask how far the partitions go."""
        self._looked_at = self._clock()
        if self._names is not None:
            self._names.refresh()
        with contextlib.suppress(LogError):  # the reader goes on trying
            self.behind()

    def behind(self) -> int:
        """Ask how many records of this instance's partitions are not written yet.

        Raises:
            LogError: the log does not answer.
        """
        self.lag = sum(max(0, self._ends.range(*place)[1] - offset) for place, offset in self._begin.items())
        metrics.SINK_LAG.labels(self._name).set(self.lag)
        return self.lag

    # ---- rows

    def _read(self) -> None:
        if self._waiting:
            return
        try:
            self._waiting.extend(self._reader.read(MOST_RECORDS, READ_S, gather_s=GATHER_S))
        except OffsetLostError:
            for place, offset in self._begin.items():
                low, high = self._ends.range(*place)
                if offset < low:
                    self._lost(place, low - offset)
                elif offset > high:
                    self._anew(place, low, f"the log lost its end: it ends at {high}, expected {offset} or more")
                self._begin[place] = low if not low <= offset <= high else offset
            self._assign(self._begin)

    def _write_some(self) -> None:
        """Write the rows of as many records as one write may have."""
        parts: list[SinkRows] = []
        reached: dict[Place, int] = {}
        rows = 0
        while self._waiting and rows < self._batch_rows:
            record = self._waiting.popleft()
            place = record.topic, record.partition
            new = record.offset >= self._begin[place]
            part = self._rows(record, new=new)
            if not new:
                continue
            reached[place] = record.offset + 1
            if part is not None:
                parts.append(part)
                rows += len(part)
        if not reached:
            return
        after = {place: SinkPosition(offset, self._ids[place[0]]) for place, offset in reached.items()}
        advances = {place: Advance(self._stored[place], position) for place, position in after.items()}
        try:
            self._write(SinkBatch(tuple(parts), advances))
        except (_Interrupted, FencedError):
            self._changes = -1
            raise
        if not self._sink.keeps_positions:
            self._sharing.commit(after)
        self._stored |= after
        self._begin |= reached
        corrections = sum(len(part) for part in parts if part.correcting)
        self.rows += rows
        metrics.SINK_ROWS.labels(self._name).inc(rows)
        metrics.SINK_CORRECTIONS.labels(self._name).inc(corrections)

    def _rows(self, record: Record, *, new: bool) -> SinkRows | None:
        feed = self._feeds[record.topic]
        repeats = feed.repeats
        try:
            found = feed.rows(record)
        except ValueError as error:
            if new:
                origin = RowOrigin(record.topic, record.partition, record.offset)
                self._letter(origin, "unreadable", str(error), record.key or b"", record.value or b"")
                self._settle()
            return None
        metrics.SINK_REPEATS.labels(self._name).inc(feed.repeats - repeats if new else 0)
        return found

    def _write(self, batch: SinkBatch) -> None:
        """Write a batch, and a letter for each row that the target refuses."""
        began = self._clock()
        try:
            refused = self._persist(lambda: self._sink.write(batch))
        except RefusedError as error:
            if not len(batch):
                raise
            if len(batch) > 1:
                for half in batch.halves():
                    self._write(half)
                return
            self._refuse(batch, [Refusal(0, 0, str(error))])
            if batch.advances:
                self._write(SinkBatch((), batch.advances))
            return
        metrics.SINK_WRITE_S.labels(self._name).observe(self._clock() - began)
        if refused:
            self._refuse(batch, refused)

    def _refuse(self, batch: SinkBatch, refused: Sequence[Refusal]) -> None:
        for part_number, row_number, words in refused:
            part = batch.parts[part_number]
            row = part.rows[row_number]
            value = json.dumps(part.schema.as_mapping(row), default=str, ensure_ascii=False).encode()
            name = f"sink/{self._name}/{part.schema.name_of(row)}"
            self._letter(part.origin, "refused", f"sink {self._name}: {words}", name.encode(), value)
        self.refused += len(refused)
        metrics.SINK_REFUSED.labels(self._name).inc(len(refused))
        self._logger.warning("rows were refused and went to dead-letters", rows=len(refused), detail=refused[0].words)
        self._settle()

    def _letter(self, origin: RowOrigin, reason: str, detail: str, key: bytes, value: bytes) -> None:
        letter = DeadLetter(
            version=VERSION,
            topic=origin.topic,
            partition=origin.partition,
            offset=origin.offset,
            reason=reason,
            detail=detail[:2000],
            key=key,
            value=value[:MAX_VALUE_BYTES],
        )
        metrics.DEAD_LETTERS.labels(origin.topic, reason).inc()
        while True:
            try:
                self._letters.send(DEAD_LETTERS, 0, key, letter.SerializeToString())
            except BufferError:
                self._letters.poll(READ_S)
            else:
                return

    def _settle(self) -> None:
        """Wait until the log has all letters.

        Raises:
            LogError: it does not take them.
        """
        if left := self._letters.flush(FLUSH_S):
            raise LogError(f"{DEAD_LETTERS}: {left} letters were not taken within {FLUSH_S:g} s")

    # ---- a target that is away

    def _persist(self, act: Callable[[], T]) -> T:
        """Do something with the target, again and again while it is away.

        Raises:
            _Interrupted: the partitions have changed, or the service is to stop.
        """
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                if not self._open:
                    self._sink.open()
                    self._open = True
                found = act()
            except OSError as error:
                self._away(str(error) or type(error).__name__)
            else:
                if pause_s > FIRST_PAUSE_S:
                    self._logger.info("the target takes rows again")
                self.fault = ""
                metrics.SINK_UP.labels(self._name).set(1)
                return found
            until = self._clock() + pause_s
            while self._clock() < until:
                self._sharing.poll()
                if self._stopping() or self._sharing.changes != self._changes:
                    raise _Interrupted
                self._wait(min(READ_S, pause_s))
                if self._clock() - self._looked_at >= LAG_S:
                    self._look()
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _away(self, words: str) -> None:
        self._sink.close()
        self._open = False
        self.fault = words
        metrics.SINK_UP.labels(self._name).set(0)
        self._tell("the target does not take rows; they wait in the log", words)

    def _tell(self, event: str, words: str) -> None:
        """Log a line, unless there was one just now."""
        if self._clock() - self._told_at >= WAIT_LINE_S:
            self._told_at = self._clock()
            self._logger.warning(event, detail=words)
