"""Reads what queries over tuples give: slots write it to `recovered`, in the order of their logs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tsunagi.query.results import AggregateResults, QueryBlock, QueryResults, to_rows
from tsunagi.query.typed import rows_of
from tsunagi.runtime.block_reader import BlockReader
from tsunagi.runtime.door import decode
from tsunagi.runtime.log import RECOVERED, Log, Record
from tsunagi.runtime.messages import Recovered
from tsunagi.runtime.names import NO_NAME, Name, unpack_key
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import Settings


class QueryOutputs(BlockReader[QueryBlock]):
    """Reads the rows of queries over tuples, and drops repeats by name. Between slots there is no order.

    Args:
        names: the queries; none = all.
        log, settings: as for `BlockReader`.
        from_now: whether to leave out what is there already.
        at: the offset to begin at instead, by partition.
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
        super().__init__(log, settings, start="end" if from_now else "beginning", at=at)
        self._names = frozenset(names)
        self._newest: dict[tuple[int, int], Name] = {}  # the last name of each (slot, generation)

    def _blocks(self, records: Sequence[Record], read_us: int) -> list[QueryBlock]:
        del read_us
        found = []
        for record in records:
            try:
                block = self._block(record)
            except ValueError as error:
                self._note(record, str(error))
                continue
            if block is not None:
                found.append(block)
        return found

    def _block(self, record: Record) -> QueryBlock | None:
        generation, _, name = unpack_key(record.key)
        message = decode(Recovered, record.value)
        if name <= self._newest.get((record.partition, generation), NO_NAME):
            self._repeat(f"slot {record.partition}")
            return None
        self._newest[record.partition, generation] = name
        if not message.query or (self._names and message.query not in self._names):
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
) -> QueryResults | QueryOutputs | AggregateResults:
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
