"""Streams of events: what CREATE STREAM makes with lock-step. An event belongs to the step in which its time lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tsunagi.query.catalog import READINGS, Stream
from tsunagi.query.definitions import Definition, check, makes_stream
from tsunagi.query.relations import Rows
from tsunagi.query.values import Column, Kind


def event_streams(definitions: Sequence[Definition]) -> dict[str, Stream]:
    """Return the streams of events that statements create, by name.

    Raises:
        QueryError: one of them cannot be created.
    """
    # Whoever needs the streams alone need not be able to import the functions that queries name.
    program = check([item for item in definitions if makes_stream(item)], step_us=1, attributes={})
    return {name: stream for name, stream in program.catalog.streams.items() if name != READINGS}


def as_created(rows: Rows, kinds: Mapping[str, Kind]) -> Rows:
    """Return events with the columns that their stream has; what they lack, or have of another type, is NULL."""
    columns = {}
    for name, kind in kinds.items():
        found = rows.columns.get(name)
        columns[name] = found if found is not None and found.kind is kind else nulls(kind, len(rows))
    return rows.named(columns)


def nulls(kind: Kind, rows: int) -> Column:
    """Return a column of NULLs."""
    pool = ("",) if kind is Kind.TEXT else ()
    return Column(kind, np.zeros(rows, dtype=kind.dtype), np.zeros(rows, dtype=np.bool_), pool)
