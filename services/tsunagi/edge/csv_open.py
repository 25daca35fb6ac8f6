"""Opens the file of [source] as a replay: its header is checked at once, rows are read once there is a placement."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tsunagi.edge.csv_events import CsvWithEvents
from tsunagi.edge.csv_file import CsvFile, RowFile, some
from tsunagi.edge.csv_source import CsvSource, Timing
from tsunagi.edge.csv_tuples import CsvTuples
from tsunagi.edge.dead_letters import RATE
from tsunagi.edge.position import PositionFile, shared_origin
from tsunagi.edge.source import EdgePosition, FileProgress, SourceError
from tsunagi.edge.table_file import TableFile
from tsunagi.query.form import TupleForm
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import MICROSECONDS, Settings, SourceSettings
from tsunagi.runtime.tables.block import SensorNames
from tsunagi.runtime.tables.csv_table import CsvTable
from tsunagi.runtime.tables.layout import TableError
from tsunagi.runtime.tables.parquet_table import ParquetTable


class CsvOpener:
    """The `tsunagi.edge.source.Opener` of a CSV or Parquet file.

    Args:
        form: the columns of tuples (CREATE STREAM); None = the file has readings.
        streams: the columns of events, by stream, with lock-step.

    Raises:
        SourceError: the header of a file cannot be used.
    """

    def __init__(
        self,
        settings: Settings,
        edge: str,
        table: SensorTable,
        own: tuple[Sensor, ...],
        form: TupleForm | None = None,
        streams: Mapping[str, TupleForm] = MappingProxyType({}),
    ) -> None:
        self._settings = settings
        self._position_path = PositionFile(settings.state, edge).path
        path, repeat = settings.source.path, settings.source.repeat
        self._file: RowFile
        if form is not None:
            if settings.source.kind == "parquet":
                raise SourceError("[source] kind: found parquet, expected csv, the only file of tuples (CREATE STREAM)")
            self._file = CsvTuples(path, table, own, form, repeat=repeat)
        else:
            self._file = _open_readings(settings.source, table, own)
        try:
            self._file.next_row()  # an unreadable row or a wrong unit of time ends the edge before it joins
        except SourceError:
            self._file.close()
            raise
        self._file.seek(self._file.first)
        self._events: dict[str, CsvTuples] = {}
        try:
            for stream, file in settings.source.events.items():
                self._events[stream] = self._open_events(stream, file, streams, table, own)
        except SourceError:
            self.close()
            raise
        self.name = settings.source.path.name
        self.digest = self._file.header_sha256
        if self._events:
            headers = [self.digest, *(file.header_sha256 for file in self._events.values())]
            self.digest = hashlib.sha256("".join(headers).encode()).hexdigest()
        self.letters_per_s: float | None = RATE
        self.lacking = ""
        self._opened: CsvSource | CsvWithEvents | None = None

    def _open_events(
        self,
        stream: str,
        path: Path,
        streams: Mapping[str, TupleForm],
        table: SensorTable,
        own: tuple[Sensor, ...],
    ) -> CsvTuples:
        if stream not in streams:
            known = ", ".join(streams) or "none"
            raise SourceError(f"[source] events: found {stream!r}, expected a stream that is created: {known}")
        if self._settings.source.repeat:
            raise SourceError("[source] events: found repeat = true, expected false: files of events have no lap")
        file = CsvTuples(path, table, own, streams[stream])
        if not file.has_time:
            file.close()
            raise SourceError(f"{path}: found no first column 'time', expected one: events have times of their own")
        return file

    def open(self, now_us: int, position: EdgePosition | None, incarnation: int) -> CsvSource | CsvWithEvents:
        source, steps = self._settings.source, self._settings.steps
        origin_us = source.origin_us or shared_origin(self._settings.state, now_us, steps.slide_us)
        if position is not None and position.origin_us != origin_us:
            raise SourceError(
                f"{self._position_path}: it belongs to a replay that began at {position.origin_us}, found "
                f"{origin_us}; delete the file to begin at the source's first row"
            )
        timing = Timing(
            interval_us=round(steps.interval_s * MICROSECONDS),
            speed=source.speed,
            first_row=source.first_row,
            skip=source.when_behind == "skip",
        )
        progress = None if position is None else position.progress
        resume = progress if isinstance(progress, FileProgress) else None
        self._opened = readings = CsvSource(self._file, timing, origin_us, now_us, resume)
        if not self._events:
            return readings
        kept = {} if resume is None else resume.events
        events = {
            stream: CsvSource(
                file, timing, origin_us, now_us, kept.get(stream), stream=stream, first_us=readings.first_us
            )
            for stream, file in self._events.items()
        }
        self._opened = CsvWithEvents(readings, events)
        return self._opened

    def change(self, table: SensorTable, own: tuple[Sensor, ...], now_us: int) -> int:
        if not own:  # the file goes on as it did, so that it is at the right row when there are sensors again
            return 0
        lacking = self._file.change(table, own)
        for file in self._events.values():
            file.change(table, own)
        self.lacking = f"{self._file.path}: no column for {some(item.name for item in lacking)}" if lacking else ""
        if self._opened is None:
            self._file.seek(self._file.first)
            return 0
        return self._opened.change()

    def close(self) -> None:
        for file in (self._file, *self._events.values()):
            file.close()


def _open_readings(source: SourceSettings, table: SensorTable, own: tuple[Sensor, ...]) -> RowFile:
    """Open a file of readings, wide or long."""
    lacking = bool(source.events)
    kind = ParquetTable if source.kind == "parquet" else CsvTable
    try:
        found = kind(source.path, source.table, SensorNames())
    except TableError as error:
        raise SourceError(str(error)) from None
    if isinstance(found, CsvTable) and not found.layout.long:
        return CsvFile(source.path, table, own, repeat=source.repeat, lacking=lacking, written=source.table)
    return TableFile(found, table, own, repeat=source.repeat, lacking=lacking)
