"""What a slot's log has said of an edge, and the results of taking in an edge's batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tsunagi.runtime.columns import Floats
from tsunagi.runtime.messages import EdgeState, TupleBatch
from tsunagi.slot.packed import Packed, PackedRows

NEVER = (1 << 63) - 1
"""The value of `out_from` while steps wait for the edge."""

OUT_AGAIN_US = 1_000_000
"""An edge is put out at most once within this time of the log, microseconds.

So two deciders that contradict each other cannot fill the log. A batch in time takes the edge back at once.
"""

NOT_YET = -(1 << 62)
"""The value of `last_step` while the edge has delivered nothing."""


@dataclass(slots=True)
class SlotEdge:
    """What the log has said of one edge.

    Attributes:
        incarnation: the start of the edge's newest process, which tells its processes apart.
        last_step: the last step that the edge has delivered.
        out_from: from this step on no step waits for the edge, until it delivers again.
        out_us: when the log had the edge put out last, microseconds; 0 = never.
    """

    incarnation: int = 0
    last_step: int = NOT_YET
    out_from: int = NEVER
    out_us: int = 0

    def awaited(self, step: int) -> bool:
        """Return whether a step waits for this edge."""
        return self.last_step < step < self.out_from


def states_of(edges: Mapping[str, SlotEdge]) -> list[EdgeState]:
    """Return the state of the edges, for a context (the slot's whole state at one offset of its log)."""
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
    """Take over the states that a context has of those edges that the slot still has."""
    for state in states:
        if state.edge in edges:
            edges[state.edge] = SlotEdge(state.incarnation, state.last_step, state.out_from, state.out_us)


@dataclass(frozen=True, slots=True)
class ClosedStep:
    """A step that has closed.

    Attributes:
        values: float64[n], by the slot's sensors; NaN where no edge has delivered a value.
        batches: the batches that the values come from.
        helpers: readings of other slots' sensors that came in time, by sensor id.
    """

    step: int
    values: Floats
    batches: tuple[TupleBatch, ...] = ()
    helpers: Mapping[int, float] = field(default_factory=dict)


class Taken(NamedTuple):
    """The result of taking in a batch: it is refused, or rows follow from it at once.

    Attributes:
        place: the batch's place among those that were handed over.
        reason: why the batch is refused, in the words of `StepBook.accept`; "" = it counts.
        cursor: the first open step when the batch was refused.
        rows: the output rows that follow; None = the batch is refused.
    """

    place: int
    reason: str
    cursor: int
    rows: Packed | PackedRows | None
