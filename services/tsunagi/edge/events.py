"""The events of an edge with lock-step: each belongs to the step in which its time lies; no clock and no I/O.

Step k has the events of (k x slide - slide, k x slide]. Windows are those of readings alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from tsunagi.edge.window import LATE
from tsunagi.query.form import Cells, TupleForm, table_columns
from tsunagi.query.values import WIRE, Kind
from tsunagi.runtime.messages import Events

if TYPE_CHECKING:
    from tsunagi.edge.needed_events import NeededEvents

STEP_FULL = "step-full"
"""Reason of a dead letter: the events of a step that came before leave no room for it in the step's record."""
_TEXT_BYTES = 6
"""Bytes that a text takes in a record beside its characters, at most, roughly."""


class _Event(NamedTuple):
    time_us: int
    stream: str
    cells: Cells


class EventSteps:
    """Collects events, and gives those of a step when it closes.

    Args:
        streams: the columns of events, by stream.
        slide_us: length of a step, microseconds.
        most_bytes: most bytes of the events of a step. All of them are in one record.
        needed: chooses what is sent; None = all of it.

    Attributes:
        most_bytes: as the argument; it may be changed.
    """

    def __init__(
        self, streams: Mapping[str, TupleForm], slide_us: int, most_bytes: int, needed: NeededEvents | None = None
    ) -> None:
        self._needed = needed
        self._kinds = {name: {"time": Kind.TIMESTAMP, **form.kinds} for name, form in streams.items()}
        self._widths = {
            name: sum(WIRE[kind].itemsize + 1 for kind in kinds.values()) for name, kinds in self._kinds.items()
        }
        self._slide_us = slide_us
        self.most_bytes = most_bytes
        self._open: dict[int, list[_Event]] = {}
        self._sizes: dict[int, int] = {}

    def add(self, stream: str, time_us: int, cells: Cells, first: int | None) -> str:
        """Take in an event; return "" if it counts, else why it does not: `LATE` or `STEP_FULL`.

        Args:
            first: the first step that has not been closed; None = nothing has been yet.
        """
        step = -(-time_us // self._slide_us)
        if first is not None and step < first:
            return LATE
        texts = [cell for cell in cells.values() if isinstance(cell, str)]
        size = self._widths[stream] + sum(len(text.encode()) + _TEXT_BYTES for text in texts)
        if self._sizes.get(step, 0) + size > self.most_bytes:
            return STEP_FULL
        self._sizes[step] = self._sizes.get(step, 0) + size
        self._open.setdefault(step, []).append(_Event(time_us, stream, cells))
        return ""

    def skip(self, first: int) -> int:
        """Drop the events of the steps before this one, which are not sent; return how many they are."""
        over = [step for step in self._open if step < first]
        return sum(len(self._take(step)) for step in over)

    def close(self, step: int) -> list[Events]:
        """Return the events of a step, in the order of their times."""
        found = self._take(step)
        found.sort(key=itemgetter(0))  # stable: events of one time stay in the order in which they came
        rows: dict[str, list[Cells]] = {stream: [] for stream in self._kinds}
        for event in found:
            rows[event.stream].append({"time": event.time_us, **event.cells})
        return [made for stream, some in rows.items() if some and (made := self._made(stream, some)) is not None]

    def _made(self, stream: str, rows: Sequence[Cells]) -> Events | None:
        kinds: Mapping[str, Kind] = self._kinds[stream]
        if self._needed is not None:
            kinds, rows = self._needed.kinds[stream], self._needed.choose(stream, rows)
        return Events(stream=stream, rows=len(rows), column=table_columns(rows, kinds)) if rows else None

    def _take(self, step: int) -> list[_Event]:
        self._sizes.pop(step, None)
        return self._open.pop(step, [])
