"""Rows in Parquet files, in folders by query and date, which DuckDB, Polars, pandas and Spark read as one table.

A file has the rows of one partition from one record to another, and its name says which: so what is written again has
the same name, and the names say where to go on. While a day lasts, it has a file for each partition and span of event
time. Once a partition has come to the next day, its files of the day become one.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import parquet

from tsunagi.query.values import Kind
from tsunagi.runtime.settings import SinkSettings
from tsunagi.runtime.times import microseconds_of
from tsunagi.sink.base import Sink, SinkAwayError, SinkError
from tsunagi.sink.rows import Place, Schema, SinkBatch, SinkPosition, SinkRows

CORRECTIONS = "-corrections"
"""What is put behind the query's name for the folder of late truths."""
MOST_ROWS = 1_000_000
"""Rows of one partition that wait in memory for their file at most, some 300 bytes each."""
_NAME = re.compile(r"(?P<topic>[a-z-]+)-(?P<part>\d+)-(?P<first>\d{20})-(?P<next>\d{20})\.parquet")
"""Matches the names of files."""
_NEW, _MERGED = ".new", ".merged"
"""What names of files that are not readable yet end with: those that are being written, and those of a whole day. They
begin with a dot as well, so that no reader takes them."""
_TYPES = {
    Kind.DOUBLE: pa.float64(),
    Kind.BIGINT: pa.int64(),
    Kind.BOOLEAN: pa.bool_(),
    Kind.TEXT: pa.string(),
    Kind.TIMESTAMP: pa.timestamp("us", tz="UTC"),
}
"""The type of a column in Arrow."""
_TOPIC_ID = b"tsunagi.topic_id"
"""The key of the topic's id in the metadata of a file."""


class _File(NamedTuple):
    """A file: the partition of its rows, and the records from the first up to the next one that is not in it."""

    place: Place
    first: int
    next: int
    path: Path


@dataclass(slots=True)
class _Open:
    """What waits for the next file of a partition.

    Attributes:
        chunk: the span of event time that it is for, or -1 for truths, which are of any time.
        first, next: the records that it was made of.
    """

    chunk: int
    first: int
    next: int
    topic_id: str
    rows: int = 0
    parts: list[SinkRows] = field(default_factory=list)


class LakeSink(Sink):
    """Writes files. The positions are in their names, so that rows which wait for a file are read again after a kill.

    Raises:
        SinkError: the folder cannot be written.
    """

    keeps_positions = True

    def __init__(self, wanted: SinkSettings) -> None:
        self._name = wanted.name
        self.folder = wanted.lake.directory / wanted.query
        self._truths = self.folder.with_name(wanted.query + CORRECTIONS)
        self._files_us = round(wanted.lake.files_s * 1e6)
        self._open: dict[Place, _Open] = {}
        self._days: dict[Place, date] = {}  # the newest day of each partition that has a file
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SinkError(
                f"[[sinks]] {wanted.name}: [sinks.lake] directory: {self.folder}: {error.strerror}"
            ) from None

    def close(self) -> None:
        self._open.clear()

    def positions(self, places: Collection[Place]) -> Mapping[Place, SinkPosition]:
        self._open.clear()
        found: dict[Place, _File] = {}
        files = list(_files((self.folder, self._truths)))
        for item in files:
            if item.place not in found or item.next > found[item.place].next:
                found[item.place] = item
        kept = {
            place: SinkPosition(item.next, _topic_id(item.path)) for place, item in found.items() if place in places
        }
        for place in places:
            self._recover(place, kept[place].offset if place in kept else 0, files)
        return kept

    def write(self, batch: SinkBatch) -> None:
        """Take rows in, and write the files that they complete."""
        for part in batch.parts:
            self._take(part, batch)
        for place, advance in batch.advances.items():
            waiting = self._open.get(place)
            if waiting is not None:
                waiting.next = max(waiting.next, advance.after.offset)

    def flush(self) -> None:
        """Write what waits, whether a file is full or not."""
        for place in list(self._open):
            self._write(place)

    def _take(self, part: SinkRows, batch: SinkBatch) -> None:
        place = part.origin.topic, part.origin.partition
        chunk = -1 if part.correcting else microseconds_of(part.rows[0][0]) // self._files_us
        waiting = self._open.get(place)
        if waiting is not None and (chunk != waiting.chunk or waiting.rows >= MOST_ROWS):
            waiting.next = max(waiting.next, part.origin.offset)
            self._write(place)
            waiting = None
        if waiting is None:
            advance = batch.advances.get(place)
            topic_id = advance.after.topic_id if advance else ""
            first = part.origin.offset
            waiting = self._open[place] = _Open(chunk, first, first + 1, topic_id)
        waiting.parts.append(part)
        waiting.rows += len(part)
        waiting.next = max(waiting.next, part.origin.offset + 1)

    # ---- files

    def _write(self, place: Place) -> None:
        waiting = self._open.pop(place)
        by_day: dict[tuple[Path, date], list[SinkRows]] = defaultdict(list)
        for part in waiting.parts:
            folder = self._truths if part.correcting else self.folder
            for day, rows in _by_day(part):
                by_day[folder, day].append(rows)
        days = sorted(by_day, key=lambda item: item[1])
        for number, (folder, day) in enumerate(days):
            # The position counts from the last file on; what a kill leaves of those before it is removed at the start.
            upto = waiting.next if number == len(days) - 1 else waiting.first
            path = folder / f"date={day}" / _name(place, waiting.first, upto)
            self._store(path, _table(by_day[folder, day]), waiting.topic_id)
        newest = max(day for _, day in days)
        before = self._days.get(place)
        self._days[place] = max(newest, before or newest)
        if before is not None and newest > before:
            self._merge(place, before)

    def _store(self, path: Path, table: pa.Table, topic_id: str, suffix: str = _NEW) -> Path:
        """Write a file, completely or not at all; return where it is."""
        temporary = path.with_name(f".{path.name}{suffix}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            parquet.write_table(
                table.replace_schema_metadata({_TOPIC_ID: topic_id.encode()}), temporary, compression="zstd"
            )
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            if suffix == _MERGED:
                return temporary
            temporary.replace(path)
        except OSError as error:
            raise SinkAwayError(f"{path}: {error.strerror or error}") from None
        return path

    def _merge(self, place: Place, day: date) -> None:
        """Make one file of those of a day."""
        for folder in (self.folder, self._truths):
            there = sorted(item for item in _of_day(folder / f"date={day}") if item.place == place)
            if len(there) < 2:
                continue
            whole = folder / f"date={day}" / _name(place, there[0].first, max(item.next for item in there))
            tables = [parquet.read_table(item.path, partitioning=None) for item in there]
            table = pa.concat_tables(tables, promote_options="default")
            merged = self._store(whole, table, _topic_id(there[-1].path), _MERGED)
            _replace(merged, whole, there)

    def _recover(self, place: Place, position: int, files: Iterable[_File]) -> None:
        """Finish or undo what a kill has left."""
        here = [item for item in files if item.place == place]
        for item in here:
            if item.first >= position:  # of a write whose last file is missing
                item.path.unlink(missing_ok=True)
        days = sorted({item.path.parent for item in here})
        for folder in days:
            for temporary in folder.glob(f".{place[0]}-{place[1]}-*"):
                whole = _file(folder / temporary.name.removeprefix(".").removesuffix(_MERGED))
                if temporary.suffix != _MERGED or whole is None:
                    temporary.unlink(missing_ok=True)
                    continue
                rest = sorted(item for item in _of_day(folder) if item.place == place and _within(item, whole))
                if any(item.first == whole.first for item in rest):  # none of its files is gone
                    temporary.unlink()
                else:
                    _replace(temporary, whole.path, rest)
        if here:
            self._days[place] = max(date.fromisoformat(item.path.parent.name.removeprefix("date=")) for item in here)


def _replace(merged: Path, whole: Path, there: Iterable[_File]) -> None:
    """Put the file of a day in the place of its files, the first of which goes first."""
    for item in there:
        item.path.unlink(missing_ok=True)
    merged.replace(whole)


def _within(item: _File, whole: _File) -> bool:
    return whole.first <= item.first and item.next <= whole.next


def _name(place: Place, first: int, upto: int) -> str:
    return f"{place[0]}-{place[1]}-{first:020d}-{upto:020d}.parquet"


def _file(path: Path) -> _File | None:
    found = _NAME.fullmatch(path.name)
    if found is None:
        return None
    return _File((found["topic"], int(found["part"])), int(found["first"]), int(found["next"]), path)


def _of_day(folder: Path) -> list[_File]:
    return [item for path in folder.glob("*.parquet") if (item := _file(path)) is not None]


def _files(folders: Iterable[Path]) -> Iterable[_File]:
    for folder in folders:
        for day in folder.glob("date=*"):
            yield from _of_day(day)


def _topic_id(path: Path) -> str:
    """Return the id of the topic that the rows of a file came from."""
    try:
        found: bytes = (parquet.read_schema(path).metadata or {}).get(_TOPIC_ID, b"")
    except (OSError, pa.ArrowInvalid) as error:
        raise SinkError(f"{path}: not a file of a sink: {error}") from None
    return found.decode()


def _by_day(part: SinkRows) -> Iterable[tuple[date, SinkRows]]:
    """Return the rows of each day (UTC), in their order."""
    days: dict[date, list[tuple[Any, ...]]] = defaultdict(list)
    for row in part.rows:
        days[row[0].date()].append(row)
    return [(day, SinkRows(part.schema, rows, part.correcting, part.origin)) for day, rows in days.items()]


def _table(parts: Iterable[SinkRows]) -> pa.Table:
    tables = []
    by_schema: dict[Schema, list[tuple[Any, ...]]] = defaultdict(list)
    for part in parts:
        by_schema[part.schema].extend(part.rows)
    for schema, rows in by_schema.items():
        columns = zip(*rows, strict=True)
        arrays = [pa.array(values, _TYPES[column.kind]) for column, values in zip(schema.columns, columns, strict=True)]
        tables.append(pa.table(arrays, names=list(schema.names)))
    return pa.concat_tables(tables, promote_options="default")
