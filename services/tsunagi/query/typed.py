"""Reads the typed columns of messages: what a query gives stands in `results` in this form (`encoding` writes it)."""

from __future__ import annotations

import numpy as np

from tsunagi.query.encoding import F64
from tsunagi.query.relations import Rows
from tsunagi.query.values import WIRE, Column, Kind, Spread
from tsunagi.runtime.door import UnusableError
from tsunagi.runtime.messages import Recovered, ResultBlock, TypedColumn


def from_message(message: TypedColumn, rows: int) -> Column:
    """Read a column of so many rows.

    Raises:
        UnusableError: the message is of an unknown kind, or its parts do not fit.
    """
    try:
        kind = Kind(message.kind)
        wire = WIRE[kind]
    except (ValueError, KeyError):
        raise UnusableError("damaged", f"column {message.name}: found kind {message.kind!r}") from None
    for field, width, may_be_empty in (("value", wire.itemsize, False), ("valid", 1, True), ("low", 8, True)):
        length = len(getattr(message, field))
        if length != rows * width and not (may_be_empty and length == 0):
            raise UnusableError(
                "damaged", f"column {message.name}: {field}: found {length} bytes, expected {rows * width}"
            )
    values = np.frombuffer(message.value, dtype=wire).astype(kind.dtype)
    valid = np.frombuffer(message.valid, dtype=np.uint8) != 0 if message.valid else None
    pool: tuple[str, ...] = ()
    if kind is Kind.TEXT:
        pool = tuple(message.text) or ("",)
        if rows and int(values.max()) >= len(pool):
            raise UnusableError(
                "damaged", f"column {message.name}: found text {int(values.max())}, expected less than {len(pool)}"
            )
        if len(set(pool)) < len(pool):
            raise UnusableError("damaged", f"column {message.name}: found a text twice")
    spread = None
    if message.low:
        spread = Spread(*(np.frombuffer(getattr(message, field), dtype=F64) for field in ("low", "high", "sd")))
    return Column(kind, values, valid, pool, spread)


def rows_of(block: ResultBlock | Recovered) -> Rows:
    """Read the rows of a block, or of an output of a slot.

    Raises:
        UnusableError: its columns do not fit.
    """
    names = [message.name for message in block.column]
    if len(set(names)) < len(names):
        raise UnusableError("damaged", "a column stands twice")
    columns = {message.name: from_message(message, block.rows) for message in block.column}
    return Rows(np.full(block.rows, block.step, dtype=np.int64), columns)


def quality_of(rows: Rows) -> list[str]:
    """Return in a word how each row is known: exact | bounded | unbounded.

    It is unbounded if nothing is known of one of its columns, and bounded if one of them has ends.
    """
    open_ = np.zeros(len(rows), dtype=np.bool_)
    wide = open_.copy()
    for column in rows.columns.values():
        if column.spread is not None:
            open_ |= column.spread.low != column.spread.high
            wide |= np.isinf(column.spread.low) & np.isinf(column.spread.high)
    return ["unbounded" if far else "bounded" if near else "exact" for far, near in zip(wide, open_, strict=True)]
