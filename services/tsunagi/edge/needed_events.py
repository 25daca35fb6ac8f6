"""What an edge sends of events, if it may choose ([query] at_edge): what a query can use.

A column that no query names is left out; it is NULL to queries. An event that no query keeps is not sent. Both need
nothing but the event itself, so they save the link without changing a result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tsunagi.edge.needed import Needs, read_by
from tsunagi.query.definitions import PLAN, Definition, definitions_of, program_of, read_definitions
from tsunagi.query.expressions import TRUE, references
from tsunagi.query.form import Cells, TupleForm
from tsunagi.query.plan import SourcePlan
from tsunagi.query.readings import attribute_kinds
from tsunagi.query.values import Kind, column
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import Settings


class NeededEvents(Needs):
    """Chooses which events are sent, and which columns of them.

    Args:
        streams: the columns of events, by stream.

    Attributes:
        kinds: the columns that are sent of each stream, with `time`.

    Raises:
        QueryError: a file cannot be read, or a statement of one.
    """

    def __init__(self, settings: Settings, streams: Mapping[str, TupleForm], table: SensorTable) -> None:
        super().__init__()
        self._slide_us = settings.slide_us
        self._attributes = attribute_kinds(table)
        self._all = {name: {"time": Kind.TIMESTAMP, **form.kinds} for name, form in streams.items()}
        self._files = {item.name: item for item in read_definitions(settings.query.files)}
        self._understand()

    def change(self, table: SensorTable) -> None:
        """Go on with another sensors table, whose attributes queries may read."""
        self._attributes = attribute_kinds(table)
        self._understand()

    def choose(self, stream: str, events: Sequence[Cells]) -> Sequence[Cells]:
        """Return the events that some query may use."""
        sources = self._conditions[stream]
        if sources is None:
            return events
        columns = {name: column(kind, [row.get(name) for row in events]) for name, kind in self.kinds[stream].items()}
        kept = self._kept(sources, columns, len(events))
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
            sources, named = read_by(program, stream)
            key = program.catalog.streams[stream].key  # columns of the sensors table are looked up by it
            self.kinds[stream] = {name: kind for name, kind in kinds.items() if name in {*named, "time", key}}
            if all(_looks_at_one(source, kinds) for source in sources):
                self._conditions[stream] = sources


def _looks_at_one(source: SourcePlan, kinds: Mapping[str, Kind]) -> bool:
    """Return whether the event alone decides whether a source keeps it."""
    window = source.window
    if source.where == TRUE or window is None or window.kind == "rows":  # WHERE comes behind [ROWS n]
        return False
    return all(name.partition(".")[2] in kinds for name in references(source.where))
