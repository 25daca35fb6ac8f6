"""What queries can read: streams with their columns, other queries, and functions of one's own."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from tsunagi.query.aggregates import FUNCTIONS as AGGREGATES
from tsunagi.query.errors import Place, QueryError, listed, near
from tsunagi.query.functions import Function
from tsunagi.query.functions import find as find_builtin
from tsunagi.query.syntax import CreateFunction, CreateStream
from tsunagi.query.values import Column, Floats, Kind

READINGS = "readings"
"""The stream of the sensors' readings: one row of each sensor a step."""
KINDS = {
    "DOUBLE": Kind.DOUBLE,
    "FLOAT": Kind.DOUBLE,
    "REAL": Kind.DOUBLE,
    "BIGINT": Kind.BIGINT,
    "INT": Kind.BIGINT,
    "INTEGER": Kind.BIGINT,
    "BOOLEAN": Kind.BOOLEAN,
    "TEXT": Kind.TEXT,
    "VARCHAR": Kind.TEXT,
    "TIMESTAMP": Kind.TIMESTAMP,
}
"""The types of columns by the names that a query may use."""
READING_COLUMNS: Mapping[str, Kind] = MappingProxyType(
    {
        "sensor": Kind.TEXT,
        "value": Kind.DOUBLE,
        "time": Kind.TIMESTAMP,
        "edge": Kind.TEXT,
        "group": Kind.TEXT,
        "unit": Kind.TEXT,
        "threshold": Kind.DOUBLE,
        "quality": Kind.TEXT,
        "sd": Kind.DOUBLE,
        "bound": Kind.DOUBLE,
    }
)
"""The columns of `readings`. The attributes of the sensors table stand beside them."""


OF_ROWS = frozenset({"value", "time", "quality", "sd", "bound"})
"""The columns of `readings` that each reading has of its own. The others are those of its sensor."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream: rows that come one after the other.

    Attributes:
        key: the column within which rows have an order, and by which [ROWS n] counts; "" = there is none.
        looked_up: of a stream of events, the columns that the sensors table has of the sensor that KEY names.
    """

    name: str
    columns: Mapping[str, Kind]
    key: str
    looked_up: frozenset[str] = frozenset()

    @property
    def of_sensor(self) -> frozenset[str]:
        """The columns that are the same in all rows of a sensor: those that the sensors table has."""
        return frozenset(self.columns.keys() - OF_ROWS) if self.name == READINGS else self.looked_up

    @property
    def own(self) -> dict[str, Kind]:
        """The columns that its rows come with."""
        return {name: kind for name, kind in self.columns.items() if name not in self.looked_up}


OwnAggregate = Callable[[Floats], float]
"""An aggregate of one's own: from the values of a group, float64[n] in the order of time and without NULL, to a number;
NaN is NULL. It must always give the same values the same number."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """All that has a name.

    Attributes:
        in_steps: whether there is lock-step. Then a stream that is created has events, and needs no KEY.
    """

    streams: Mapping[str, Stream] = field(default_factory=lambda: MappingProxyType({READINGS: readings_stream()}))
    functions: Mapping[str, Function] = field(default_factory=lambda: MappingProxyType({}))
    aggregates: Mapping[str, OwnAggregate] = field(default_factory=lambda: MappingProxyType({}))
    in_steps: bool = True

    def with_stream(self, statement: CreateStream) -> Catalog:
        """Return the catalog with one more stream.

        Raises:
            QueryError: the name is taken, or a column cannot be used.
        """
        if statement.name in self.streams:
            raise taken(statement.place, f"stream {statement.name}")
        columns: dict[str, Kind] = {"time": Kind.TIMESTAMP}
        keys = [column for column in statement.columns if column.key]
        for column in statement.columns:
            kind = KINDS.get(column.kind)
            if kind is None:
                known = listed(sorted({item.value for item in KINDS.values()}))
                raise QueryError(
                    column.place,
                    f"column {column.name}: found type {column.kind}, expected {known}{near(column.kind, KINDS)}",
                )
            if column.name in columns:
                why = "every stream has the time of its tuples" if column.name == "time" else "it stands twice"
                raise QueryError(column.place, f"column {column.name}: {why}")
            columns[column.name] = kind
        usual = len(keys) == 1 or (self.in_steps and not keys)
        if not usual or any(columns[key.name] is not Kind.TEXT for key in keys):
            most = "at most one" if self.in_steps else "one"
            raise QueryError(
                statement.place, f"stream {statement.name}: expected {most} TEXT column with KEY, found {len(keys)}"
            )
        looked_up: dict[str, Kind] = {}
        if keys and self.in_steps:
            of_readings = self.streams[READINGS].columns
            looked_up = {name: kind for name, kind in of_readings.items() if name not in {"sensor", *OF_ROWS, *columns}}
        key = keys[0].name if keys else ""
        found = Stream(statement.name, MappingProxyType(columns | looked_up), key, frozenset(looked_up))
        return replace(self, streams=MappingProxyType({**self.streams, found.name: found}))

    def with_function(self, statement: CreateFunction) -> Catalog:
        """Return the catalog with a function or an aggregate of one's own.

        Raises:
            QueryError: the name is taken, or the function cannot be imported.
        """
        name, what = statement.name.upper(), "aggregate" if statement.aggregate else "function"
        there = name in self.functions or name in self.aggregates or name in AGGREGATES
        if there or find_builtin(name) is not None:
            raise taken(statement.place, f"{what} {statement.name}")
        module, colon, attribute = statement.target.partition(":")
        if not colon:
            raise QueryError(
                statement.place, f"{what} {statement.name}: found {statement.target!r}, expected 'module:function'"
            )
        try:
            compute = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise QueryError(statement.place, f"{what} {statement.name}: {statement.target}: {error}") from None
        if statement.aggregate:
            return replace(self, aggregates=MappingProxyType({**self.aggregates, name: compute}))
        return replace(self, functions=MappingProxyType({**self.functions, name: own_function(name, compute)}))

    def function(self, name: str) -> Function | None:
        """Return the function that a query calls by this name; None = there is none."""
        return self.functions.get(name.upper()) or find_builtin(name)


def readings_stream(attributes: Mapping[str, Kind] = MappingProxyType({})) -> Stream:
    """Return the stream `readings`, with the attributes that the sensors table has besides."""
    return Stream(READINGS, MappingProxyType({**READING_COLUMNS, **attributes}), "sensor")


def own_function(name: str, compute: Callable[..., Any]) -> Function:
    """Return a function of one's own as a function of queries.

    It is called with numpy arrays, float64[n] each (texts as arrays of str), NaN or "" for NULL. It returns float64[n],
    in which NaN is NULL. It must give each row the same result whatever rows stand beside it, and always the same.
    """

    def call(arguments: Sequence[Column]) -> Column:
        rows = max((len(item) for item in arguments if not item.constant), default=1)
        arrays = []
        for item in arguments:
            full = item.full(rows)
            if full.kind is Kind.TEXT:
                arrays.append(np.array([text or "" for text in full.texts()], dtype=object))
            else:
                arrays.append(np.where(full.present(), full.values.astype(np.float64), np.nan))
        found = np.asarray(compute(*arrays), dtype=np.float64)
        if found.shape != (rows,):
            raise ValueError(f"function {name}: found a result of shape {found.shape}, expected ({rows},)")
        valid = ~np.isnan(found)
        return Column(Kind.DOUBLE, np.where(valid, found, 0.0), None if valid.all() else valid)

    return Function(name, lambda kinds: Kind.DOUBLE if kinds else None, call, "columns")


def taken(place: Place, name: str) -> QueryError:
    """Return the error that a name is taken."""
    return QueryError(place, f"{name} exists already")
