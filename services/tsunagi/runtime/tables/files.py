"""Opens tables of readings: a file, or the files of a folder, wide or long, CSV or Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tsunagi.runtime.settings import TableSettings
from tsunagi.runtime.tables.block import SensorNames
from tsunagi.runtime.tables.csv_table import CsvTable
from tsunagi.runtime.tables.layout import TableError
from tsunagi.runtime.tables.parquet_table import ParquetTable

PARQUET = frozenset({".parquet", ".pq"})
"""Endings of the names of Parquet files, in small letters."""
_CSV = ".csv"
"""Ending of the names of CSVs in a folder. A file that is named itself is a CSV whatever its ending."""


def is_parquet(path: Path) -> bool:
    """Return whether a file is read as Parquet. All others are read as CSV."""
    return path.suffix.lower() in PARQUET


def list_tables(path: Path) -> list[Path]:
    """Return a file, or the files of readings in a folder, in the order of their names.

    Raises:
        TableError: there is none.
    """
    if not path.is_dir():
        if not path.exists():
            raise TableError(f"{path}: no such file of readings")
        return [path]
    found = [file for file in path.iterdir() if file.suffix.lower() in PARQUET | {_CSV} and file.name[0] not in "._"]
    if not found:
        raise TableError(f"{path}: found no file that ends in .csv or .parquet, expected one")
    return sorted(found)


def open_table(path: Path, form: TableSettings, names: SensorNames | None = None) -> CsvTable | ParquetTable:
    """Open a table.

    Args:
        form: how it is read, if its header does not tell.
        names: the numbers of sensors that several tables share; None = the table has its own.

    Raises:
        TableError: the file cannot be used.
    """
    kind = ParquetTable if is_parquet(path) else CsvTable
    return kind(path, form, SensorNames() if names is None else names)


def open_tables(path: Path, form: TableSettings) -> tuple[Sequence[CsvTable | ParquetTable], SensorNames]:
    """Open a file, or the files of a folder, which may differ in layout and kind.

    Returns:
        the tables in the order of their names, and the numbers of their sensors.

    Raises:
        TableError: a file cannot be used.
    """
    names = SensorNames()
    return [open_table(file, form, names) for file in list_tables(path)], names
