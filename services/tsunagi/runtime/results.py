"""Reads results in order within each group, and drops repeats by name.

It reads both values of `[results] format`: `blocks`, a protobuf ResultBlock for every (query, group, step), and `json`,
a message for each row (docs/howto/results.md). A group is always in one partition of `results`, in the order of steps.
After a restart of Spark some steps may be there again, under the same names. A reader remembers the last step of each
(query, group), and drops them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np

from tsunagi.runtime.block_reader import BlockReader, LastResult, RunKey
from tsunagi.runtime.columns import Bytes, Floats, Sensors, floats, octets, sensors
from tsunagi.runtime.door import UnusableError, decode
from tsunagi.runtime.log import Record
from tsunagi.runtime.messages import QUALITY_NAMES, VERSION, ResultBlock
from tsunagi.runtime.ranges import MAX_TIME_US
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.times import moment_of

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
        return moment_of(self.event_time_us)

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


@dataclass(slots=True)
class _Partial:
    """Rows in the form `json` that belong to one block."""

    head: dict[str, Any]
    record: Record
    rows: list[dict[str, Any]] = field(default_factory=list)


class ResultsReader(BlockReader[Block]):
    """Reads the readings and window aggregates of `results`; rows of queries in CQL are left out.

    Args:
        log, settings, table, start, at, last, now_us: as for `BlockReader`. The table names the sensors in `rows()`.
    """

    def _blocks(self, records: Sequence[Record], read_us: int) -> list[Block]:
        if self._form == "json":
            return self._from_rows(records, read_us)
        return [block for record in records if (block := self._from_record(record, read_us)) is not None]

    def rows(self, *, follow: bool = False, stopping: Callable[[], bool] = lambda: False) -> Iterator[Row]:
        """Yield rows, in order within each (query, group). The arguments are those of `blocks`."""
        for block in self.blocks(follow=follow, stopping=stopping):
            yield from block.rows(self.table)

    def _from_record(self, record: Record, read_us: int) -> Block | None:
        try:
            message = parse_block(record.value)
        except ValueError as error:
            self._note(record, str(error))
            return None
        if is_of_query(message):
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
                row = parse_json(record.value)
                if is_row_of_query(row):
                    continue
                _check_row(row)
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


def is_of_query(message: ResultBlock) -> bool:
    """Return whether a block has rows of a query in CQL, or its definition."""
    return bool(message.column or message.definition)


def is_row_of_query(row: dict[str, Any]) -> bool:
    """Return whether a JSON object is a row of a query in CQL, or its definition."""
    return "row" in row or "definition" in row


def parse_block(value: bytes | None) -> ResultBlock:
    """Read a block.

    Raises:
        ValueError: it is none.
    """
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


def parse_json(value: bytes | None) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ValueError: it is none.
    """
    try:
        row = json.loads(value or b"")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ValueError("found no JSON object")  # noqa: TRY004 - wrong data, no bug
    return row


def _check_row(row: dict[str, Any]) -> None:
    """Check the fields of a row of readings or aggregates.

    Raises:
        ValueError: one of them cannot be used.
    """
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
