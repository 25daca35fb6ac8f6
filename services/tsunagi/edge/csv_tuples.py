"""A CSV of tuples or of events (CREATE STREAM): header = the stream's columns, one row a tuple, an empty cell = NULL.

The first column may be ``time``, as in a CSV of readings. The key's column names the sensor. Columns that the
stream does not have are passed over. Events of a stream without KEY are those of the table's first edge.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tsunagi.edge.csv_file import CsvFile, CsvRow, some
from tsunagi.edge.own_sensors import edges_by_name, places_by_name
from tsunagi.edge.source import FilePosition, SourceError
from tsunagi.edge.tuple_form import CellError, read_text
from tsunagi.query.form import TupleForm, first_number
from tsunagi.runtime.csv_text import Header
from tsunagi.runtime.sensors import Sensor, SensorTable


class CsvTuples(CsvFile):
    """A CSV of tuples, opened for reading in order.

    Args:
        form: the columns of the stream.
        path, table, wanted, repeat: as for `CsvFile`; tuples of sensors that are not wanted are passed over.

    Raises:
        SourceError: the file cannot be opened, or lacks a column.
    """

    def __init__(
        self, path: Path, table: SensorTable, wanted: tuple[Sensor, ...], form: TupleForm, *, repeat: bool = False
    ) -> None:
        self._form = form
        self.change(table, wanted)
        super().__init__(path, table, wanted, repeat=repeat)

    def change(self, table: SensorTable, wanted: tuple[Sensor, ...]) -> list[Sensor]:
        self._known = edges_by_name(table)
        self._place_of = {name: np.array([place]) for name, place in places_by_name(wanted).items()}
        first = bool(wanted) and wanted[0].edge == table.edges[0]
        self._keyless = np.array([0]) if first else None
        return []

    def _find_columns(
        self, header: Header, seen: Mapping[str, int], table: SensorTable, wanted: tuple[Sensor, ...]
    ) -> None:
        del table, wanted
        names = dict.fromkeys(filter(None, (self._form.key, *self._form.kinds)))  # of events, KEY is among the others
        missing = [name for name in names if name not in seen]
        if missing:
            raise SourceError(
                f"{self.path}, line {header.line - 1}: no column {some(missing)}, which the stream has; found "
                f"{some(header.names)}"
            )
        self._key_at = seen[self._form.key] if self._form.key else -1
        self._at = [(seen[name], name, kind) for name, kind in self._form.kinds.items()]
        self._strangers = []

    def _parse(self, place: FilePosition, raw: bytes) -> CsvRow:
        cells = self._cells_of_row(raw, place)
        time_us = self._time(cells[0], place.line, place.row) if self.has_time else None
        key = cells[self._key_at].strip() if self._form.key else ""
        found = self._place_of.get(key) if self._form.key else self._keyless
        if found is None:
            strangers = (
                [] if not self._form.key or key in self._known else [(key, raw.decode(errors="replace").strip())]
            )
            return CsvRow(place, time_us, _NOWHERE, _NOTHING, strangers)
        values = {}
        for at, name, kind in self._at:
            try:
                values[name] = read_text(cells[at], kind)
            except CellError as error:
                raise SourceError(f"{self.path}, line {place.line}, column {name!r}: {error}") from None
        return CsvRow(place, time_us, found, np.array([first_number(values, self._form)]), [], values)


_NOWHERE = np.zeros(0, dtype=np.intp)
"""The places of a row without a sensor of this edge."""
_NOTHING = np.zeros(0)
"""The readings of such a row."""
