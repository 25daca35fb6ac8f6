"""Replays a CSV as if its sensors were reporting now: each row is handed out once the clock passes its event time.

Row `first_row` has the event time `origin_us`; without a `time` column row i follows it by (i - first_row) x interval
/ speed, with one by (t_i - t_first) / speed. With ``when_behind = "skip"`` the replay behaves like a live source: what
was reported while nobody listened is gone.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tsunagi.edge.csv_file import CsvFile, CsvRow, CsvSummary, check_csv
from tsunagi.edge.source import UNKNOWN_SENSOR, Place, Progress, Row, SourceError, Unusable

__all__ = ["CsvSource", "CsvSummary", "Timing", "check_csv"]

PAUSE_US = 5_000_000
"""A running edge held up for less catches up (a socket's buffer would have held so much); else it has been away."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How rows become event times.

    Attributes:
        interval_us: nominal time between two rows.
        speed: how many times faster than that, or than the `time` column.
        first_row: the replay begins there.
        skip: whether rows whose time is over are left out.
    """

    interval_us: int
    speed: float = 1.0
    first_row: int = 0
    skip: bool = True


class CsvSource:
    """`tsunagi.edge.source.Source` on a CSV.

    Args:
        file: just opened.
        timing: see the class.
        origin_us: event time of row `first_row`.
        now_us: the clock.
        resume: where an earlier incarnation stopped.

    Raises:
        SourceError: the file is malformed, or shorter than the place to resume at.
    """

    def __init__(
        self, file: CsvFile, timing: Timing, origin_us: int, now_us: int, resume: Progress | None = None
    ) -> None:
        self.refill: list[Row] = []
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
        self._recent: deque[tuple[int, Place]] = deque()  # rows handed out, for `progress`
        self._row: CsvRow | None = None  # the next one, read ahead
        self._row_us = origin_us
        self._first_us = self._find_first()
        if resume is not None and resume.next.row > self._file.place.row:
            self._go_on(resume)
        else:
            self._advance()
        self._skip_if_over(now_us)

    def due(self, now_us: int, max_rows: int) -> list[Row]:
        """Return the rows whose event time has come."""
        if now_us - self._looked_us > PAUSE_US:
            self._skip_if_over(now_us)
        self._looked_us = now_us
        rows: list[Row] = []
        while self._row is not None and self._row_us <= now_us and len(rows) < max_rows:
            rows.append(self._hand_out(self._row))
        return rows

    def complete_until_us(self, now_us: int) -> int:
        """Return the event time up to which every row has been handed out."""
        return self._row_us if self._row is None else min(now_us, self._row_us - 1)

    def next_us(self) -> int | None:
        """Return the event time of the next row."""
        return None if self._row is None else self._row_us

    def unusable(self) -> list[Unusable]:
        """Return what was found of unknown columns since the last call: a letter for a column's first reading."""
        found, self._unusable = self._unusable, []
        return found

    def progress(self, after_us: int) -> Progress:
        """Return how far it is."""
        while self._recent and self._recent[0][0] <= after_us:
            self._recent.popleft()
        following = self._file.place if self._row is None else self._row.place
        return Progress(following, self._recent[0][1] if self._recent else following, self.observed_us)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _find_first(self) -> int:
        """Go to row `first_row` and return what its `time` column says, from which all others are counted."""
        for _ in range(self._timing.first_row):
            if not self._file.skip_row():
                break
        first = self._file.next_row()
        if first is None:
            rows, wanted = self._file.place.row, self._timing.first_row
            raise SourceError(f"{self._file.path}: found {rows} rows, expected more than first_row = {wanted}")
        self._file.seek(first.place)
        return first.time_us or 0

    def _go_on(self, resume: Progress) -> None:
        """Read again what is in open windows, and stop before what the earlier incarnation had not read."""
        self._file.seek(resume.oldest)
        self._advance()
        while self._row is not None and self._row.place.row < resume.next.row:
            self.refill.append(self._hand_out(self._row))
        rows = self._file.place.row if self._row is None else self._row.place.row
        if rows != resume.next.row:
            wanted = resume.next.row
            raise SourceError(
                f"{self._file.path}: found {rows} rows, expected the {wanted} that this edge has read before"
            )
        self.observed_us = resume.observed_us

    def _skip_if_over(self, now_us: int) -> None:
        """Leave out the rows whose time is over, as a live source would have; windows are whole again after them."""
        if not self._timing.skip:
            return
        while self._row is not None and self._row_us <= now_us:
            self.observed_us = self._row_us
            self.skipped_rows += 1
            self._recent.clear()
            self._advance()

    def _hand_out(self, row: CsvRow) -> Row:
        self._recent.append((self._row_us, row.place))
        for name, text in row.strangers:
            first = name not in self._known
            self._known.add(name)
            self._unusable.append(
                Unusable(UNKNOWN_SENSOR, name, row.place.row, "not in the table", text.encode(), letter=first)
            )
        handed = Row(row.place.row, self._row_us, row.places, row.values)
        self._advance()
        return handed

    def _advance(self) -> None:
        """Read ahead by a row; `_row_us` stays that of the last one at the end."""
        self._row = row = self._file.next_row()
        if row is None:
            self.finished = True
        elif row.time_us is None:
            elapsed_us = (row.place.row - self._timing.first_row) * self._timing.interval_us
            self._row_us = self.origin_us + round(elapsed_us / self._timing.speed)
        else:
            self._row_us = self.origin_us + round((row.time_us - self._first_us) / self._timing.speed)
