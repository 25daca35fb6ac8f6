"""Reading what leaves the system: results in order within each group, repeats dropped by name.

Works on both forms (`[results] format`): `blocks`, a protobuf ResultBlock for every (query, group, step), and `json`, a
row a message (docs/howto/results.md). A group always stands in one partition of `results`, in the order of steps. After
a restart of Spark steps may stand there again, under the names they had, and a reader that remembers the last step of
each (query, group) drops them.
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
_READ_RECORDS = 2000
_READ_S = 0.1
_KEPT_UNREADABLE = 100
Run = tuple[str, str, int, int]
"""(query, group, part, parts): what stands in the order of steps."""

_COLUMNS = ("sensor", "mean", "sd", "quality", "bound", "q1", "q2", "q3")


class Row(NamedTuple):
    """One result.

    Attributes:
        time: event time, the end of the reading's window.
        value, sd, bound: in `unit`; sd = 0: measured; `bound` is the half width of the interval that holds the truth
            with the configured probability.
        quality: exact | bounded | unbounded | unmodelled.
        q1, q2, q3: readings of the sensor in the last minute, those above its threshold, q2 / q1.
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
    """What a window aggregate has beside: its length, and float64[n] each (proto/tsunagi.proto)."""

    length_us: int
    sum: Floats
    minimum: Floats
    maximum: Floats
    sum_sd: Floats
    extreme_sd: Floats


GROUP = 2**32 - 1
"""Stands for the sensor in a row that is of a whole group."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The results of a group at a step, as columns in the order of sensors.

    In the form `json` the rows of one step may come in several blocks, one after the other.

    Attributes:
        event_time_us: of the step.
        appended_us: the latest append time of the inputs that completed the step; from there to `read_us` is the
            latency.
        read_us: when this reader got it, by its own clock.
        partition, offset: where it (or its first row) stands in `results`.
        sensor: uint32[n].
        mean, sd, bound, q3: float64[n].
        quality: uint8[n].
        q1, q2: uint32[n].
        part, parts: which part of the group this is, where nothing is merged; 0 = the whole group.
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
        """Event time."""
        return _EPOCH + timedelta(microseconds=self.event_time_us)

    @property
    def latency_s(self) -> float:
        """From the last input's append to this reader."""
        return (self.read_us - self.appended_us) / 1e6

    def rows(self, table: SensorTable | None = None) -> Iterator[Row]:
        """Yield the rows; a sensor that the table does not have (or no table) is named by its number."""
        moment = self.time
        columns = zip(*(getattr(self, name).tolist() for name in _COLUMNS), strict=True)
        for sensor, mean, sd, quality, bound, q1, q2, q3 in columns:
            known = table is not None and sensor < len(table)
            name = table.sensors[sensor].name if known and table is not None else name_of(sensor)
            unit = table.sensors[sensor].unit if known and table is not None else ""
            word = QUALITY_NAMES[quality] if quality < len(QUALITY_NAMES) else str(quality)
            yield Row(self.query, self.group, self.step, moment, name, unit, mean, sd, word, bound, q1, q2, q3)


def name_of(sensor: int) -> str:
    """Return what stands for a sensor that no table names: its number, `*` for a whole group."""
    return "*" if sensor == GROUP else str(sensor)


class Unreadable(NamedTuple):
    """A record of `results` that is none."""

    partition: int
    offset: int
    detail: str


class Last(NamedTuple):
    """The last thing taken of a run; -1 = the whole block, not up to a sensor."""

    step: int
    sensor: int


@dataclass(slots=True)
class _Partial:
    """Rows in the form `json` that belong to one block."""

    head: dict[str, Any]
    record: Record
    rows: list[dict[str, Any]] = field(default_factory=list)


class Results:
    """Reads `results` from one end or the other; iterate over `blocks()` or `rows()`.

    Args:
        log: the cluster.
        settings: for `[results] format`.
        table: names the sensors in `rows()`.
        start: `beginning` of what is kept, or the present `end`.
        at: partition -> offset to begin at instead, of partitions read before.
        last: what was taken before, as `last` said then.
        now_us: the reader's wall clock, for latency.

    Attributes:
        last: the last thing taken of each run.
        duplicates: repeats dropped: blocks, in the form `json` rows.
        duplicates_of: the same by group.
        unreadable: records that could not be read, the first 100 of them; `unreadable_count` counts all.

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
        last: Mapping[Run, Last] | None = None,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self.duplicates = 0
        self.duplicates_of: Counter[str] = Counter()
        self.unreadable: list[Unreadable] = []
        self.unreadable_count = 0
        self._form = settings.results.format
        self._table = table
        self._now_us = now_us
        self.last: dict[Run, Last] = dict(last or {})
        count = log.partitions(self.topic)
        if count == 0:
            raise LogError(f"topic {self.topic}: not there")
        self._reader: Reader = log.reader()
        self._ends: Reader = log.reader()  # a reader that waits for records answers late where the end is
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
        """Let go of the connections."""
        self._reader.close()
        self._ends.close()

    def poll(self, timeout_s: float = _READ_S) -> list[Block]:
        """Return the new blocks among the records that are there; wait up to `timeout_s` for the first record.

        Raises:
            LogError: the log cannot be read; OffsetLostError: retention passed the reader.
        """
        records = self._reader.read(_READ_RECORDS, timeout_s)
        read_us = self._now_us()
        for record in records:
            self._next[record.partition] = max(self._next[record.partition], record.offset + 1)
        return self._blocks(records, read_us)

    def _blocks(self, records: Sequence[Record], read_us: int) -> list[Block]:
        """Return what is new in records."""
        if self._form == "json":
            return self._from_rows(records, read_us)
        return [block for record in records if (block := self._from_record(record, read_us)) is not None]

    def blocks(self, *, follow: bool = False, stopping: Callable[[], bool] = lambda: False) -> Iterator[Block]:
        """Yield blocks, in order within each (query, group).

        Args:
            follow: True: wait for more until `stopping()`; False: end at the end that the topic has now.
            stopping: asked between two reads.
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
        """Yield blocks of all cores as one stream, in the order of (event time, query, group).

        A block waits until every run has come as far, of those seen so far and of the groups in the sensors table.

        Args:
            follow, stopping: see `blocks`.
            wait_s: with `follow`, how long a block waits for runs that lag. What those bring later comes at once, out
                of order.
        """
        held: list[tuple[int, str, str, int, float, int, Block]] = []
        numbers = itertools.count()  # of blocks alike in all that they are ordered by: tuples of one moment
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
        """Yield rows, in order within each (query, group); see `blocks`."""
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
        self.last[name] = Last(message.step, -1)
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
        gathered: dict[tuple[Run, int], _Partial] = {}
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
            self.last[name] = Last(row["step"], row["id"])
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
"""The greatest of each whole number of a row; the least is 0."""


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
