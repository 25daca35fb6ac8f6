"""Checks a user's source against the laws of docs/howto/sources.md, in the source's own tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tsunagi.edge.decode import Decoder, ReadingFault
from tsunagi.edge.fields import with_fields
from tsunagi.edge.inbox import Message
from tsunagi.edge.own_source import SourceMessage, SourceReader, make_reader, message_fault
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import SourceSettings
from tsunagi.slot.testkit import LawError

_READ_S = 0.2
"""Time for which one call may wait for messages, in seconds, as in an edge."""
_EMPTY = 10
"""After this many calls in a row without a message, the source has no more for this check."""


def check_source_reader(table: Mapping[str, Any], sensors: Sequence[str], count: int, position: int | None) -> None:
    """Read a source as edges do: from its present place, and from earlier ones as after a restart.

    Args:
        table: as `[source]`, with `use` and `options`.
        sensors: the names of all sensors that it may give.
        count: how many messages are read at most.
        position: where reading begins; None = as a new edge does.

    Raises:
        LawError: the source breaks a law; the message says which one, and where.
        SourceError: the source cannot be made from its options.
        OSError: the source is away.
    """
    source = SourceSettings.model_validate({"kind": "own"} | dict(table))
    reader = make_reader(source.use, source.options)
    reader.close()  # as an edge does whose `open` has failed
    first = _read(reader, position, count)
    if not first:
        raise LawError(f"it gives no messages: {_EMPTY} calls of read returned none")
    _check_readings(source, first, sensors)
    if not reader.resumable:
        return
    for place in range(1, len(first)):
        if first[place].position <= first[place - 1].position:
            before, here = first[place - 1].position, first[place].position
            raise LawError(f"positions do not ascend: message {place} has {here} after {before}")
    for place in sorted({0, len(first) // 2, len(first) - 1}):
        for again in (reader, make_reader(source.use, source.options)):  # opened anew, and in a new process
            found = _read(again, first[place].position, len(first) - place)
            if found != first[place:]:
                raise LawError(
                    f"not resumable: opened at position {first[place].position}, it gives other messages than before; "
                    f"found {found[:1]!r} first, expected {first[place]!r}"
                )
    after = _read(reader, first[-1].position + 1, 1)
    if after and after[0].position <= first[-1].position:
        raise LawError(f"it gives a message twice: opened behind position {first[-1].position}, found {after[0]!r}")


def _read(reader: SourceReader, position: int | None, count: int) -> list[SourceMessage]:
    """Return so many messages from a position on, or fewer if no more come."""
    found: list[SourceMessage] = []
    empty = 0
    reader.open(position)
    try:
        while len(found) < count and empty < _EMPTY:
            some = reader.read(_READ_S)
            if some is None:
                break
            empty = 0 if some else empty + 1
            for item in some:
                if fault := message_fault(item):
                    raise LawError(f"read: {fault}")
            found += some
    finally:
        reader.close()
        reader.close()
    return found[:count]


def _check_readings(source: SourceSettings, messages: Sequence[SourceMessage], sensors: Sequence[str]) -> None:
    """Read messages as an edge will."""
    table = SensorTable(tuple(Sensor(number, name, "edge") for number, name in enumerate(sensors)))
    decoder = with_fields(Decoder(table, table.sensors, source, key_first=False), source)
    for place, item in enumerate(messages):
        for found in decoder.readings(Message(item.payload, "", 0, topic=item.topic)):
            if isinstance(found, ReadingFault):
                raise LawError(f"message {place} cannot be used: {found.reason}: {found.detail}: {item.payload[:80]!r}")
