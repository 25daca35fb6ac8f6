"""Reads what queries over tuples give: slots write it to `recovered`, in the order of their logs."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tsunagi.query.results import AggregateResults, QueryBlock, QueryResults, to_rows
from tsunagi.query.typed import rows_of
from tsunagi.runtime.door import decode
from tsunagi.runtime.log import RECOVERED, Log, Record
from tsunagi.runtime.messages import Recovered
from tsunagi.runtime.names import NO_NAME, Name, unpack_key
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import Settings


class QueryOutputs(QueryResults):
    """Reads the rows of queries over tuples, and drops repeats by name. Between slots there is no order.

    Args:
        log, settings, names, from_now, at: as for `QueryResults`.
    """

    topic = RECOVERED

    def __init__(
        self,
        log: Log,
        settings: Settings,
        names: Collection[str] = (),
        *,
        from_now: bool = False,
        at: Mapping[int, int] | None = None,
    ) -> None:
        super().__init__(log, settings, names, from_now=from_now, at=at)
        self._newest: dict[tuple[int, int], Name] = {}  # the last name of each (slot, generation)

    def _read(self, record: Record) -> QueryBlock | None:
        generation, _, name = unpack_key(record.key)
        message = decode(Recovered, record.value)
        if name <= self._newest.get((record.partition, generation), NO_NAME):
            self._repeat(f"slot {record.partition}")
            return None
        self._newest[record.partition, generation] = name
        if not message.query or not self._wanted(message.query):
            return None
        rows = to_rows(message, rows_of(message), "")
        return QueryBlock(message.query, "", message.step, message.event_time_us, message.appended_us, rows)


def open_query(
    log: Log,
    settings: Settings,
    table: SensorTable,
    names: Collection[str],
    *,
    from_now: bool = False,
    at: Mapping[int, int] | None = None,
) -> QueryResults | AggregateResults:
    """Return a reader of queries in CQL for the mode of the system, or of one window aggregate.

    Raises:
        ValueError: a window aggregate is asked for together with something else.
        LogError: the topic is missing or the log does not answer.
    """
    aggregates = {item.name for item in settings.query.aggregates} & set(names)
    if not aggregates:
        if settings.query.mode == "tuples":
            return QueryOutputs(log, settings, names, from_now=from_now, at=at)
        return QueryResults(log, settings, names, from_now=from_now, at=at)
    if len(set(names)) > 1:
        raise ValueError(f"{min(aggregates)} is a window aggregate ([query] aggregates); expected it alone")
    return AggregateResults(log, settings, table, aggregates.pop(), from_now=from_now, at=at)
