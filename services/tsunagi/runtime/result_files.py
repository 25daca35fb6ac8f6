"""Writes results as Parquet files into `[results] files`. Pandas, Polars, DuckDB or Spark read it as one table.

The files are made from the topic and not from Spark's batches. A file has the records of one partition of `results`
from one offset to another, without repeats, which are dropped by name as every reader does. Its footer says where the
next file begins, and which step of each group came last. So whatever the job repeats, no row is in the files twice and
none is missing. If the directory is deleted, it is written again from what the topic still has.

The footer also has the mark of the topic at that place (tsunagi.runtime.marks). If the topic was made anew or has lost
its end by the next start, it is read from its first record again, and rows that the files have are dropped by name. The
names of the following files have the number of such starts, so that they sort behind the files before.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import structlog
from pyarrow import parquet

from tsunagi.runtime import metrics
from tsunagi.runtime.block_reader import LastResult, RunKey
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.log import RESULTS, Log, LogError, Position
from tsunagi.runtime.marks import NO_MARK, LogMark, digest_of, record_before
from tsunagi.runtime.messages import QUALITY_NAMES
from tsunagi.runtime.results import Block, ResultsReader, WindowColumns, name_of
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import ConfigError, Settings

VERSION = 1
"""The version of the footers that are written. Files with a later version are refused."""
_META = b"tsunagi"
"""The key of the footer in the metadata of a Parquet file."""
_LEFTOVER = re.compile(r"\.p\d+-\d{20}\.new")
"""Matches files that were left half-written by a process that was killed. They are deleted."""
_OVERDUE = 2
"""If no results follow, a file is closed after this many times `[results] files_s`, by the clock."""

_MOST_ROWS = 2_000_000
"""A file with this many rows is closed before its event time is over: they wait in memory, some 100 bytes each."""

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
"""The columns of a file (docs/howto/results.md). The last ones are null but in rows of window aggregates."""


class _End(NamedTuple):
    """Where the files of a partition end, by the footer of the last one.

    Attributes:
        next: the offset at which the next file begins.
        mark: the mark of the topic at that offset.
        last: the last step of each run that is in the files.
        begun: how often the topic had been made anew, or had lost its end.
    """

    next: int
    mark: LogMark
    last: dict[RunKey, LastResult]
    begun: int


@dataclass(slots=True)
class _Open:
    """The blocks for the next file of a partition.

    Attributes:
        since_s: when the first block came, by the monotonic clock.
        chunk: the number of the span of event time that the file is for.
    """

    since_s: float
    chunk: int
    rows: int = 0
    blocks: list[Block] = field(default_factory=list)


class ResultFiles:
    """Follows `results`, and writes the files.

    Args:
        log: the log.
        settings: the settings of the system.
        table: returns the sensors table. It is called for each file, so that sensors that are added later have names.
        clock: returns seconds that never jump.

    Attributes:
        directory: the directory of the files.
        rows: how many rows this object has written.
        faults: how the topic contradicts the files, by partition. An entry is never removed.

    Raises:
        ConfigError: the directory cannot be written to, or has files that Tsunagi did not write.
        LogError: as for `ResultsReader`. It is an OffsetLostError if the records for the next file were deleted.
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
        self.faults: dict[int, str] = {}
        self._log = log
        self._begun: dict[int, int] = {}
        self._table = table
        self._clock = clock
        self._chunk_us = round(settings.results.files_s * 1e6)
        self._overdue_s = _OVERDUE * settings.results.files_s
        self._open: dict[int, _Open] = {}
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.directory).close()
            for leftover in self.directory.glob(".p*-*.new"):
                if _LEFTOVER.fullmatch(leftover.name):
                    leftover.unlink()
        except OSError as error:
            raise ConfigError(f"[results] files = {self.directory}: {error.strerror}") from error
        self._home: dict[RunKey, int] = {}
        self._last: dict[int, dict[RunKey, LastResult]] = {}
        self._asks = log.reader()
        at = {}
        for partition in range(log.partitions(RESULTS)):
            found = sorted(self.directory.glob(f"p{partition}-*.parquet"))
            self._last[partition] = {}
            if found:
                end = _resume(found[-1])
                self._last[partition], self._begun[partition] = end.last, end.begun
                if fault := self._contradiction(partition, end):
                    self._note(partition, end.next, fault)
                else:
                    at[partition] = end.next
        last = {run: step for runs in self._last.values() for run, step in runs.items()}
        self._home = {run: partition for partition, runs in self._last.items() for run in runs}
        self._results = ResultsReader(log, settings, at=at, last=last)

    def close(self) -> None:
        """Close the connections. Rows that are in no file yet are read again after the next start."""
        self._results.close()
        self._asks.close()

    def poll(self, timeout_s: float = 0.1) -> None:
        """Read new results, and write the files that are full or overdue.

        Raises:
            ConfigError: a file cannot be written, or the results were made with another `[spark] cores`.
        """
        for block in self._results.poll(timeout_s):
            self._take(block)
        now_s = self._clock()
        for partition, waiting in list(self._open.items()):
            if now_s - waiting.since_s >= self._overdue_s:
                self._write(partition, max(block.offset for block in waiting.blocks) + 1)

    def _contradiction(self, partition: int, end: _End) -> str:
        """Return in words why the files were made from another topic than this one; "" if nothing shows that."""
        _, ends = self._asks.range(RESULTS, partition)
        found = self._mark(partition, end.next)
        if not (why := end.mark.contradicts(found)) and ends < end.next:
            why = f"the log lost its end: it ends at {ends}, expected {end.next} or more"
        return why

    def _mark(self, partition: int, offset: int) -> LogMark:
        record = record_before(self._asks, Position(RESULTS, partition, offset))
        return LogMark(self._log.topic_id(RESULTS), 0 if record is None else digest_of(record))

    def _note(self, partition: int, offset: int, why: str) -> None:
        self.faults[partition] = why
        self._begun[partition] += 1
        metrics.SPARK_FILES_CONTRADICTED.inc()
        structlog.get_logger("tsunagi.results").error(
            "the topic is not the one that the files are of: it is read again, what they have is dropped by name",
            partition=partition,
            offset=offset,
            detail=why,
        )

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
            last[block.query, block.group, block.part, block.parts] = LastResult(block.step, newest)
        try:
            mark = self._mark(partition, next_offset)
        except LogError:  # the file is written without a mark rather than late
            mark = NO_MARK
        begun = self._begun.get(partition, 0)
        footer = {
            "version": VERSION,
            "next": next_offset,
            "mark": mark,
            "last": [[*run, *place] for run, place in last.items()],
            "begun": begun,
        }
        table = to_table(blocks, self._table()).replace_schema_metadata({_META: json.dumps(footer).encode()})
        again = f"r{begun:04d}-" if begun else ""  # such a name sorts behind the names of earlier files
        path = self.directory / f"p{partition}-{again}{blocks[0].offset:020d}.parquet"
        temporary = path.with_name(f".{path.stem}.new")  # no pattern for the files matches this name
        try:
            parquet.write_table(table, temporary, compression="zstd")
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            raise ConfigError(f"[results] files: {path}: {error.strerror}") from error
        self.rows += len(table)


def to_table(blocks: Sequence[Block], sensors: SensorTable) -> pa.Table:
    """Return the rows of blocks, in their order, as a table with the columns of `SCHEMA`."""
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
        "range_s": pa.array(_windows(blocks, "length_us") / 1e6, from_pandas=True),  # NaN becomes null
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


def _windows(blocks: Sequence[Block], name: str) -> Floats:
    """Return a column of window aggregates; NaN for all other rows."""
    return np.concatenate(
        [np.full(len(block), np.nan if block.window is None else getattr(block.window, name)) * 1.0 for block in blocks]
    )


def _named(ids: npt.NDArray[np.uint32], names: Sequence[str], unknown: str | None = None) -> pa.Array:
    """Return the name of each id. An id that the table does not have gives `unknown`, or its number if that is None."""
    found, place = np.unique(ids, return_inverse=True)
    words = [names[n] if n < len(names) else name_of(n) if unknown is None else unknown for n in found.tolist()]
    return pa.DictionaryArray.from_arrays(pa.array(place.astype(np.int32)), pa.array(words, pa.string()))


def _repeated(words: Sequence[str], lengths: Sequence[int]) -> pa.Array:
    found, place = np.unique(np.array(words), return_inverse=True)
    places = np.repeat(place, lengths).astype(np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(places), pa.array(found.tolist(), pa.string()))


def _resume(path: Path) -> _End:
    """Read from the footer of a file where the files end."""
    try:
        footer = json.loads((parquet.read_schema(path).metadata or {})[_META])
    except (OSError, pa.ArrowInvalid, KeyError, ValueError) as error:
        raise ConfigError(f"[results] files: {path}: not a file of Tsunagi's results: {error}") from None
    if footer["version"] > VERSION:
        raise ConfigError(f"[results] files: {path}: found version {footer['version']}, expected at most {VERSION}")
    last = {(row[0], row[1], row[2], row[3]): LastResult(row[4], row[5]) for row in footer["last"]}
    return _End(footer["next"], LogMark(*footer.get("mark", NO_MARK)), last, footer.get("begun", 0))
