"""Encodes the rows of queries as result blocks, from columns, without making a message for each block.

A block has the rows of one instant and of one combination of the columns of ORDER WITHIN, often few of them. To fill
messages of such blocks took five times as long as the queries themselves. So protobuf writes the heads, and the columns
are sliced. The bytes are those of `ResultBlock.SerializeToString(deterministic=True)`, and depend on the values alone:
texts stand in the order in which they come first, and a column whose values are all measured says nothing of ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tsunagi.query.relations import Rows, codes_of, distinct
from tsunagi.query.values import WIRE, Array, Column, Flags, Ints, Kind
from tsunagi.runtime.messages import VERSION, Recovered, ResultBlock, TypedColumn
from tsunagi.runtime.wire import rows_of_bytes, tag, whole_numbers

F64 = np.dtype("<f8")
"""The type of ends and standard deviations."""
_FEW = 16
"""Up to so many stretches of rows are encoded one by one: for these, a matrix would cost more than it saves."""
_CACHED = 10_000
"""Most encoded pieces of a column of texts that are kept: the same texts often stand in block after block."""


_WEIGHTS = np.random.default_rng(1).integers(1, 2**63, 1024, dtype=np.uint64)
"""Weights of a checksum over codes."""


class EncodedBlock(NamedTuple):
    """A result block as bytes.

    Attributes:
        rows: how many rows it has.
        key: the name of the block, which is the key of its record.
        value: the serialised `ResultBlock`.
    """

    query: str
    group: str
    step: int
    rows: int
    appended_us: int
    key: bytes
    value: bytes


def run_name(query: str, group: str) -> bytes:
    """Return what the names of a query's blocks of a group begin with; the step stands behind it."""
    return f"{query}/{group}/".encode()


def encode_rows(
    query: str,
    rows: Rows,
    within: Sequence[str],
    slide_us: int,
    appended: Callable[[Ints], Ints] = np.zeros_like,
    run: int = 0,
) -> Iterator[EncodedBlock]:
    """Yield the rows of a query as blocks, one for each instant and each combination of the columns of ORDER WITHIN.

    Args:
        rows: in the order of `relations.in_order`.
        within: the names of the columns; none = there is one block for each instant.
        appended: returns for steps, int64[n] ascending, when their inputs were appended, int64[n].
        run: of a query that was filled from the log: tells its rows from those of another query of its name.
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
    appended_us = appended(step)
    heads = [ResultBlock(version=VERSION, query=query, group=item).SerializeToString() for item in names]
    keys = [run_name(query, item) for item in names]
    tails = {count: ResultBlock(rows=count, run=run).SerializeToString() for count in np.unique(ends - begins).tolist()}
    times = whole_numbers(ResultBlock, {"step": step, "event_time_us": step * slide_us, "appended_us": appended_us})
    columns = zip(*_column_pieces(rows, begins, ends, ResultBlock), strict=True)
    numbers = zip(group.tolist(), step.tolist(), (ends - begins).tolist(), appended_us.tolist(), strict=True)
    for (number, at, count, appended_at), time, data in zip(numbers, times, columns, strict=True):
        value = b"".join((heads[number], time, *data, tails[count]))
        yield EncodedBlock(query, names[number], at, count, appended_at, b"%b%d" % (keys[number], at), value)


def _groups(rows: Rows, within: Sequence[str]) -> tuple[list[str], Ints]:
    """Return the names of the groups of ORDER WITHIN in the order of texts, and the number of each row's group."""
    number: Ints = np.zeros(len(rows), dtype=np.int64)
    names = [""]
    for place, key in enumerate(within):
        column = rows.columns[key]
        values, size = codes_of([column], len(rows))
        found, inverse = distinct(values, size)
        first = np.empty(len(found), dtype=np.int64)
        first[inverse[::-1]] = np.arange(len(rows))[::-1]
        words = ["" if value is None else str(value) for value in column.take(first).to_list()]
        found, number = distinct(number * len(words) + inverse, len(names) * len(words))
        joined = [(names[item // len(words)], words[item % len(words)]) for item in found.tolist()]
        names = [f"{before}/{word}" if place else word for before, word in joined]
    order = sorted(set(names))
    ranked = {item: place for place, item in enumerate(order)}
    return order, np.array([ranked[item] for item in names], dtype=np.int64)[number]


def encode_columns(rows: Rows, begins: Ints, ends: Ints, message: type[ResultBlock | Recovered]) -> Iterator[bytes]:
    """Yield the encoded field `column` of such a message for each stretch of rows: those from a begin to its end."""
    for part in zip(*_column_pieces(rows, begins, ends, message), strict=True):
        yield b"".join(part)


def _column_pieces(rows: Rows, begins: Ints, ends: Ints, message: type[ResultBlock | Recovered]) -> list[list[bytes]]:
    """Return the encoded columns of each stretch of rows, in pieces: one or more columns each."""
    pieces: list[list[bytes]] = []
    plain: dict[str, Column] = {}
    for name, column in rows.columns.items():
        if len(begins) > _FEW and _is_plain(column):
            plain[name] = column
            continue
        if plain:
            pieces.append(_plain_pieces(plain, begins, ends, message))
            plain = {}
        pieces.append(_pieces(name, column, begins, ends, message))
    if plain:
        pieces.append(_plain_pieces(plain, begins, ends, message))
    return pieces


def _is_plain(column: Column) -> bool:
    """Return whether a column is nothing but its numbers: none is NULL, and all are measured."""
    if column.kind is Kind.TEXT or column.valid is not None:
        return False
    return column.spread is None or np.array_equal(column.spread.low, column.spread.high)


def _plain_pieces(
    columns: Mapping[str, Column], begins: Ints, ends: Ints, message: type[ResultBlock | Recovered]
) -> list[bytes]:
    """Return the encoded columns of each stretch; those of equal length are written together, as a matrix of bytes."""
    lengths = ends - begins
    pieces = [b""] * len(begins)
    for rows in np.unique(lengths).tolist():
        which = np.flatnonzero(lengths == rows)
        place = begins[which][:, None] + np.arange(rows)
        parts: list[bytes | npt.NDArray[np.uint8]] = []
        for name, column in columns.items():
            kind = WIRE[column.kind]
            head = TypedColumn(name=name, kind=column.kind.value).SerializeToString()
            head += tag(TypedColumn, "value", rows * kind.itemsize)
            parts.append(_column(message, len(head) + rows * kind.itemsize) + head)
            parts.append(np.ascontiguousarray(column.values, dtype=kind)[place].view(np.uint8))
        for stretch, data in zip(which.tolist(), rows_of_bytes(parts, len(which)), strict=True):
            pieces[stretch] = data
    return pieces


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
        if spread is None:  # the same few texts stand in block after block
            whole = {part: _column(message, len(head) + len(part)) + head + part for part in set(parts)}
            return [whole[part] for part in parts]
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
    if valid is None and len(bounds) > _FEW:
        return _alike(column.pool, codes, bounds)
    data = codes.tobytes()
    there = None if valid is None else valid.astype(np.uint8).tobytes()
    known = _known_pieces(column.pool)
    return [
        _text_piece(
            column.pool, data[8 * first : 8 * last], there[first:last] if null and there is not None else b"", known
        )
        for null, (first, last) in zip(nulls.tolist(), bounds, strict=True)
    ]


def _alike(pool: tuple[str, ...], codes: Ints, bounds: Sequence[tuple[int, int]]) -> list[bytes]:
    """Return the fields of texts without NULL: equal stretches of codes are looked for all at once, by a checksum."""
    begins, ends = np.array(bounds, dtype=np.int64).T
    lengths = ends - begins
    found = [b""] * len(bounds)
    known = _known_pieces(pool)
    for rows in np.unique(lengths).tolist():
        which = np.flatnonzero(lengths == rows)
        stretch = codes[begins[which][:, None] + np.arange(rows)]
        checksum = (stretch.astype(np.uint64) + 1) @ _WEIGHTS.take(np.arange(rows), mode="wrap")
        _, first, alike = np.unique(checksum, return_index=True, return_inverse=True)
        if not np.array_equal(stretch[first[alike]], stretch):  # stretches that differ have one checksum
            first = alike = np.arange(len(which))
        pieces = [_text_piece(pool, row.tobytes(), b"", known) for row in stretch[first]]
        for number, place in zip(which.tolist(), alike.tolist(), strict=True):
            found[number] = pieces[place]
    return found


@lru_cache(maxsize=16)  # each with 4 MB at most, of blocks of twenty texts
def _known_pieces(pool: tuple[str, ...]) -> dict[tuple[bytes, bytes], bytes]:
    """Return the encoded pieces of a pool, by codes and `valid`: the same ones often come in the next call."""
    del pool
    return {}


def _text_piece(pool: Sequence[str], codes: bytes, valid: bytes, known: dict[tuple[bytes, bytes], bytes]) -> bytes:
    """Return the fields of some texts, by their codes, int64[rows]."""
    piece = known.get((codes, valid))
    if piece is None:
        piece = _encoded_texts(pool, np.frombuffer(codes, dtype=np.int64).tolist(), valid)
        if len(known) < _CACHED:
            known[codes, valid] = piece
    return piece


def _encoded_texts(pool: Sequence[str], codes: Sequence[int], valid: bytes) -> bytes:
    place: dict[int, int] = {}
    places = [place.setdefault(code, len(place)) if not valid or valid[at] else 0 for at, code in enumerate(codes)]
    return TypedColumn(
        value=np.array(places, dtype=WIRE[Kind.TEXT]).tobytes(), valid=valid, text=[pool[code] for code in place]
    ).SerializeToString()
