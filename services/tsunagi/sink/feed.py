"""Makes rows for sinks from the records of `results`, `recovered` and `late`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any, Protocol

from tsunagi.query.typed import quality_of, rows_of
from tsunagi.query.values import Kind
from tsunagi.runtime.columns import floats, octets, sensors
from tsunagi.runtime.door import decode
from tsunagi.runtime.log import LATE, RECOVERED, RESULTS, Record
from tsunagi.runtime.messages import QUALITY_NAMES, Late, Recovered, ResultBlock
from tsunagi.runtime.names import NO_NAME, Name, unpack_key
from tsunagi.runtime.output_runs import outputs_of
from tsunagi.runtime.results import WindowColumns, is_of_query, name_of, parse_block
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import Settings
from tsunagi.runtime.settings.sinks import READINGS
from tsunagi.runtime.times import moment_of
from tsunagi.sink.base import SinkError
from tsunagi.sink.rows import RowOrigin, Schema, SinkColumn, SinkRows

CORRECTED = "corrected"
"""The quality of a value that had been estimated, and whose reading came late."""
_TIME, _TEXT, _DOUBLE, _BIGINT = Kind.TIMESTAMP, Kind.TEXT, Kind.DOUBLE, Kind.BIGINT
"""The types of columns, by short names."""

_HEAD = (
    SinkColumn("time", _TIME),
    SinkColumn("sensor", _TEXT),
    SinkColumn("sensor_group", _TEXT),
    SinkColumn("unit", _TEXT),
)
"""The columns with which readings and window aggregates begin."""
READING_COLUMNS = (
    *_HEAD,
    *(SinkColumn(name, _DOUBLE) for name in ("value", "sd", "bound")),
    SinkColumn("quality", _TEXT),
    SinkColumn("q1", _BIGINT),
    SinkColumn("q2", _BIGINT),
    SinkColumn("q3", _DOUBLE),
    SinkColumn("step", _BIGINT),
)
"""The columns of readings (docs/howto/sinks.md)."""
READING_SCHEMA = Schema(READINGS, READING_COLUMNS, ("time", "sensor"))
"""The rows of `readings`: a sensor has one value at a time."""
_TUPLE_NAME = tuple(SinkColumn(f"result_{name}", _BIGINT) for name in ("slot", "generation", "offset", "index", "row"))
"""The columns that name a row of a system without steps: where its output stands among those of its slot."""
TUPLE_SCHEMA = Schema(READINGS, (*READING_COLUMNS[:8], *_TUPLE_NAME), tuple(column.name for column in _TUPLE_NAME))
"""The rows of `readings` without steps: a sensor may have several values at a time."""
_AGGREGATE_COLUMNS = (
    *_HEAD,
    SinkColumn("n", _BIGINT),
    SinkColumn("filled", _BIGINT),
    *(SinkColumn(name, _DOUBLE) for name in ("mean", *WindowColumns._fields[1:4], "mean_sd", "sum_sd", "extreme_sd")),
    SinkColumn("bound", _DOUBLE),
    SinkColumn("quality", _TEXT),
    SinkColumn("step", _BIGINT),
)
"""The columns of a window aggregate."""
_QUERY_NAME = (
    SinkColumn("result_run", _BIGINT),
    SinkColumn("result_group", _TEXT),
    SinkColumn("result_row", _BIGINT),
)
"""The columns that name a row of a query, beside its time."""


class RowFeed(Protocol):
    """Makes rows of the records of one topic, those of a partition in their order."""

    topic: str

    @property
    def repeats(self) -> int:
        """How many blocks or outputs were dropped as repeats."""

    def rows(self, record: Record) -> SinkRows | None:
        """Return the rows of a record; None = it has none for this sink, or is a repeat.

        Raises:
            ValueError: the record is damaged.
        """


class Names:
    """The names, groups and units of sensors by their numbers, from the table in force.

    Args:
        poll: returns the table in force.
        unknown_group: the group of sensors whose row names none.
    """

    def __init__(self, poll: Callable[[], SensorTable], unknown_group: str) -> None:
        self._poll = poll
        self._unknown_group = unknown_group
        self._table: SensorTable | None = None
        self.refresh()

    def refresh(self) -> None:
        """Take the table in force."""
        table = self._poll()
        if table is not self._table:
            self._table = table
            self._known = [(sensor.name, sensor.group or self._unknown_group, sensor.unit) for sensor in table.sensors]

    def of(self, ids: Sequence[int]) -> list[tuple[str, str, str]]:
        """Return (name, group, unit) of each sensor. A number that the table does not have is its name."""
        known, count = self._known, len(self._known)
        return [known[sensor] if sensor < count else (name_of(sensor), "", "") for sensor in ids]


def _words(qualities: Sequence[int]) -> list[str]:
    return [QUALITY_NAMES[quality] if quality < len(QUALITY_NAMES) else str(quality) for quality in qualities]


def _signed(number: int) -> int:
    """Return an unsigned number of 64 bits as the signed one with the same bits, which databases can hold."""
    return number - (1 << 64) if number >= 1 << 63 else number


class ResultsFeed:
    """Makes rows of the blocks of one query in `results`.

    Args:
        query: `readings`, or the name of a query or of a window aggregate.
    """

    topic = RESULTS

    def __init__(self, query: str, names: Names) -> None:
        self.repeats = 0
        self._query = query
        self._names = names
        self._last: dict[tuple[str, int, int], int] = {}  # the last step of each run

    def rows(self, record: Record) -> SinkRows | None:
        message = parse_block(record.value)
        if message.query != self._query or message.definition:
            return None
        of_query = is_of_query(message)
        run = message.group, message.run if of_query else message.part, message.parts
        if message.step <= self._last.get(run, -1):
            self.repeats += 1
            return None
        found = self._of_query(message) if of_query else self._of_sensors(message)
        self._last[run] = message.step
        schema, rows = found
        return SinkRows(schema, rows, origin=RowOrigin(record.topic, record.partition, record.offset)) if rows else None

    def _of_sensors(self, message: ResultBlock) -> tuple[Schema, list[tuple[Any, ...]]]:
        ids = sensors(message.sensor).tolist()
        count = len(ids)
        names = self._names.of(ids)
        heads = (
            repeat(moment_of(message.event_time_us), count),
            (name for name, _, _ in names),
            repeat(message.group, count),
            (unit for _, _, unit in names),
        )
        mean, sd, bound = (floats(column).tolist() for column in (message.mean, message.sd, message.bound))
        q1, q2 = (sensors(column).tolist() for column in (message.q1, message.q2))
        quality, steps = _words(octets(message.quality).tolist()), repeat(message.step, count)
        if not message.HasField("window"):
            q3 = floats(message.q3).tolist()
            return READING_SCHEMA, list(zip(*heads, mean, sd, bound, quality, q1, q2, q3, steps, strict=True))
        window = message.window
        total, low, high, sum_sd, extreme_sd = (
            floats(column).tolist()
            for column in (window.sum, window.minimum, window.maximum, window.sum_sd, window.extreme_sd)
        )
        rows = zip(*heads, q1, q2, mean, total, low, high, sd, sum_sd, extreme_sd, bound, quality, steps, strict=True)
        return Schema(message.query, _AGGREGATE_COLUMNS, ("time", "sensor_group", "sensor")), list(rows)

    def _of_query(self, message: ResultBlock) -> tuple[Schema, list[tuple[Any, ...]]]:
        count = message.rows
        columns, values = _query_columns(message)
        key = ("result_time", *(column.name for column in _QUERY_NAME))
        place = (repeat(message.run, count), repeat(message.group, count), range(count))
        return Schema(message.query, (*columns, *_QUERY_NAME), key), list(zip(*values, *place, strict=True))


def _query_columns(message: ResultBlock | Recovered) -> tuple[list[SinkColumn], list[Sequence[Any]]]:
    """Return the columns of a query's rows, and the values of each: time and quality, and then those of the query.

    A column with estimates gets two more, between which the truth lies wherever each reading lies within its bound.

    Raises:
        SinkError: the query has a column of a name that the sink needs.
    """
    found = rows_of(message)
    count = len(found)
    columns = [
        SinkColumn("result_time", _TIME),
        SinkColumn("result_quality", _TEXT),
        SinkColumn("result_step", _BIGINT),
    ]
    values: list[Sequence[Any]] = [
        [moment_of(message.event_time_us)] * count,
        quality_of(found),
        [message.step] * count,
    ]
    for name, column in found.columns.items():
        items: Sequence[Any] = column.to_list()
        if column.kind is _TIME:
            items = [None if at is None else moment_of(at) for at in items]
        columns.append(SinkColumn(name, column.kind))
        values.append(items)
        if column.spread is not None:
            for end, bounds in (("low", column.spread.low), ("high", column.spread.high)):
                columns.append(SinkColumn(f"{name}_{end}", _DOUBLE))
                values.append(bounds.tolist())
    names = [column.name for column in (*columns, *_QUERY_NAME)]
    for name in names:
        if names.count(name) > 1:
            raise SinkError(
                f"query {message.query}: found a column {name!r}, which the sink needs; expected another name"
            )
    return columns, values


class OutputsFeed:
    """Makes rows of what slots without steps write to `recovered`.

    Args:
        query: `readings`, or the name of a query in CQL.
    """

    topic = RECOVERED

    def __init__(self, query: str, names: Names) -> None:
        self.repeats = 0
        self._query = query
        self._names = names
        self._newest: dict[tuple[int, int], Name] = {}  # the last name of each (slot, generation)

    def rows(self, record: Record) -> SinkRows | None:
        generation, _, last = unpack_key(record.key)
        messages = outputs_of(decode(Recovered, record.value))
        slot = record.partition, generation
        before = self._newest.get(slot, NO_NAME)
        found: list[tuple[Any, ...]] = []
        schema = TUPLE_SCHEMA
        for message in messages:
            if Name(message.offset, message.index) <= before:
                self.repeats += 1
            elif (message.query or READINGS) == self._query:
                schema, rows = self._of(message)
                name = (record.partition, _signed(generation), message.offset, message.index)
                found += [(*row, *name, place) for place, row in enumerate(rows)]
        self._newest[slot] = max(before, last)
        return SinkRows(schema, found, origin=RowOrigin(record.topic, *slot[:1], record.offset)) if found else None

    def _of(self, message: Recovered) -> tuple[Schema, Iterator[tuple[Any, ...]]]:
        if message.query:
            columns, values = _query_columns(message)
            return Schema(message.query, (*columns, *_TUPLE_NAME), TUPLE_SCHEMA.key), zip(*values, strict=True)
        return TUPLE_SCHEMA, _recovered_rows(message, self._names)


def _recovered_rows(message: Recovered, names: Names) -> Iterator[tuple[Any, ...]]:
    """Yield the first eight values of the row of each reading in an output: from its time to its quality."""
    moment = moment_of(message.event_time_us)
    found = names.of(sensors(message.sensor).tolist())
    columns = (floats(column).tolist() for column in (message.mean, message.sd, message.bound))
    quality = _words(octets(message.quality).tolist())
    return (
        zip(repeat(moment, len(found)), *zip(*found, strict=True), *columns, quality, strict=True)
        if found
        else iter(())
    )


class LateFeed:
    """Makes rows of what came too late for its step: truths of estimated values, and rows of slots left behind.

    Args:
        settings: the settings of the system. Truths are handed on only where a measured value is the edge's own: no
            operator but `recover` has changed it.
    """

    topic = LATE

    def __init__(self, settings: Settings, names: Names) -> None:
        self.repeats = 0
        self._names = names
        self._slide_us = settings.slide_us
        self._truths = all(operator.use == "recover" for operator in settings.query.chain)

    def rows(self, record: Record) -> SinkRows | None:
        message = decode(Late, record.value)
        origin = RowOrigin(record.topic, record.partition, record.offset)
        if message.reason == "frontier":
            left = message.recovered
            rows = [(*row, None, None, None, left.step) for row in _recovered_rows(left, self._names)]
            return SinkRows(READING_SCHEMA, rows, origin=origin) if rows else None
        if message.reason != "closed" or not self._truths:
            return None
        batch = message.batch
        moment = moment_of(batch.step * self._slide_us)
        values = floats(batch.value).tolist()
        rows = [
            (moment, name, group, unit, value, 0.0, 0.0, CORRECTED, None, None, None, batch.step)
            for (name, group, unit), value in zip(self._names.of(sensors(batch.sensor).tolist()), values, strict=True)
        ]
        return SinkRows(READING_SCHEMA, rows, correcting=True, origin=origin) if rows else None


def feeds_for(query: str, settings: Settings, poll: Callable[[], SensorTable]) -> tuple[Names, list[RowFeed]]:
    """Return the feeds of a sink, one for each topic that it reads.

    Raises:
        SinkError: `results` has a form that sinks do not read.
    """
    names = Names(poll, settings.spark.unknown_group)
    if settings.query.mode == "tuples":
        return names, [OutputsFeed(query, names)]
    if settings.results.format != "blocks":
        raise SinkError(
            f'[results] format: found "{settings.results.format}", expected "blocks": sinks read these, and the kind '
            "kafka writes JSON"
        )
    late: list[RowFeed] = [LateFeed(settings, names)] if query == READINGS else []
    return names, [ResultsFeed(query, names), *late]
