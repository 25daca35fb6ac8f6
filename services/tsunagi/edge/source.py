"""Where an edge's readings come from, as the edge sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tsunagi.edge.window import Places
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.marks import NO_MARK, Mark

UNKNOWN_SENSOR = "unknown-sensor"


class SourceError(ValueError):
    """The source cannot be used; the message names file, line, column, what was found and what was expected."""


class Origin(NamedTuple):
    """Where a live reading came from.

    Attributes:
        name: what no other reading of this edge is called, as "kafka/topic/0/17".
        place: for people: the MQTT topic, the client's address.
        partition, offset: of a Kafka topic; else 0 and a serial number of the edge's own.
        payload: as it came, cut to 64 KiB.
    """

    name: str
    place: str
    partition: int
    offset: int
    payload: bytes


class Row(NamedTuple):
    """Readings of one event time.

    Attributes:
        number: of the row in the source, 0-based.
        time_us: event time.
        places: intp[m], the sensors' places among the edge's.
        values: float64[m]; not a number only where the source says so.
        origin: of a live reading.
        again: an earlier incarnation has read it, and told of what was wrong with it.
    """

    number: int
    time_us: int
    places: Places
    values: Floats
    origin: Origin | None = None
    again: bool = False


@dataclass(frozen=True, slots=True)
class Unusable:
    """A reading that cannot be used, or several.

    Attributes:
        number: of the row.
        detail: what was found and what was expected.
        payload: as it was found.
        origin: of a live reading.
        count: readings that this stands for.
        letter: False: they are counted, and no letter is written.
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
    """How far a file has been read, for the next incarnation.

    Attributes:
        next: the row to read next.
        oldest: the oldest row that the windows open then may contain.
        observed_us: the event time after which nothing was missed up to `next`.
    """

    next: Place
    oldest: Place
    observed_us: int


class Offsets(NamedTuple):
    """How far a partition of a Kafka topic has been read; as in `Progress`.

    Attributes:
        mark: the identity of the topic in front of `next`.
    """

    next: int
    oldest: int
    mark: Mark = NO_MARK


@dataclass(frozen=True, slots=True)
class LiveProgress:
    """How far a live source has been read, for the next incarnation.

    Attributes:
        partitions: of a Kafka topic; other sources have no positions.
        observed_us: the event time from which on this edge has been listening.
    """

    partitions: dict[int, Offsets]
    observed_us: int


@dataclass(frozen=True, slots=True)
class EdgePosition:
    """How far an edge is.

    Attributes:
        source: what it reads, and the digest of a CSV's header: a position means nothing in another source.
        origin_us: event time of a replay's first row; 0 = live.
        step: the last step published.
        incarnation: that published it; the next one must be greater, whatever the clock says.
    """

    edge: str
    source: str
    header_sha256: str
    origin_us: int
    step: int
    incarnation: int
    progress: Progress | LiveProgress


class Source(Protocol):
    """Readings, each handed out once its time has come.

    Attributes:
        origin_us: event time of a replay's first row, which fixes all others; 0 = live.
        refill: rows that an earlier incarnation had read and whose windows were still open; to be added first.
        observed_us: the event time after which nothing was missed; later after every skip.
        send_after_us: steps that end up to here are not sent, since their time is over.
        delay_us: a step closes so long after its end.
        finished: every row has been handed out or skipped, and every step may be closed that will be.
        skipped_rows: rows whose time was over before they could be read; their readings are not sent.
        trouble: why nothing comes, for people; empty = all is well.
        fault: how the source contradicted what was kept of it, once it has; empty = it has not.
    """

    origin_us: int
    refill: list[Row]
    observed_us: int
    send_after_us: int
    delay_us: int
    skipped_rows: int
    fault: str

    @property
    def finished(self) -> bool: ...

    @property
    def trouble(self) -> str: ...

    @property
    def waiting(self) -> int:
        """Readings that have arrived and were not handed out yet."""

    def due(self, now_us: int, max_rows: int) -> list[Row]:
        """Return the rows whose event time has come; fewer than `max_rows` = all of them.

        Raises:
            SourceError: the source is malformed from here on.
        """

    def complete_until_us(self, now_us: int) -> int:
        """Return the event time up to which every reading has been handed out."""

    def next_us(self) -> int | None:
        """Return the event time of the next row, None = not known, or none."""

    def unusable(self) -> list[Unusable]:
        """Return what has been found unusable since the last call."""

    def progress(self, after_us: int) -> Progress | LiveProgress:
        """Return how far it is; `after_us`: open windows contain only later rows."""

    def close(self) -> None:
        """Let go of the source."""


class Opener(Protocol):
    """A source whose settings have been checked, and which is not read yet: an edge first needs a placement.

    Attributes:
        name, digest: of the source; a position means nothing in another one. Without a digest the source is live, and
            another source's position is passed over.
        letters_per_s: of dead letters at most; None = as many as there are.
    """

    name: str
    digest: str
    letters_per_s: float | None

    def open(self, now_us: int, position: EdgePosition | None, incarnation: int) -> Source:
        """Begin to read, where `position` says or at the beginning.

        Raises:
            SourceError: the source cannot be used, or does not go with the position.
        """

    def close(self) -> None:
        """Let go of it; only if it has not been opened."""
