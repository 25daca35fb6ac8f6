"""Writes what queries keep between two steps as bytes, and reads it back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from tsunagi.query.relations import KeyNumbers, Rows
from tsunagi.query.values import Array, Column, Kind, Spread
from tsunagi.query.windows import Piece, SlidingWindow
from tsunagi.runtime.columns import pack_arrays, unpack_arrays

Tree = Any
"""Mappings with text keys, lists, numbers, texts, None and arrays."""
_TREE = "tree"
"""The name of the array that holds all that is not an array, as JSON."""


def pack(tree: Tree) -> bytes:
    """Return a tree as bytes."""
    arrays: dict[str, Array] = {}

    def leaf(part: Tree) -> Tree:
        if isinstance(part, np.ndarray):
            name = str(len(arrays))
            arrays[name] = np.ascontiguousarray(part)
            return {"array": name}
        if isinstance(part, Mapping):
            return {"fields": {str(key): leaf(value) for key, value in part.items()}}
        if isinstance(part, list | tuple):
            return [leaf(item) for item in part]
        return part

    text = json.dumps(leaf(tree), separators=(",", ":"))
    return pack_arrays({_TREE: np.frombuffer(text.encode(), dtype=np.uint8), **arrays})


def unpack(data: bytes) -> Tree:
    """Return the tree that `pack` has written; tuples have become lists."""
    arrays = unpack_arrays(data)

    def leaf(part: Tree) -> Tree:
        if isinstance(part, dict):
            if "array" in part:
                return arrays[part["array"]]
            return {key: leaf(value) for key, value in part["fields"].items()}
        return [leaf(item) for item in part] if isinstance(part, list) else part

    return leaf(json.loads(arrays[_TREE].tobytes()))


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
    return None if keys is None else {"kinds": [kind.value for kind in keys.kinds], "values": keys.values}


def to_keys(tree: Tree) -> KeyNumbers | None:
    """Return the keys of a tree."""
    if tree is None:
        return None
    keys = KeyNumbers(tuple(Kind(kind) for kind in tree["kinds"]))
    keys.add(tuple(value) for value in tree["values"])
    return keys


def of_window(window: SlidingWindow) -> Tree:
    """Return a window as a tree. The states of blocks are made anew from the panes."""
    pieces = [[piece.pane, piece.key, piece.state, piece.base] for piece in window.history]
    return {"done": window.done, "keys": window.keys, "history": pieces}


def to_window(window: SlidingWindow, tree: Tree) -> None:
    """Let a window go on from a tree."""
    pieces = [Piece(*piece) for piece in tree["history"]]
    window.restore(tree["done"], tree["keys"], pieces)
