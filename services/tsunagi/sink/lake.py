"""Rows in Parquet files, in folders by query and date, which DuckDB, Polars, pandas and Spark read as one table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa

from tsunagi.query.values import Kind
from tsunagi.runtime.settings import SinkSettings
from tsunagi.sink.base import Sink, SinkError
from tsunagi.sink.claim import Claim
from tsunagi.sink.rows import Place, Schema, SinkBatch, SinkPosition, SinkRows
from tsunagi.sink.spans import LakeSpan, LakeSpans

CORRECTIONS = "-corrections"
"""What is put behind the query's name for the folder of late truths."""
CLAIMS = "_claims"
"""The folder of claims, in that of the query. Readers of tables pass over names that begin like this."""
_TYPES = {
    Kind.DOUBLE: pa.float64(),
    Kind.BIGINT: pa.int64(),
    Kind.BOOLEAN: pa.bool_(),
    Kind.TEXT: pa.string(),
    Kind.TIMESTAMP: pa.timestamp("us", tz="UTC"),
}
"""The type of a column in Arrow."""


class LakeFiles(ABC):
    """How the rows of spans are kept: as plain files (`tsunagi.sink.parquet`), or as Delta tables.

    Args:
        folder: the folder of the query's rows.
        truths: that of late truths.
    """

    def __init__(self, folder: Path, truths: Path) -> None:
        self._folder, self._truths = folder, truths
        self._days: dict[Place, date] = {}  # the newest day of each partition that is stored, as far as it is known

    @abstractmethod
    def positions(self, places: Collection[Place]) -> Mapping[Place, SinkPosition]:
        """Finish or undo what a kill has left of some partitions; return where to go on.

        Raises:
            OSError: the folder cannot be read or written now.
        """

    def store(self, place: Place, span: LakeSpan) -> None:
        """Store a span with the position behind it: all of it, or nothing of it counts.

        A day is merged once its partition has come to the next one.

        Raises:
            OSError: the folder cannot be written now.
        """
        days = by_day(span.parts)
        self._append(self._truths if span.correcting else self._folder, days, place, span)
        newest = max(days)
        before = self._days.get(place, newest)
        if newest > before:
            self._merge(place, span.topic_id, before)
        self._days[place] = max(newest, before)

    @abstractmethod
    def _append(self, folder: Path, days: Mapping[date, pa.Table], place: Place, span: LakeSpan) -> None:
        """Store the rows of a span, by day, in a folder."""

    @abstractmethod
    def _merge(self, place: Place, topic_id: str, day: date) -> None:
        """Make few files of those of a day that is over."""


class LakeSink(Sink):
    """Stores a span of rows at a time, with its position.

    Rows that wait for the rest of their span stay in memory while the folder is away, and are read again after a kill.

    Args:
        files: makes what keeps the rows, of the query's folder and that of late truths.

    Raises:
        SinkError: the folder cannot be written.
    """

    keeps_positions = True

    def __init__(self, wanted: SinkSettings, files: Callable[[Path, Path], LakeFiles]) -> None:
        self.folder = wanted.lake.directory / wanted.query
        truths = self.folder.with_name(wanted.query + CORRECTIONS)
        self._spans = LakeSpans(wanted.lake.files_s)
        self._claims: dict[Place, Claim] = {}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SinkError(
                f"[[sinks]] {wanted.name}: [sinks.lake] directory: {self.folder}: {error.strerror}"
            ) from None
        self._files = files(self.folder, truths)

    def positions(self, places: Collection[Place]) -> Mapping[Place, SinkPosition]:
        self._spans.clear()
        self._claims = {place: Claim(self.folder / CLAIMS / f"{place[0]}-{place[1]}") for place in sorted(places)}
        with ExitStack() as locks:
            for claim in self._claims.values():
                locks.enter_context(claim.taken())
            return self._files.positions(places)

    def write(self, batch: SinkBatch) -> None:
        """Take rows in, and store the spans that they complete."""
        self._store(self._spans.take(batch))

    def flush(self) -> None:
        """Store what waits, whether a span is complete or not."""
        self._store(self._spans.rest())

    def _store(self, spans: Iterator[tuple[Place, LakeSpan]]) -> None:
        for place, span in spans:
            with self._claims[place].held():
                self._files.store(place, span)


def by_day(parts: Iterable[SinkRows]) -> dict[date, pa.Table]:
    """Return a table of the rows of each day (UTC), ascending by day; each day's rows are in their order."""
    days: dict[date, dict[Schema, list[tuple[Any, ...]]]] = defaultdict(lambda: defaultdict(list))
    for part in parts:
        for row in part.rows:
            days[row[0].date()][part.schema].append(row)
    return {day: together(_tables(days[day])) for day in sorted(days)}


def together(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of tables in one; a column that one of them lacks has nulls there.

    Raises:
        SinkError: a column is of different types.
    """
    try:
        return pa.concat_tables(tables, promote_options="default")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise SinkError(f"a column of the lake has another type now: {error}: name another directory") from None


def _tables(by_schema: Mapping[Schema, list[tuple[Any, ...]]]) -> list[pa.Table]:
    tables = []
    for schema, rows in by_schema.items():
        columns = zip(*rows, strict=True)
        arrays = [pa.array(values, _TYPES[column.kind]) for column, values in zip(schema.columns, columns, strict=True)]
        tables.append(pa.table(arrays, names=list(schema.names)))
    return tables
