"""Writes rows as result blocks message by message: the plain way, which `tsunagi.query.encoding` must equal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tsunagi.query.encoding import F64
from tsunagi.query.relations import Rows
from tsunagi.query.values import WIRE, Array, Column, Kind
from tsunagi.runtime.messages import VERSION, ResultBlock, TypedColumn


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
        value=np.ascontiguousarray(values, dtype=WIRE[column.kind]).tobytes(),
        valid=b"" if valid is None else valid.astype(np.uint8).tobytes(),
        text=texts,
    )
    spread = column.spread
    if spread is not None and (spread.low != spread.high).any():
        for field in ("low", "high", "sd"):
            setattr(message, field, np.ascontiguousarray(getattr(spread, field), dtype=F64).tobytes())
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
