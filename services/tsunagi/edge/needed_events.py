"""What an edge sends of events, if it may choose ([query] at_edge): what a query can use.

A column that no query names is left out; it is NULL to queries. An event that no query keeps is not sent. Both need
nothing but the event itself, so they save the link without changing a result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tsunagi.query.definitions import PLAN, Definition, definitions_of, program_of, read_definitions
from tsunagi.query.expressions import TRUE, Evaluation, references
from tsunagi.query.form import Cells, TupleForm
from tsunagi.query.plan import SourcePlan, named_columns
from tsunagi.query.readings import attribute_kinds
from tsunagi.query.values import Kind, column
from tsunagi.runtime.messages import QueryChange
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import Settings


class NeededEvents:
    """Chooses which events are sent, and which columns of them.

    Args:
        streams: the columns of events, by stream.

    Attributes:
        kinds: the columns that are sent of each stream, with `time`.
        dropped: how many events were not sent since no query keeps them.

    Raises:
        QueryError: a file cannot be read, or a statement of one.
    """

    def __init__(self, settings: Settings, streams: Mapping[str, TupleForm], table: SensorTable) -> None:
        self.dropped = 0
        self._slide_us = settings.slide_us
        self._attributes = attribute_kinds(table)
        self._all = {name: {"time": Kind.TIMESTAMP, **form.kinds} for name, form in streams.items()}
        self._files = {item.name: item for item in read_definitions(settings.query.files)}
        self._added: dict[str, str] = {}
        self._understand()

    def on_query(self, change: QueryChange) -> None:
        """Take in a statement that was added to the running system, or dropped."""
        self._added.pop(change.name, None)
        if change.text:
            self._added[change.name] = change.text
        self._understand()

    def choose(self, stream: str, events: Sequence[Cells]) -> Sequence[Cells]:
        """Return the events that some query may use."""
        sources = self._conditions[stream]
        if sources is None:
            return events
        columns = {name: column(kind, [row.get(name) for row in events]) for name, kind in self.kinds[stream].items()}
        kept = np.zeros(len(events), dtype=np.bool_)
        try:
            for source in sources:
                named = {f"{source.alias}.{name}": item for name, item in columns.items()}
                holds, _, _ = Evaluation(named, len(events), self._functions).condition(source.where)
                kept |= holds
        except Exception:  # noqa: BLE001 - a function of the user: the query says what it failed on
            return events
        self.dropped += int((~kept).sum())
        return [row for row, keep in zip(events, kept.tolist(), strict=True) if keep]

    def _understand(self) -> None:
        self.kinds: dict[str, dict[str, Kind]] = dict(self._all)
        self._conditions: dict[str, list[SourcePlan] | None] = dict.fromkeys(self._all)
        known: dict[str, Definition] = dict(self._files)
        try:
            for name, text in self._added.items():
                (item,) = definitions_of(text, PLAN)
                known.setdefault(name, item)
        except ValueError:  # of a later version, perhaps: anything may be needed
            return
        program, faults = program_of(list(known.values()), self._slide_us, self._attributes)
        self._functions = program.catalog.functions
        if faults:  # the Spark job may know a function that is not installed here
            return
        for stream, kinds in self._all.items():
            read = [
                (plan, source) for plan in program.queries.values() for source in plan.sources if source.name == stream
            ]
            named = {name.partition(".")[2] for plan, source in read for name in named_columns(plan, source)}
            key = program.catalog.streams[stream].key  # columns of the sensors table are looked up by it
            self.kinds[stream] = {name: kind for name, kind in kinds.items() if name in {*named, "time", key}}
            if all(_looks_at_one(source, kinds) for _, source in read):
                self._conditions[stream] = [source for _, source in read]


def _looks_at_one(source: SourcePlan, kinds: Mapping[str, Kind]) -> bool:
    """Return whether the event alone decides whether a source keeps it."""
    window = source.window
    if source.where == TRUE or window is None or window.kind == "rows":  # WHERE comes behind [ROWS n]
        return False
    return all(name.partition(".")[2] in kinds for name in references(source.where))
