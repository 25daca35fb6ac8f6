"""To which partitions of `heartbeats` a node's heartbeats go, and what of them (architecture, "Cells").

A cell gets what concerns its slots alone, at each heartbeat, in short. The summary gets everything, once a second.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Protocol

from tsunagi.runtime.cells import ONE, SUMMARY, SUMMARY_S, Cells, read_cells
from tsunagi.runtime.log import Log, LogError
from tsunagi.runtime.messages import Heartbeat, SlotBeat

OWNING = frozenset({"primary", "promoting"})
"""The roles of a node that owns a slot or is taking it over."""
LEAVE_S = 1.0
"""A cell of which a node has no slots any more gets heartbeats for this time yet, seconds: they say that it has none.
Otherwise its last words there would be that it has."""


class Routes(Protocol):
    """Says which partitions get a heartbeat."""

    def split(self, beat: Heartbeat) -> Iterator[tuple[int, bytes]]:
        """Yield each partition that gets a heartbeat now, with its bytes there."""
        ...


class _SummaryAlone:
    def split(self, beat: Heartbeat) -> Iterator[tuple[int, bytes]]:
        yield SUMMARY, beat.SerializeToString()


SUMMARY_ALONE = _SummaryAlone()
"""The routes of nodes that concern no slot: the scaler, the learner and Spark."""


class CellRoutes:
    """The routes of a node with slots.

    Args:
        cells: how the slots are divided.
        interval_s: the interval of the heartbeats, seconds.
    """

    def __init__(self, cells: Cells, interval_s: float) -> None:
        self._cells = cells
        self._every = max(1, round(SUMMARY_S / interval_s))
        self._leave = max(1, round(LEAVE_S / interval_s))
        self._due: dict[int, int] = {}  # partition -> how many heartbeats it gets yet
        self._count = 0

    def split(self, beat: Heartbeat, slots: Collection[int] | None = None) -> Iterator[tuple[int, bytes]]:
        """Yield each partition that gets a heartbeat now, with its bytes there.

        Args:
            slots: the node's slots; None = those that the heartbeat speaks of.
        """
        cells, count = self._cells, self._count
        if cells.count == 1:
            yield SUMMARY, beat.SerializeToString()
            return
        self._count += 1
        long = count % self._every == 0 or beat.leaving
        if long:
            yield SUMMARY, beat.SerializeToString()
        parts: dict[int, list[SlotBeat]] = {}
        for part in beat.slots:
            parts.setdefault(cells.partition(cells.of(part.slot)), []).append(part if long else in_short(part))
        held = parts if slots is None else cells.partitions(slots)
        left = {partition: count - 1 for partition, count in self._due.items() if count > 1}
        self._due = left | dict.fromkeys(held, self._leave)
        for partition in sorted(self._due):
            said = Heartbeat(
                version=beat.version,
                node=beat.node,
                role=beat.role,
                incarnation=beat.incarnation,
                sequence=beat.sequence,
                leaving=beat.leaving,
                pid=beat.pid,
                step=beat.step,
                slots=parts.get(partition, ()),
            )
            if slots is None or long:  # nobody in a cell connects to an edge
                said.metrics_host, said.metrics_port = beat.metrics_host, beat.metrics_port
            yield partition, said.SerializeToString()


def in_short(part: SlotBeat) -> SlotBeat:
    """Return what the other workers of a cell must know of a slot at each heartbeat.

    Measurements, which they need less often, and what only people and the scaler read is left out.
    """
    if part.role in OWNING:
        return SlotBeat(
            slot=part.slot,
            role=part.role,
            epoch=part.epoch,
            position=part.position,
            lag=part.lag,
            busy_offset=part.busy_offset,
            busy_until=max(0, part.busy_until),
            busy_us=part.busy_us,
            busy_limit_us=part.busy_limit_us,
            ready=part.ready,
            taking_up=part.taking_up,
        )
    said = SlotBeat(slot=part.slot, role=part.role, epoch=part.epoch, ready=part.ready)
    if part.busy_until > part.busy_offset >= 0:  # it announces records
        said.busy_offset, said.busy_until = part.busy_offset, part.busy_until
    return said


class Placed(Protocol):
    """Where an edge's sensors are.

    Attributes:
        slots: the slots that have sensors of the edge; empty while there is no placement.
    """

    @property
    def slots(self) -> list[int]: ...


class EdgeRoutes:
    """The routes of an edge: the cells of the slots that have its sensors.

    The thread that sends heartbeats asks how the slots are divided, once there is a placement: a broker that does not
    answer must not hold up the edge's loop. Until then the edge speaks to the summary.

    Args:
        interval_s: the interval of the heartbeats, seconds.

    Attributes:
        partition: one of the partitions that get every heartbeat of this edge.
    """

    def __init__(self, log: Log, placed: Placed, interval_s: float) -> None:
        self.partition = SUMMARY
        self._log = log
        self._placed = placed
        self._interval_s = interval_s
        self._routes: CellRoutes | None = None
        self._cells = ONE

    def split(self, beat: Heartbeat) -> Iterator[tuple[int, bytes]]:
        """Yield each partition that gets a heartbeat now, with its bytes there."""
        slots = self._placed.slots
        if slots and self._routes is None:
            with contextlib.suppress(LogError):
                self._cells = read_cells(self._log)
                self._routes = CellRoutes(self._cells, self._interval_s)
        if not slots or self._routes is None:
            yield SUMMARY, beat.SerializeToString()
            return
        self.partition = min(self._cells.partitions(slots))
        yield from self._routes.split(beat, slots)
