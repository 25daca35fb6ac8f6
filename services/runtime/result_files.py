"""Results as Parquet files: `[results] files`, a directory that pandas, Polars, DuckDB or Spark read as one table.

The files are made of the topic, not of batches: a file holds what stands in one partition of `results` from one offset
to another, repeats dropped by name as every reader drops them. Its footer says where the next file begins, in which log
(services/runtime/marks.py), and what was taken last of each group. So whatever the job does again, no row is in the
files twice and none is missing; a directory that is deleted is written again from what the topic still has.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import structlog
from pyarrow import parquet

from services.runtime import metrics
from services.runtime.log import RESULTS, Log, LogError, Position
from services.runtime.marks import NO_MARK, Mark, digest_of, record_before
from services.runtime.messages import QUALITY_NAMES
from services.runtime.results import Block, Last, Results, Run, WindowColumns, name_of
from services.runtime.sensors import SensorTable
from services.runtime.settings import ConfigError, Settings

VERSION = 1
_META = b"tsunagi"
_OVERDUE = 2
"""A file is closed after so many times its length of event time, by the clock, if nothing follows."""

_MOST_ROWS = 2_000_000
"""A file of more rows is closed before its event time is over: they wait in memory, some 100 bytes each."""

_FILE = re.compile(r"p(\d+)(?:\.(\d+))?-(\d+)\.parquet")
"""Partition, log (none = the first) and first offset: offsets of a topic that was made anew begin again."""

SCHEMA = pa.schema(
    [
        ("query", pa.dictionary(pa.int32(), pa.string())),
        ("group", pa.dictionary(pa.int32(), pa.string())),
        ("step", pa.int64()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("sensor", pa.dictionary(pa.int32(), pa.string())),
        ("id", pa.uint32()),
        ("unit", pa.dictionary(pa.int32(), pa.string())),
        ("value", pa.float64()),
        ("sd", pa.float64()),
        ("quality", pa.dictionary(pa.int32(), pa.string())),
        ("bound", pa.float64()),
        ("q1", pa.uint32()),
        ("q2", pa.uint32()),
        ("q3", pa.float64()),
        ("range_s", pa.float64()),
        *((name, pa.float64()) for name in WindowColumns._fields[1:]),
    ]
)


@dataclass(slots=True)
class _Open:
    """What the next file of a partition will hold."""

    since_s: float
    chunk: int
    rows: int = 0
    blocks: list[Block] = field(default_factory=list)


class ResultFiles:
    """Follows `results` and writes the files.

    Args:
        table: read again for each file, so that sensors added later have their names.
        clock: monotonic seconds.

    Attributes:
        rows: rows written by this object.

    Raises:
        ConfigError: the directory cannot be written or holds files that are not ours.
        LogError: see `Results`; OffsetLostError if retention has passed where the next file begins.
    """

    def __init__(
        self,
        log: Log,
        settings: Settings,
        table: Callable[[], SensorTable],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.directory = Path(settings.results.files)
        self.rows = 0
        self._table = table
        self._clock = clock
        self._chunk_us = round(settings.results.files_s * 1e6)
        self._overdue_s = _OVERDUE * settings.results.files_s
        self._open: dict[int, _Open] = {}
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            probe = self.directory / ".probe"
            probe.touch()
            probe.unlink()
            for leftover in self.directory.glob(".p*.new"):
                leftover.unlink()
        except OSError as error:
            raise ConfigError(f"[results] files = {self.directory}: {error.strerror}") from error
        self._home: dict[Run, int] = {}
        self._last: dict[int, dict[Run, Last]] = {}
        at = {}
        self._asker = log.reader()
        self._topic_id = log.topic_id(RESULTS)
        self._log: dict[int, int] = {}
        files = sorted((int(parts[0]), int(parts[1] or 0), int(parts[2]), path) for parts, path in self._files())
        newest = {partition: (number, path) for partition, number, _, path in files}
        for partition in range(log.partitions(RESULTS)):
            self._last[partition], self._log[partition] = {}, 0
            if partition not in newest:
                continue
            self._log[partition], path = newest[partition]
            at[partition], self._last[partition], mark = _resume(path)
            found = mark.contradicts(self._mark(partition, at[partition])) or self._beyond(partition, at[partition])
            if found:
                metrics.RESULT_FILE_FAULTS.inc()
                structlog.get_logger("tsunagi.results").error(
                    "not the log that the files are of; going on from its beginning",
                    partition=partition,
                    file=str(path),
                    found=found,
                )
                del at[partition]
                self._log[partition] += 1
        last = {run: step for runs in self._last.values() for run, step in runs.items()}
        self._home = {run: partition for partition, runs in self._last.items() for run in runs}
        self._results = Results(log, settings, at=at, last=last)

    def close(self) -> None:
        """Let go of the connections. What no file has yet is read again by the next to come."""
        self._results.close()
        self._asker.close()

    def poll(self, timeout_s: float = 0.1) -> None:
        """Take in what is new, and write the files that are full or overdue.

        Raises:
            ConfigError: a file cannot be written, or the results were made with other `[spark] cores`.
        """
        for block in self._results.poll(timeout_s):
            self._take(block)
        now_s = self._clock()
        for partition, waiting in list(self._open.items()):
            if now_s - waiting.since_s >= self._overdue_s:
                self._write(partition, max(block.offset for block in waiting.blocks) + 1)

    def _take(self, block: Block) -> None:
        run = (block.query, block.group, block.part, block.parts)
        if self._home.setdefault(run, block.partition) != block.partition:
            raise ConfigError(
                f"[results] files = {self.directory}: group {block.group!r} stood in partition {self._home[run]} of "
                f"results and stands in {block.partition} now, as after a change of [spark] cores; name a new directory"
            )
        chunk = block.event_time_us // self._chunk_us
        waiting = self._open.get(block.partition)
        if waiting is not None and (chunk > waiting.chunk or waiting.rows >= _MOST_ROWS):
            self._write(block.partition, block.offset)
            waiting = None
        if waiting is None:
            waiting = self._open[block.partition] = _Open(self._clock(), chunk)
        waiting.blocks.append(block)
        waiting.rows += len(block)

    def _write(self, partition: int, next_offset: int) -> None:
        blocks = self._open.pop(partition).blocks
        last = self._last[partition]
        for block in blocks:
            newest = int(block.sensor[-1]) if self._results.by_rows and len(block) else -1
            last[block.query, block.group, block.part, block.parts] = Last(block.step, newest)
        footer = {
            "version": VERSION,
            "next": next_offset,
            "mark": self._mark(partition, next_offset),
            "last": [[*run, *place] for run, place in last.items()],
        }
        table = to_table(blocks, self._table()).replace_schema_metadata({_META: json.dumps(footer).encode()})
        log = f".{self._log[partition]}" if self._log[partition] else ""
        path = self.directory / f"p{partition}{log}-{blocks[0].offset:020d}.parquet"
        temporary = path.with_name(f".{path.stem}.new")  # a name that no glob of the files matches
        try:
            parquet.write_table(table, temporary, compression="zstd")
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            raise ConfigError(f"[results] files: {path}: {error.strerror}") from error
        self.rows += len(table)

    def _files(self) -> Iterator[tuple[tuple[str, ...], Path]]:
        """Yield the files of results in the directory, with what their names say."""
        for path in self.directory.glob("p*.parquet"):
            found = _FILE.fullmatch(path.name)
            if found is not None:
                yield found.groups(), path

    def _mark(self, partition: int, offset: int) -> Mark:
        """Return which log an offset is of, as far as the log can tell now."""
        try:
            record = record_before(self._asker, Position(RESULTS, partition, offset))
        except LogError:
            record = None
        return Mark(self._topic_id, 0 if record is None else digest_of(record))

    def _beyond(self, partition: int, offset: int) -> str:
        end = self._asker.range(RESULTS, partition)[1]
        return f"the log lost its end: it ends at {end}, and was read up to {offset}" if end < offset else ""


def to_table(blocks: Sequence[Block], sensors: SensorTable) -> pa.Table:
    """Return the rows of blocks, in their order, in `SCHEMA`."""
    lengths = [len(block) for block in blocks]
    ids = np.concatenate([block.sensor for block in blocks])
    names = _named(ids, [sensor.name for sensor in sensors.sensors])
    units = _named(ids, [sensor.unit for sensor in sensors.sensors], unknown="")
    quality = np.concatenate([block.quality for block in blocks])
    columns: dict[str, Any] = {
        "query": _repeated([block.query for block in blocks], lengths),
        "group": _repeated([block.group for block in blocks], lengths),
        "step": np.repeat([block.step for block in blocks], lengths),
        "time": np.repeat([block.event_time_us for block in blocks], lengths),
        "sensor": names,
        "id": ids,
        "unit": units,
        "value": np.concatenate([block.mean for block in blocks]),
        "sd": np.concatenate([block.sd for block in blocks]),
        "quality": pa.DictionaryArray.from_arrays(
            pa.array(np.minimum(quality, len(QUALITY_NAMES)).astype(np.int32)), pa.array([*QUALITY_NAMES, "unknown"])
        ),
        "bound": np.concatenate([block.bound for block in blocks]),
        "q1": np.concatenate([block.q1 for block in blocks]),
        "q2": np.concatenate([block.q2 for block in blocks]),
        "q3": np.concatenate([block.q3 for block in blocks]),
        "range_s": pa.array(_windows(blocks, "length_us") / 1e6, from_pandas=True),  # null where there is none
    }
    for name in WindowColumns._fields[1:]:
        columns[name] = pa.array(_windows(blocks, name), from_pandas=True)
    return pa.table(
        [
            column if isinstance(column, pa.Array) else pa.array(column, type=kind.type)
            for column, kind in zip(columns.values(), SCHEMA, strict=True)
        ],
        schema=SCHEMA,
    )


def _windows(blocks: Sequence[Block], name: str) -> npt.NDArray[np.float64]:
    """Return a column of the aggregates; NaN for rows that are of none."""
    return np.concatenate(
        [np.full(len(block), np.nan if block.window is None else getattr(block.window, name)) * 1.0 for block in blocks]
    )


def _named(ids: npt.NDArray[np.uint32], names: Sequence[str], unknown: str | None = None) -> pa.Array:
    """Return names by id; one that the table does not have is named by its number, or `unknown`."""
    found, place = np.unique(ids, return_inverse=True)
    words = [names[n] if n < len(names) else name_of(n) if unknown is None else unknown for n in found.tolist()]
    return pa.DictionaryArray.from_arrays(pa.array(place.astype(np.int32)), pa.array(words, pa.string()))


def _repeated(words: Sequence[str], lengths: Sequence[int]) -> pa.Array:
    found, place = np.unique(np.array(words), return_inverse=True)
    places = np.repeat(place, lengths).astype(np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(places), pa.array(found.tolist(), pa.string()))


def _resume(path: Path) -> tuple[int, dict[Run, Last], Mark]:
    """Read from a file where the next one begins, what was taken last, and which log that is of."""
    try:
        footer = json.loads((parquet.read_schema(path).metadata or {})[_META])
    except (OSError, pa.ArrowInvalid, KeyError, ValueError) as error:
        raise ConfigError(f"[results] files: {path}: not a file of Tsunagi's results: {error}") from None
    if footer["version"] > VERSION:
        raise ConfigError(f"[results] files: {path}: found version {footer['version']}, expected at most {VERSION}")
    last = {(row[0], row[1], row[2], row[3]): Last(row[4], row[5]) for row in footer["last"]}
    return footer["next"], last, Mark(*footer.get("mark", NO_MARK))
