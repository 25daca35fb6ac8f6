"""A history in shares that are summed apart: which rows and steps each has, and what it makes of them.

A share has the steps that end at or after its first row and before the next share's. The rows that their windows, held
readings and lags reach back to are read as well, from the pieces before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.fit import Columns
from tsunagi.recovery.history import HistoryFiles, Piece
from tsunagi.recovery.sums import Sums, Units
from tsunagi.recovery.windows import Block, Cut, Windows
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.settings import Steps


@dataclass(frozen=True, slots=True)
class Share:
    """Neighbouring pieces and steps.

    Attributes:
        before: pieces whose last rows reach into its steps; own: its own.
        first, end: its steps, end exclusive.
    """

    before: tuple[Piece, ...]
    own: tuple[Piece, ...]
    first: int
    end: int


class Counted(NamedTuple):
    """How many rows there are, and how many readings of them were implausible."""

    rows: int
    outside: int


@dataclass(frozen=True, slots=True)
class Work:
    """A history and how it is cut.

    Attributes:
        files, columns: what there is.
        steps: window, slide, aggregate.
        cut: of `steps` for this history.
        first, end: all its steps, end exclusive.
        newest: time of the last row, microseconds, or its number.
    """

    files: HistoryFiles
    columns: Columns
    steps: Steps
    cut: Cut
    first: int
    end: int
    newest: int

    @classmethod
    def of(cls, files: HistoryFiles, columns: Columns, steps: Steps) -> Work:
        """Look at the ends of a history."""
        tail, start = files.tail(), files.pieces[0].first
        cut = Cut.of(steps, tail if files.timed else None, start)
        newest = int(tail[-1])
        return cls(files, columns, steps, cut, cut.first_step(start), cut.step_of(newest) + 1, newest)

    @property
    def reach(self) -> int:
        """Return for how long a reading holds at most, in the cut's units."""
        ages = self.columns.max_age[np.isfinite(self.columns.max_age)]
        return int(np.ceil(ages.max() * self.cut.interval)) if len(ages) else 0

    def shares(self, wanted: int, lag: int) -> list[Share]:
        """Split it, into `wanted` shares at most, of about as many pieces each."""
        pieces = self.files.pieces
        places = np.unique(np.linspace(0, len(pieces), min(wanted, len(pieces)) + 1).astype(np.intp)).tolist()
        found = []
        for begin, after in pairwise(places):
            first = self.first if begin == 0 else max(self.first, self.cut.step_after(pieces[begin].first))
            end = self.end if after == len(pieces) else self.cut.step_after(pieces[after].first)
            found.append(Share(self._before(begin, first - lag), pieces[begin:after], first, end))
        return found

    def last_steps(self, most: int) -> Share:
        """Return the share of the last steps alone."""
        first = max(self.first, self.end - most)
        own = self._before(len(self.files.pieces), first)
        return Share(own[:-1], own[-1:], first, self.end)

    def _before(self, place: int, step: int) -> tuple[Piece, ...]:
        """Return the pieces before a place whose rows a step, or one after it, needs."""
        needed = self.cut.begin(step, self.reach)
        begin = place
        while begin > 0 and (begin == len(self.files.pieces) or self.files.pieces[begin].first > needed):
            begin -= 1
        return self.files.pieces[begin:place]

    def blocks(self, share: Share, lag: int, counted: list[Counted]) -> Iterator[Block]:
        """Compute a share's steps, and the `lag` steps before them; empty ones may be left out.

        Args:
            counted: what its own pieces have is appended.

        Raises:
            ModelError: rows are not in order of time, or cannot be read.
        """
        start = max(self.first, share.first - lag)
        needed, newest, found = self.cut.begin(start, self.reach), None, Counted(0, 0)
        made = Windows(self.cut, self.steps.aggregate, self.columns.max_age * self.cut.interval, start)
        for number, piece in enumerate((*share.before, *share.own)):
            for rows in self.files.read(piece):
                if newest is not None and rows.times[0] <= newest:
                    raise ModelError(f"{piece.path}, {rows.where}: its time is not later than that of the row before")
                newest = int(rows.times[-1])
                if newest <= needed and number < len(share.before):
                    continue
                values, implausible = self.columns.plausible(rows.values)
                if number >= len(share.before):
                    found = Counted(found.rows + len(values), found.outside + implausible)
                late = int(np.searchsorted(rows.times, needed, side="right"))
                if late < len(rows.times):
                    yield from made.add(rows.times[late:], values[late:])
        nothing = np.empty((0, len(self.files.names)))
        yield from made.add(np.empty(0, dtype=np.int64), nothing, share.end - 1)
        counted.append(found)


def whole_steps(work: Work, share: Share) -> Floats:
    """Return a share's steps, float64[steps, n]."""
    result = np.full((max(0, share.end - share.first), len(work.files.names)), np.nan)
    for block in work.blocks(share, 0, []):
        begin = block.step - share.first
        result[begin : begin + len(block.values)] = block.values
    return result


def summed(
    work: Work, share: Share, keep: npt.NDArray[np.intp], lags: Sequence[int], units: Units
) -> tuple[dict[int, Sums], Counted]:
    """Sum a share.

    Args:
        keep: intp[k], the columns that the model has.
        lags, units: see `Sums`; units are of these columns.

    Returns:
        the sums by lag, and what was counted on the way.
    """
    found = {lag: Sums(len(keep), lag, units) for lag in lags}
    counted: list[Counted] = []
    for block in work.blocks(share, max(lags), counted):
        values = block.values[:, keep]
        for sums in found.values():
            sums.add(block.step, values, share.first)
    return found, counted[0]
