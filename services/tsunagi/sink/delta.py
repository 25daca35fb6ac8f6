"""A lake of Delta tables. A commit has the rows of a span and the position behind it.

The position is the version of an application transaction, as Delta calls it. Its application is a partition of a topic.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from tsunagi.sink.base import SinkAwayError, SinkError
from tsunagi.sink.lake import LakeFiles, together
from tsunagi.sink.rows import Place, SinkPosition
from tsunagi.sink.spans import LakeSpan

_DATE = "date"
"""The column by which tables are divided: the day of a row's time (UTC)."""
_TOPICS = "topics"
"""The key in a table's description, which is JSON, that has the ids of the topics from which its rows come."""


class DeltaTables(LakeFiles):
    """Writes two tables, each of which is made with its first rows."""

    def __init__(self, folder: Path, truths: Path) -> None:
        super().__init__(folder, truths)
        self._tables: dict[Path, DeltaTable] = {}

    def positions(self, places: Collection[Place]) -> Mapping[Place, SinkPosition]:
        found: dict[Place, SinkPosition] = {}
        for folder in (self._folder, self._truths):
            with _errors(folder):
                table = self._table(folder)
                if table is None:
                    continue
                topics = _topics(table)
                for place in places:
                    topic_id = topics.get(place[0], "")
                    offset = table.transaction_version(_application(place, topic_id))
                    before = found.get(place)
                    if offset is not None and (before is None or before.offset < offset):
                        found[place] = SinkPosition(offset, topic_id)
        return found

    def store(self, place: Place, span: LakeSpan) -> None:
        with _errors(self._truths if span.correcting else self._folder):
            super().store(place, span)

    def _append(self, folder: Path, days: Mapping[date, pa.Table], place: Place, span: LakeSpan) -> None:
        data = together(
            [table.append_column(_DATE, pa.array([day] * len(table), pa.date32())) for day, table in days.items()]
        )
        table, application = self._table(folder), _application(place, span.topic_id)
        if table is not None and (table.transaction_version(application) or 0) >= span.next:
            return  # it was stored, though an error came after it
        if table is not None:
            _check_columns(table, data.schema)
        topics = {} if table is None else _topics(table)
        description = json.dumps({_TOPICS: topics | {place[0]: span.topic_id}})
        # It goes before the rows: an application of a topic that has no rows yet begins at the topic's beginning.
        if table is not None and topics.get(place[0]) != span.topic_id:
            table.alter.set_table_description(description)
        write_deltalake(
            table or folder,
            data,
            mode="append",
            partition_by=[_DATE],
            schema_mode="merge",
            description=description if table is None else None,
            commit_properties=CommitProperties(app_transactions=[Transaction(application, span.next)]),
        )

    def _merge(self, place: Place, topic_id: str, day: date) -> None:
        """Make one file of those of a day. Delta keeps the old ones for a week, for those who read them now."""
        for folder in (self._folder, self._truths):
            table = self._table(folder)
            if table is None:
                continue
            try:
                table.optimize.compact(partition_filters=[(_DATE, "=", day.isoformat())])
                table.vacuum(dry_run=False)
            except CommitFailedError:  # another partition's sink has done the same
                continue

    def _table(self, folder: Path) -> DeltaTable | None:
        """Return a table as it is now; None = there is none yet."""
        table = self._tables.get(folder)
        if table is None:
            try:
                table = self._tables[folder] = DeltaTable(folder)
            except TableNotFoundError:
                return None
        table.update_incremental()
        return table


@contextmanager
def _errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except (DeltaError, OSError) as error:
        raise SinkAwayError(f"{folder}: {error}") from None


def _check_columns(table: DeltaTable, wanted: pa.Schema) -> None:
    """Check that the columns that a table has are of the same types; those that it lacks are made.

    Raises:
        SinkError: one is of another type.
    """
    there = {column.name: column.type for column in table.schema().fields}
    for column in DeltaSchema.from_arrow(wanted).fields:
        found = there.get(column.name, column.type)
        if found != column.type:
            raise SinkError(
                f"{table.table_uri}: column {column.name}: found {found} in the table, expected {column.type}: "
                "name another [sinks.lake] directory"
            )


def _topics(table: DeltaTable) -> dict[str, str]:
    """Return the ids of topics that a table's description has."""
    try:
        found: dict[str, str] = json.loads(table.metadata().description or "{}").get(_TOPICS, {})
    except (ValueError, AttributeError):
        raise SinkError(f"{table.table_uri}: found a description of the table's that no sink has written") from None
    return found


def _application(place: Place, topic_id: str) -> str:
    return f"tsunagi/{place[0]}-{place[1]}/{topic_id}"
