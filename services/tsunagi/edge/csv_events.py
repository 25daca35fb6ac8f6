"""A CSV of readings with CSVs of events beside it, replayed together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tsunagi.edge.csv_source import CsvSource
from tsunagi.edge.source import FileProgress, SourceRow, Unusable


class CsvWithEvents:
    """A `tsunagi.edge.source.Source` that replays a CSV of readings, and one of each stream of events.

    Attributes: as in the protocol. Windows are whole from where the readings are.
    """

    def __init__(self, readings: CsvSource, events: Mapping[str, CsvSource]) -> None:
        self._readings = readings
        self._events = events
        self._all = [readings, *events.values()]
        self.origin_us = readings.origin_us
        self.refill: list[SourceRow] = [row for source in self._all for row in source.refill]
        self.delay_us = 0
        self.send_after_us = 0
        self.trouble = ""
        self.fault = ""
        self.waiting = 0

    @property
    def observed_us(self) -> int:
        return self._readings.observed_us

    @property
    def finished(self) -> bool:
        return all(source.finished for source in self._all)

    @property
    def skipped_rows(self) -> int:
        return sum(source.skipped_rows for source in self._all)

    def due(self, now_us: int, max_rows: int) -> list[SourceRow]:
        rows: list[SourceRow] = []
        for source in self._all:
            rows += source.due(now_us, max_rows - len(rows))
        return rows

    def complete_until_us(self, now_us: int) -> int:
        # A file that has ended holds nobody up. When all have, the last row is the end.
        going_on = [source.complete_until_us(now_us) for source in self._all if not source.finished]
        return min(going_on) if going_on else max(source.complete_until_us(now_us) for source in self._all)

    def next_us(self) -> int | None:
        return min((time for source in self._all if (time := source.next_us()) is not None), default=None)

    def unusable(self) -> list[Unusable]:
        return [item for source in self._all for item in source.unusable()]

    def progress(self, after_us: int) -> FileProgress:
        events = {stream: source.progress(after_us) for stream, source in self._events.items()}
        return replace(self._readings.progress(after_us), events=events)

    def change(self) -> int:
        """Read the next rows again, after the files have got other sensors; return the time of that of the readings."""
        for source in self._events.values():
            source.change()
        return self._readings.change()

    def close(self) -> None:
        for source in self._all:
            source.close()
