"""The form of tuples of several columns, and one tuple as messages. The parser is not needed for it."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from tsunagi.query.values import Kind
from tsunagi.runtime.messages import TypedColumn

Cells = Mapping[str, Any]
"""The values of one tuple by column: float, int, bool, str, or None for NULL; times in microseconds."""
_FORMATS = {Kind.DOUBLE: "<d", Kind.BIGINT: "<q", Kind.TIMESTAMP: "<q", Kind.BOOLEAN: "<B"}
"""How a value is written, in the words of `struct`."""


class TupleForm(NamedTuple):
    """The columns of a stream that a statement creates.

    Attributes:
        key: the column that names the sensor.
        kinds: the other columns, without the time.
    """

    key: str
    kinds: Mapping[str, Kind]


def first_number(cells: Cells, form: TupleForm) -> float:
    """Return the first number of a tuple, which operators see as its value; 0 if it has none."""
    for name, kind in form.kinds.items():
        if kind.numeric:
            value = cells.get(name)
            return 0.0 if value is None else float(value)
    return 0.0


def to_columns(cells: Cells, form: TupleForm) -> list[TypedColumn]:
    """Return the columns of one tuple as messages."""
    found = []
    for name, kind in form.kinds.items():
        value = cells.get(name)
        valid = b"" if value is not None else b"\0"
        if kind is Kind.TEXT:
            texts = [] if value is None else [str(value)]
            found.append(TypedColumn(name=name, kind=kind.value, value=bytes(4), valid=valid, text=texts))
        else:
            data = struct.pack(_FORMATS[kind], value or 0)
            found.append(TypedColumn(name=name, kind=kind.value, value=data, valid=valid))
    return found
