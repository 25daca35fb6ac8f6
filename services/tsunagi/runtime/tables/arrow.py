"""Reads columns of Parquet files: numbers and times. pyarrow is imported here and nowhere else in the services.

The services' image does not have pyarrow, which is ten times as large as all else: it is an extra.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tsunagi.installation import missing
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.csv_text import CsvError
from tsunagi.runtime.settings import TableSettings
from tsunagi.runtime.tables.cells import TimeReader
from tsunagi.runtime.tables.layout import TableError
from tsunagi.runtime.times import hint, in_range

Times = npt.NDArray[np.int64]

_A_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""How many of each unit a second has."""
_EXACT = 2**53
"""The greatest whole number up to which float64 tells each from its neighbours."""


def open_parquet(path: Path, dictionary: list[str] | None = None) -> Any:  # noqa: ANN401 - pyarrow has no types
    """Return a `pyarrow.parquet.ParquetFile`.

    Args:
        dictionary: columns of texts that are read as dictionaries.

    Raises:
        TableError: the file is no Parquet, or pyarrow is not installed.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415 - see the top of the module
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError:
        raise TableError(f"{path}: Parquet needs pyarrow, which is not installed here; {missing('parquet')}") from None
    try:
        found = path.stat()
        # A task reads one row group after the other: with thousands of columns the footer takes longer than the rows.
        footer = _footer(path, found.st_mtime_ns, found.st_size)
        return parquet.ParquetFile(path, metadata=footer, read_dictionary=dictionary)
    except (OSError, pa.ArrowException) as error:
        raise TableError(f"{path}: cannot be read: {error}") from None


@lru_cache(maxsize=1)
def _footer(path: Path, _mtime_ns: int, _size: int) -> Any:  # noqa: ANN401 - as above
    from pyarrow import parquet  # noqa: PLC0415

    return parquet.read_metadata(path)


def is_number(kind: Any) -> bool:  # noqa: ANN401 - as above
    """Return whether a column of a type has values that `numbers_of` reads."""
    from pyarrow import types  # noqa: PLC0415

    return any(of(kind) for of in (types.is_integer, types.is_floating, types.is_decimal, types.is_null))


def numbers_of(column: Any, where: str, name: str) -> Floats:  # noqa: ANN401 - as above
    """Return the numbers in a column, float64[rows]; NaN where it has none.

    Raises:
        TableError: a whole number is beyond 2^53, where float64 cannot tell it from its neighbours.
    """
    import pyarrow as pa  # noqa: PLC0415

    try:
        return np.asarray(column.cast("float64").to_numpy(zero_copy_only=False), dtype=np.float64)
    except pa.ArrowInvalid as error:
        raise TableError(
            f"{where}: {name}: {error}; expected at most 2^53: scale the column, or write it as float64"
        ) from None


def times_of(column: Any, where: str, form: TableSettings, name: str = "time") -> Times:  # noqa: ANN401 - as above
    """Return the times in a column, int64[rows], in microseconds since 1970.

    Raises:
        TableError: a time cannot be read, or the column's type has none.
    """
    from pyarrow import types  # noqa: PLC0415

    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if column.null_count:
        raise TableError(f"{where}: {name}: found nothing, expected a time in every row")
    if types.is_timestamp(kind):
        return _timestamps(column, where, form, name)
    if types.is_integer(kind) or types.is_floating(kind):
        return _counted(column, where, form, name)
    if types.is_string(kind) or types.is_large_string(kind):
        reader = TimeReader(form, name)
        texts = column.to_pylist()
        try:
            found = {text: reader.read(text, where) for text in dict.fromkeys(texts)}
        except CsvError as error:
            raise TableError(str(error)) from None
        return np.array([found[text] for text in texts], dtype=np.int64)
    raise TableError(f"{where}: {name}: found a column of {kind}, expected timestamps with a zone, or epoch seconds")


def _timestamps(column: Any, where: str, form: TableSettings, name: str) -> Times:  # noqa: ANN401 - as above
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import compute as pc  # noqa: PLC0415

    kind = column.type
    try:
        if kind.tz is None:
            if not form.time_zone:
                raise TableError(
                    f"{where}: {name}: found timestamps without a zone, expected them with one, such as UTC; "
                    "time_zone of [source.table], or --table time_zone=Europe/Berlin, names it"
                )
            column = pc.assume_timezone(column, form.time_zone)
        # Nanoseconds may be cut off, but a time beyond the range of microseconds must not become another time.
        options = pc.CastOptions(pa.timestamp("us", tz=column.type.tz), allow_time_truncate=True)
        microseconds = column.cast(options=options).cast("int64").to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid as error:
        raise TableError(f"{where}: {name}: {error}") from None
    return _checked(np.asarray(microseconds, dtype=np.int64), where, name, form)


def _counted(column: Any, where: str, form: TableSettings, name: str) -> Times:  # noqa: ANN401 - as above
    from pyarrow import types  # noqa: PLC0415

    per_second = _A_SECOND[form.time_unit]
    if types.is_integer(column.type) and per_second > 1:  # these stay exact, however long they are
        try:
            whole = np.asarray(column.cast("int64").to_numpy(zero_copy_only=False), dtype=np.int64)
        except ValueError as error:
            raise TableError(f"{where}: {name}: {error}") from None
        if per_second > 10**6:
            return _checked(whole // (per_second // 10**6), where, name, form)
        times = whole.astype(np.float64) * (10**6 // per_second)
        return _checked(times, where, name, form) if per_second < 10**6 else _checked(whole, where, name, form)
    numbers = np.asarray(column.cast("float64", safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)
    if not np.isfinite(numbers).all():
        raise TableError(f"{where}: {name}: found NaN or infinity, expected times since the epoch")
    return _checked(np.round(numbers * (10**6 / per_second)), where, name, form)


def _checked(times_us: npt.NDArray[np.int64 | np.float64], where: str, name: str, form: TableSettings) -> Times:
    """Return times, in microseconds since 1970, as int64[rows].

    Raises:
        TableError: a time is beyond the range of times.
    """
    for time_us in (times_us.min(initial=0), times_us.max(initial=0)):
        if not in_range(float(time_us)):
            found = float(time_us) / 1e6
            if form.time_unit == "s":
                raise TableError(f"{where} or below: {name}: found {found:.15g}: {hint(found)}")
            raise TableError(f"{where} or below: {name}: found {found:.15g} s, expected times in {form.time_unit}")
    return times_us.astype(np.int64)
