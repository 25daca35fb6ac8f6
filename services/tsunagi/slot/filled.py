"""A query over tuples that is filled with the past of its slot's log (`tsunagi query add --from`).

The owner appends the batches of the past to the log once more, some at a time (`Past` records). So all replicas fill
the query alike, and a slot stays a function of its log. When the past comes close to the present, the slot keeps the
batches that come for the query. It has all of the past when it has been filled up to the first batch that was kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from tsunagi.query.planning import Program
from tsunagi.query.tuple_runs import TupleQueries
from tsunagi.runtime.door import decode
from tsunagi.runtime.messages import Filled, Past, TupleBatch
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.tuples import MAX_RECORDS, TupleBook

NEAR_RECORDS = 1_000
"""Batches are kept for a query when the past that it has ends at most so many records before the present."""
MOST_KEPT = 1_000_000
"""Most batches that are kept, bytes: they are part of contexts. If there are more, the owner goes on with the past."""

NONE = -1
"""No offset."""


class FilledQuery:
    """A query that is filled, with all that it reads; it shares no state with other queries.

    Args:
        name: the query.
        from_us: it takes tuples from this event time on, microseconds.

    Attributes:
        book: which batches count; it begins with those of the past.
        queries: runs the query.
        upto: the query has the records of the log before this one; NONE = it has none yet.
        kept_from: the batches from this record on are kept; NONE = none are.
        done: the query has all of the past, and follows the log like the others.
        newest_us: the newest event time that it has been filled with, microseconds; 0 = none.
    """

    def __init__(self, name: str, from_us: int, program: Program, config: SlotConfig) -> None:
        self.name = name
        self.from_us = from_us
        self.book = TupleBook(config)
        self.queries = TupleQueries(program, config.state_bytes, (name,))
        self.upto = self.kept_from = NONE
        self.done = False
        self.newest_us = 0
        self._kept: list[tuple[TupleBatch, int]] = []
        self._kept_bytes = 0

    def follows(self, past: Past) -> bool:
        """Return whether a record has what comes next of the past; a repeat does not."""
        begin = past.begin if self.upto == NONE else self.upto
        whole = len(past.batch) == len(past.appended_us)
        return not self.done and whole and past.from_us == self.from_us and past.begin == begin <= past.upto

    def take(self, past: Past, offset: int) -> list[tuple[Sequence[TupleBatch], Sequence[int]]]:
        """Return the batches that a record has for the query, and when the log appended them, as many as go together.

        Args:
            past: the record, which must follow.
            offset: its own offset.
        """
        self.upto = past.upto
        batches: list[tuple[TupleBatch, int]] = list(zip(past.batch, past.appended_us, strict=True))
        self.newest_us = max([self.newest_us, *(batch.event_time_us for batch in past.batch)])
        if self.kept_from == past.upto:
            self.done = True
            batches += self._kept
            self._keep_from(NONE)
        elif self.kept_from == NONE and offset + 1 - past.upto <= NEAR_RECORDS:
            self._keep_from(offset + 1)
        parts = [batches[begin : begin + MAX_RECORDS] for begin in range(0, len(batches), MAX_RECORDS)]
        return [([batch for batch, _ in part], [appended_us for _, appended_us in part]) for part in parts]

    def skip(self, past: Past) -> None:
        """Leave out the batches of a record, which must follow: it is quarantined. What was kept comes again."""
        self.upto = past.upto
        self._keep_from(NONE)

    def keep(self, batches: Sequence[TupleBatch], appended_us: Sequence[int]) -> None:
        """Take in batches that have just come: keep them if the query needs them later."""
        if self.kept_from == NONE:
            return
        self._kept += zip(batches, appended_us, strict=True)
        self._kept_bytes += sum(batch.ByteSize() for batch in batches)
        if self._kept_bytes > MOST_KEPT:
            self._keep_from(NONE)

    def _keep_from(self, offset: int) -> None:
        self.kept_from, self._kept, self._kept_bytes = offset, [], 0

    # ---- state

    def context(self) -> bytes:
        """Return the whole state."""
        state = self._state()
        state.queries = self.queries.context()
        return state.SerializeToString()

    def restore(self, context: bytes) -> None:
        """Go on from a state that `context` returned.

        Raises:
            ValueError: the bytes are something else.
        """
        state = decode(Filled, context)
        self.queries.restore(state.queries)
        self._go_on(state)

    def take_over(self, earlier: FilledQuery) -> None:
        """Go on with the state of the query of this name under earlier settings, if it meant the same."""
        if earlier.from_us == self.from_us and self.queries.same(earlier.queries):
            self.queries.take_over(earlier.queries)
            self._go_on(earlier._state())

    def _state(self) -> Filled:
        """Return the state but that of the queries."""
        kept = Past(batch=(batch for batch, _ in self._kept), appended_us=(time_us for _, time_us in self._kept))
        return Filled(
            upto=self.upto,
            kept_from=self.kept_from,
            done=self.done,
            newest_us=self.newest_us,
            edges=self.book.edge_states(),
            kept=kept,
        )

    def _go_on(self, state: Filled) -> None:
        self.upto, self.done, self.newest_us = state.upto, state.done, state.newest_us
        self.book.restore(state.edges, [])
        self._keep_from(state.kept_from)
        self.keep(state.kept.batch, state.kept.appended_us)
