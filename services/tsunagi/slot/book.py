"""What a slot keeps of its edges: with steps (`StepBook`) or without (`TupleBook`), behind one interface."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Protocol

from tsunagi.runtime.messages import EdgeState, TupleBatch
from tsunagi.runtime.ranges import MAX_TIME_US
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.edges import NEVER, NOT_YET, ClosedStep, SlotEdge, Taken
from tsunagi.slot.operators import Chain
from tsunagi.slot.steps import StepBook
from tsunagi.slot.tuples import TupleBook


class Book(Protocol):
    """What the log has said of a slot's edges, and the batches that wait; `StepBook` says what each of these does."""

    in_steps: ClassVar[bool]
    together: ClassVar[int]
    cursor: int
    edges: dict[str, SlotEdge]

    @property
    def punctuated(self) -> int:
        """Steps up to here may close although no edge has delivered them."""

    @property
    def helpers(self) -> Mapping[int, str]:
        """Sensors of other slots whose readings are wanted, and their edges."""

    @property
    def helper_readings(self) -> Sequence[int]:
        """How many of these came in time, and how many too late."""

    def take(self, chain: Chain, batches: Sequence[TupleBatch], appended_us: Sequence[int]) -> Iterator[Taken]:
        """Take in batches in the order of the log, and yield what comes of them at once."""

    def accept(self, batch: TupleBatch, appended_us: int) -> str:
        """Take in a batch of which nothing is to follow at once; return "" if it counts, else why it does not."""

    def close(self) -> list[ClosedStep]:
        """Close what can be closed, in order."""

    def due(self, step: int) -> bool:
        """Return whether something says that the step's time has come."""

    def awaited(self, step: int) -> list[str]:
        """Return the edges that a step waits for."""

    def edge_out(self, name: str, from_step: int, appended_us: int) -> None:
        """Do not wait for an edge from this step on."""

    def punctuate(self, step: int) -> None:
        """Let steps up to this one close."""

    def use_helpers(self, helpers: Mapping[int, str]) -> None:
        """Take in the readings of these sensors of other slots from now on."""

    def edge_states(self) -> list[EdgeState]:
        """Return the edges for a context."""

    def open_batches(self) -> list[TupleBatch]:
        """Return the batches of open steps for a context."""

    def lent_batches(self) -> list[TupleBatch]:
        """Return what edges of other slots have sent for open steps, for a context."""

    def restore(self, edges: list[EdgeState], batches: list[TupleBatch]) -> None:
        """Take over what a context holds."""


def make_book(config: SlotConfig, cursor: int, punctuated: int = NOT_YET) -> Book:
    """Return what keeps the edges of a slot of these settings."""
    return TupleBook(config, cursor) if config.mode == "tuples" else StepBook(config, cursor, punctuated)


def renew_book(before: Book, earlier: SlotConfig, config: SlotConfig) -> tuple[Book, list[TupleBatch]]:
    """Return what keeps the edges under new settings, and the batches that wait no longer.

    Where steps have another length, they are counted in another unit from here on, and no open step goes on.
    """
    if earlier.slide_us == config.slide_us:
        book = make_book(config, before.cursor, before.punctuated)
        book.restore(before.edge_states(), before.open_batches())
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
    """Return the step that ends where `step` did, or before, when a step is `to_us` long instead of `from_us`."""
    return step if step in (NOT_YET, NEVER) else min(step * from_us // to_us, MAX_TIME_US)
