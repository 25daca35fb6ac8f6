"""What an edge sends of tuples of several columns, if it may choose ([query] at_edge): what a query can use.

A column that no query names is left out; it is NULL to the slots. Where all queries look at single tuples, a tuple that
none of them keeps is not sent. Both need nothing but the tuple itself, so they save the link without changing a result.
`Needs` is what this shares with the same choice among events (`edge/needed_events.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from tsunagi.edge.source import SourceRow
from tsunagi.query.definitions import PLAN, definitions_of
from tsunagi.query.expressions import TRUE, Evaluation
from tsunagi.query.form import TupleForm
from tsunagi.query.functions import Function
from tsunagi.query.plan import SourcePlan, named_columns
from tsunagi.query.planning import Program
from tsunagi.query.tuple_plans import form_of_stream, stream_of, tuple_program
from tsunagi.query.values import Column, Flags, Kind, column, texts
from tsunagi.runtime.messages import QueryChange
from tsunagi.runtime.settings import Settings
from tsunagi.slot.stream import Statements


class Needs(ABC):
    """The statements that are in force at an edge, and what their conditions keep.

    Attributes:
        dropped: how many rows were not sent since no query keeps them.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._added: dict[str, str] = {}
        self._functions: Mapping[str, Function] = {}

    def on_query(self, change: QueryChange) -> None:
        """Take in a statement that was added to the running system, or dropped."""
        self._added.pop(change.name, None)
        if change.text:
            self._added[change.name] = change.text
        self._understand()

    @abstractmethod
    def _understand(self) -> None:
        """Find out what all statements need. Some of them are in `_added`, by name."""

    def _kept(self, sources: Sequence[SourcePlan], columns: Mapping[str, Column], rows: int) -> Flags:
        """Return which rows the condition of some source keeps, bool[rows], and count the others.

        All rows are kept if a condition fails.
        """
        kept = np.zeros(rows, dtype=np.bool_)
        try:
            for source in sources:
                named = {f"{source.alias}.{name}": item for name, item in columns.items()}
                holds, _, _ = Evaluation(named, rows, self._functions).condition(source.where)
                kept |= holds
        except Exception:  # noqa: BLE001 - a function of the user: who runs the query says what it failed on
            return np.ones(rows, dtype=np.bool_)
        self.dropped += int((~kept).sum())
        return kept


def read_by(program: Program, stream: str) -> tuple[list[SourcePlan], set[str]]:
    """Return how queries read a stream: each of their sources, and the columns that they name."""
    found = [(plan, source) for plan in program.queries.values() for source in plan.sources if source.name == stream]
    named = {name.partition(".")[2] for plan, source in found for name in named_columns(plan, source)}
    return [source for _, source in found], named


class Needed(Needs):
    """Chooses which tuples are sent, and which columns of them.

    Args:
        names: the names of the edge's sensors, which are the keys of its tuples.

    Attributes:
        form: the columns that are sent.
        names: as the argument; whoever changes the sensors changes them.

    Raises:
        QueryError: a statement of a file cannot be understood.
    """

    def __init__(self, settings: Settings, form: TupleForm, names: Sequence[str]) -> None:
        super().__init__()
        self.form = form
        self._all = form
        self.names = names
        self._statements = Statements(settings)
        self._understand()

    def _understand(self) -> None:
        found, refused = self._statements.texts(self._added)
        program, faults = tuple_program([item for text in found for item in definitions_of(text, PLAN)])
        stream = stream_of(program)
        self._functions = program.catalog.functions
        sources, named = read_by(program, stream.name)
        self._conditions: list[SourcePlan] | None = sources
        if refused or faults or form_of_stream(stream) != self._all:
            # Slots may know a function that is not installed here, so anything may be needed.
            self.form, self._conditions = self._all, None
            return
        self.form = TupleForm(self._all.key, {name: kind for name, kind in self._all.kinds.items() if name in named})
        if any(source.where == TRUE or not _looks_at_one(source) for source in sources):
            self._conditions = None

    def choose(self, rows: Sequence[SourceRow], offset_us: int) -> Flags:
        """Return which rows some query may use: bool[n]. Each row is one tuple.

        Args:
            offset_us: microseconds that are added to the rows' times.
        """
        if self._conditions is None or not len(rows):
            return np.ones(len(rows), dtype=np.bool_)
        found: dict[str, Column] = {
            "time": Column(Kind.TIMESTAMP, np.array([row.time_us + offset_us for row in rows], dtype=np.int64)),
            self._all.key: texts([self.names[int(row.places[0])] for row in rows]),
        }
        for name, kind in self.form.kinds.items():
            found[name] = column(kind, [(row.cells or {}).get(name) for row in rows])
        return self._kept(self._conditions, found, len(rows))


def _looks_at_one(source: SourcePlan) -> bool:
    return source.window is not None and source.window.kind == "now"
