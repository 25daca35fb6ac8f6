"""What a sink is given: rows with named and typed columns, made from the records of the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

from tsunagi.query.values import Kind
from tsunagi.runtime.log import RESULTS


class SinkColumn(NamedTuple):
    """A column of rows: its name, and the type of its values, any of which may be None."""

    name: str
    kind: Kind


@dataclass(frozen=True)  # without slots, so that places are looked up once and not for each row
class Schema:
    """The columns of rows.

    Attributes:
        query: what gives the rows: `readings`, a query, or a window aggregate.
        columns: the columns, in the order of a row's values.
        key: the columns that name a row. A row that comes again has the same key and the same values.
    """

    query: str
    columns: tuple[SinkColumn, ...]
    key: tuple[str, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.columns)

    @cached_property
    def _key_places(self) -> tuple[int, ...]:
        return tuple(map(self.place, self.key))

    def place(self, name: str) -> int:
        """Return where a column stands in a row."""
        return self.names.index(name)

    def key_of(self, row: Sequence[Any]) -> tuple[Any, ...]:
        """Return the values of a row's key."""
        return tuple(row[place] for place in self._key_places)

    def name_of(self, row: Sequence[Any]) -> str:
        """Return the name of a row as a text: the same for each repeat, and another for each other row."""
        parts = (value.isoformat() if hasattr(value, "isoformat") else str(value) for value in self.key_of(row))
        return "/".join((self.query, *parts))

    def as_mapping(self, row: Sequence[Any]) -> dict[str, Any]:
        """Return a row as a mapping from the names of its columns to its values."""
        return dict(zip(self.names, row, strict=True))


class RowOrigin(NamedTuple):
    """The record that rows were made of."""

    topic: str
    partition: int
    offset: int


NOWHERE = RowOrigin(RESULTS, 0, -1)
"""The origin of rows that were made of no record, as in tests."""


@dataclass(frozen=True, slots=True)
class SinkRows:
    """Rows of one schema.

    Attributes:
        rows: the values of each row, in the order of the columns.
        correcting: whether these are truths of values that had been estimated, which came late. They take the place of
            the value, `sd`, `bound` and `quality` of the row with their key, which may be written before or after them.
        origin: the record that they were made of.
    """

    schema: Schema
    rows: Sequence[tuple[Any, ...]]
    correcting: bool = False
    origin: RowOrigin = NOWHERE

    def __len__(self) -> int:
        return len(self.rows)


Place = tuple[str, int]
"""(topic, partition)."""


class SinkPosition(NamedTuple):
    """Up to where a partition has been written.

    Attributes:
        offset: of the next record.
        topic_id: of the topic that the offset is in, as the cluster gave it; "" = not known.
    """

    offset: int
    topic_id: str


class Advance(NamedTuple):
    """How far a write brings a partition.

    Attributes:
        before: the position that was stored until now; None = there was none.
        after: the position that holds with the rows of this write.
    """

    before: SinkPosition | None
    after: SinkPosition


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """What one write has: rows, and the positions that they bring the sink to.

    Attributes:
        parts: the rows in the order of the log, those of each record together.
        advances: how far this write brings each partition. A sink with positions of its own stores them together with
            the rows; others leave them alone.
    """

    parts: tuple[SinkRows, ...]
    advances: Mapping[Place, Advance] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def merged(self) -> Iterator[SinkRows]:
        """Yield the rows of neighbours of one schema together; they have the origin of the first."""
        for (schema, correcting), group in groupby(self.parts, key=lambda part: (part.schema, part.correcting)):
            parts = list(group)
            rows = parts[0].rows if len(parts) == 1 else [row for part in parts for row in part.rows]
            yield SinkRows(schema, rows, correcting, parts[0].origin)

    def halves(self) -> tuple[SinkBatch, SinkBatch]:
        """Return the first and the second half of the rows. The second one has the advances."""
        left = len(self) // 2
        first, second = list[SinkRows](), list[SinkRows]()
        for part in self.parts:
            taken = min(left, len(part))
            left -= taken
            first += _of(part, part.rows[:taken])
            second += _of(part, part.rows[taken:])
        return SinkBatch(tuple(first)), SinkBatch(tuple(second), self.advances)


def _of(part: SinkRows, rows: Sequence[tuple[Any, ...]]) -> Iterable[SinkRows]:
    return [SinkRows(part.schema, rows, part.correcting, part.origin)] if rows else []
