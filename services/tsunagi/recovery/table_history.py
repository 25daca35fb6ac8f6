"""Reads the readings of long tables as a history: their rows may have any order, and need not fit into memory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.fit import IN_MEMORY_BYTES, HistoryColumns
from tsunagi.recovery.history_piece import refused
from tsunagi.recovery.panes import PaneCollector
from tsunagi.recovery.progress import EVERY_S, Tell, silent
from tsunagi.recovery.step_history import StepHistory
from tsunagi.recovery.windows import Cut
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import StepsSettings, TableSettings
from tsunagi.runtime.tables.block import Flags, Ints, ReadingBlock
from tsunagi.runtime.tables.csv_table import CsvTable
from tsunagi.runtime.tables.files import list_tables, open_table, open_tables
from tsunagi.runtime.tables.parquet_table import ParquetTable

_TIMES = 100
"""The interval of the readings is found from this many different times, if rows are in the order of time."""
_MOST_TIMES = 5_000_000
"""Most times that are looked at otherwise: 40 MB."""
_MOSTLY = 0.9
"""Rows are in the order of time if this share of them is."""


def has_long(path: Path, form: TableSettings) -> bool:
    """Return whether a file, or one of a folder, is a long table.

    Raises:
        ModelError: a file cannot be used.
    """
    with refused():
        return any(open_table(file, form).layout.long for file in list_tables(path))


def read_tables(
    path: Path,
    table: SensorTable,
    steps: StepsSettings,
    form: TableSettings,
    rows: float = 1.0,
    *,
    most_bytes: int = IN_MEMORY_BYTES,
    tell: Tell = silent,
) -> StepHistory:
    """Return the readings of a file, or of all files of a folder, aggregated over the windows of an edge.

    Rows of results (`[results] files`) are values of steps already. Those that were measured are taken as they are.

    Args:
        table: the sensors; each sensor of the files must be among them.
        rows: the share of the steps that is returned, from the first, in (0, 1].
        most_bytes: most bytes that the readings of steps take; older ones are left out.
        tell: called every few seconds with how many rows have been read, and at the end with what was left out.

    Raises:
        ModelError: the files cannot be used; the message names file, line or row, column, found and expected.
    """
    with refused():
        tables, names = open_tables(path, form)
        results = [file.layout.quality >= 0 for file in tables]
        for file, result in zip(tables, results, strict=True):
            if file.layout.time < 0:
                raise ModelError(f"{file.path}: found no column of times, expected one beside long tables")
            if result != results[0]:
                raise ModelError(f"{file.path}: found results and other tables in one folder, expected either")
        counted = _Counted(tell)
        columns = HistoryColumns.named([sensor.key for sensor in table.sensors], str(path), table, steps)
        if results[0]:  # a value stands for its step, whose time is the end of its window
            cut = Cut(steps.slide_us, steps.slide_us, steps.slide_us, 0, numbered=True)
            max_age_us = np.full(len(table), np.nan)
        else:
            cut = _cut_of(_times_of(tables, counted), steps)
            max_age_us = columns.max_age * cut.interval
        collector = PaneCollector(cut, steps.aggregate, max_age_us, most_bytes)
        # Rows of before a sensor was renamed have its earlier name.
        place_of = {name: sensor.id for sensor in table.sensors for name in (sensor.key, sensor.name)}
        places = np.empty(0, dtype=np.int64)
        for block in _blocks(tables, counted):
            if len(places) < len(names.names):
                new = names.names[len(places) :]
                if unknown := [name for name in new if name not in place_of]:
                    raise ModelError(f"{path}: sensor {unknown[0]!r} is not in the sensors table")
                places = np.concatenate([places, [place_of[name] for name in new]]).astype(np.int64)
            at = places[block.sensors]
            outside = (block.values < columns.low[at]) | (block.values > columns.high[at])
            usable = ~block.missing & ~block.estimated & np.isfinite(block.values) & ~outside
            counted.add(block, outside)
            collector.add(block.times_us[usable], at[usable], block.values[usable])
    counted.end(collector.left_out)
    try:
        first, values = collector.steps(4 * most_bytes)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None
    end = round(rows * len(values))
    if not end:
        raise ModelError(f"{path}: rows: the share {rows} of {len(values)} steps is none, expected some")
    seen = np.unique(places)
    chosen = tuple(table.sensors[place].key for place in seen.tolist())
    return StepHistory(str(path), chosen, first, values[:end, seen], cut, counted.outside)


def _times_of(tables: Sequence[CsvTable | ParquetTable], counted: _Counted) -> Ints:
    """Return times that show how far apart readings are, int64[k], ascending.

    The first ones do where each sensor's rows are in the order of time. Where they are not, all times are looked at.
    """
    times = np.empty(0, dtype=np.int64)
    for block in _blocks(tables, counted):
        times = np.union1d(times, block.times_us)
        if len(times) >= (_TIMES if _ordered(block) else _MOST_TIMES):
            break
    return times


def _ordered(block: ReadingBlock) -> bool:
    """Return whether the rows of each sensor are in the order of time, or in its reverse order, with few exceptions."""
    order = np.argsort(block.sensors, kind="stable")
    apart = np.diff(block.times_us[order])[np.diff(block.sensors[order]) == 0]
    return not len(apart) or bool(max((apart >= 0).mean(), (apart <= 0).mean()) > _MOSTLY)


def _cut_of(times: Ints, steps: StepsSettings) -> Cut:
    if len(times) > 1:
        return Cut.of(steps, times)
    return Cut(round(steps.interval_s * 1e6), steps.window_us, steps.slide_us, 0, numbered=True)


def _blocks(tables: Sequence[CsvTable | ParquetTable], counted: _Counted) -> Iterator[ReadingBlock]:
    for number, file in enumerate(tables, start=1):
        for block in file.blocks():
            if len(block.rows):
                counted.reached(f"{file.path.name} ({number} of {len(tables)})", int(block.rows[-1]) + 1)
                yield block


class _Counted:
    """Counts what is left out, and tells how far reading is."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._told_s = time.monotonic()
        self._missing = self._estimated = self._not_finite = 0
        self.outside = 0

    def reached(self, file: str, row: int) -> None:
        """Tell how far reading is, if some seconds have passed."""
        if time.monotonic() - self._told_s >= EVERY_S:
            self._told_s = time.monotonic()
            self._tell(f"reading {file}: {row:,} rows")

    def add(self, block: ReadingBlock, outside: Flags) -> None:
        """Count what a block has that is not used."""
        measured = ~block.estimated
        self._estimated += int(block.estimated.sum())
        self._missing += int((block.missing & measured).sum())
        self._not_finite += int((~np.isfinite(block.values) & ~block.missing & measured).sum())
        self.outside += int((outside & measured).sum())

    def end(self, left_out: int) -> None:
        """Tell what was not used."""
        counts = {
            "without a value": self._missing,
            "estimated, or of queries": self._estimated,
            "not finite": self._not_finite,
            "outside the plausible range of their sensors": self.outside,
            "older than there is room for": left_out,
        }
        if found := ", ".join(f"{count:,} {what}" for what, count in counts.items() if count):
            self._tell(f"note: rows not used: {found}")
