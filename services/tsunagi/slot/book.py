"""The one interface to what a slot keeps of its edges, with steps (`StepBook`) or without steps (`TupleBook`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Protocol

from tsunagi.runtime.messages import EdgeState, TupleBatch
from tsunagi.runtime.ranges import MAX_TIME_US
from tsunagi.slot.batches import PlainRun
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.edges import NEVER, NOT_YET, ClosedStep, SlotEdge, Taken
from tsunagi.slot.operators import Chain
from tsunagi.slot.outputs import Output
from tsunagi.slot.steps import StepBook
from tsunagi.slot.tuples import TupleBook


class Book(Protocol):
    """What the log has said of a slot's edges, and the batches that wait for their steps; see `StepBook`."""

    in_steps: ClassVar[bool]
    together: ClassVar[int]
    cursor: int
    edges: dict[str, SlotEdge]

    @property
    def coming(self) -> frozenset[str]:
        """Edges all of whose sensors come to the slot with a move: steps wait for them from its boundary on."""

    @property
    def punctuated(self) -> int:
        """Steps up to here may close although no edge has delivered them."""

    @property
    def helpers(self) -> Mapping[int, str]:
        """Sensors of other slots whose readings are wanted, and their edges."""

    @property
    def helper_readings(self) -> Sequence[int]:
        """How many readings of helpers came in time, and how many came too late."""

    def take(self, chain: Chain, batches: Sequence[TupleBatch], appended_us: Sequence[int]) -> Iterator[Taken]:
        """Take in batches in the order of the log; yield those that are refused, and rows that follow at once."""

    def take_plain(
        self, chain: Chain, batches: PlainRun, appended_us: Sequence[int], epoch: int
    ) -> Sequence[Output] | None:
        """Take in batches of the usual form; see `TupleBook`."""

    def accept(self, batch: TupleBatch, appended_us: int) -> str:
        """Take in a batch without processing its values; return "" if it counts, else why it does not."""

    def close(self) -> list[ClosedStep]:
        """Close all steps that can be closed, in order, and return them."""

    def due(self, step: int) -> bool:
        """Return whether the step's time has come: an edge or a Punctuation has reached it."""

    def awaited(self, step: int) -> list[str]:
        """Return the names of the edges that a step waits for."""

    def edge_out(self, name: str, from_step: int, appended_us: int) -> None:
        """Stop waiting for an edge from this step on."""

    def punctuate(self, step: int) -> None:
        """Let steps up to this one close."""

    def use_helpers(self, helpers: Mapping[int, str]) -> None:
        """Take in the readings of these sensors of other slots from now on."""

    def edge_states(self) -> list[EdgeState]:
        """Return the state of the edges, for a context (the slot's whole state at one offset of its log)."""

    def open_batches(self) -> list[TupleBatch]:
        """Return the batches of open steps for a context."""

    def lent_batches(self) -> list[TupleBatch]:
        """Return the batches that edges of other slots have sent for open steps (helpers' readings), for a context."""

    def restore(self, edges: list[EdgeState], batches: list[TupleBatch]) -> None:
        """Take over the edges and batches of a context."""


def make_book(config: SlotConfig, cursor: int, punctuated: int = NOT_YET) -> Book:
    """Return the book of a slot with these settings."""
    return TupleBook(config, cursor) if config.mode == "tuples" else StepBook(config, cursor, punctuated)


def renew_book(before: Book, earlier: SlotConfig, config: SlotConfig) -> tuple[Book, list[TupleBatch]]:
    """Return the book under new settings, and the waiting batches that are dropped.

    If the length of a step changes, all step numbers are converted, and open steps are given up.
    """
    if earlier.slide_us == config.slide_us:
        book = make_book(config, before.cursor, before.punctuated)
        waiting = before.open_batches()
        book.restore(before.edge_states(), waiting + before.lent_batches() if config.changeable else waiting)
        if config.changeable:
            for name in book.edges.keys() - before.edges.keys() - book.coming:
                book.edges[name].out_from = book.cursor
        return book, []
    units = earlier.slide_us, config.slide_us
    book = make_book(config, recount(before.cursor, *units), recount(before.punctuated, *units))
    states = [
        EdgeState(
            edge=state.edge,
            incarnation=state.incarnation,
            last_step=recount(state.last_step, *units),
            out_from=recount(state.out_from, *units),
            out_us=state.out_us,
        )
        for state in before.edge_states()
    ]
    book.restore(states, [])
    return book, before.open_batches()


def recount(step: int, from_us: int, to_us: int) -> int:
    """Return the last step of `to_us` microseconds that does not end after step `step` of `from_us` microseconds."""
    return step if step in (NOT_YET, NEVER) else min(step * from_us // to_us, MAX_TIME_US)
