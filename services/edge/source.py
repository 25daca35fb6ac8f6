"""Where an edge's readings come from, as the edge sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from services.edge.window import Places
from services.runtime.columns import Floats


class SourceError(ValueError):
    """The source cannot be used; the message names file, line, column, what was found and what was expected."""


class Row(NamedTuple):
    """Readings of one event time.

    Attributes:
        number: of the row in the source, 0-based.
        time_us: event time.
        places: intp[m], the sensors' places among the edge's.
        values: float64[m]; not a number only where the source says so.
    """

    number: int
    time_us: int
    places: Places
    values: Floats


@dataclass(frozen=True, slots=True)
class Stranger:
    """The first reading of a column that the sensors table does not have."""

    name: str
    row: int
    text: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row begins in a file.

    Attributes:
        row: 0-based, without the header.
        line: 1-based, as an editor counts.
        offset: in bytes.
    """

    row: int
    line: int
    offset: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a source has been read, for the next incarnation.

    Attributes:
        next: the row to read next.
        oldest: the oldest row that the windows open then may contain.
        observed_us: the event time after which nothing was missed up to `next`.
    """

    next: Place
    oldest: Place
    observed_us: int


class Source(Protocol):
    """Readings in the order of their event times, each handed out once its time has come.

    Attributes:
        origin_us: event time of the first row, which fixes all others.
        refill: rows that an earlier incarnation had read and whose windows were still open; to be added first.
        observed_us: the event time after which nothing was missed; later after every skip.
        finished: every row has been handed out or skipped.
        skipped_rows: rows whose time was over before they could be read; their readings are not sent.
        stranger_readings: readings of columns that the sensors table does not have.
    """

    origin_us: int
    refill: list[Row]
    observed_us: int
    finished: bool
    skipped_rows: int
    stranger_readings: int

    def due(self, now_us: int, max_rows: int) -> list[Row]:
        """Return the rows whose event time has come.

        Raises:
            SourceError: the source is malformed from here on.
        """

    def complete_until_us(self, now_us: int) -> int:
        """Return the event time up to which every reading has been handed out."""

    def next_us(self) -> int | None:
        """Return the event time of the next row, None = there is none."""

    def strangers(self) -> list[Stranger]:
        """Return what has been found of unknown columns since the last call, one for each column."""

    def progress(self, after_us: int) -> Progress:
        """Return how far it is; `after_us`: open windows contain only later rows."""

    def close(self) -> None:
        """Let go of the source."""
