"""`tsunagi query`: checks, adds, lists, explains and drops queries in CQL."""

from __future__ import annotations

import getpass
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import structlog

from tsunagi.local.fleet import Fleet
from tsunagi.query.definitions import (
    PLAN,
    STREAM_ON_PLAN,
    Definition,
    check,
    definitions_of,
    kind_of,
    makes_stream,
    read_definitions,
)
from tsunagi.query.errors import QueryError
from tsunagi.query.explaining import explain
from tsunagi.query.planning import Program
from tsunagi.query.readings import attribute_kinds
from tsunagi.query.tuple_plans import check_tuples
from tsunagi.runtime.log import PLAN as PLAN_TOPIC
from tsunagi.runtime.log import Log
from tsunagi.runtime.message_reading import read_message
from tsunagi.runtime.messages import VERSION, Plan, QueryChange, SlotBeat, SparkBeat
from tsunagi.runtime.plan import Words
from tsunagi.runtime.sensors import SensorTable, read_sensors
from tsunagi.runtime.settings import Settings
from tsunagi.runtime.times import read_length_us, read_time_us
from tsunagi.scaler.placing import place_sensors
from tsunagi.system.fleet_table import sensors_in_force
from tsunagi.system.plan import Write, write_plan
from tsunagi.system.topics import read_partition, tool_log

_LINE = "command line"
"""The source of statements that are given as a text."""
_LISTEN_S = 3.0
"""Longest wait for a heartbeat of the Spark job, in seconds."""
T = TypeVar("T")
Tell = Callable[[str], None]


class QueryAskError(ValueError):
    """What is asked for is impossible, or says nothing."""


def read_given(given: Sequence[str]) -> list[Definition]:
    """Return the statements of files and texts: what has a space in it and is no file is a text.

    Raises:
        QueryError: a file cannot be read, or a text is not CQL.
        QueryAskError: there is no statement.
    """
    found: list[Definition] = []
    for item in given:
        if " " in item and not _is_file(item):
            found += definitions_of(item, _LINE)
        else:
            found += read_definitions([Path(item)])
    if not found:
        raise QueryAskError("found no statement, expected CREATE STREAM, QUERY, VIEW, FUNCTION or AGGREGATE")
    return found


def _is_file(given: str) -> bool:
    try:
        return Path(given).exists()
    except OSError:  # too long for the name of a file
        return False


def program_with(settings: Settings, definitions: Sequence[Definition], table: SensorTable | None = None) -> Program:
    """Return the program of statements over the sensors table.

    Args:
        table: the table in force; None = the file's, where there is no log.

    Raises:
        QueryError: a statement cannot be understood.
        SensorsError: the table cannot be used.
    """
    aggregates = [item.name for item in settings.query.aggregates]
    if settings.query.mode == "tuples":
        return check_tuples(definitions, aggregates)
    kinds = attribute_kinds(read_sensors(settings.sensors) if table is None else table)
    return check(definitions, settings.steps.slide_us, kinds, aggregates)


def check_files(settings: Settings) -> None:
    """Check the statements of `[query] files`.

    Raises:
        QueryError: one of them cannot be understood.
    """
    if settings.query.files:
        program_with(settings, read_definitions(settings.query.files))


def check_queries(settings: Settings, given: Sequence[str], tell: Tell) -> None:
    """Check statements together with those of `[query] files`, without a running system.

    Raises:
        QueryError, QueryAskError: a statement cannot be understood.
    """
    new = read_given(given) if given else []
    known = {item.name: item for item in read_definitions(settings.query.files)} | {item.name: item for item in new}
    if not known:
        raise QueryAskError("[query] files: found none, expected statements")
    program = program_with(settings, list(known.values()))
    for name in known if not given else [item.name for item in new]:
        plan = program.queries.get(name)
        stream = program.catalog.streams.get(name)
        if stream is not None:
            tell(
                f"{name}: a stream of {', '.join(f'{column} {kind.value}' for column, kind in stream.columns.items())}"
            )
        elif plan is None:
            tell(f"{name}: a function")
        else:
            columns = ", ".join(f"{column} {kind.value}" for column, kind in plan.columns.items())
            tell(f"{name}: {columns}")


def explain_queries(settings: Settings, given: Sequence[str], tell: Tell) -> None:
    """Explain statements, or queries of `[query] files` and of `plan` by their names.

    Raises:
        QueryError, QueryAskError: a statement cannot be understood, or a name is unknown.
    """
    names = [item for item in given if " " not in item and not _is_file(item)]
    new = read_given([item for item in given if item not in names]) if len(names) < len(given) else []
    files = {item.name: item for item in read_definitions(settings.query.files)}
    source = tool_log(settings, "query") if set(names) - files.keys() else None
    table = read_sensors(settings.sensors) if source is None else sensors_in_force(source, settings)
    added = {} if source is None else _added(source)
    known = added | files | {item.name: item for item in new}
    wanted = [*names, *(item.name for item in new)] or list(known)
    for name in wanted:
        if name not in known:
            raise QueryAskError(f"query {name}: found none of this name among {', '.join(known) or 'no queries'}")
    program = program_with(settings, list(known.values()), table)
    step_us = None if settings.query.mode == "tuples" else settings.steps.slide_us
    loads = _loads(settings, table)
    for name in wanted:
        plan = program.queries.get(name)
        if plan is not None:
            for line in explain(plan, program, step_us, loads):
                tell(line)


def _loads(settings: Settings, table: SensorTable) -> list[int]:
    """Return how many sensors each slot has, or with steps each query core, as the Spark job spreads groups."""
    if settings.query.mode == "tuples":
        found = Counter(place_sensors(settings, table).tolist())
        return [found[slot] for slot in range(settings.slots.count)]
    unknown = settings.spark.unknown_group
    number = {group: place for place, group in enumerate(dict.fromkeys(row.group or unknown for row in table.sensors))}
    found = Counter(number[sensor.group or unknown] % settings.spark.cores for sensor in table.present)
    return [found[core] for core in range(settings.spark.cores)]


def add_queries(
    settings: Settings, given: Sequence[str], tell: Tell, begin: str = "", write: Write | None = None
) -> None:
    """Add statements to the running system, or replace those of the same names.

    Args:
        begin: the event time from which queries are filled from what the log still holds: a moment, or a length of time
            before the newest result, such as 24h; "" = they begin at the present.
        write: writes the records; None = to the log.

    Raises:
        QueryError, QueryAskError: a statement cannot be understood, or stands in `[query] files`.
        LogError: the broker does not take the records.
    """
    add_definitions(settings, read_given(given), tell, begin, write)


def add_statements(settings: Settings, text: str, tell: Tell, write: Write | None = None) -> None:
    """Do the same as `add_queries` with statements in a text.

    Raises:
        QueryError, QueryAskError, LogError: as in `add_queries`.
    """
    add_definitions(settings, definitions_of(text, _LINE), tell, write=write)


def add_definitions(
    settings: Settings, new: Sequence[Definition], tell: Tell, begin: str = "", write: Write | None = None
) -> None:
    """Do the same as `add_queries` with statements that have been read.

    Raises:
        QueryError, QueryAskError, LogError: as in `add_queries`.
    """
    if begin and settings.query.mode == "tuples" and settings.query.chain:
        found = ", ".join(item.use for item in settings.query.chain)
        raise QueryAskError(f"--from: found [query] operators = {found}, which the past would have to go through again")
    files = {item.name: item for item in read_definitions(settings.query.files)}
    for item in new:
        if makes_stream(item):
            raise QueryAskError(f"stream {item.name}: {STREAM_ON_PLAN}")
        if item.name in files:
            raise QueryAskError(
                f"{item.name} stands in {files[item.name].source}; change it there, or use another name"
            )
    source = tool_log(settings, "query")
    added = _added(source)
    known = added | files | {item.name: item for item in new}
    program = program_with(settings, list(known.values()), sensors_in_force(source, settings))
    from_us = _begin_us(settings, begin) if begin else 0
    published = {plan.name for plan in program.published}
    if begin and not any(item.name in published for item in new):
        raise QueryAskError("--from: found no CREATE QUERY: a view is filled with the queries that read it")
    changes = {item.name: _change(item.name, item.text, from_us if item.name in published else 0) for item in new}
    (write or write_plan)(settings, {f"query/{name}": change for name, change in changes.items()})
    for item in new:
        said = "replaced" if item.name in added else "added"
        filled = changes[item.name].query.from_us
        tell(f"{item.name}: {said}" + (f", filled from {_moment(filled)} on" if filled else ""))


def _begin_us(settings: Settings, begin: str) -> int:
    """Return the event time that `--from` names, microseconds since 1970.

    Raises:
        QueryAskError: it names none, or one that has not come.
    """
    length_us = read_length_us(begin)
    if length_us is not None:
        return max(1, _newest_us(settings) - length_us)
    try:
        from_us = read_time_us(begin)
    except ValueError as error:
        raise QueryAskError(
            f"--from: found {begin!r} ({error}), expected a length of time such as 90s, 30m, 24h or 7d, or a moment "
            "such as 2026-11-27T08:00:00Z"
        ) from None
    # Event times may be ahead of the clock, and what is known of the newest result may be old: either will do.
    if from_us <= 0 or (from_us > time.time_ns() // 1000 and from_us > _newest_us(settings)):
        raise QueryAskError(f"--from: found {begin}, expected a moment that has come")
    return from_us


def _newest_us(settings: Settings) -> int:
    """Return the event time of the newest result; the present if nobody says of any."""
    source = tool_log(settings, "query")
    if settings.query.mode == "tuples":
        newest = max((part.step for part in _owners(source)), default=0)
    else:
        beat = _spark_beat(source)
        newest = 0 if beat is None else beat.newest
    return newest * settings.slide_us if newest > 0 else time.time_ns() // 1000


def _moment(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def drop_query(settings: Settings, name: str, tell: Tell, write: Write | None = None) -> None:
    """Drop a statement of the running system.

    Args:
        write: writes the record; None = to the log.

    Raises:
        QueryAskError: there is none of this name, or another one reads it.
        LogError: the broker does not take the record.
    """
    added = _added(tool_log(settings, "query"))
    files = read_definitions(settings.query.files)
    if name not in added:
        held = next((item.source for item in files if item.name == name), "")
        why = (
            f"it stands in {held}: delete it there" if held else f"found none among {', '.join(added) or 'no queries'}"
        )
        raise QueryAskError(f"query {name}: {why}")
    readers = [item.name for item in [*added.values(), *files] if name in item.reads and item.name != name]
    if readers:
        raise QueryAskError(f"query {name}: {', '.join(readers)} would have nothing to read; drop that first")
    (write or write_plan)(settings, {f"query/{name}": _change(name, "")})
    tell(f"{name}: dropped")


def list_queries(settings: Settings) -> list[dict[str, Any]]:
    """Return what is known of each query: where it stands, and what the Spark job says of it.

    Without steps slots run the queries. Workers count rows (`tsunagi_slot_query_rows_total`), so numbers are None here.

    Raises:
        LogError: the log does not answer.
    """
    source = tool_log(settings, "query")
    added = _added(source)
    known = added | {item.name: item for item in read_definitions(settings.query.files)}
    said = _in_slots(source, known) if settings.query.mode == "tuples" else _said(source)
    slide_us = settings.slide_us
    found = []
    for name in [*known, *(name for name in said if name not in known)]:
        beat = said.get(name, {})
        item = known.get(name)
        since = beat.get("since")
        found.append(
            {
                "query": name,
                "source": item.source if item is not None else "",
                "state": _state(item, beat, "workers" if settings.query.mode == "tuples" else "Spark"),
                "since_us": None if since is None or since < 0 else since * slide_us,
                "rows": beat.get("rows", 0),
                "late": beat.get("late", 0),
                "state_bytes": beat.get("state_bytes", 0),
                "fault": beat.get("fault", ""),
                "filled_to_us": max(0, beat.get("filled_to", 0)) * slide_us or None,
                "text": item.text if item is not None else "",
            }
        )
    return found


def _state(known: Definition | None, beat: Mapping[str, Any], runner: str) -> str:
    if beat.get("fault"):
        return "stopped"
    with suppress(QueryError):  # of a statement on `plan` that is none
        if known is not None and (kind := kind_of(known)) != "query":
            return f"a {kind}"
    if not beat:
        return f"waits for {runner}"
    if beat.get("filled_to"):
        return "is filled"
    return "runs" if known else "ends"


def _in_slots(source: Log, known: Mapping[str, Definition]) -> dict[str, dict[str, Any]]:
    """Return the queries that slots run, by name: all of them if a slot has an owner, but those still to be filled."""
    owners = _owners(source)
    if not owners:
        return {}
    nothing = {"rows": None, "late": None, "state_bytes": None}
    found: dict[str, dict[str, Any]] = {name: dict(nothing) for name in known}
    filled = {name: item.from_us for name, item in known.items() if item.from_us}
    waiting = set[str]()  # a slot has not taken them up yet
    for part in owners:
        said = {item.name: item for item in part.query}
        for item in said.values():
            told = found.setdefault(item.name, dict(nothing))
            if item.fault:
                told["fault"] = f"slot {part.slot}: {item.fault}"
            elif item.since:
                told["since"] = item.since
            if item.filled_to:  # the slot that is furthest behind counts
                told["filled_to"] = min(item.filled_to, told.get("filled_to", item.filled_to))
        for name, from_us in filled.items():
            if name not in said or not (said[name].fault or said[name].since == from_us):
                waiting.add(name)
    return {name: told for name, told in found.items() if name not in waiting}


def _owners(source: Log) -> list[SlotBeat]:
    """Return what the owners of slots say; nothing if none says anything."""

    def found(fleet: Fleet) -> list[SlotBeat]:
        return [part for beat in fleet.fresh().values() for part in beat.slots if part.role == "primary"]

    return _heard(source, found)


def _said(source: Log) -> dict[str, dict[str, Any]]:
    """Return what the last heartbeat of the Spark job says of queries, by name."""
    beat = _spark_beat(source)
    fields = ("since", "rows", "late", "state_bytes", "fault", "filled_to")
    return {} if beat is None else {item.name: {name: getattr(item, name) for name in fields} for item in beat.query}


def _spark_beat(source: Log) -> SparkBeat | None:
    """Return the last heartbeat of the Spark job; None if it says nothing."""

    def found(fleet: Fleet) -> list[SparkBeat]:
        return [beat.message.spark for beat in fleet.beats.values() if beat.message.role == "spark"]

    return next(iter(_heard(source, found)), None)


def _heard(source: Log, found: Callable[[Fleet], list[T]]) -> list[T]:
    """Return what is found in the heartbeats as soon as there is any; nothing if there is none for a while."""
    fleet = Fleet(source)
    deadline = time.monotonic() + _LISTEN_S
    try:
        while time.monotonic() < deadline:
            fleet.update(0.1)
            heard = found(fleet)
            if heard and fleet.caught_up:
                return heard
        return []
    finally:
        fleet.close()


def _added(source: Log) -> dict[str, Definition]:
    """Return the statements that were added to the running system, by name."""
    return dict(_statements(source))


def _statements(source: Log) -> Iterator[tuple[str, Definition]]:
    words, logger = Words(), structlog.get_logger("tsunagi.query")
    changes: dict[str, QueryChange] = {}
    for record in read_partition(source, PLAN_TOPIC, 0):
        plan = None if record.value is None else read_message(Plan, record, logger)
        if plan is None or plan.WhichOneof("body") != "query" or not words.take(plan, record.offset):
            continue
        changes[plan.query.name] = plan.query
    for name, change in changes.items():
        if not change.text:
            continue
        try:
            (item,) = definitions_of(change.text, PLAN)
        except (QueryError, ValueError):
            item = Definition(name, change.text, PLAN)  # the job says why it is not in force
        yield name, replace(item, from_us=change.from_us)


def _change(name: str, text: str, from_us: int = 0) -> Plan:
    try:
        by = getpass.getuser()
    except (KeyError, OSError):  # as in a container whose user has no name
        by = ""
    return Plan(version=VERSION, query=QueryChange(name=name, text=text, by=by, from_us=from_us))
