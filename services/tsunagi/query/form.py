"""The form of tuples of several columns, and tuples as messages. The parser is not needed for it."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tsunagi.query.values import WIRE, Kind
from tsunagi.runtime.messages import TypedColumn

Cells = Mapping[str, Any]
"""The values of one tuple by column: float, int, bool, str, or None for NULL; times in microseconds."""
_FORMATS = {Kind.DOUBLE: "<d", Kind.BIGINT: "<q", Kind.TIMESTAMP: "<q", Kind.BOOLEAN: "<B"}
"""How a value is written, in the words of `struct`."""


class TupleForm(NamedTuple):
    """The columns of a stream that a statement creates.

    Attributes:
        key: the column that names the sensor; "" = none does, since the rows are events (with lock-step).
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


def table_columns(rows: Sequence[Cells], kinds: Mapping[str, Kind]) -> list[TypedColumn]:
    """Return the columns of several tuples as messages."""
    found = []
    for name, kind in kinds.items():
        cells = [row.get(name) for row in rows]
        missing = None in cells
        valid = np.array([cell is not None for cell in cells], dtype=np.uint8).tobytes() if missing else b""
        texts: dict[str, int] = {}
        if kind is Kind.TEXT:
            numbers = [0 if cell is None else texts.setdefault(str(cell), len(texts)) for cell in cells]
        else:
            numbers = [0 if cell is None else cell for cell in cells]
        value = np.array(numbers, dtype=WIRE[kind]).tobytes()
        found.append(TypedColumn(name=name, kind=kind.value, value=value, valid=valid, text=list(texts)))
    return found


def misfits(column: TypedColumn, rows: int) -> bool:
    """Return whether a column of a message is of no known kind, or has not so many rows."""
    width = _WIDTHS.get(column.kind)
    if width is None or len(column.value) != rows * width or len(column.valid) not in (0, rows):
        return True
    if column.kind != Kind.TEXT.value or not rows:
        return False
    return int(np.frombuffer(column.value, dtype=WIRE[Kind.TEXT]).max()) >= max(1, len(column.text))


_WIDTHS = {kind.value: wire.itemsize for kind, wire in WIRE.items()}
"""The bytes of a value, by the name of its kind."""
