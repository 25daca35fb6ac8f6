"""Finds the sensors of a fleet in a file, or in messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from tsunagi.edge.decode import NO_BIRTH, ReadingFault
from tsunagi.edge.fields import NO_FIELD, Entries
from tsunagi.edge.formats import make_format
from tsunagi.edge.inbox import Message
from tsunagi.edge.source import SourceError
from tsunagi.project.fleet import Series, TableSeries
from tsunagi.project.format_shapes import PROPOSALS, format_of
from tsunagi.project.shapes import Sample
from tsunagi.project.units import UnitReader
from tsunagi.runtime.settings import SourceSettings, TableSettings
from tsunagi.runtime.settings.fields import FieldSettings
from tsunagi.runtime.tables.csv_table import CsvTable
from tsunagi.runtime.tables.files import is_parquet, open_table
from tsunagi.runtime.tables.layout import TableError
from tsunagi.runtime.tables.parquet_table import ParquetTable

_USUAL = TableSettings()
"""The form of files that tell by themselves how they are read."""


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

    def by_name(self) -> list[Series]:
        """Return the sensors, sorted by name."""
        return sorted(self.series.values(), key=lambda item: item.name)


def find_in_file(path: Path, form: TableSettings = _USUAL) -> FoundFleet:
    """Find the sensors of a CSV or Parquet file: a column for each sensor, or a row for each reading.

    The file is read from its beginning to its end, and may be larger than memory.

    Args:
        form: how it is read, as far as it does not tell by itself. If its times are numbers in another unit, the unit
            is found.

    Raises:
        TableError: the file cannot be used, or has no reading.
    """
    file, form = _opened(path, form)
    said = {key: value for key, value in form.model_dump().items() if value != getattr(_USUAL, key)}
    source = {"kind": "parquet" if is_parquet(path) else "csv", "path": str(path.absolute())}
    found = FoundFleet(source | ({"table": said} if said else {}))
    fleet = TableSeries()
    for block in file.blocks():
        for reason, which in (("missing", block.missing), ("estimated", block.estimated & ~block.missing)):
            if count := int(which.sum()):
                found.unusable[reason] = found.unusable.get(reason, 0) + count
        fleet.add(block.chosen(~block.missing & ~block.estimated), len(file.names.names))
    found.series = fleet.series(file.names.names)
    if not any(item.count for item in found.series.values()):
        raise TableError(f"{path}: found no readings below the header, expected some")
    if fleet.backwards:
        found.unusable["out of order (edges need the order of time)"] = fleet.backwards
    return found


def _opened(path: Path, form: TableSettings) -> tuple[CsvTable | ParquetTable, TableSettings]:
    """Open a table, with the unit of its times."""
    units = dict.fromkeys([form.time_unit, *get_args(TableSettings.model_fields["time_unit"].annotation)])
    fault: TableError | None = None
    for unit in units:
        tried = form.model_copy(update={"time_unit": unit})
        file = open_table(path, tried)
        try:
            next(file.blocks(), None)
        except TableError as error:
            fault = fault or error
            continue
        return file, tried
    raise fault or TableError(f"{path}: found no unit in which its times can be read")


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
    units = UnitReader(fields, bodies)
    for message, body in bodies:
        _read(message, body, entries, found)
    for message, body in bodies:
        for sensor, unit in units.read(body, message):
            if sensor in found.series:
                found.series[sensor].units.add(unit)
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

    items = entries.readings(body, message, place_of)
    if not items:
        found.unusable[NO_FIELD] = found.unusable.get(NO_FIELD, 0) + 1
    for item in items:
        if isinstance(item, ReadingFault):
            found.unusable[item.reason] = found.unusable.get(item.reason, 0) + 1
            continue
        name = names[item.place]
        series = found.series.setdefault(name, Series(name, tuple(message.topic.split("/"))))
        series.add(item.time_us, item.value)
        found.slowest_s = max(found.slowest_s, (message.arrived_us - item.time_us) / 1e6)
