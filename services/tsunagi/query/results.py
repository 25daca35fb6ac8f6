"""Reads what queries in CQL have written to `results`: rows with the columns of their query."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from tsunagi.query.relations import Rows
from tsunagi.query.typed import quality_of, rows_of
from tsunagi.query.values import Column, Kind
from tsunagi.runtime.block_reader import BlockReader, LastResult
from tsunagi.runtime.log import RESULTS, Log, Record
from tsunagi.runtime.messages import VERSION, Recovered, ResultBlock
from tsunagi.runtime.ranges import MAX_TIME_US
from tsunagi.runtime.results import (
    Block,
    ResultsReader,
    Row,
    WindowColumns,
    is_of_query,
    is_row_of_query,
    parse_block,
    parse_json,
)
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import Settings
from tsunagi.runtime.times import moment_of

ENDED = "-"
"""The definition of a query that has ended."""


@dataclass(frozen=True, slots=True)
class QueryRow(Mapping[str, Any]):
    """A row of a query: a mapping of its columns to values, which are numbers, texts, datetimes, or None for NULL.

    Attributes:
        query: the name of the query.
        group: the values of its columns of ORDER WITHIN, with "/" between them; "" if it has none.
        step, time: the instant to which the row belongs.
        quality: how the row is known: exact | bounded | unbounded.
        ends: for each column with estimates, (low, high): the truth lies between them wherever each reading lies within
            its own bound.
    """

    query: str
    group: str
    step: int
    time: datetime
    quality: str
    columns: Mapping[str, Any]
    ends: Mapping[str, tuple[float, float]]

    def __getitem__(self, column: str) -> Any:  # noqa: ANN401 - of the column's type
        return self.columns[column]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)


@dataclass(frozen=True, slots=True)
class QueryBlock:
    """Rows of a query at one instant, or the definition of a query.

    Attributes:
        event_time_us, appended_us: as in `tsunagi.runtime.results.Block`.
        rows: the rows in order, each with its columns.
        definition: the text of the query, which begins behind this step; `-` if it ends here; "" in blocks of rows.
        run: tells the rows of a query that was filled from the log from those of another query of its name; else 0.
    """

    query: str
    group: str
    step: int
    event_time_us: int
    appended_us: int
    rows: tuple[QueryRow, ...] = ()
    definition: str = ""
    part: int = 0
    run: int = 0


def to_rows(message: ResultBlock | Recovered, rows: Rows, group: str) -> tuple[QueryRow, ...]:
    """Return the rows of a block, or of an output of a slot."""
    moment = moment_of(message.event_time_us)
    lists = {name: _values(column) for name, column in rows.columns.items()}
    wide = {name: column.spread for name, column in rows.columns.items() if column.spread is not None}
    found = []
    for place, quality in enumerate(quality_of(rows)):
        values = {name: column[place] for name, column in lists.items()}
        ends = {
            name: (float(spread.low[place]), float(spread.high[place]))
            for name, spread in wide.items()
            if spread.low[place] != spread.high[place]
        }
        found.append(QueryRow(message.query, group, message.step, moment, quality, values, ends))
    return tuple(found)


def _values(column: Column) -> list[Any]:
    if column.kind is Kind.TIMESTAMP:
        return [None if at is None else moment_of(at) for at in column.to_list()]
    return column.to_list()


class QueryResults(BlockReader[QueryBlock]):
    """Reads the rows of queries in CQL from `results`.

    Args:
        names: the queries; none = all.
        log, settings: as for `BlockReader`.
        from_now: whether to leave out what is there already.
        at: the offset to begin at instead, by partition.
    """

    def __init__(
        self,
        log: Log,
        settings: Settings,
        names: Collection[str] = (),
        *,
        from_now: bool = False,
        at: Mapping[int, int] | None = None,
    ) -> None:
        super().__init__(log, settings, start="end" if from_now else "beginning", at=at)
        self._names = frozenset(names)
        self._defined: set[tuple[str, int, str]] = set()

    def _blocks(self, records: Sequence[Record], read_us: int) -> list[QueryBlock]:
        found = []
        for record in records:
            try:
                block = self._read(record)
            except ValueError as error:
                self._note(record, str(error))
                continue
            if block is not None:
                found.append(block)
        return found

    def _read(self, record: Record) -> QueryBlock | None:
        """Return the block of a record; None = it is another query's, or a repeat.

        Raises:
            ValueError: the record is no result.
        """
        return self._from_json(record) if self._form == "json" else self._from_message(record)

    def _wanted(self, query: str) -> bool:
        return not self._names or query in self._names

    def _from_message(self, record: Record) -> QueryBlock | None:
        message = parse_block(record.value)
        if not is_of_query(message) or not self._wanted(message.query):
            return None
        rows = (
            () if message.definition else to_rows(message, rows_of(message), message.group)
        )  # a damaged block is no repeat
        head = (message.query, message.group, message.step, message.event_time_us, message.appended_us)
        block = QueryBlock(*head, rows, message.definition, run=message.run)
        return None if self._repeats(block, -1) else block

    def _from_json(self, record: Record) -> QueryBlock | None:
        item = parse_json(record.value)
        if not is_row_of_query(item):
            return None
        head = _head(item)
        if not self._wanted(head[0]):
            return None
        definition = str(item.get("definition", ""))
        rows = () if definition else (_json_row(item, head),)
        block = QueryBlock(*head, rows, definition, run=int(item.get("run", 0)))
        return None if self._repeats(block, item.get("id", -1)) else block

    def _repeats(self, block: QueryBlock, row: int) -> bool:
        """Return whether a block, or a row of it, was read before; else note it."""
        place = LastResult(block.step, row)
        if block.definition:
            known = (block.query, block.step, block.definition)
            repeated = known in self._defined
            self._defined.add(known)
        else:
            run = (block.query, block.group, block.run, 0)
            last = self.last.get(run)
            repeated = last is not None and place <= last
            if not repeated:
                self.last[run] = place
        if repeated:
            self._repeat(block.group)
        return repeated

    def rows(self, *, follow: bool = False, stopping: Callable[[], bool] = lambda: False) -> Iterator[QueryRow]:
        """Yield rows, in order within each (query, group). The arguments are those of `blocks`."""
        for block in self.blocks(follow=follow, stopping=stopping):
            yield from block.rows


class AggregateResults:
    """Reads the rows of a window aggregate (`[query] aggregates`) in the form of rows of queries.

    Its columns are `sensor` ("*" for a whole group), `unit`, `n` (values in the window), `filled` (those of them that
    were estimated), `mean`, `sum`, `minimum`, `maximum`, and `mean_sd`, `sum_sd`, `extreme_sd`, which the standard
    deviations do not exceed.

    Args:
        log, settings, table, from_now, at: as for `QueryResults`; the table names the sensors.
    """

    topic = RESULTS

    def __init__(
        self,
        log: Log,
        settings: Settings,
        table: SensorTable,
        name: str,
        *,
        from_now: bool = False,
        at: Mapping[int, int] | None = None,
    ) -> None:
        self._reader = ResultsReader(log, settings, table, start="end" if from_now else "beginning", at=at)
        self.table, self._name = table, name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    @property
    def unreadable_count(self) -> int:
        """How many records could not be read."""
        return self._reader.unreadable_count

    def blocks(self, *, follow: bool = False, stopping: Callable[[], bool] = lambda: False) -> Iterator[QueryBlock]:
        """Yield blocks, in order within each group. The arguments are those of `BlockReader.blocks`."""
        for block in self._reader.blocks(follow=follow, stopping=stopping):
            if block.query == self._name and block.window is not None:
                rows = tuple(self._row(block, block.window, *item) for item in enumerate(block.rows(self.table)))
                yield QueryBlock(
                    block.query, block.group, block.step, block.event_time_us, block.appended_us, rows, part=block.part
                )

    def _row(self, block: Block, window: WindowColumns, place: int, row: Row) -> QueryRow:
        columns: dict[str, Any] = {
            "sensor": row.sensor,
            "unit": row.unit,
            "n": row.q1,
            "filled": row.q2,
            "mean": row.value,
            "sum": float(window.sum[place]),
            "minimum": float(window.minimum[place]),
            "maximum": float(window.maximum[place]),
            "mean_sd": row.sd,
            "sum_sd": float(window.sum_sd[place]),
            "extreme_sd": float(window.extreme_sd[place]),
        }
        ends = {"mean": (row.value - row.bound, row.value + row.bound)} if row.bound > 0 else {}
        return QueryRow(block.query, block.group, block.step, row.time, row.quality, columns, ends)


def _head(item: Mapping[str, Any]) -> tuple[str, str, int, int, int]:
    """Return (query, group, step, event time, append time) of a JSON object.

    Raises:
        ValueError: a field is missing, or is of another type.
    """
    if not isinstance(item.get("version"), int) or not 1 <= item["version"] <= VERSION:
        raise ValueError(f"found version {str(item.get('version'))[:20]}, expected 1..{VERSION}")
    for name, kind in (("query", str), ("group", str), ("step", int), ("time_us", int), ("appended_us", int)):
        if not isinstance(item.get(name), kind):
            found = repr(item.get(name))[:40]
            raise ValueError(f"field {name}: found {found}, expected {kind.__name__}")  # noqa: TRY004 - wrong data, no bug
    for name in ("step", "time_us", "appended_us"):
        if not 0 <= item[name] <= MAX_TIME_US:
            raise ValueError(f"field {name}: found {str(item[name])[:40]}, expected 0 to {MAX_TIME_US}")
    return item["query"], item["group"], item["step"], item["time_us"], item["appended_us"]


def _json_row(item: Mapping[str, Any], head: tuple[str, str, int, int, int]) -> QueryRow:
    values, low, high = (item.get(name) or {} for name in ("row", "low", "high"))
    if not all(isinstance(part, dict) for part in (values, low, high)) or not isinstance(item.get("id"), int):
        raise ValueError("row, low, high: expected JSON objects, and id a number")
    ends = {name: (_end(low.get(name), -math.inf), _end(high.get(name), math.inf)) for name in low.keys() | high.keys()}
    moment = moment_of(head[3])
    return QueryRow(head[0], head[1], head[2], moment, str(item.get("quality", "exact")), values, ends)


def _end(value: Any, otherwise: float) -> float:  # noqa: ANN401 - it comes from JSON
    return float(value) if isinstance(value, int | float) else otherwise


def json_lines(block: ResultBlock) -> Iterator[tuple[bytes, bytes]]:
    """Yield (key, value) of each row of a block of a query, as in docs/howto/results.md."""
    moment = moment_of(block.event_time_us)
    head: dict[str, Any] = {
        "version": block.version,
        "query": block.query,
        "group": block.group,
        "step": block.step,
        "time": moment.isoformat(timespec="microseconds"),
        "time_us": block.event_time_us,
        "appended_us": block.appended_us,
    } | ({"run": block.run} if block.run else {})
    key = f"{block.query}/{block.group}/{block.step}"
    if block.definition:
        yield key.encode(), json.dumps(head | {"definition": block.definition}, ensure_ascii=False).encode()
        return
    for place, row in enumerate(to_rows(block, rows_of(block), block.group)):
        item = head | {"id": place} | as_json(row)
        yield f"{key}/{place}".encode(), json.dumps(item, ensure_ascii=False).encode()


def as_json(row: QueryRow) -> dict[str, Any]:
    """Return the columns of a row, how it is known and its ends, as JSON values."""
    found: dict[str, Any] = {"quality": row.quality, "row": {name: _plain(value) for name, value in row.items()}}
    if row.ends:
        found["low"] = {name: _plain(low) for name, (low, _) in row.ends.items()}
        found["high"] = {name: _plain(high) for name, (_, high) in row.ends.items()}
    return found


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
