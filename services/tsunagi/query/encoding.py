"""Encodes the rows of queries as result blocks, from columns, without making a message for each block.

A block has the rows of one instant and of one combination of the columns of ORDER WITHIN, often few of them. To fill
messages of such blocks took five times as long as the queries themselves. So protobuf writes the heads, and the columns
are sliced. The bytes are those of `ResultBlock.SerializeToString(deterministic=True)`, and depend on the values alone:
texts stand in the order in which they come first, and a column whose values are all measured says nothing of ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tsunagi.query.relations import Rows
from tsunagi.query.values import Array, Column, Flags, Ints, Kind, ranks
from tsunagi.runtime.messages import VERSION, Recovered, ResultBlock, TypedColumn
from tsunagi.runtime.wire import tag

WIRE: Mapping[Kind, np.dtype[np.generic]] = {
    Kind.DOUBLE: np.dtype("<f8"),
    Kind.BIGINT: np.dtype("<i8"),
    Kind.TIMESTAMP: np.dtype("<i8"),
    Kind.BOOLEAN: np.dtype("u1"),
    Kind.TEXT: np.dtype("<u4"),
}
"""The types of numbers in messages, by kind; of TEXT, that of the places in `text`."""
F64 = np.dtype("<f8")
"""The type of ends and standard deviations."""
_CACHED = 10_000
"""Most encoded pieces of a column of texts that are kept: the same texts often stand in block after block."""


class EncodedBlock(NamedTuple):
    """A result block as bytes.

    Attributes:
        rows: how many rows it has.
        value: the serialised `ResultBlock`.
    """

    query: str
    group: str
    step: int
    rows: int
    appended_us: int
    value: bytes

    @property
    def key(self) -> bytes:
        """The name of the block, which is the key of its record."""
        return f"{self.query}/{self.group}/{self.step}".encode()


def encode_rows(
    query: str, rows: Rows, within: Sequence[str], slide_us: int, appended: Callable[[Ints], Ints] = np.zeros_like
) -> Iterator[EncodedBlock]:
    """Yield the rows of a query as blocks, one for each instant and each combination of the columns of ORDER WITHIN.

    Args:
        rows: in the order of `relations.in_order`.
        within: the names of the columns; none = there is one block for each instant.
        appended: returns for steps, int64[n] ascending, when their inputs were appended, int64[n].
    """
    rows = rows.only_taken()
    if not len(rows):
        return
    names, name = _groups(rows, within)
    if len(names) > 1:
        place = (rows.step - rows.step[0]) * len(names) + name
        order = np.argsort(place, kind="stable")
        rows, name = rows.take(order), name[order]
    fresh = np.ones(len(rows), dtype=np.bool_)
    fresh[1:] = (rows.step[1:] != rows.step[:-1]) | (name[1:] != name[:-1])
    begins = np.flatnonzero(fresh)
    ends = np.append(begins[1:], len(rows))
    step, group = rows.step[begins], name[begins]
    head = ResultBlock(version=VERSION, query=query)
    tails = {count: ResultBlock(rows=count).SerializeToString() for count in np.unique(ends - begins).tolist()}
    heads = zip(step.tolist(), group.tolist(), appended(step).tolist(), (ends - begins).tolist(), strict=True)
    columns = encode_columns(rows, begins, ends, ResultBlock)
    for (at, number, appended_us, count), data in zip(heads, columns, strict=True):
        head.group, head.step, head.event_time_us, head.appended_us = names[number], at, at * slide_us, appended_us
        value = head.SerializeToString() + data + tails[count]
        yield EncodedBlock(query, names[number], at, count, appended_us, value)


def _groups(rows: Rows, within: Sequence[str]) -> tuple[list[str], Ints]:
    """Return the names of the groups of ORDER WITHIN in the order of texts, and the number of each row's group."""
    number: Ints = np.zeros(len(rows), dtype=np.int64)
    names = [""]
    for place, key in enumerate(within):
        column = rows.columns[key]
        values = ranks(column.pool)[column.values] if column.kind is Kind.TEXT else column.values
        there = np.arange(len(rows)) if column.valid is None else np.flatnonzero(column.valid)
        _, first, which = np.unique(values[there], return_index=True, return_inverse=True)
        inverse = np.zeros(len(rows), dtype=np.int64)  # 0 is NULL
        inverse[there] = which + 1
        words = ["", *(str(value) for value in column.take(there[first]).to_list())]
        found, number = np.unique(number * len(words) + inverse, return_inverse=True)
        joined = [(names[item // len(words)], words[item % len(words)]) for item in found.tolist()]
        names = [f"{before}/{word}" if place else word for before, word in joined]
    order = sorted(set(names))
    ranked = {item: place for place, item in enumerate(order)}
    return order, np.array([ranked[item] for item in names], dtype=np.int64)[number]


def encode_columns(rows: Rows, begins: Ints, ends: Ints, message: type[ResultBlock | Recovered]) -> Iterator[bytes]:
    """Yield the encoded field `column` of such a message for each stretch of rows: those from a begin to its end."""
    pieces = [_pieces(name, column, begins, ends, message) for name, column in rows.columns.items()]
    for part in zip(*pieces, strict=True):
        yield b"".join(part)


def _pieces(name: str, column: Column, begins: Ints, ends: Ints, message: type[ResultBlock | Recovered]) -> list[bytes]:
    """Return the encoded field `column`, with this one column, of each stretch of rows."""
    head = TypedColumn(name=name, kind=column.kind.value).SerializeToString()
    valid = column.valid
    nulls = np.zeros(len(begins), np.bool_) if valid is None else np.logical_or.reduceat(~valid, begins)
    values = column.values if valid is None else np.where(valid, column.values, column.kind.dtype.type(0))
    spread = column.spread
    wide = np.zeros(len(begins), np.bool_)
    if spread is not None:
        wide = np.logical_or.reduceat(spread.low != spread.high, begins)
    bounds = list(zip(begins.tolist(), ends.tolist(), strict=True))
    if column.kind is Kind.TEXT:
        parts = _texts(column, values, valid, nulls, bounds)
    else:
        width = WIRE[column.kind].itemsize
        data = np.ascontiguousarray(values, dtype=WIRE[column.kind]).tobytes()
        parts = [data[first * width : last * width] for first, last in bounds]
        parts = [tag(TypedColumn, "value", len(part)) + part for part in parts]
        if nulls.any():
            parts = _with(parts, "valid", np.asarray(valid).astype(np.uint8), nulls, bounds)
    if spread is not None and wide.any():
        for field in ("low", "high", "sd"):
            parts = _with(parts, field, np.ascontiguousarray(getattr(spread, field), dtype=F64), wide, bounds)
    return [_column(message, len(head) + len(part)) + head + part for part in parts]


def _column(message: type[ResultBlock | Recovered], length: int) -> bytes:
    return tag(ResultBlock, "column", length) if message is ResultBlock else tag(Recovered, "column", length)


def _with(
    parts: Sequence[bytes], field: str, array: Array, which: Flags, bounds: Sequence[tuple[int, int]]
) -> list[bytes]:
    """Return the parts of blocks with one more field, in those blocks that have it."""
    data, width = array.tobytes(), array.itemsize
    found = []
    for part, has, (first, last) in zip(parts, which.tolist(), bounds, strict=True):
        more = data[first * width : last * width] if has else b""
        found.append(part + tag(TypedColumn, field, len(more)) + more if has else part)
    return found


def _texts(
    column: Column, values: Array, valid: Flags | None, nulls: Flags, bounds: Sequence[tuple[int, int]]
) -> list[bytes]:
    """Return the fields `value`, `valid` and `text` of each block."""
    codes = np.ascontiguousarray(values, dtype=np.int64)
    data = codes.tobytes()
    there = None if valid is None else valid.astype(np.uint8).tobytes()
    known: dict[tuple[bytes, bytes], bytes] = {}
    found = []
    for null, (first, last) in zip(nulls.tolist(), bounds, strict=True):
        key = data[8 * first : 8 * last], there[first:last] if null and there is not None else b""
        piece = known.get(key)
        if piece is None:
            piece = _text_piece(column.pool, codes[first:last].tolist(), key[1])
            if len(known) < _CACHED:
                known[key] = piece
        found.append(piece)
    return found


def _text_piece(pool: Sequence[str], codes: Sequence[int], valid: bytes) -> bytes:
    place: dict[int, int] = {}
    places = [place.setdefault(code, len(place)) if not valid or valid[at] else 0 for at, code in enumerate(codes)]
    return TypedColumn(
        value=np.array(places, dtype=WIRE[Kind.TEXT]).tobytes(), valid=valid, text=[pool[code] for code in place]
    ).SerializeToString()
