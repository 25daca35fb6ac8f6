"""Writes what queries keep between two steps as bytes, and reads it back."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from tsunagi.query.relations import KeyNumbers, Rows
from tsunagi.query.values import Array, Column, Kind, Spread
from tsunagi.query.windows import Piece, SlidingWindow, Stored

Tree = Any
"""Mappings with text keys, lists, numbers, texts, None and arrays."""
_PLAIN = {str, int, float, bool, type(None)}
"""The types that JSON takes as they are."""
_ALIGN = 8
"""Arrays begin at multiples of this many bytes."""


Put = Callable[[Piece], Stored]
"""Puts a compact piece away unless it is kept already, and returns where it is."""
Get = Callable[[Stored], bytes]
"""Returns what is kept there."""


def pack(tree: Tree, put: Put | None = None) -> bytes:
    """Return a tree as bytes: a head in JSON, and behind it the arrays as they are.

    Args:
        put: puts compact pieces away, which nobody changes any more; None = they are among the bytes.
    """
    arrays: list[Array] = []
    kinds: list[tuple[str, Sequence[int]]] = []

    def leaf(part: Tree) -> Tree:
        if isinstance(part, np.ndarray):
            array = np.ascontiguousarray(part)
            array = array.astype(array.dtype.newbyteorder("<"), copy=False)
            arrays.append(array)
            kinds.append((array.dtype.str, part.shape))
            return {"array": len(arrays) - 1}
        if isinstance(part, Piece):
            if put is not None and part.is_compact:
                return {"stored": list(put(part))}
            return {"piece": [leaf(item) for item in (part.pane, part.key, part.state, part.base)]}
        if isinstance(part, Mapping):
            return {"fields": {str(key): leaf(value) for key, value in part.items()}}
        if isinstance(part, list | tuple):
            return part if set(map(type, part)) <= _PLAIN else [leaf(item) for item in part]
        return part

    head = json.dumps([leaf(tree), kinds], separators=(",", ":")).encode()
    head += b" " * (-len(head) % _ALIGN)
    parts: list[bytes | memoryview] = [len(head).to_bytes(_ALIGN, "little"), head]
    for array in arrays:
        parts += [array.reshape(-1).view(np.uint8).data, bytes(-array.nbytes % _ALIGN)]
    return b"".join(parts)


def unpack(
    data: bytes | memoryview, get: Get | None = None, known: Mapping[Stored, Piece] = MappingProxyType({})
) -> Tree:
    """Return the tree that `pack` has written; tuples have become lists, and arrays may be written to.

    Args:
        get: returns pieces that were put away.
        known: those of them that are in memory; nobody changes a piece that was put away.

    Raises:
        ValueError: the bytes are something else.
    """
    at = _ALIGN + int.from_bytes(data[:_ALIGN], "little")
    tree, kinds = json.loads(bytes(data[_ALIGN:at]))
    arrays: list[Array] = []
    for name, shape in kinds:
        kind = np.dtype(name)
        count = math.prod(shape)
        arrays.append(np.frombuffer(data, dtype=kind, count=count, offset=at).reshape(shape).copy())
        at += count * kind.itemsize + -(count * kind.itemsize) % _ALIGN

    def leaf(part: Tree) -> Tree:
        if isinstance(part, dict):
            if "array" in part:
                return arrays[part["array"]]
            if "piece" in part:
                return Piece(*(leaf(item) for item in part["piece"]))
            if "stored" in part:
                if get is None:
                    raise ValueError("found a piece that was put away, expected one among the bytes")
                where = Stored(*part["stored"])
                return known[where] if where in known else replace(unpack(get(where)), stored=where)
            return {key: leaf(value) for key, value in part["fields"].items()}
        if isinstance(part, list):
            return part if set(map(type, part)) <= _PLAIN else [leaf(item) for item in part]
        return part

    return leaf(tree)


def of_column(column: Column) -> Tree:
    """Return a column as a tree."""
    spread = column.spread
    return {
        "kind": column.kind.value,
        "values": np.asarray(column.values),
        "valid": column.valid,
        "pool": list(column.pool),
        "spread": None if spread is None else [spread.low, spread.high, spread.sd],
    }


def to_column(tree: Tree) -> Column:
    """Return the column of a tree."""
    spread = None if tree["spread"] is None else Spread(*tree["spread"])
    return Column(Kind(tree["kind"]), tree["values"], tree["valid"], tuple(tree["pool"]), spread)


def of_rows(rows: Rows | None) -> Tree:
    """Return rows as a tree."""
    if rows is None:
        return None
    columns = {name: of_column(column) for name, column in rows.columns.items()}
    return {"step": rows.step, "columns": columns, "taken": rows.taken, "certain": rows.certain}


def to_rows(tree: Tree) -> Rows | None:
    """Return the rows of a tree."""
    if tree is None:
        return None
    columns = {name: to_column(column) for name, column in tree["columns"].items()}
    return Rows(tree["step"], columns, tree["taken"], tree["certain"])


def of_keys(keys: KeyNumbers | None) -> Tree:
    """Return keys as a tree."""
    if keys is None:
        return None
    columns = [list(column) for column in zip(*keys.values, strict=True)]
    return {"kinds": [kind.value for kind in keys.kinds], "rows": len(keys.values), "columns": columns}


def to_keys(tree: Tree, like: KeyNumbers | None = None) -> KeyNumbers | None:
    """Return the keys of a tree.

    Args:
        like: keys that are returned if they are the same: they have been made ready for use already.
    """
    if tree is None:
        return None
    columns = tree["columns"]
    combos = list(zip(*columns, strict=True)) if columns else [()] * tree["rows"]
    kinds = tuple(Kind(kind) for kind in tree["kinds"])
    if like is not None and (like.kinds, like.values) == (kinds, combos):
        return like
    keys = KeyNumbers(kinds)
    keys.add(combos)
    return keys


def of_window(window: SlidingWindow) -> Tree:
    """Return a window as a tree. The states of blocks are made anew from the panes."""
    return {"done": window.done, "keys": window.keys, "history": window.history}


def to_window(window: SlidingWindow, tree: Tree, like: SlidingWindow | None = None) -> None:
    """Let a window go on from a tree; see `SlidingWindow.restore`."""
    window.restore(tree["done"], tree["keys"], tree["history"], like)
