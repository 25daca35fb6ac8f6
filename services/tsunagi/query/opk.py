"""Finds the OPK of queries: the columns of streams by which their rows can be computed apart.

P-SORT shuffles rows by the operator partition key of a query (OPK), and orders its results within the sorting partition
key (SPK; section 3.1 of the paper). Here the SPK is ORDER WITHIN. A query can be computed apart by what one of its
columns comes from, if rows with different values never meet on the way: each GROUP BY, join and PARTITION BY must have
the key in it.
"""

from __future__ import annotations

import hashlib
import zlib
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tsunagi.query.catalog import OF_ROWS, READINGS
from tsunagi.query.expressions import Reference
from tsunagi.query.plan import QueryPlan
from tsunagi.query.planning import Program
from tsunagi.query.values import Column, Ints, Kind

_KINDS = (Kind.TEXT, Kind.BIGINT, Kind.BOOLEAN, Kind.TIMESTAMP)
"""The kinds of columns by which rows are sent to places. Numbers with a fraction are none."""


class Opk(NamedTuple):
    """An OPK: of each stream that is read, the column by which its rows are sent to places."""

    columns: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """A name of it that is part of the names of files."""
        return hashlib.sha256(str(self).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return ", ".join(f"{stream}.{column}" for stream, column in self.columns)


def opks(program: Program) -> dict[str, Opk]:
    """Return the OPK of each published query that has one, by name."""
    found = {}
    for plan in program.published:
        traced = (_traced(program, plan.name, name) for name in plan.within)
        columns = next((columns for columns in traced if columns), None)
        if columns:
            found[plan.name] = Opk(tuple(sorted(columns.items())))
    return found


def places_of(column: Column, places: int) -> Ints:
    """Return the place of each row, by its value in a column: the same for equal values, and 0 for NULL."""
    if column.kind is Kind.TEXT:
        found = _places_of_texts(column.pool, places)[column.values]
    else:
        found = column.values.astype(np.int64) % places
    return np.where(column.present(), found, 0).astype(np.int64)


@lru_cache(maxsize=16)
def _places_of_texts(pool: tuple[str, ...], places: int) -> Ints:
    """Return the place of each text; those of the sensors table are asked for at each batch."""
    return np.array([zlib.crc32(text.encode()) % places for text in pool] or [0], dtype=np.int64)


def _traced(program: Program, name: str, column: str) -> dict[str, str] | None:
    """Return the columns of streams that a column of a stream or query comes from; None = it cannot be an OPK.

    Rows with different values of it come then from rows of the streams with different values of these columns.
    """
    stream = program.catalog.streams.get(name)
    if stream is not None:
        known = stream.columns.get(column) in _KINDS and not (name == READINGS and column in OF_ROWS)
        return {name: column} if known and column != "time" else None
    plan = program.queries[name]
    expression = plan.outputs.get(column)
    if plan.grouped and isinstance(expression, Reference):
        _, _, number = expression.name.partition("group.")
        expression = plan.groups[int(number)] if number.isdecimal() else None
    if not isinstance(expression, Reference):
        return None
    keys = _equal(plan, expression.name)
    found: dict[str, str] = {}
    for source in plan.sources:
        # Sorted, since all processes must choose the same column.
        mine = sorted(item.partition(".")[2] for item in keys if item.partition(".")[0] == source.alias)
        window = source.window
        if window is not None and window.kind == "rows":
            apart = {key.name for key in window.keys}
            if not apart & keys and not _finer(program, source.name, {key.partition(".")[2] for key in apart}, mine):
                return None
        traced = next((columns for item in mine if (columns := _traced(program, source.name, item))), None)
        if traced is None or any(found.get(stream, column) != column for stream, column in traced.items()):
            return None
        found |= traced
    kinds = {program.catalog.streams[stream].columns[column] for stream, column in found.items()}
    return found if len(kinds) == 1 else None


def _equal(plan: QueryPlan, name: str) -> set[str]:
    """Return the columns of the sources that are equal to one of them, wherever there are rows."""
    keys = {name}
    pairs = [
        (join.kind, left.name, right.name)
        for join in plan.joins
        for left, right in zip(join.left, join.right, strict=True)
        if isinstance(left, Reference) and isinstance(right, Reference)
    ]
    for _ in pairs:
        for kind, left, right in pairs:
            if left in keys:
                keys.add(right)
            elif right in keys and kind == "inner":  # a left join has rows in which the other side is NULL
                keys.add(left)
    return keys


def _finer(program: Program, name: str, keys: set[str], columns: list[str]) -> bool:
    """Return whether rows with equal keys are of one sensor, and the columns are those of a sensor."""
    stream = program.catalog.streams.get(name)
    if stream is None or not columns or stream.key not in keys:
        return False
    return set(columns) <= {*stream.of_sensor, stream.key}
