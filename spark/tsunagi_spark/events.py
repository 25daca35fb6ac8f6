"""Events on their way to a query core: slots pass them on, and they wait there until their step is complete.

Events (CREATE STREAM) are in no group, so P-SORT has nothing to order in them. The core with the highest number hands
them on as they come. Events that come when their step is over are too late: they are counted, and stay in `recovered`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tsunagi.query.catalog import READINGS
from tsunagi.query.events import as_created
from tsunagi.query.opk import places_of
from tsunagi.query.planning import Program
from tsunagi.query.readings import Readings
from tsunagi.query.relations import Rows, empty, joined_rows
from tsunagi.query.snapshots import Tree, of_rows, pack, to_rows, unpack
from tsunagi.query.values import Column, Kind
from tsunagi_spark.frontier import NEVER
from tsunagi_spark.layout import Ints

_SLOT = "#slot"
"""A column that waiting events have beside their own: the slot which has passed them on."""


def packed(slot: int, found: Sequence[tuple[str, Rows]]) -> bytes:
    """Return events of a slot, (stream, events) each in the order of its log, as bytes; b"" = there are none."""
    if not found:
        return b""
    alike: dict[tuple[object, ...], list[Rows]] = {}  # edges may have been started with other statements
    for stream, rows in found:
        form = (stream, *((name, column.kind) for name, column in rows.columns.items()))
        alike.setdefault(form, []).append(rows)
    return pack([[slot, form[0], of_rows(joined_rows(parts))] for form, parts in alike.items()])


def first_steps(came: Iterable[Tree]) -> list[int]:
    """Return the first step of each part of events that has any.

    Args:
        came: what `packed` has returned, unpacked.
    """
    return [int(tree["step"].min()) for parts in came for _, _, tree in parts if len(tree["step"])]


def apart_by(
    came: Iterable[Tree], columns: Mapping[str, str], program: Program, table: Readings, places: int
) -> list[list[bytes]]:
    """Return the events of each place, as `packed` returns them.

    Args:
        came: what `packed` has returned, unpacked.
        columns: of each stream that is wanted, the column by which its events are sent to places.
        table: has the columns that are looked up in the sensors table.
    """
    found: list[list[bytes]] = [[] for _ in range(places)]
    for parts in came:
        for slot, name, tree in parts:
            stream, rows = program.catalog.streams.get(name), to_rows(tree)
            if name not in columns or stream is None or rows is None:
                continue
            own = as_created(rows, stream.own).columns
            column = columns[name]
            by = own[column] if column in own else table.of_sensors(own[stream.key], [column])[column]
            whose = places_of(by, places)
            for place, mine in enumerate(found):
                some = rows.take(whose == place)
                if len(some):
                    mine.append(packed(slot, [(name, some)]))
    return found


@dataclass
class Events:
    """The events that wait, by stream.

    Attributes:
        rows: the events of each stream: first those that came first.
    """

    rows: dict[str, Rows] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self.rows.values()))

    def add(self, came: Iterable[bytes], program: Program, done: int) -> tuple[int, Ints]:
        """Take in events.

        Args:
            came: what `packed` has returned.
            program: says which columns each stream has. Events of a stream that it does not have are passed over.
            done: the last step that is over.

        Returns:
            (the first step that has an event; NEVER = nothing came, the steps of the events that came too late).
        """
        parts: dict[str, list[Rows]] = {}
        late: list[Ints] = []
        first = NEVER
        for data in came:
            for slot, name, tree in unpack(data):
                stream, rows = program.catalog.streams.get(name), to_rows(tree)
                if stream is None or rows is None or not len(rows):
                    continue
                least = int(rows.step.min())
                first = least if first == NEVER else min(first, least)
                over = rows.step <= done
                if over.any():
                    late.append(rows.step[over])
                    rows = rows.take(~over)
                rows = as_created(rows, stream.own)
                whose = Column(Kind.BIGINT, np.full(len(rows), slot, dtype=np.int64))
                parts.setdefault(name, []).append(rows.named({**rows.columns, _SLOT: whose}))
        for name, found in parts.items():
            self.rows[name] = joined_rows([self.rows[name], *found] if name in self.rows else found)
        return first, np.concatenate(late) if late else np.zeros(0, dtype=np.int64)

    def take(
        self, upto: int, program: Program, named: Mapping[str, Collection[str]], table: Readings
    ) -> dict[str, Rows]:
        """Return the events of each stream up to a step, which wait no longer, in the order of (step, time, slot).

        Events of one slot and time are in the order in which it has passed them on, so the order does not depend on
        how batches are cut.

        Args:
            named: the columns that are wanted of each stream.
            table: has the columns that are looked up in the sensors table.
        """
        found = {}
        for name, stream in program.catalog.streams.items():
            if name == READINGS:
                continue
            some = self._ready(name, stream.own, upto)
            order = np.lexsort((some.columns[_SLOT].values, some.columns["time"].values, some.step))
            some = some.take(order)
            columns = {column: item for column, item in some.columns.items() if column in named[name]}
            wanted = stream.looked_up & set(named[name])
            if wanted:
                columns |= table.of_sensors(some.columns[stream.key], wanted)
            found[name] = some.named(columns)
        return found

    def _ready(self, name: str, own: Mapping[str, Kind], upto: int) -> Rows:
        rows = self.rows.get(name)
        if rows is None:
            return empty({**own, _SLOT: Kind.BIGINT})
        ready = rows.step <= upto
        if ready.all():
            del self.rows[name]
            return rows
        self.rows[name] = rows.take(~ready)
        return rows.take(ready)

    def dump(self) -> Tree:
        """Return the events as a tree."""
        return {name: of_rows(rows) for name, rows in self.rows.items()}

    @staticmethod
    def load(tree: Tree) -> Events:
        """Read what `dump` has returned."""
        found = {name: to_rows(rows) for name, rows in tree.items()}
        return Events({name: rows for name, rows in found.items() if rows is not None})
