"""Statements over a stream of tuples ([query] mode = "tuples"), which slots run in their chains.

All tuples of one key are in one slot, in the order of its log. Other keys may be in other slots. So each key has a time
of its own, its tuples one after the other, and rows of different keys may not meet in a query (docs/reference/cql.md).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import MappingProxyType

from tsunagi.query.catalog import READINGS, Catalog, Stream
from tsunagi.query.definitions import Definition, in_order, makes_stream, padded, refuse_taken
from tsunagi.query.errors import Place, QueryError
from tsunagi.query.form import TupleForm
from tsunagi.query.placing import OwnKey, carried_columns
from tsunagi.query.plan import QueryPlan
from tsunagi.query.planning import Program, make_program
from tsunagi.query.values import Kind

TUPLE_READINGS = Stream(
    READINGS,
    MappingProxyType({"time": Kind.TIMESTAMP, "sensor": Kind.TEXT, "value": Kind.DOUBLE}),
    "sensor",
)
"""The stream of a system whose statements create none: readings of one number."""
_STEP_US = 1
"""[RANGE n UNIT] over tuples is in microseconds of their event times."""


def tuple_form(definitions: Sequence[Definition]) -> TupleForm | None:
    """Return the form of the stream that statements create; None = they create none.

    Raises:
        QueryError: the stream cannot be created.
    """
    # Edges need nothing else: what queries and functions name need not be installed there.
    return form_of_stream(stream_of(check_tuples([item for item in definitions if makes_stream(item)])))


def form_of_stream(stream: Stream) -> TupleForm | None:
    """Return the form of a stream; None = it is `readings`."""
    if stream.name == READINGS:
        return None
    return TupleForm(
        stream.key, {name: kind for name, kind in stream.columns.items() if name not in ("time", stream.key)}
    )


def tuple_program(
    definitions: Sequence[Definition], aggregates: Collection[str] = ()
) -> tuple[Program, dict[str, QueryError]]:
    """Return the program of statements over tuples, and why others are not in it, by name.

    Args:
        aggregates: the names of `[query] aggregates`, which are names of queries in results as well.
    """
    created = any(map(makes_stream, definitions))
    streams = {} if created else {READINGS: TUPLE_READINGS}
    program = Program(Catalog(MappingProxyType(streams), in_steps=False), MappingProxyType({}))
    refused: dict[str, QueryError] = {}
    for definition in in_order(definitions):
        try:
            refuse_taken(definition, aggregates)
            found = make_program([(definition.source, padded(definition))], _STEP_US, before=program)
            _check(found, definition)
        except QueryError as error:
            refused[definition.name] = error
        else:
            program = found
    return program, refused


def check_tuples(definitions: Sequence[Definition], aggregates: Collection[str] = ()) -> Program:
    """Return the program of statements over tuples.

    Raises:
        QueryError: a statement cannot be understood, or cannot run in slots.
    """
    program, refused = tuple_program(definitions, aggregates)
    for error in refused.values():
        raise error
    return program


def stream_of(program: Program) -> Stream:
    """Return the stream of a program over tuples."""
    (stream,) = program.catalog.streams.values()
    return stream


def key_columns(program: Program) -> dict[str, str]:
    """Return for each query that can be split by the key a column of its rows that holds the key; "" = none does."""
    streams = {stream.name: {stream.key: OwnKey.SENSOR} for stream in program.catalog.streams.values()}
    return {name: next(iter(columns), "") for name, columns in carried_columns(program, streams).items()}


def _check(program: Program, definition: Definition) -> None:
    """Refuse what slots cannot run.

    Raises:
        QueryError: says what, and what was expected.
    """
    place = Place(definition.source, definition.line, 1)
    if len(program.catalog.streams) > 1:
        names = ", ".join(program.catalog.streams)
        raise QueryError(place, f"found the streams {names}, expected one: edges publish tuples of one form")
    plan = program.queries.get(definition.name)
    if plan is None:
        return
    key = stream_of(program).key
    if plan.name not in key_columns(program):
        raise QueryError(
            place,
            f"query {plan.name}: rows of different values of {key} meet in it, which may be in different slots; "
            f"expected {key} in GROUP BY, in each join and in PARTITION BY",
        )
    reason = _unfit(plan, program)
    if reason:
        raise QueryError(place, f"query {plan.name}: {reason}")


def _unfit(plan: QueryPlan, program: Program) -> str:
    """Return why a query over tuples cannot run; "" = it can."""
    if plan.streaming == "dstream":
        return "DSTREAM: found over tuples, expected ISTREAM: a row is gone when the next tuple of its key comes"
    for source in plan.sources:
        window = source.window
        if window is None:
            continue
        if window.kind == "range" and source.name in program.queries:
            return f"[RANGE n UNIT] over {source.name}: expected [ROWS n] over a query, or the stream itself"
        if window.kind == "range" and window.slide > 1:
            return "SLIDE m UNIT: found over tuples, expected no SLIDE: there is a row for each tuple"
        if window.kind == "rows" and window.slide > 1 and len(plan.sources) > 1:
            return "ROWS n SLIDE m: found in a join, expected no SLIDE, or a query of its own without a join"
        if window.kind == "unbounded" and any(measure.own is not None for measure in plan.measures):
            return "an aggregate of one's own over [RANGE UNBOUNDED] would keep every value for ever; expected [ROWS n]"
        if window.kind == "unbounded" and any(measure.distinct for measure in plan.measures):
            return "COUNT(DISTINCT) over [RANGE UNBOUNDED] would keep every value for ever; expected [ROWS n]"
    return ""
