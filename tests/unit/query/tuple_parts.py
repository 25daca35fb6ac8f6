"""Tuples that queries follow in parts of any size, while replicas go on from contexts of others."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tsunagi.query.tuple_runs import TupleQueries
from tsunagi.query.values import Column


def follow_in_parts(
    make: Callable[[], TupleQueries],
    part: Callable[[int, int], Mapping[str, Column]],
    count: int,
    chance: random.Random,
    sizes: Sequence[int],
) -> tuple[dict[str, list[tuple[Any, ...]]], TupleQueries]:
    """Return the rows of each query as (number of the tuple, values), and the replica at the end.

    Args:
        make: makes a replica that has followed nothing.
        part: returns the columns of the tuples from a first one up to an end.
        count: of all tuples.
        chance: chooses the sizes of parts, and after which a new replica goes on.
        sizes: those that parts may have.
    """
    queries, low = make(), 0
    found: dict[str, list[tuple[Any, ...]]] = {name: [] for name in queries.published}
    while low < count:
        high = min(count, low + chance.choice(sizes))
        made, first = queries.follow(part(low, high), np.arange(low, high))
        for name, rows in made.items():
            steps = (rows.step - first + low).tolist()
            found[name] += zip(steps, *(item.to_list() for item in rows.columns.values()), strict=True)
        if chance.random() < 0.3:
            context = queries.context()
            queries = make()
            queries.restore(context)
        low = high
    return found, queries
