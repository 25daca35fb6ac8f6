"""A history in shares that are summed separately: the rows and steps of each share, and its sums.

A share has the steps that end at or after its first row and before the first row of the next share. Rows that its
windows, held readings and lags need from before are read too, from the pieces before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.fit import HistoryColumns
from tsunagi.recovery.history import HistoryFiles, HistoryPiece
from tsunagi.recovery.sums import HistorySums, Units
from tsunagi.recovery.windows import Cut, StepBlock, WindowAggregator
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.settings import StepsSettings


@dataclass(frozen=True, slots=True)
class HistoryShare:
    """Neighbouring pieces of a history, and the steps that belong to them.

    Attributes:
        before: pieces whose last rows its steps need; own: its own pieces.
        first, end: its steps; end is exclusive.
    """

    before: tuple[HistoryPiece, ...]
    own: tuple[HistoryPiece, ...]
    first: int
    end: int


class RowCounts(NamedTuple):
    """How many rows were read, and how many of their readings were implausible."""

    rows: int
    outside: int


@dataclass(frozen=True, slots=True)
class HistorySteps:
    """A history, and how it is cut into steps.

    Attributes:
        files, columns: the history, and what the sensors table says about its columns.
        steps: window, slide and aggregate.
        cut: how rows become steps.
        first, end: all its steps; end is exclusive.
        newest: time of the last row in microseconds, or its number.
    """

    files: HistoryFiles
    columns: HistoryColumns
    steps: StepsSettings
    cut: Cut
    first: int
    end: int
    newest: int

    @classmethod
    def of(cls, files: HistoryFiles, columns: HistoryColumns, steps: StepsSettings) -> HistorySteps:
        """Look at the first and the last rows of a history."""
        tail, start = files.tail(), files.pieces[0].first
        cut = Cut.of(steps, tail if files.timed else None, start)
        newest = int(tail[-1])
        return cls(files, columns, steps, cut, cut.first_step(start), cut.step_of(newest) + 1, newest)

    @property
    def reach(self) -> int:
        """Return the longest time for which a reading holds, in the units of the cut."""
        ages = self.columns.max_age[np.isfinite(self.columns.max_age)]
        return int(np.ceil(ages.max() * self.cut.interval)) if len(ages) else 0

    def shares(self, wanted: int, lag: int) -> list[HistoryShare]:
        """Split the history into at most `wanted` shares with about the same number of pieces each."""
        pieces = self.files.pieces
        places = np.unique(np.linspace(0, len(pieces), min(wanted, len(pieces)) + 1).astype(np.intp)).tolist()
        found = []
        for begin, after in pairwise(places):
            first = self.first if begin == 0 else max(self.first, self.cut.step_after(pieces[begin].first))
            end = self.end if after == len(pieces) else self.cut.step_after(pieces[after].first)
            found.append(HistoryShare(self._before(begin, first - lag), pieces[begin:after], first, end))
        return found

    def last_steps(self, most: int) -> HistoryShare:
        """Return a share of the last steps alone, at most `most` of them."""
        first = max(self.first, self.end - most)
        own = self._before(len(self.files.pieces), first)
        return HistoryShare(own[:-1], own[-1:], first, self.end)

    def _before(self, place: int, step: int) -> tuple[HistoryPiece, ...]:
        """Return the pieces before a place whose rows are needed by a step or one after it."""
        needed = self.cut.begin(step, self.reach)
        begin = place
        while begin > 0 and (begin == len(self.files.pieces) or self.files.pieces[begin].first > needed):
            begin -= 1
        return self.files.pieces[begin:place]

    def blocks(self, share: HistoryShare, lag: int, counted: list[RowCounts]) -> Iterator[StepBlock]:
        """Yield the steps of a share, and the `lag` steps before them; empty steps may be left out.

        Args:
            counted: the numbers of rows and implausible readings in its own pieces are appended.

        Raises:
            ModelError: rows are not in the order of time, or cannot be read.
        """
        start = max(self.first, share.first - lag)
        needed, newest, found = self.cut.begin(start, self.reach), None, RowCounts(0, 0)
        made = WindowAggregator(self.cut, self.steps.aggregate, self.columns.max_age * self.cut.interval, start)
        for number, piece in enumerate((*share.before, *share.own)):
            for rows in self.files.read(piece):
                if newest is not None and rows.times[0] <= newest:
                    raise ModelError(f"{piece.path}, {rows.where}: its time is not later than that of the row before")
                newest = int(rows.times[-1])
                if newest <= needed and number < len(share.before):
                    continue
                values, implausible = self.columns.plausible(rows.values)
                if number >= len(share.before):
                    found = RowCounts(found.rows + len(values), found.outside + implausible)
                late = int(np.searchsorted(rows.times, needed, side="right"))
                if late < len(rows.times):
                    yield from made.add(rows.times[late:], values[late:])
        nothing = np.empty((0, len(self.files.names)))
        yield from made.add(np.empty(0, dtype=np.int64), nothing, share.end - 1)
        counted.append(found)


def whole_steps(work: HistorySteps, share: HistoryShare) -> Floats:
    """Return the steps of a share, float64[steps, n]."""
    result = np.full((max(0, share.end - share.first), len(work.files.names)), np.nan)
    for block in work.blocks(share, 0, []):
        begin = block.step - share.first
        result[begin : begin + len(block.values)] = block.values
    return result


def summed(
    work: HistorySteps, share: HistoryShare, keep: npt.NDArray[np.intp], lags: Sequence[int], units: Units
) -> tuple[dict[int, HistorySums], RowCounts]:
    """Return the sums of a share.

    Args:
        keep: intp[k], the columns that the model has.
        lags, units: as in `HistorySums`; units are of these columns.

    Returns:
        the sums by lag, and the counts of rows and implausible readings.
    """
    found = {lag: HistorySums(len(keep), lag, units) for lag in lags}
    counted: list[RowCounts] = []
    for block in work.blocks(share, max(lags), counted):
        values = block.values[:, keep]
        for sums in found.values():
            sums.add(block.step, values, share.first)
    return found, counted[0]
