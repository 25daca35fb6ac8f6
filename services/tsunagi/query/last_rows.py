"""[PARTITION BY keys ROWS n SLIDE m]: the last rows of each key."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tsunagi.query.relations import KeyNumbers, Rows, joined_rows, places_in_runs, stretches
from tsunagi.query.values import Column, Ints, Kind


def last_rows(
    rows: Rows, keys: Sequence[Column], known: KeyNumbers, kept: Rows | None, length: int, slide: int, instants: Ints
) -> tuple[Rows, Rows]:
    """Return [PARTITION BY keys ROWS length SLIDE slide] at each instant, and the rows that it needs from now on.

    Row r of a key, from 0, comes into the window with row (r // slide + 1) slide - 1, which completes its slide. It
    leaves the window with the first row that completes a slide and is `length` or more rows later.

    Args:
        kept: what the call before returned: rows with the columns `#key` and `#number` beside their own.
    """
    rows = _numbered(rows, keys, known, kept)
    key, number = rows.columns["#key"].values, rows.columns["#number"].values
    order = np.lexsort((number, key))
    first = np.searchsorted(key[order], np.arange(len(known)))
    size = np.bincount(key, minlength=len(known))
    least = np.zeros(len(known), dtype=np.int64)
    least[size > 0] = number[order][first[size > 0]]
    came = np.searchsorted(instants, rows.step)[order]

    def coming(wanted: Ints) -> Ints:
        """Return at which instant the row of the same key with this number came: its place, or one beyond all."""
        place = wanted - least[key]
        there = place < size[key]
        found = np.full(len(key), len(instants), dtype=np.int64)
        found[there] = came[first[key[there]] + place[there]]
        return found

    begin = coming((number // slide + 1) * slide - 1)
    end = coming(-(-(number + length + 1) // slide) * slide - 1)
    which, at = stretches(begin, np.maximum(end - begin, 0))
    in_time = np.argsort(at, kind="stable")
    found = rows.take(which[in_time])
    columns = {name: column for name, column in found.columns.items() if not name.startswith("#")}
    return Rows(instants[at[in_time]], columns, found.taken, found.certain), rows.take(end == len(instants))


def _numbered(rows: Rows, keys: Sequence[Column], known: KeyNumbers, kept: Rows | None) -> Rows:
    """Return rows, behind those that were kept, with their keys' numbers and their own among the rows of the key."""
    key = known.numbers(keys, len(rows))
    order = np.argsort(key, kind="stable")
    number = np.zeros(len(rows), dtype=np.int64)
    number[order] = places_in_runs(key[order])
    if kept is not None and len(kept):
        last = np.full(len(known), -1, dtype=np.int64)
        np.maximum.at(last, kept.columns["#key"].values, kept.columns["#number"].values)
        number += last[key] + 1
    own = {"#key": Column(Kind.BIGINT, key), "#number": Column(Kind.BIGINT, number)}
    rows = rows.named({**rows.columns, **own})
    return rows if kept is None or not len(kept) else joined_rows([kept, rows])
