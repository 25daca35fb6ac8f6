"""What all readers of `results` do: they follow its partitions, drop repeats by name, and merge the runs in time."""

from __future__ import annotations

import heapq
import itertools
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, Literal, NamedTuple, Protocol, Self, TypeVar

from tsunagi.runtime.log import RESULTS, Log, LogError, Position, Reader, Record
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import Settings

_READ_RECORDS = 2000
"""Most records that are read at once."""
_READ_S = 0.1
"""Longest wait of a read, in seconds. It is short, so that a reader that is asked to stop does so soon."""
_KEPT_UNREADABLE = 100
"""How many unreadable records are kept, the first ones. All of them are counted."""
RunKey = tuple[str, str, int, int]
"""(query, group, part, parts): the blocks of a run come in the order of steps."""


class NamedBlock(Protocol):
    """What a block says of itself: its place in time and its run."""

    @property
    def query(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def step(self) -> int: ...
    @property
    def event_time_us(self) -> int: ...
    @property
    def part(self) -> int: ...


B = TypeVar("B", bound=NamedBlock)


class Unreadable(NamedTuple):
    """A record of `results` that is no result, and why."""

    partition: int
    offset: int
    detail: str


class LastResult(NamedTuple):
    """The last result of a run that was read: its step and its sensor, or -1 if the whole block was read."""

    step: int
    sensor: int


class BlockReader(ABC, Generic[B]):
    """Reads `results` as blocks, in order within each (query, group), without repeats.

    Args:
        log: the log.
        settings: the settings, whose `[results] format` counts.
        table: the sensors table. Whoever follows results for long sets the attribute of this name to a newer one.
        start: where to begin: at the `beginning` of the topic, or at its present `end`.
        at: the offset to begin at instead, for each partition that was read before.
        last: the value that the attribute `last` had then.
        wanted: says of a record whether it is read at all; None = all are.
        now_us: returns the time of the reader's wall clock, for the latency.

    Attributes:
        last: the last result of each run that was read.
        duplicates: how many repeats were dropped: blocks, or rows in the form `json`.
        duplicates_of: the same by group.
        unreadable: the first 100 records that could not be read.
        unreadable_count: how many records could not be read.

    Raises:
        LogError: the topic is missing or the log does not answer.
    """

    topic = RESULTS

    @property
    def by_rows(self) -> bool:
        """Whether a record is a row, so that a block may come in pieces."""
        return self._form == "json"

    def __init__(
        self,
        log: Log,
        settings: Settings,
        table: SensorTable | None = None,
        *,
        start: Literal["beginning", "end"] = "beginning",
        at: Mapping[int, int] | None = None,
        last: Mapping[RunKey, LastResult] | None = None,
        wanted: Callable[[Record], bool] | None = None,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self.duplicates = 0
        self.duplicates_of: Counter[str] = Counter()
        self.unreadable: list[Unreadable] = []
        self.unreadable_count = 0
        self._form = settings.results.format
        self.table = table
        self._reads_record = wanted
        self._now_us = now_us
        self.last: dict[RunKey, LastResult] = dict(last or {})
        count = log.partitions(self.topic)
        if count == 0:
            raise LogError(f"topic {self.topic}: not there")
        self._reader: Reader = log.reader()
        self._ends: Reader = log.reader()  # a reader that waits for records tells the end of the log late
        self._next: dict[int, int] = {}
        for partition in range(count):
            first, end = self._ends.range(self.topic, partition)
            self._next[partition] = end if start == "end" else first
        self._next |= at or {}
        self._reader.assign(Position(self.topic, partition, offset) for partition, offset in self._next.items())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._reader.close()
        self._ends.close()

    def poll(self, timeout_s: float = _READ_S) -> list[B]:
        """Return the new blocks among the records that are there; wait up to `timeout_s` for the first record.

        Raises:
            LogError: the log cannot be read. It is an OffsetLostError if the next records were deleted.
        """
        records = self._reader.read(_READ_RECORDS, timeout_s)
        read_us = self._now_us()
        for record in records:
            self._next[record.partition] = max(self._next[record.partition], record.offset + 1)
        return self._blocks(
            records if self._reads_record is None else list(filter(self._reads_record, records)), read_us
        )

    @abstractmethod
    def _blocks(self, records: Sequence[Record], read_us: int) -> list[B]:
        """Return the blocks of records, without repeats."""

    def blocks(self, *, follow: bool = False, stopping: Callable[[], bool] = lambda: False) -> Iterator[B]:
        """Yield blocks, in order within each (query, group).

        Args:
            follow: whether to wait for more results until `stopping()`. Otherwise end at the present end of the topic.
            stopping: tells whether to stop; it is called between two reads.
        """
        for found in self._reads(follow=follow, stopping=stopping):
            yield from found

    def _reads(self, *, follow: bool, stopping: Callable[[], bool]) -> Iterator[list[B]]:
        ends = {} if follow else {partition: self._ends.range(self.topic, partition)[1] for partition in self._next}
        while not stopping():
            if not follow and all(self._next[partition] >= end for partition, end in ends.items()):
                return
            yield self.poll()

    def merged(
        self,
        *,
        follow: bool = False,
        stopping: Callable[[], bool] = lambda: False,
        wait_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> Iterator[B]:
        """Yield the blocks of all partitions as one stream, in the order of (event time, query, group).

        A block waits until all runs that were seen have come as far, and all groups of the sensors table were seen.

        Args:
            follow, stopping: as for `blocks`.
            wait_s: how long a block waits for runs that lag, in seconds, with `follow`. Later blocks of those runs come
                at once, out of order.
            clock: returns seconds that never jump.
        """
        held: list[tuple[int, str, str, int, float, int, B]] = []
        numbers = itertools.count()  # decide between blocks that are otherwise equal, such as tuples of one moment
        groups = {sensor.group for sensor in self.table.present if sensor.group} if self.table else set()
        for found in self._reads(follow=follow, stopping=stopping):
            now_s = clock()
            for block in found:
                groups.discard(block.group)
                heapq.heappush(
                    held, (block.event_time_us, block.query, block.group, block.part, now_s, next(numbers), block)
                )
            low = min((last.step for last in self.last.values()), default=0)
            while held:
                *_, since_s, _, block = held[0]
                if (groups or block.step > low) and not (follow and now_s - since_s >= wait_s):
                    break
                heapq.heappop(held)
                yield block
        while held:
            yield heapq.heappop(held)[-1]

    def _repeat(self, group: str) -> None:
        self.duplicates += 1
        self.duplicates_of[group] += 1

    def _note(self, record: Record, detail: str) -> None:
        self.unreadable_count += 1
        if len(self.unreadable) < _KEPT_UNREADABLE:
            self.unreadable.append(Unreadable(record.partition, record.offset, detail))
