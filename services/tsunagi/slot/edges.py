"""What a slot's log has said of an edge, and what comes of an edge's batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tsunagi.runtime.columns import Floats
from tsunagi.runtime.messages import EdgeState, TupleBatch
from tsunagi.slot.packed import Packed

NEVER = (1 << 63) - 1
"""`out_from` of an edge that is waited for."""

OUT_AGAIN_US = 1_000_000
"""An edge is put out once in such a time of the log, at most, whoever contradicts whom: two deciders cannot fill the
log with their verdicts. A batch in time takes it back at once, since nothing of a living edge may be lost by that."""

NOT_YET = -(1 << 62)
"""`last_step` of an edge that has delivered nothing."""


@dataclass(slots=True)
class SlotEdge:
    """What the log has said of one edge."""

    incarnation: int = 0
    last_step: int = NOT_YET
    out_from: int = NEVER
    out_us: int = 0  # when the log had it put out last, microseconds; 0 = never

    def awaited(self, step: int) -> bool:
        """Return whether a step waits for this edge."""
        return self.last_step < step < self.out_from


def states_of(edges: Mapping[str, SlotEdge]) -> list[EdgeState]:
    """Return what the log has said of edges, for a context."""
    return [
        EdgeState(
            edge=name,
            incarnation=edge.incarnation,
            last_step=edge.last_step,
            out_from=edge.out_from,
            out_us=edge.out_us,
        )
        for name, edge in sorted(edges.items())
    ]


def restore_edges(edges: dict[str, SlotEdge], states: Iterable[EdgeState]) -> None:
    """Take over what a context says of edges that are still there."""
    for state in states:
        if state.edge in edges:
            edges[state.edge] = SlotEdge(state.incarnation, state.last_step, state.out_from, state.out_us)


@dataclass(frozen=True, slots=True)
class ClosedStep:
    """A step that has closed: values float64[n] by the slot's sensors, NaN where no edge delivered one.

    `helpers`: readings of other slots' sensors that came in time, by sensor.
    """

    step: int
    values: Floats
    batches: tuple[TupleBatch, ...] = ()
    helpers: Mapping[int, float] = field(default_factory=dict)


class Taken(NamedTuple):
    """What comes of a batch: it is refused, or rows follow from it at once.

    Attributes:
        place: of the batch among those that were handed over.
        reason: why it is refused, as `StepBook.accept` names it; "" = it counts.
        cursor: the first open step when it was refused.
        rows: what follows from it; None where it is refused.
    """

    place: int
    reason: str
    cursor: int
    rows: Packed | None
