"""Finds the sensors of a fleet in a file, or in messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tsunagi.edge.decode import NO_BIRTH, ReadingFault
from tsunagi.edge.fields import Entries
from tsunagi.edge.formats import make_format
from tsunagi.edge.inbox import Message
from tsunagi.edge.source import SourceError
from tsunagi.project.fleet import Series
from tsunagi.project.format_shapes import PROPOSALS, format_of
from tsunagi.project.shapes import Sample
from tsunagi.recovery.history import read_history
from tsunagi.runtime.settings import SourceSettings
from tsunagi.runtime.settings.fields import FieldSettings


class FoundFleet:
    """What was found of a fleet.

    Attributes:
        series: the sensors, by name, in the order in which they came.
        source: the section [source] that reads them.
        unusable: how many readings cannot be used, by reason.
        slowest_s: the longest time that a reading took from its own time to its arrival, in seconds.
    """

    def __init__(self, source: Mapping[str, Any]) -> None:
        self.series: dict[str, Series] = {}
        self.source = dict(source)
        self.unusable: dict[str, int] = {}
        self.slowest_s = 0.0


def find_in_file(path: Path) -> FoundFleet:
    """Find the sensors of a CSV: a column for each sensor, perhaps a column of times.

    Raises:
        ModelError: the file cannot be used.
        SourceError: it is no CSV.
    """
    if path.suffix.lower() in (".parquet", ".pq"):
        raise SourceError(f"{path}: found Parquet, expected a CSV, which edges can replay")
    history = read_history(path)
    found = FoundFleet({"kind": "csv", "path": str(path.absolute())})
    rows = np.arange(len(history.values), dtype=np.int64) * 1_000_000  # without times, a second apart
    times_us = rows if history.times_us is None else history.times_us
    for column, name in enumerate(history.names):
        found.series[name] = Series.of_column(name, times_us, history.values[:, column])
    return found


def find_in_messages(source: Mapping[str, Any], messages: Sequence[Message]) -> FoundFleet:
    """Find the sensors in messages, and how they are to be read.

    Raises:
        SourceError: there are no values in them.
    """
    found = FoundFleet(source)
    name = format_of(messages)
    payloads = make_format(SourceSettings.model_construct(format=name))
    bodies: list[tuple[Message, object]] = []
    for message in messages:
        for body in payloads.bodies(message):
            if isinstance(body, ReadingFault):
                found.unusable[body.reason] = found.unusable.get(body.reason, 0) + 1
            else:
                bodies.append((message, body))
    samples = [Sample(message.topic, body, message.arrived_us) for message, body in bodies]
    fields = PROPOSALS[name](samples)
    if not fields:
        raise SourceError(f"found {len(messages)} messages and no number in any of them" + _hint(found, messages))
    if name != "json":
        found.source["format"] = name
    found.source["fields"] = fields
    entries = Entries([FieldSettings.model_validate(table) for table in fields], "")
    for message, body in bodies:
        _read(message, body, entries, found)
    return found


def _hint(found: FoundFleet, messages: Sequence[Message]) -> str:
    """Return what may help where no reading was found."""
    if found.unusable.get(NO_BIRTH):
        return f" ({found.unusable[NO_BIRTH]} metrics had no birth yet: ask the nodes of Sparkplug for it meanwhile)"
    if all(len(message.payload) > 5 and message.payload[0] == 0 for message in messages):
        return ' (is it Avro? then write [source] format = "avro" and its [source.kafka] registry yourself)'
    return ""


def _read(message: Message, body: object, entries: Entries, found: FoundFleet) -> None:
    """Read a message as an edge will."""
    names: list[str] = []

    def place_of(name: str) -> int:
        names.append(name)
        return len(names) - 1

    for item in entries.readings(body, message, place_of):
        if isinstance(item, ReadingFault):
            found.unusable[item.reason] = found.unusable.get(item.reason, 0) + 1
            continue
        name = names[item.place]
        series = found.series.setdefault(name, Series(name, tuple(message.topic.split("/"))))
        series.add(item.time_us, item.value)
        found.slowest_s = max(found.slowest_s, (message.arrived_us - item.time_us) / 1e6)
