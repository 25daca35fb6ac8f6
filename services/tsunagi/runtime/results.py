"""Reads results in order within each group, and drops repeats by name.

It reads both values of `[results] format`: `blocks`, a protobuf ResultBlock for every (query, group, step), and `json`,
a message for each row (docs/howto/results.md). A group is always in one partition of `results`, in the order of steps.
After a restart of Spark some steps may be there again, under the same names. A reader remembers the last step of each
(query, group), and drops them.
"""

from __future__ import annotations

import heapq
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from tsunagi.runtime.columns import Bytes, Floats, Sensors, floats, octets, sensors
from tsunagi.runtime.door import UnusableError, decode
from tsunagi.runtime.log import RESULTS, Log, LogError, Position, Reader, Record
from tsunagi.runtime.messages import QUALITY_NAMES, VERSION, ResultBlock
from tsunagi.runtime.ranges import MAX_TIME_US
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import Settings

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""The moment from which times in microseconds are counted."""
_READ_RECORDS = 2000
"""Most records that are read at once."""
_READ_S = 0.1
"""Longest wait of a read, in seconds. It is short, so that a reader that is asked to stop does so soon."""
_KEPT_UNREADABLE = 100
"""How many unreadable records are kept, the first ones. All of them are counted."""
RunKey = tuple[str, str, int, int]
"""(query, group, part, parts): the blocks of a run come in the order of steps."""

_COLUMNS = ("sensor", "mean", "sd", "quality", "bound", "q1", "q2", "q3")
"""The columns of a block from which rows are made."""


class Row(NamedTuple):
    """One result.

    Attributes:
        time: the event time, which is the end of the reading's window.
        value: the value, in `unit`.
        sd: its standard deviation, in `unit`; 0 for a measured value.
        quality: exact | bounded | unbounded | unmodelled.
        bound: half the width of the interval that has the truth with the configured probability, in `unit`.
        q1: how many readings the sensor had in the last `[query] range_s`.
        q2: how many of these were above the threshold of the sensor.
        q3: q2 / q1.
    """

    query: str
    group: str
    step: int
    time: datetime
    sensor: str
    unit: str
    value: float
    sd: float
    quality: str
    bound: float
    q1: int
    q2: int
    q3: float


class WindowColumns(NamedTuple):
    """The further columns of a window aggregate (proto/tsunagi.proto): its length, and a float64[n] for each other."""

    length_us: int
    sum: Floats
    minimum: Floats
    maximum: Floats
    sum_sd: Floats
    extreme_sd: Floats


GROUP = 2**32 - 1
"""Stands for the sensor in a row of a whole group."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The results of a group at a step, as columns in the order of sensors.

    In the form `json` the rows of one step may come in several blocks, one after the other.

    Attributes:
        event_time_us: the event time of the step, in microseconds since 1970.
        appended_us: when the last input of the step was appended. The latency is the time from then to `read_us`.
        read_us: when this reader got the block, by its own clock.
        partition, offset: where the block, or its first row, is in `results`.
        sensor: uint32[n].
        mean, sd, bound, q3: float64[n].
        quality: uint8[n].
        q1, q2: uint32[n].
        part, parts: which part of the group this is, if the parts of a group are not merged; 0 for a whole group.
        window: the further columns of a window aggregate; None for other queries.
    """

    query: str
    group: str
    step: int
    event_time_us: int
    appended_us: int
    read_us: int
    partition: int
    offset: int
    sensor: Sensors
    mean: Floats
    sd: Floats
    quality: Bytes
    bound: Floats
    q1: Sensors
    q2: Sensors
    q3: Floats
    part: int = 0
    parts: int = 0
    window: WindowColumns | None = None

    def __len__(self) -> int:
        return len(self.sensor)

    @property
    def time(self) -> datetime:
        """The event time of the step."""
        return _EPOCH + timedelta(microseconds=self.event_time_us)

    @property
    def latency_s(self) -> float:
        """The time from the append of the last input until this reader got the block, in seconds."""
        return (self.read_us - self.appended_us) / 1e6

    def rows(self, table: SensorTable | None = None) -> Iterator[Row]:
        """Yield the rows. A sensor that the table does not have is named by its number, as all are without a table."""
        moment = self.time
        columns = zip(*(getattr(self, name).tolist() for name in _COLUMNS), strict=True)
        for sensor, mean, sd, quality, bound, q1, q2, q3 in columns:
            known = table is not None and sensor < len(table)
            name = table.sensors[sensor].name if known and table is not None else name_of(sensor)
            unit = table.sensors[sensor].unit if known and table is not None else ""
            word = QUALITY_NAMES[quality] if quality < len(QUALITY_NAMES) else str(quality)
            yield Row(self.query, self.group, self.step, moment, name, unit, mean, sd, word, bound, q1, q2, q3)


def name_of(sensor: int) -> str:
    """Return the name for a sensor that no table has: its number, or `*` for a whole group."""
    return "*" if sensor == GROUP else str(sensor)


class Unreadable(NamedTuple):
    """A record of `results` that is no result, and why."""

    partition: int
    offset: int
    detail: str


class LastResult(NamedTuple):
    """The last result of a run that was read: its step and its sensor, or -1 if the whole block was read."""

    step: int
    sensor: int


@dataclass(slots=True)
class _Partial:
    """Rows in the form `json` that belong to one block."""

    head: dict[str, Any]
    record: Record
    rows: list[dict[str, Any]] = field(default_factory=list)


class ResultsReader:
    """Reads `results`. Iterate over `blocks()` or `rows()`.

    Args:
        log: the log.
        settings: the settings, whose `[results] format` counts.
        table: the sensors table, which names the sensors in `rows()`.
        start: where to begin: at the `beginning` of the topic, or at its present `end`.
        at: the offset to begin at instead, for each partition that was read before.
        last: the value that the attribute `last` had then.
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
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self.duplicates = 0
        self.duplicates_of: Counter[str] = Counter()
        self.unreadable: list[Unreadable] = []
        self.unreadable_count = 0
        self._form = settings.results.format
        self._table = table
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

    def poll(self, timeout_s: float = _READ_S) -> list[Block]:
        """Return the new blocks among the records that are there; wait up to `timeout_s` for the first record.

        Raises:
            LogError: the log cannot be read. It is an OffsetLostError if the next records were deleted.
        """
        records = self._reader.read(_READ_RECORDS, timeout_s)
        read_us = self._now_us()
        for record in records:
            self._next[record.partition] = max(self._next[record.partition], record.offset + 1)
        return self._blocks(records, read_us)

    def _blocks(self, records: Sequence[Record], read_us: int) -> list[Block]:
        """Return the blocks of records, without repeats."""
        if self._form == "json":
            return self._from_rows(records, read_us)
        return [block for record in records if (block := self._from_record(record, read_us)) is not None]

    def blocks(self, *, follow: bool = False, stopping: Callable[[], bool] = lambda: False) -> Iterator[Block]:
        """Yield blocks, in order within each (query, group).

        Args:
            follow: whether to wait for more results until `stopping()`. Otherwise end at the present end of the topic.
            stopping: tells whether to stop; it is called between two reads.
        """
        for found in self._reads(follow=follow, stopping=stopping):
            yield from found

    def _reads(self, *, follow: bool, stopping: Callable[[], bool]) -> Iterator[list[Block]]:
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
    ) -> Iterator[Block]:
        """Yield the blocks of all partitions as one stream, in the order of (event time, query, group).

        A block waits until all runs that were seen have come as far, and all groups of the sensors table were seen.

        Args:
            follow, stopping: as for `blocks`.
            wait_s: how long a block waits for runs that lag, in seconds, with `follow`. Later blocks of those runs come
                at once, out of order.
            clock: returns seconds that never jump.
        """
        held: list[tuple[int, str, str, int, float, int, Block]] = []
        numbers = itertools.count()  # decide between blocks that are otherwise equal, such as tuples of one moment
        groups = {sensor.group for sensor in self._table.sensors if sensor.group} if self._table else set()
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

    def rows(self, *, follow: bool = False, stopping: Callable[[], bool] = lambda: False) -> Iterator[Row]:
        """Yield rows, in order within each (query, group). The arguments are those of `blocks`."""
        for block in self.blocks(follow=follow, stopping=stopping):
            yield from block.rows(self._table)

    def _from_record(self, record: Record, read_us: int) -> Block | None:
        try:
            message = _parse(record.value)
        except ValueError as error:
            self._note(record, str(error))
            return None
        name = (message.query, message.group, message.part, message.parts)
        last = self.last.get(name)
        if last is not None and message.step <= last.step:
            self._repeat(message.group)
            return None
        self.last[name] = LastResult(message.step, -1)
        return Block(
            query=message.query,
            group=message.group,
            step=message.step,
            event_time_us=message.event_time_us,
            appended_us=message.appended_us,
            read_us=read_us,
            partition=record.partition,
            offset=record.offset,
            sensor=sensors(message.sensor),
            mean=floats(message.mean),
            sd=floats(message.sd),
            quality=octets(message.quality),
            bound=floats(message.bound),
            q1=sensors(message.q1),
            q2=sensors(message.q2),
            q3=floats(message.q3),
            part=message.part,
            parts=message.parts,
            window=_window(message),
        )

    def _from_rows(self, records: Sequence[Record], read_us: int) -> list[Block]:
        """Gather the rows of one (query, group, step) that came in one read."""
        gathered: dict[tuple[RunKey, int], _Partial] = {}
        for record in records:
            try:
                row = _parse_row(record.value)
            except ValueError as error:
                self._note(record, str(error))
                continue
            name = (row["query"], row["group"], row.get("part", 0), row.get("parts", 0))
            last = self.last.get(name)
            if last is not None and (row["step"], row["id"]) <= last:
                self._repeat(row["group"])
                continue
            self.last[name] = LastResult(row["step"], row["id"])
            gathered.setdefault((name, row["step"]), _Partial(row, record)).rows.append(row)
        return [_block_of(partial, read_us) for partial in gathered.values()]

    def _repeat(self, group: str) -> None:
        self.duplicates += 1
        self.duplicates_of[group] += 1

    def _note(self, record: Record, detail: str) -> None:
        self.unreadable_count += 1
        if len(self.unreadable) < _KEPT_UNREADABLE:
            self.unreadable.append(Unreadable(record.partition, record.offset, detail))


def _parse(value: bytes | None) -> ResultBlock:
    if value is None:
        raise ValueError("no value")
    message = decode(ResultBlock, value)
    if message.version == 0:
        raise UnusableError("unreadable", "no version")
    if message.HasField("window") and len(message.window.sum) != len(message.mean):
        raise UnusableError("damaged", f"window: found {len(message.window.sum)} bytes, expected {len(message.mean)}")
    return message


def _window(message: ResultBlock) -> WindowColumns | None:
    if not message.HasField("window"):
        return None
    columns = (floats(getattr(message.window, name)) for name in WindowColumns._fields[1:])
    return WindowColumns(message.window.length_us, *columns)


_WHOLE = dict.fromkeys(("id", "q1", "q2", "part", "parts"), 0xFFFFFFFF) | dict.fromkeys(
    ("step", "time_us", "appended_us", "range_us"), MAX_TIME_US
)
"""The greatest value of each whole number in a row. The least is 0."""


def _parse_row(value: bytes | None) -> dict[str, Any]:
    try:
        row = json.loads(value or b"")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ValueError("found no JSON object")  # noqa: TRY004 - wrong data, no bug
    expected = {
        "version": int,
        "query": str,
        "group": str,
        "step": int,
        "id": int,
        "time_us": int,
        "q1": int,
        "q2": int,
    }
    for name, kind in expected.items():
        if not isinstance(row.get(name), kind):
            found = repr(row.get(name))
            raise ValueError(f"field {name}: found {found}, expected {kind.__name__}")  # noqa: TRY004 - wrong data, no bug
    if not 1 <= row["version"] <= VERSION:
        raise ValueError(f"found version {row['version']}, expected 1..{VERSION}")
    for name, most in _WHOLE.items():
        found = row.get(name, 0)
        if not isinstance(found, int) or not 0 <= found <= most:
            raise ValueError(f"field {name}: found {str(found)[:64]}, expected 0 to {most}")
    for name in ("value", "sd", "bound", "q3", *(WindowColumns._fields[1:] if "range_us" in row else ())):
        if not isinstance(row.get(name), float | int | None) or abs(row.get(name) or 0) > sys.float_info.max:
            raise ValueError(f"field {name}: found {str(row[name])[:64]}, expected a number or null")
    return row


def _block_of(partial: _Partial, read_us: int) -> Block:
    def column(name: str) -> Floats:
        return np.array([np.nan if row.get(name) is None else row[name] for row in partial.rows], dtype=np.float64)

    def quality(row: dict[str, Any]) -> int:
        word = row.get("quality")
        return QUALITY_NAMES.index(word) if word in QUALITY_NAMES else len(QUALITY_NAMES)

    head = partial.head
    window = None
    if "range_us" in head:
        window = WindowColumns(head["range_us"], *(column(name) for name in WindowColumns._fields[1:]))
    return Block(
        query=head["query"],
        group=head["group"],
        step=head["step"],
        event_time_us=head["time_us"],
        appended_us=int(head.get("appended_us", 0)),
        read_us=read_us,
        partition=partial.record.partition,
        offset=partial.record.offset,
        sensor=np.array([row["id"] for row in partial.rows], dtype=np.uint32),
        mean=column("value"),
        sd=column("sd"),
        quality=np.array([quality(row) for row in partial.rows], dtype=np.uint8),
        bound=column("bound"),
        q1=np.array([row["q1"] for row in partial.rows], dtype=np.uint32),
        q2=np.array([row["q2"] for row in partial.rows], dtype=np.uint32),
        q3=column("q3"),
        part=head.get("part", 0),
        parts=head.get("parts", 0),
        window=window,
    )
