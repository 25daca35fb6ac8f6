"""Reads a Parquet file of readings, wide or long, some rows at a time: it may be larger than memory."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from tsunagi.runtime.columns import Floats
from tsunagi.runtime.settings import TableSettings
from tsunagi.runtime.tables.arrow import is_number, numbers_of, open_parquet, times_of
from tsunagi.runtime.tables.block import MEASURED, Flags, Ints, ReadingBlock, SensorNames, TablePlace
from tsunagi.runtime.tables.cells import Missing
from tsunagi.runtime.tables.layout import TableError, find_layout

BLOCK_READINGS = 1 << 19
"""Readings that are read at a time, of 64 bytes each. With thousands of columns, a block of fewer has so few rows that
Arrow's work for each column takes longer than the rows."""


class ParquetTable:
    """A Parquet file of readings. Arguments, attributes and errors are those of `CsvTable`."""

    def __init__(self, path: Path, form: TableSettings, names: SensorNames) -> None:
        self.path = path
        self.names = names
        self.first = self.end = TablePlace()
        self._form = form
        self._missing = Missing(form).numbers
        schema = open_parquet(path).schema_arrow
        self._columns: list[str] = schema.names
        self.layout = layout = find_layout(self._columns, form, str(path))
        self.digest = sha256(str(schema.remove_metadata()).encode()).hexdigest()
        double = next((name for name in self._columns if self._columns.count(name) > 1), None)
        if double is not None:
            raise TableError(f"{path}: found the column {double!r} twice, expected it once")
        places = [layout.value] if layout.long else [at for at in range(len(schema)) if at != layout.time]
        if not places:
            raise TableError(f"{path}: found no column of a sensor, expected one")
        for place in places:
            if not is_number(schema.field(place).type):
                name, kind = self._columns[place], schema.field(place).type
                raise TableError(f"{path}, column {name!r}: found a column of {kind}, expected numbers")
        self._values = [self._columns[place] for place in places]
        self._sensors: Ints = np.empty(0, dtype=np.int64)
        self._read = [self._columns[place] for place in sorted({*layout, *places}) if place >= 0]
        if not layout.long:
            self._sensors = np.array([names.number(name, str(path), name) for name in self._values])

    def blocks(self, begin: TablePlace | None = None) -> Iterator[ReadingBlock]:
        """Yield the readings from a row on; None = from the first one.

        Raises:
            TableError: a row cannot be used.
        """
        import pyarrow as pa  # noqa: PLC0415 - the services' image does not have it

        layout = self.layout
        texts = [self._columns[at] for at in (layout.sensor, layout.quality, layout.query) if at >= 0]
        file = open_parquet(self.path, texts)
        skipped = (begin or self.first).row
        row = 0
        groups = list(range(file.num_row_groups))
        while groups and row + file.metadata.row_group(groups[0]).num_rows <= skipped:
            row += file.metadata.row_group(groups.pop(0)).num_rows
        most = max(1, BLOCK_READINGS // len(self._values))
        try:
            for batch in file.iter_batches(batch_size=most, row_groups=groups, columns=self._read):
                ahead = min(max(0, skipped - row), batch.num_rows)
                if ahead < batch.num_rows:
                    yield self._block(batch.slice(ahead), row + ahead)
                row += batch.num_rows
        except (OSError, pa.ArrowException) as error:
            raise TableError(f"{self.path}, row {row + 1} or below: cannot be read: {error}") from None
        self.end = TablePlace(row)

    def _block(self, batch: Any, row: int) -> ReadingBlock:  # noqa: ANN401 - pyarrow has no types
        where = f"{self.path}, row {row + 1} or below"
        layout, rows = self.layout, np.arange(row, row + batch.num_rows)
        times = rows * 1_000_000
        if layout.time >= 0:
            name = self._columns[layout.time]
            times = times_of(batch.column(name), where, self._form, name)
        values = np.stack([numbers_of(batch.column(name), where, name) for name in self._values], axis=1)
        missing = np.isnan(values) | np.isin(values, self._missing)
        values[missing] = np.nan
        if layout.long:
            sensors = self._names_of(batch.column(self._columns[layout.sensor]), where)
            estimated = np.zeros(len(rows), dtype=np.bool_)
            for place, wanted in zip((layout.quality, layout.query), MEASURED, strict=True):
                if place >= 0:
                    estimated |= ~_is(batch.column(self._columns[place]), wanted)
            return _block_of(rows, times, sensors, values[:, 0], missing[:, 0], estimated)
        nulls = missing.ravel()
        at = np.repeat(rows, len(self._values))
        sensors = np.tile(self._sensors, len(rows))
        found = _block_of(at, np.repeat(times, len(self._values)), sensors, values.ravel(), nulls, np.zeros_like(nulls))
        return found.chosen(~nulls)

    def _names_of(self, column: Any, where: str) -> Ints:  # noqa: ANN401 - as above
        """Return the numbers of the sensors in a column."""
        from pyarrow import types  # noqa: PLC0415

        name = self._columns[self.layout.sensor]
        if column.null_count:
            raise TableError(f"{where}, column {name!r}: found nothing, expected a sensor's name")
        if not types.is_dictionary(column.type):
            column = column.dictionary_encode()
        numbers = [self.names.number(str(item), where, name) for item in column.dictionary.to_pylist()]
        places = column.indices.to_numpy(zero_copy_only=False)
        found: Ints = np.array(numbers, dtype=np.int64)[places.astype(np.intp)]
        return found


def _is(column: Any, wanted: str) -> Flags:  # noqa: ANN401 - as above
    """Return which rows of a column have a text, bool[rows]."""
    from pyarrow import compute, types  # noqa: PLC0415

    texts = column.dictionary_decode() if types.is_dictionary(column.type) else column
    found = compute.equal(compute.fill_null(texts, ""), wanted)
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _block_of(rows: Ints, times: Ints, sensors: Ints, values: Floats, missing: Flags, estimated: Flags) -> ReadingBlock:
    nothing = np.zeros(len(rows), dtype=np.int64)
    return ReadingBlock(rows, nothing, nothing, times, sensors, values, missing, estimated)
