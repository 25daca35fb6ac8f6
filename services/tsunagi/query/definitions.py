"""Statements in force: which text each query, view and function has, and the program that all of them make together.

A statement may stand before the ones that it reads, and in any file: they are put in order here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from sqlglot import exp

from tsunagi.query.catalog import READINGS, Catalog, readings_stream, taken
from tsunagi.query.errors import Place, QueryError
from tsunagi.query.lifetimes import has_lifetimes
from tsunagi.query.planning import Program, make_program
from tsunagi.query.syntax import CreateQuery, CreateStream, Statement, parse
from tsunagi.query.values import Kind
from tsunagi.runtime.ranges import MAX_DETAIL

PLAN = "plan"
"""The source of statements that were added to the running system."""
STREAM_ON_PLAN = "a stream stands in a file of [query] files: edges read it at their start"
"""Why a statement that creates a stream cannot be added to the running system."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
"""Matches the names of statements: they are parts of the keys of records."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A statement.

    Attributes:
        name: what it makes.
        text: the statement as it was written, without the semicolon.
        source: where it stands: a file, or `plan`.
        reads: the names of what it reads.
        line: the line of its source on which it begins.
        from_us: the event time from which a query is filled from the log; 0 = it begins at the present.
    """

    name: str
    text: str
    source: str
    reads: frozenset[str] = frozenset()
    line: int = 1
    from_us: int = 0


def definitions_of(text: str, source: str) -> list[Definition]:
    """Return the statements of a text.

    Raises:
        QueryError: the text is not CQL, or has a statement that no service runs yet.
    """
    return [
        Definition(statement.name, statement.text, source, _reads(statement), statement.place.line)
        for statement in map(_served, parse(text, source))
    ]


def read_definitions(files: Iterable[Path]) -> list[Definition]:
    """Return the statements of files.

    Raises:
        QueryError: a file cannot be read, is not CQL, or makes what another one makes.
    """
    found: dict[str, Definition] = {}
    for path in files:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise QueryError(Place(str(path)), f"cannot be read: {reason}") from None
        for definition in definitions_of(text, str(path)):
            if definition.name in found:
                other = found[definition.name].source
                raise taken(Place(str(path), definition.line, 1), f"{definition.name} (in {other})")
            found[definition.name] = definition
    return list(found.values())


def kind_of(definition: Definition) -> Literal["stream", "function", "query"]:
    """Return what a statement makes; an aggregate counts as a function, and a view as a query."""
    (made,) = parse(definition.text, definition.source)
    return "stream" if isinstance(made, CreateStream) else "query" if isinstance(made, CreateQuery) else "function"


def makes_stream(definition: Definition) -> bool:
    """Return whether a statement creates a stream."""
    return kind_of(definition) == "stream"


def _served(statement: Statement) -> Statement:
    """Return a statement that services run.

    Raises:
        QueryError: none does.
    """
    if not _NAME.fullmatch(statement.name):
        raise QueryError(
            statement.place, f"name {statement.name!r}: expected letters, digits and _, at most 100 of them"
        )
    if len(statement.text) > MAX_DETAIL:
        raise QueryError(
            statement.place, f"{statement.name}: found {len(statement.text)} characters, expected at most {MAX_DETAIL}"
        )
    if statement.name == READINGS:
        raise QueryError(statement.place, f"{READINGS} is the name of the stream; expected another name")
    return statement


def _reads(statement: Statement) -> frozenset[str]:
    """Return the names of streams, queries and functions that a statement names."""
    if not isinstance(statement, CreateQuery):
        return frozenset()
    tables = {str(table.name) for table in statement.select.find_all(exp.Table)}
    functions = {str(node.name) for node in statement.select.find_all(exp.Anonymous)}
    return frozenset(tables | functions)


def in_order(definitions: Iterable[Definition]) -> list[Definition]:
    """Return statements such that each comes behind those that it reads, and otherwise in the order given.

    Statements that read each other in a circle come last, where they are refused as unknown.
    """
    left = {definition.name: definition for definition in definitions}
    found: list[Definition] = []
    while left:
        ready = [item for item in left.values() if not any(_reads_it(item, name) for name in left)]
        found += [left.pop(item.name) for item in ready or list(left.values())]
    return found


def _reads_it(item: Definition, name: str) -> bool:
    """Return whether a statement reads another one, whose name it may write in capitals if that makes a function."""
    return name != item.name and name.upper() in {read.upper() for read in item.reads}


def catalog_with(attributes: Mapping[str, Kind]) -> Catalog:
    """Return what queries can name if the sensors table has these attributes."""
    return Catalog(MappingProxyType({READINGS: readings_stream(attributes)}))


def program_of(
    definitions: Sequence[Definition], step_us: int, attributes: Mapping[str, Kind], aggregates: Collection[str] = ()
) -> tuple[Program, dict[str, QueryError]]:
    """Return the program of statements, and why others are not in it, by name.

    Args:
        step_us: length of a step, microseconds.
        attributes: the kinds of the attributes of the sensors table.
        aggregates: the names of `[query] aggregates`, which are names of queries in results as well.
    """
    program = Program(catalog_with(attributes), MappingProxyType({}))
    refused: dict[str, QueryError] = {}
    for definition in in_order(definitions):
        try:
            program = _with(program, definition, step_us, aggregates)
        except QueryError as error:
            refused[definition.name] = error
    return program, refused


def _with(program: Program, definition: Definition, step_us: int, aggregates: Collection[str]) -> Program:
    refuse_taken(definition, aggregates)
    found = make_program([(definition.source, padded(definition))], step_us, before=program)
    plan = found.queries.get(definition.name)
    if plan is not None and any(measure.own is not None for measure in plan.measures):
        window = plan.sources[0].window if len(plan.sources) == 1 else None
        if window is not None and window.kind in ("range", "unbounded"):
            place = Place(definition.source, definition.line, 1)
            raise QueryError(
                place,
                f"query {plan.name}: found an aggregate of one's own over [RANGE ...], expected [ROWS n] or [NOW]",
            )
    return found


def refuse_taken(definition: Definition, aggregates: Collection[str]) -> None:
    """Refuse a statement that has the name of a window aggregate.

    Raises:
        QueryError: it has.
    """
    if definition.name in aggregates:
        place = Place(definition.source, definition.line, 1)
        raise QueryError(place, f"{definition.name} is the name of a window aggregate ([query] aggregates)")


def padded(definition: Definition) -> str:
    """Return the text on the lines on which it stands in its source, so that errors name them."""
    return "\n" * max(0, definition.line - 1) + definition.text


def check(
    definitions: Sequence[Definition], step_us: int, attributes: Mapping[str, Kind], aggregates: Collection[str] = ()
) -> Program:
    """Return the program of statements; the arguments are those of `program_of`.

    Raises:
        QueryError: a statement cannot be understood.
    """
    program, refused = program_of(definitions, step_us, attributes, aggregates)
    for error in refused.values():
        raise error
    return program


def fingerprints(program: Program) -> dict[str, str]:
    """Return for each query a digest of all that its state depends on: its text and those of what it reads."""
    streams = program.catalog.streams
    found: dict[str, str] = {}
    for name, plan in program.queries.items():
        # The first stream counts for all queries: so a query is the same as in earlier versions, which had no other.
        read = [*islice(streams, 1), *(source.name for source in plan.sources if source.name in streams)]
        columns = (item for stream in dict.fromkeys(read) for item in sorted(streams[stream].columns.items()))
        base = ",".join(f"{column} {kind.value}" for column, kind in columns)
        form = ["lifetimes"] if has_lifetimes(plan) else []  # so that no state of an earlier form is taken for one
        parts = [base, *form, plan.text, *(found.get(source.name, source.name) for source in plan.sources)]
        found[name] = hashlib.sha256("\x1e".join(parts).encode()).hexdigest()[:16]
    return found
