"""Writes typed columns as messages, and reads them: what a query gives goes to `results` in this form.

The bytes depend on the values alone: texts stand in the order in which they come first, and a column whose values are
all measured says nothing of ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tsunagi.query.relations import Rows
from tsunagi.query.values import Array, Column, Kind, Spread
from tsunagi.runtime.door import UnusableError
from tsunagi.runtime.messages import VERSION, ResultBlock, TypedColumn

_WIRE: Mapping[Kind, np.dtype[np.generic]] = {
    Kind.DOUBLE: np.dtype("<f8"),
    Kind.BIGINT: np.dtype("<i8"),
    Kind.TIMESTAMP: np.dtype("<i8"),
    Kind.BOOLEAN: np.dtype("u1"),
    Kind.TEXT: np.dtype("<u4"),
}
"""The types of numbers in messages, by kind; of TEXT, that of the places in `text`."""
_F64 = np.dtype("<f8")
"""The type of ends and standard deviations."""


def to_message(name: str, column: Column) -> TypedColumn:
    """Return a column, which is not constant, as a message."""
    values = column.values
    texts: Sequence[str] = ()
    valid = None if column.valid is None or column.valid.all() else column.valid
    if column.kind is Kind.TEXT:
        values, texts = _first_come(column, valid)
    elif valid is not None:
        values = np.where(valid, values, column.kind.dtype.type(0))
    message = TypedColumn(
        name=name,
        kind=column.kind.value,
        value=np.ascontiguousarray(values, dtype=_WIRE[column.kind]).tobytes(),
        valid=b"" if valid is None else valid.astype(np.uint8).tobytes(),
        text=texts,
    )
    spread = column.spread
    if spread is not None and (spread.low != spread.high).any():
        for field in ("low", "high", "sd"):
            setattr(message, field, np.ascontiguousarray(getattr(spread, field), dtype=_F64).tobytes())
    return message


def _first_come(column: Column, valid: Array | None) -> tuple[Array, Sequence[str]]:
    """Return the places of the texts, and the texts that occur, in the order in which they come first."""
    codes = column.values if valid is None else column.values[valid]
    found, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty(len(found), dtype=np.int64)
    place[order] = np.arange(len(found))
    places = np.zeros(len(column.values), dtype=np.int64)
    places[slice(None) if valid is None else valid] = place[inverse]
    return places, [column.pool[code] for code in found[order].tolist()]


def from_message(message: TypedColumn, rows: int) -> Column:
    """Read a column of so many rows.

    Raises:
        UnusableError: the message is of an unknown kind, or its parts do not fit.
    """
    try:
        kind = Kind(message.kind)
        wire = _WIRE[kind]
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
        spread = Spread(*(np.frombuffer(getattr(message, field), dtype=_F64) for field in ("low", "high", "sd")))
    return Column(kind, values, valid, pool, spread)


def blocks_of(query: str, rows: Rows, within: Sequence[str], slide_us: int) -> Iterator[ResultBlock]:
    """Yield the rows of a query as blocks, one for each instant and each combination of the columns of ORDER WITHIN.

    Args:
        rows: in the order of `relations.in_order`.
        within: the names of the columns; none = there is one block for each instant.
    """
    rows = rows.only_taken()
    if not len(rows):
        return
    names = _names(rows, within)
    order = np.lexsort((names[1], rows.step)) if len(names[0]) > 1 else np.arange(len(rows))
    step, name = rows.step[order], names[1][order]
    fresh = np.ones(len(rows), dtype=np.bool_)
    fresh[1:] = (step[1:] != step[:-1]) | (name[1:] != name[:-1])
    begins = np.flatnonzero(fresh)
    for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(rows)], strict=True):
        part = rows.take(order[begin:end])
        yield ResultBlock(
            version=VERSION,
            query=query,
            group=names[0][int(name[begin])],
            step=int(step[begin]),
            event_time_us=int(step[begin]) * slide_us,
            column=[to_message(key, column) for key, column in part.columns.items()],
            rows=len(part),
        )


def _names(rows: Rows, within: Sequence[str]) -> tuple[list[str], Array]:
    """Return the names of the groups of ORDER WITHIN in the order of texts, and the number of each row's group."""
    if not within:
        return [""], np.zeros(len(rows), dtype=np.int64)
    columns = [["" if value is None else str(value) for value in rows.columns[key].to_list()] for key in within]
    joined = ["/".join(parts) for parts in zip(*columns, strict=True)]
    known = sorted(set(joined))
    number = {name: place for place, name in enumerate(known)}
    return known, np.array([number[name] for name in joined], dtype=np.int64)


def rows_of(block: ResultBlock) -> Rows:
    """Read the rows of a block.

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
