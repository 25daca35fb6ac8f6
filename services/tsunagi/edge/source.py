"""Where an edge's readings come from, as the edge sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tsunagi.edge.window import Places
from tsunagi.query.form import Cells
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.marks import NO_MARK, LogMark
from tsunagi.runtime.sensors import Sensor, SensorTable

UNKNOWN_SENSOR = "unknown-sensor"
"""Reason of a dead letter: the sensors table has no sensor of this name."""
MISSING = "missing"
"""Reason of a count: the row of a file says that there is no value (`[source.table] missing`, an empty cell)."""
ESTIMATED = "estimated"
"""Reason of a count: a row of a file of results was not measured."""


class SourceError(ValueError):
    """The source cannot be used. The message names file, line and column, what was found and what was expected."""


class Origin(NamedTuple):
    """Where a live reading came from.

    Attributes:
        name: a name that no other reading of this edge has, such as "kafka/topic/0/17".
        place: where it came from, for people: the MQTT topic, the client's address.
        partition, offset: place in a Kafka topic; for other sources 0 and a serial number of the edge's own.
        payload: the message as it came, cut to 64 KiB.
    """

    name: str
    place: str
    partition: int
    offset: int
    payload: bytes


class SourceRow(NamedTuple):
    """Readings of one event time.

    Attributes:
        number: number of the row in the source, from 0.
        time_us: event time, in microseconds.
        places: intp[m], the sensors, each by its place among the edge's sensors.
        values: float64[m], their readings; NaN only where the source says so.
        origin: where a live reading came from; None for a row of a file.
        again: whether an earlier incarnation has read the row and has reported what was wrong with it.
        cells: the columns of a tuple or an event (CREATE STREAM), whose sensor is the only one; None = the row has
            readings.
        stream: the stream of an event, with lock-step; "" = the row is none.
    """

    number: int
    time_us: int
    places: Places
    values: Floats
    origin: Origin | None = None
    again: bool = False
    cells: Cells | None = None
    stream: str = ""


@dataclass(frozen=True, slots=True)
class Unusable:
    """One reading that cannot be used, or several.

    Attributes:
        number: number of the row in the source.
        detail: what was found and what was expected.
        payload: the reading as it was found.
        origin: where a live reading came from; None for a cell of a file.
        count: how many readings this object stands for.
        letter: whether a dead letter is written; if not, the readings are only counted.
    """

    reason: str
    sensor: str
    number: int
    detail: str
    payload: bytes
    origin: Origin | None = None
    count: int = 1
    letter: bool = True


@dataclass(frozen=True, slots=True)
class FilePosition:
    """Where a row begins in a file.

    Attributes:
        row: number of the row, from 0, without the header.
        line: number of the line, from 1, as an editor counts.
        offset: in bytes, from the beginning of the file.
    """

    row: int
    line: int
    offset: int


@dataclass(frozen=True, slots=True)
class FileProgress:
    """How far a file has been read, kept for the next incarnation.

    Attributes:
        next: place of the row to read next.
        oldest: place of the oldest row that windows may contain which are still open.
        observed_us: event time after which no row up to `next` was missed, in microseconds.
        events: the same of the file of each stream of events, if there are any.
    """

    next: FilePosition
    oldest: FilePosition
    observed_us: int
    events: Mapping[str, FileProgress] = field(default_factory=dict)


class Offsets(NamedTuple):
    """How far a partition of a Kafka topic has been read; `next` and `oldest` are offsets, as in `FileProgress`.

    Attributes:
        mark: identifies the topic as it was before `next`.
    """

    next: int
    oldest: int
    mark: LogMark = NO_MARK


@dataclass(frozen=True, slots=True)
class LiveProgress:
    """How far a live source has been read, kept for the next incarnation.

    Attributes:
        partitions: the offsets of each partition of a Kafka topic; empty for other sources.
        observed_us: event time from which on this edge has been listening, in microseconds.
    """

    partitions: dict[int, Offsets]
    observed_us: int


@dataclass(frozen=True, slots=True)
class EdgePosition:
    """How far an edge has come.

    Attributes:
        source, header_sha256: name of the source and digest of a CSV's header; a position means nothing in another
            source.
        origin_us: event time of a replay's first row, in microseconds; 0 for a live source.
        step: the last step that was published.
        incarnation: the incarnation that published it; the next one must be greater, whatever the clock says.
    """

    edge: str
    source: str
    header_sha256: str
    origin_us: int
    step: int
    incarnation: int
    progress: FileProgress | LiveProgress


class Source(Protocol):
    """Readings, each handed out once its time has come. All times are event times in microseconds.

    Attributes:
        origin_us: event time of a replay's first row, from which all others follow; 0 for a live source.
        refill: rows that an earlier incarnation had read and whose windows were still open; the edge adds them first.
        observed_us: time after which no reading was missed; it grows with every skip.
        send_after_us: steps that end at this time or before are not sent, because they are over.
        delay_us: time from the end of a step to its closing.
        finished: whether every row has been handed out or skipped, and no step remains that waits for one.
        skipped_rows: how many rows were not sent because their time had passed before they could be read.
        trouble: why no readings come, for people; empty while they can.
        fault: how the source contradicted what had been kept about it; empty while it has not.
    """

    origin_us: int
    refill: list[SourceRow]
    send_after_us: int
    delay_us: int
    fault: str

    @property
    def observed_us(self) -> int: ...

    @property
    def skipped_rows(self) -> int: ...

    @property
    def finished(self) -> bool: ...

    @property
    def trouble(self) -> str: ...

    @property
    def waiting(self) -> int:
        """How many readings have arrived and have not been handed out."""

    def due(self, now_us: int, max_rows: int) -> list[SourceRow]:
        """Return the rows whose event time has come; fewer than `max_rows` means that these are all.

        Raises:
            SourceError: the source is malformed from here on.
        """

    def complete_until_us(self, now_us: int) -> int:
        """Return the event time up to which every reading has been handed out."""

    def next_us(self) -> int | None:
        """Return the event time of the next row; None if it is not known, or if there is none."""

    def unusable(self) -> list[Unusable]:
        """Return the readings found unusable since the last call."""

    def progress(self, after_us: int) -> FileProgress | LiveProgress:
        """Return how far the source has been read; open windows contain only readings later than `after_us`."""

    def close(self) -> None:
        """Release the source."""


class Opener(Protocol):
    """A source whose settings have been checked and that is not read yet: an edge needs a placement first.

    Attributes:
        name, digest: identify the source, since a position means nothing in another one. Without a digest the source is
            live, and a position in another source is ignored.
        letters_per_s: most dead letters a second; None means no limit.
        lacking: sensors of this edge that the source cannot have, for people; "" = there are none.
    """

    name: str
    digest: str
    letters_per_s: float | None
    lacking: str

    def open(self, now_us: int, position: EdgePosition | None, incarnation: int) -> Source:
        """Begin to read, where `position` says or at the beginning.

        Raises:
            SourceError: the source cannot be used, or does not fit the position.
        """

    def change(self, table: SensorTable, own: tuple[Sensor, ...], now_us: int) -> int:
        """Read for another sensors table from now on; a source that is open goes on where it is.

        Returns:
            The event time in microseconds after which no reading is missed of a sensor that is new to the edge; 0 if
            the source is not open yet.
        """

    def close(self) -> None:
        """Release the source, if it has not been opened."""
