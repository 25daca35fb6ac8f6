"""Replays a file as if its sensors were reporting now: each row is handed out once the clock passes its event time.

Row `first_row` has the event time `origin_us`. Without a `time` column, row i follows it after (i - first_row) x
interval / speed; with one, after (t_i - t_first) / speed. With ``when_behind = "skip"`` the replay behaves like a live
source: rows whose time passed while the edge was down are never sent.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tsunagi.edge.csv_file import CsvRow, CsvSummary, RowFile, check_csv
from tsunagi.edge.source import (
    ESTIMATED,
    MISSING,
    UNKNOWN_SENSOR,
    FilePosition,
    FileProgress,
    SourceError,
    SourceRow,
    Unusable,
)

__all__ = ["CsvSource", "CsvSummary", "Timing", "check_csv"]

PAUSE_US = 5_000_000
"""Longest time, in microseconds, for which a running edge may be held up and still send the rows of that time: a
socket's buffer would have kept them. After a longer time the edge counts as having been away, and those rows are
skipped."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How rows of a file become event times.

    Attributes:
        interval_us: nominal time between two rows, in microseconds.
        speed: how many times faster than `interval_us`, or than the `time` column, the rows are replayed.
        first_row: number of the row at which the replay begins.
        skip: whether rows are left out whose event time had passed before they could be read.
    """

    interval_us: int
    speed: float = 1.0
    first_row: int = 0
    skip: bool = True


class CsvSource:
    """A `tsunagi.edge.source.Source` that replays a file.

    Attributes:
        first_us: the time in the `time` column of the row `first_row`; 0 = there is no such column.

    Args:
        file: the file, at its first row.
        timing: how rows become event times.
        origin_us: event time of the row `first_row`, in microseconds.
        now_us: what the clock says now, in microseconds.
        resume: how far an earlier incarnation had read; None means from the beginning.
        stream: the stream of events that the file has; "" = it has readings.
        first_us: of a file of events: the time in its `time` column that is the event time `origin_us`.

    Raises:
        SourceError: the file is malformed, or shorter than the place to resume at.
    """

    def __init__(
        self,
        file: RowFile,
        timing: Timing,
        origin_us: int,
        now_us: int,
        resume: FileProgress | None = None,
        *,
        stream: str = "",
        first_us: int = 0,
    ) -> None:
        self.refill: list[SourceRow] = []
        self.observed_us = origin_us - 1
        self.finished = False
        self.skipped_rows = 0
        self.send_after_us = 0
        self.delay_us = 0
        self.trouble = ""
        self.fault = ""
        self.waiting = 0
        self._file = file
        self._timing = timing
        self.origin_us = origin_us
        self._looked_us = now_us
        self._unusable: list[Unusable] = []
        self._known: set[str] = set()
        # (event time, place) of rows handed out that open windows may contain
        self._recent: deque[tuple[int, FilePosition]] = deque()
        self._row: CsvRow | None = None  # the next row, which has been read already
        self._row_us = origin_us
        self._stream = stream
        self.first_us = first_us if stream else self._find_first()
        if resume is not None and resume.next.row > self._file.place.row:
            self._go_on(resume)
        else:
            self._advance()
        self._skip_if_over(now_us)

    def due(self, now_us: int, max_rows: int) -> list[SourceRow]:
        """Return the rows whose event time has come, `max_rows` at most."""
        if now_us - self._looked_us > PAUSE_US:
            self._skip_if_over(now_us)
        self._looked_us = now_us
        rows: list[SourceRow] = []
        while self._row is not None and self._row_us <= now_us and len(rows) < max_rows:
            rows.append(self._hand_out(self._row))
        return rows

    def complete_until_us(self, now_us: int) -> int:
        """Return the event time, in microseconds, up to which every row has been handed out."""
        return self._row_us if self._row is None else min(now_us, self._row_us - 1)

    def next_us(self) -> int | None:
        """Return the event time of the next row in microseconds; None after the last row."""
        return None if self._row is None else self._row_us

    def unusable(self) -> list[Unusable]:
        """Return the readings that cannot be used, found since the last call.

        Of a sensor that the table does not have only the first reading gets a letter.
        """
        found, self._unusable = self._unusable, []
        return found

    def progress(self, after_us: int) -> FileProgress:
        """Return how far the file has been read; open windows contain only rows later than `after_us`."""
        while self._recent and self._recent[0][0] <= after_us:
            self._recent.popleft()
        following = self._file.place if self._row is None else self._row.place
        return FileProgress(following, self._recent[0][1] if self._recent else following, self.observed_us)

    def change(self) -> int:
        """Read the next row again, after the file has got other sensors; return its event time in microseconds."""
        next_us = self._row_us
        if self._row is not None:
            self._file.seek(self._row.place)
            self._advance()
        return next_us

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _find_first(self) -> int:
        """Go to the row `first_row` and return the time in its `time` column, from which all others are counted."""
        self._file.skip(self._timing.first_row)
        first = self._file.next_row()
        if first is None:
            rows, wanted = self._file.place.row, self._timing.first_row
            raise SourceError(f"{self._file.path}: found {rows} rows, expected more than first_row = {wanted}")
        self._file.seek(first.place)
        return first.time_us or 0

    def _go_on(self, resume: FileProgress) -> None:
        """Read again the rows that open windows contain, and stop at the first row nobody has read yet."""
        self._file.seek(resume.oldest)
        self._advance()
        while self._row is not None and self._row.place.row < resume.next.row:
            self.refill.append(self._hand_out(self._row))
        rows = self._file.place.row if self._row is None else self._row.place.row
        if rows < resume.next.row:  # in a long file the next row of other sensors may come later
            wanted = resume.next.row
            raise SourceError(
                f"{self._file.path}: found {rows} rows, expected the {wanted} that this edge has read before"
            )
        self.observed_us = resume.observed_us

    def _skip_if_over(self, now_us: int) -> None:
        """Leave out the rows whose time has passed, as a live source would; the next window is whole after them."""
        if not self._timing.skip:
            return
        while self._row is not None and self._row_us <= now_us:
            self.observed_us = self._row_us
            self.skipped_rows += 1
            self._recent.clear()
            self._advance()

    def _hand_out(self, row: CsvRow) -> SourceRow:
        self._recent.append((self._row_us, row.place))
        for name, text in row.strangers:
            first = name not in self._known
            self._known.add(name)
            self._unusable.append(
                Unusable(UNKNOWN_SENSOR, name, row.place.row, "not in the table", text.encode(), letter=first)
            )
        for reason, count in ((MISSING, row.missing), (ESTIMATED, row.estimated)):
            if count:
                self._unusable.append(Unusable(reason, "", row.place.row, "", b"", count=count, letter=False))
        handed = SourceRow(row.place.row, self._row_us, row.places, row.values, cells=row.cells, stream=self._stream)
        self._advance()
        return handed

    def _advance(self) -> None:
        """Read one row ahead. At the end of the file `_row_us` stays the event time of the last row."""
        self._row = row = self._file.next_row()
        if row is None:
            self.finished = True
        elif row.time_us is None:
            elapsed_us = (row.place.row - self._timing.first_row) * self._timing.interval_us
            self._row_us = self.origin_us + round(elapsed_us / self._timing.speed)
        else:
            self._row_us = self.origin_us + round((row.time_us - self.first_us) / self._timing.speed)
