"""Decides which queries can be split over cores, and which queries run together in one place.

The readings of a group of the sensors table are in one place. So a query can be split if rows of different groups never
meet in it: whatever it groups by, joins by or compares has the sensor or the group in it. In P-SORT's words, its OPK is
then the sensor or the group (section 3.1), and each place has whole SPKs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from tsunagi.query.catalog import READINGS
from tsunagi.query.expressions import Expression, Reference
from tsunagi.query.plan import QueryPlan
from tsunagi.query.planning import Program


class OwnKey(Enum):
    """A column of `readings` that decides in which place a row is."""

    SENSOR = "sensor"
    GROUP = "group"


Carried = Mapping[str, OwnKey]
"""The columns that hold a sensor or a group, by name."""
_OF_READINGS: Mapping[str, Carried] = {READINGS: {key.value: key for key in OwnKey}}
"""The columns of `readings` that do."""


def carried_columns(program: Program, streams: Mapping[str, Carried]) -> dict[str, Carried]:
    """Return, for each query in which rows of different keys never meet, the columns of its rows that hold a key.

    Args:
        streams: the same of each stream.
    """
    carried = dict(streams)
    for name, plan in program.queries.items():
        found = _carried(plan, carried)
        if found is not None:
            carried[name] = found
    return {name: columns for name, columns in carried.items() if name in program.queries}


def split_queries(program: Program) -> frozenset[str]:
    """Return the names of the published queries that can be split by the group of the sensors table."""
    carried = carried_columns(program, _OF_READINGS)
    return frozenset(
        plan.name for plan in program.published if any(name in carried.get(plan.name, {}) for name in plan.within)
    )


def summed_queries(program: Program) -> frozenset[str]:
    """Return the names of the published queries whose rows may all come added up."""
    found = set()
    for plan in program.published:
        reading = reading_streams(program, [plan.name])
        if reading and all(is_summable(program, program.queries[name]) for name in reading):
            found.add(plan.name)
    return frozenset(found)


def reading_streams(program: Program, names: Iterable[str]) -> list[str]:
    """Return those of the queries, and of all that they read, that read a stream."""
    return [
        name
        for name in together(program, names)
        if any(source.name in program.catalog.streams for source in program.queries[name].sources)
    ]


def is_summable(program: Program, plan: QueryPlan) -> bool:
    """Return whether the rows of a query may be added up by step and group before they are sent to its place.

    Its aggregates must be ones whose states are sums, least or greatest numbers. And it must group by nothing, or by
    columns of the sensors table: there are fewer such groups than sensors. Otherwise sums would be no less than rows.
    """
    if not plan.grouped or len(plan.sources) != 1:
        return False
    (source,) = plan.sources
    stream, window = program.catalog.streams.get(source.name), source.window
    if stream is None or window is None or not (window.kind == "range" or (window.kind, plan.period) == ("now", 1)):
        return False
    groups = {item.name if isinstance(item, Reference) else "" for item in plan.groups}
    if not groups <= {f"{source.alias}.{name}" for name in stream.of_sensor - {stream.key}}:
        return False
    return not any(item.paired or item.own or item.aggregate.function in ("FIRST", "LAST") for item in plan.measures)


def together(program: Program, names: Iterable[str]) -> list[str]:
    """Return the queries and all that they read, each behind what it reads."""
    wanted, left = set[str](), list(names)
    while left:
        name = left.pop()
        if name in program.queries and name not in wanted:
            wanted.add(name)
            left += [source.name for source in program.queries[name].sources]
    return [name for name in program.queries if name in wanted]


def _carried(plan: QueryPlan, known: Mapping[str, Carried]) -> Carried | None:
    """Return the columns of a query's rows that hold a sensor or a group; None = the query cannot be split.

    Args:
        known: the same of streams, and of the queries before that can be split.
    """
    columns: dict[str, OwnKey] = {}
    for place, source in enumerate(plan.sources):
        of_source = known.get(source.name)
        if of_source is None:
            return None
        mine = {f"{source.alias}.{name}": key for name, key in of_source.items()}
        window = source.window
        if window is not None and window.kind == "rows" and not any(key.name in mine for key in window.keys):
            return None
        if place:
            join = plan.joins[place - 1]
            pairs = zip(join.left, join.right, strict=True)
            if not any(_meets(_key(left, columns), _key(right, mine)) for left, right in pairs):
                return None
        columns |= mine
    if plan.grouped:
        groups = {f"group.{place}": _key(item, columns) for place, item in enumerate(plan.groups)}
        columns = {name: key for name, key in groups.items() if key is not None}
        if not columns:
            return None
    found = {name: key for name, item in plan.outputs.items() if (key := _key(item, columns)) is not None}
    # Rows that are equal are told apart only by what they hold.
    if (plan.distinct or plan.streaming in ("istream", "dstream")) and not found:
        return None
    return found


def _key(expression: Expression, columns: Mapping[str, OwnKey]) -> OwnKey | None:
    return columns.get(expression.name) if isinstance(expression, Reference) else None


def _meets(one: OwnKey | None, other: OwnKey | None) -> bool:
    return one is not None and one is other
