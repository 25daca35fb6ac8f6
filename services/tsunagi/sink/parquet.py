"""A lake of plain Parquet files.

A file has the rows of one partition from one record of a topic to another, and its name says which: so what is written
again has the same name, and the names say where to go on. While a day lasts, it has a file for each partition and span
of event time. Once a partition has come to the next day, its files of the day become one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyarrow import parquet

from tsunagi.sink.base import SinkAwayError
from tsunagi.sink.lake import LakeFiles, together
from tsunagi.sink.rows import Place, SinkPosition
from tsunagi.sink.spans import LakeSpan

_NAME = re.compile(r"(?P<topic>[a-z-]+)-(?P<part>\d+)-(?P<first>\d{20})-(?P<next>\d{20})-(?P<id>[\w-]*)\.parquet")
"""Matches the names of files."""
_NEW, _MERGED = ".new", ".merged"
"""What names of files that are not readable yet end with: those that are being written, and those of a whole day. They
begin with a dot as well, so that no reader takes them."""


class _File(NamedTuple):
    """A file of rows.

    Attributes:
        place: their partition; `topic_id` is the id of its topic.
        first, next: the records that they were made of: the first, and the one behind the last.
    """

    place: Place
    topic_id: str
    first: int
    next: int
    path: Path


class ParquetFiles(LakeFiles):
    """Writes files. The positions are in their names."""

    def positions(self, places: Collection[Place]) -> Mapping[Place, SinkPosition]:
        by_place: dict[Place, list[_File]] = {place: [] for place in places}
        for item in _files((self._folder, self._truths)):
            if item.place in by_place:
                by_place[item.place].append(item)
        found = {}
        for place, all_files in by_place.items():
            if not all_files:
                continue
            # A topic that is made anew counts from 0 again; the files of the one before stay as they are.
            topic_id = max(all_files, key=lambda item: item.path.stat().st_mtime_ns).topic_id
            files = [item for item in all_files if item.topic_id == topic_id]
            found[place] = SinkPosition(max(item.next for item in files), topic_id)
            self._recover(place, found[place].offset, files)
        return found

    def _append(self, folder: Path, days: Mapping[date, pa.Table], place: Place, span: LakeSpan) -> None:
        newest = max(days)
        for day, table in days.items():
            # The position counts from the last file on; what a kill leaves of those before it is removed at the start.
            upto = span.next if day == newest else span.first
            _write(folder / f"date={day}" / _name(place, span.topic_id, span.first, upto), table)

    def _merge(self, place: Place, topic_id: str, day: date) -> None:
        for folder in (self._folder, self._truths):
            there = _of_partition(folder / f"date={day}", place, topic_id)
            if len(there) < 2:
                continue
            whole = folder / f"date={day}" / _name(place, topic_id, there[0].first, max(item.next for item in there))
            tables = [parquet.read_table(item.path, partitioning=None) for item in there]
            merged = _write(whole, together(tables), _MERGED)
            _replace(merged, whole, there)

    def _recover(self, place: Place, position: int, files: Iterable[_File]) -> None:
        """Finish or undo what a kill has left."""
        for item in files:
            if item.first >= position:  # of a write whose last file is missing
                item.path.unlink(missing_ok=True)
        days = sorted({item.path.parent for item in files})
        for folder in days:
            for temporary in folder.glob(f".{place[0]}-{place[1]}-*"):
                whole = _file(folder / temporary.name.removeprefix(".").removesuffix(_MERGED))
                if temporary.suffix != _MERGED or whole is None:
                    temporary.unlink(missing_ok=True)
                    continue
                rest = [item for item in _of_partition(folder, place, whole.topic_id) if _within(item, whole)]
                if any(item.first == whole.first for item in rest):  # none of its files is gone
                    temporary.unlink()
                else:
                    _replace(temporary, whole.path, rest)
        self._days[place] = max(date.fromisoformat(folder.name.removeprefix("date=")) for folder in days)


def _write(path: Path, table: pa.Table, suffix: str = _NEW) -> Path:
    """Write a file, completely or not at all; return where it is."""
    temporary = path.with_name(f".{path.name}{suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(table, temporary, compression="zstd")
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        if suffix == _MERGED:
            return temporary
        temporary.replace(path)
    except OSError as error:
        raise SinkAwayError(f"{path}: {error.strerror or error}") from None
    return path


def _replace(merged: Path, whole: Path, there: Iterable[_File]) -> None:
    """Put the file of a day in the place of its files, the first of which goes first."""
    for item in there:
        item.path.unlink(missing_ok=True)
    merged.replace(whole)


def _within(item: _File, whole: _File) -> bool:
    return whole.first <= item.first and item.next <= whole.next


def _name(place: Place, topic_id: str, first: int, upto: int) -> str:
    return f"{place[0]}-{place[1]}-{first:020d}-{upto:020d}-{topic_id}.parquet"


def _file(path: Path) -> _File | None:
    found = _NAME.fullmatch(path.name)
    if found is None:
        return None
    return _File((found["topic"], int(found["part"])), found["id"], int(found["first"]), int(found["next"]), path)


def _of_day(folder: Path) -> list[_File]:
    return [item for path in folder.glob("*.parquet") if (item := _file(path)) is not None]


def _of_partition(folder: Path, place: Place, topic_id: str) -> list[_File]:
    """Return the files of a partition in the folder of a day, in the order of their records."""
    return sorted(item for item in _of_day(folder) if (item.place, item.topic_id) == (place, topic_id))


def _files(folders: Iterable[Path]) -> Iterable[_File]:
    for folder in folders:
        for day in folder.glob("date=*"):
            yield from _of_day(day)
