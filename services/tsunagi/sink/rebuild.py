"""Makes what a sink has written anew from what the log holds.

A table of PostgreSQL is made beside the one in use, and takes its place when it is level. Where a row that is written
again is the same row, the sink goes back in the log instead, and writes its rows once more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from datetime import datetime

import structlog

from tsunagi.runtime.log import Log, Record
from tsunagi.runtime.loop import StopFlag
from tsunagi.runtime.settings import Settings, SinkSettings
from tsunagi.sink.base import SinkError
from tsunagi.sink.feed import Names, RowFeed, feeds_for
from tsunagi.sink.make import own_sink, sink_named
from tsunagi.sink.membership import SESSION_S, GroupInUseError, set_positions
from tsunagi.sink.rows import Place, SinkPosition, SinkRows
from tsunagi.sink.runner import SinkRunner
from tsunagi.system.fleet_table import TableFollower
from tsunagi.system.topics import offset_from, range_of, tool_log

SUFFIX = "_rebuild"
"""What is put behind the names of the sink and of its table while the table is made anew."""
LEVEL_RECORDS = 20
"""The new table is level when it is this many records behind, or fewer; the sink that takes it up writes the rest."""
TELL_S = 5.0
"""Time between two lines about how far it is, in seconds."""
_AGAIN = ("influxdb", "kafka", "own")
"""Kinds whose rows are the same when they are written again. `mqtt` and `webhook` would tell people once more."""
_SLACK_S = 5.0
"""A rebuild waits until a sink's group has no members. It waits for a session and this many seconds, then gives up."""


class RebuildError(RuntimeError):
    """Nothing was made anew; what is in use is as it was."""


def rebuild(settings: Settings, name: str, since: datetime, tell: Callable[[str], None]) -> str:
    """Make what a sink has written anew; return what was done.

    Args:
        name: the name of the sink.
        since: the event time from which rows are made anew.
        tell: called with a line about how far it is, now and then.

    Raises:
        SinkError: there is no such sink, or nothing that it writes can be made anew.
        RebuildError: it was interrupted, the database went away, or the sink runs.
        LogError: the log does not answer.
    """
    wanted = sink_named(settings, name)
    if wanted.kind == "postgres":
        return f"the new table is in use; {_new_table(settings, wanted, since, tell)} rows were written"
    if wanted.kind in _AGAIN and not (wanted.kind == "own" and own_sink(wanted).keeps_positions):
        return f"it goes back {_go_back(settings, wanted, since, tell)} records once it is started"
    raise SinkError(
        f"sink {name}: kind {wanted.kind!r} cannot be made anew like this, expected one of postgres, "
        f"{', '.join(_AGAIN)}; docs/howto/sinks.md says what can be done"
    )


def _go_back(settings: Settings, wanted: SinkSettings, since: datetime, tell: Callable[[str], None]) -> int:
    """Set the positions of a sink back; return how many records it will read again."""
    log = tool_log(settings, f"sink-{wanted.name}{SUFFIX}")
    followed = TableFollower(log, settings)
    try:
        topics = [feed.topic for feed in feeds_for(wanted.query, settings, followed.poll)[1]]
        begin, records = _beginnings(log, topics, since, tell)
    finally:
        followed.close()
    deadline = time.monotonic() + SESSION_S + _SLACK_S
    while True:
        try:
            set_positions(settings.kafka, wanted.name, begin)
        except GroupInUseError as error:  # one that was killed counts as running for a session
            if time.monotonic() > deadline:
                raise RebuildError(str(error)) from None
            tell(str(error))
            time.sleep(TELL_S)
        else:
            return records


def _new_table(settings: Settings, wanted: SinkSettings, since: datetime, tell: Callable[[str], None]) -> int:
    """Make a table anew and put it in the place of the one in use; return how many rows were written."""
    from tsunagi.sink.postgres import PostgresSink

    name = wanted.name
    sink = PostgresSink(wanted, SUFFIX)
    held = sink.name.removesuffix(SUFFIX)
    log = tool_log(settings, f"sink-{name}{SUFFIX}")
    followed = TableFollower(log, settings)

    def feeds() -> tuple[Names, list[RowFeed]]:
        names, found = feeds_for(wanted.query, settings, followed.poll)
        return names, [_Since(feed, since) for feed in found]

    begin, _ = _beginnings(log, [feed.topic for feed in feeds()[1]], since, tell)
    try:
        sink.open()
        sink.begin(held, since, begin)
    except OSError as error:
        raise RebuildError(f"sink {name}: {error}") from None
    with StopFlag() as stop:
        runner = SinkRunner(
            name,
            log,
            _Everything(begin),
            sink,
            feeds,
            structlog.get_logger("tsunagi.sink"),
            batch_rows=wanted.batch_rows,
            stopping=stop.is_set,
            wait=stop.wait,
        )
        try:
            _until_level(runner, stop, tell)
            sink.swap(held, name)
        except OSError as error:
            raise RebuildError(f"sink {name}: {error}") from None
        finally:
            runner.close()
            followed.close()
    return runner.rows


def _until_level(runner: SinkRunner, stop: StopFlag, tell: Callable[[str], None]) -> None:
    told = time.monotonic()
    runner.turn()
    while runner.fault or runner.behind() > LEVEL_RECORDS:
        if stop.is_set():
            raise RebuildError("interrupted; the table in use is as it was")
        runner.turn()
        if time.monotonic() - told >= TELL_S:
            told = time.monotonic()
            fault = f"; {runner.fault}" if runner.fault else ""
            tell(f"{runner.rows} rows written, {runner.behind()} records to go{fault}")


def _beginnings(
    log: Log, topics: Collection[str], since: datetime, tell: Callable[[str], None]
) -> tuple[dict[Place, SinkPosition], int]:
    """Return where the records begin that were appended from a time on, and how many there are."""
    reader = log.reader()
    found, records = dict[Place, SinkPosition](), 0
    from_us = round(since.timestamp() * 1e6)
    try:
        for topic in topics:
            for partition in range(log.partitions(topic)):
                low, high = range_of(reader, topic, partition)
                offset = offset_from(reader, topic, partition, (low, high), from_us) if low < high else low
                found[topic, partition] = SinkPosition(offset, log.topic_id(topic))
                records += high - offset
                if offset == low > 0:
                    tell(f"{topic}/{partition}: the log begins at offset {low}, perhaps after that time")
    finally:
        reader.close()
    return found, records


class _Everything:
    """Has all partitions, and keeps no positions: the database does."""

    changes = 1

    def __init__(self, places: Collection[Place]) -> None:
        self.places = frozenset(places)

    def poll(self, timeout_s: float = 0.0) -> None:
        pass

    def committed(self, places: Collection[Place]) -> dict[Place, SinkPosition]:
        return {}

    def commit(self, positions: Mapping[Place, SinkPosition]) -> None:
        pass


class _Since:
    """A feed without the rows before a time."""

    def __init__(self, feed: RowFeed, since: datetime) -> None:
        self.topic = feed.topic
        self._feed = feed
        self._from = since

    @property
    def repeats(self) -> int:
        return self._feed.repeats

    def rows(self, record: Record) -> SinkRows | None:
        found = self._feed.rows(record)
        if found is None:
            return None
        rows = [row for row in found.rows if row[0] >= self._from]
        return SinkRows(found.schema, rows, found.correcting, found.origin) if rows else None
