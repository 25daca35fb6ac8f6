"""Reads the sensors table, a CSV.

Its columns are ``sensor,edge,group,unit,was,interval_s,max_age_s,threshold,min,max,rate``, of which only the first two
are required. Every other column is an attribute, which queries can read: a site, a role, a place. The id of a sensor is
the number of its row in the table that is in force. That one stands in the topic `plan` (tsunagi.runtime.fleet_table);
the file says what the user wants, and `tsunagi apply` puts it in force.
"""

from __future__ import annotations

import difflib
import hashlib
import io
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tsunagi.runtime.cells import Cells
from tsunagi.runtime.columns import Sensors
from tsunagi.runtime.csv_text import CsvError, Line, read_table, row_writer, table_rows
from tsunagi.runtime.naming import edge_fault, sensor_fault, text_fault

REQUIRED = ("sensor", "edge")
"""The columns that the table must have."""
NUMBERS = ("interval_s", "max_age_s", "threshold", "min", "max", "rate")
"""The columns that the table may have and that have numbers."""
OPTIONAL = ("group", "unit", "was", *NUMBERS)
"""The columns that the table may have."""
_ABOVE_ZERO = ("interval_s", "max_age_s", "rate")
"""The columns of them whose numbers must be above zero."""
BEFORE = "before"
"""The column that the table in force has besides: the edge that a sensor had before its last move."""
PER_EDGE = 4
"""Number of slots in which the sensors of an edge stand, by default."""
LEAST_EDGES = 8
"""Least number of edges of which a slot has sensors, if the fleet has so many: when one dies, the others are left."""
_FIELDS = {"min": "minimum", "max": "maximum"}
"""The attributes of `Sensor` that are called otherwise than their columns."""
_ATTRIBUTE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
"""Matches the names of attributes."""
_TAKEN = frozenset({"value", "time", "quality", "sd", "bound"})
"""Names of columns that readings have in queries."""


class SensorsError(ValueError):
    """The sensors table cannot be used; the message names file, line, column, found and expected."""


@dataclass(frozen=True, slots=True)
class Sensor:
    """A sensor, which is a row of the table.

    Attributes:
        id: the number of the row, from 0.
        group: the group within which results are in time order, the SPK of P-SORT (docs/explanation/psort.md).
        interval_s: usual time between two readings, in seconds; NaN as configured in [steps].
        max_age_s: how long a reading holds before the sensor counts as missing, in seconds; NaN for one window.
        threshold: the threshold of q2; NaN for none.
        minimum, maximum: the range of plausible readings; NaN for no limit.
        rate: rows a second, for the placement; NaN if it is like that of the other sensors.
        attributes: the cells of the table's further columns, in their order; "" where a sensor has none.
        edge: the edge that reads the sensor; "" = the sensor has been removed, and its row only keeps its place.
        was: the name that the sensor had first; "" = it has not been renamed.
        before: the edge that it had before it was moved or removed; "" = it has not been.
    """

    id: int
    name: str
    edge: str
    group: str = ""
    unit: str = ""
    interval_s: float = math.nan
    max_age_s: float = math.nan
    threshold: float = math.nan
    minimum: float = math.nan
    maximum: float = math.nan
    rate: float = math.nan
    attributes: tuple[str, ...] = ()
    was: str = ""
    before: str = ""

    @property
    def key(self) -> str:
        """The name that stays the sensor's for good: models and placements know it by this one."""
        return self.was or self.name

    def number(self, column: str) -> float:
        """Return what one of the columns `NUMBERS` says of the sensor; NaN if it says nothing."""
        found: float = getattr(self, _FIELDS.get(column, column))
        return found

    @property
    def removed(self) -> bool:
        """Whether the sensor is no part of the fleet any more."""
        return not self.edge


@dataclass(frozen=True, slots=True)
class SensorTable:
    """All sensors, by id, with those that were removed.

    Attributes:
        attributes: the names of the further columns.
    """

    sensors: tuple[Sensor, ...]
    attributes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.sensors)

    @property
    def edges(self) -> tuple[str, ...]:
        """Names of the edges, sorted."""
        return tuple(sorted({sensor.edge for sensor in self.sensors if sensor.edge}))

    @property
    def present(self) -> tuple[Sensor, ...]:
        """The sensors that have not been removed, by id."""
        return tuple(sensor for sensor in self.sensors if not sensor.removed)

    def of_edge(self, edge: str) -> tuple[Sensor, ...]:
        """Return the sensors of an edge, by id."""
        return tuple(sensor for sensor in self.sensors if sensor.edge == edge)

    def ids(self, names: list[str]) -> dict[str, int]:
        """Return the id of each of the names that the table has; sensors are known by their first names, too."""
        known = {name: sensor.id for sensor in self.present for name in (sensor.key, sensor.name)}
        return {name: known[name] for name in names if name in known}

    def check_placed(self, rows: int, digest: str) -> None:
        """Check that the first `rows` sensors are those that were placed under this digest.

        Raises:
            SensorsError: the table shrank, or an old row's name changed.
        """
        if not self.placed(rows, digest):
            raise SensorsError(
                f"the sensors table contradicts the plan: {rows} sensors have been placed under other names; "
                f"the table ({len(self)} sensors) is another fleet's, or an older one"
            )

    def placed(self, rows: int, digest: str) -> bool:
        """Return whether the first `rows` sensors have this digest. Sensors may have moved to other edges since."""
        return rows <= len(self) and digest in (self.digest(rows), self._digest_with_edges(rows))

    def digest(self, rows: int | None = None) -> str:
        """Return the SHA-256 of the first `rows` first names (None: of all). Growth and renaming do not change it."""
        text = "".join(f"{sensor.key}\x1e" for sensor in self.sensors[:rows])
        return hashlib.sha256(text.encode()).hexdigest()

    def _digest_with_edges(self, rows: int) -> str:
        """Return the digest that earlier releases wrote to `plan`: it covers the edges as well."""
        text = "".join(f"{sensor.key}\x1f{sensor.before or sensor.edge}\x1e" for sensor in self.sensors[:rows])
        return hashlib.sha256(text.encode()).hexdigest()


def place(table: SensorTable, slots: int, per_edge: int = PER_EDGE, cells: int = 1) -> Sensors:
    """Return the slot of each sensor id, uint32[n]: each edge's sensors are dealt out over some slots.

    An edge sends a record a step to each of its slots, so their number decides what a step costs. When an edge dies,
    its slots recover its sensors from those of other edges. So each slot has sensors of `LEAST_EDGES` edges or of all,
    and edges that are neighbours in the table, which often know most of each other, share slots. In a fleet of few
    edges every edge stands in every slot.

    Args:
        per_edge: number of slots of an edge where the fleet has edges enough.
        cells: into how many cells the slots are divided. An edge's slots are of one cell, if so many are in it.
    """
    edges = dict.fromkeys(sensor.edge for sensor in table.sensors)
    width = min(slots, max(per_edge, -(-slots * LEAST_EDGES // max(1, len(edges)))))
    placed = np.zeros(len(table), dtype=np.uint32)
    first = {edge: number * slots // len(edges) if width < slots else 0 for number, edge in enumerate(edges)}
    in_turn = Cells(cells).in_turn(slots)
    if cells > 1:
        first = {edge: _within(in_turn, cells, place, width) for edge, place in first.items()}
    # Edges start at different ones of their slots, so that remainders do not pile up.
    next_of = {edge: number for number, edge in enumerate(edges)}
    for sensor in table.sensors:
        placed[sensor.id] = in_turn[(first[sensor.edge] + next_of[sensor.edge] % width) % slots]
        next_of[sensor.edge] += 1
    return placed


def _within(in_turn: list[int], cells: int, place: int, width: int) -> int:
    """Return the first of `width` places from about this one on whose slots are of one cell, if a cell has so many."""
    cell = in_turn[place] % cells
    largest = -(-(len(in_turn) - cell) // cells)
    begin = in_turn.index(cell)
    return min(place, begin + largest - width) if width <= largest else place


def read_sensors(path: Path) -> SensorTable:
    """Read and check a sensors table.

    Raises:
        SensorsError: the table cannot be used.
    """
    try:
        return _parse(list(read_table(path)), path)
    except CsvError as error:
        raise SensorsError(str(error).replace("no such file", "no such sensors table")) from None


def read_in_force(text: bytes, where: Path) -> SensorTable:
    """Read a table that `write_in_force` has written; it also has the sensors that were removed.

    Raises:
        SensorsError: the table cannot be used.
    """
    global _newest  # noqa: PLW0603 - one assignment, so that threads need no lock
    newest = _newest
    if newest is not None and newest.text == text:
        return newest.table
    try:
        rows = list(table_rows(text, where))
    except CsvError as error:
        raise SensorsError(str(error)) from None
    table = _parse(rows, where, in_force=True, known=newest)
    _newest = _Parsed(text, [row.cells for row in rows], table)
    return table


class _Parsed(NamedTuple):
    """A table and what it was parsed from: the rows of the text with the header first, row n + 1 being sensor n."""

    text: bytes
    rows: list[list[str]]
    table: SensorTable

    def sensor(self, place: int, cells: list[str]) -> Sensor | None:
        """Return the sensor at a place of the table if its row has these cells."""
        return self.table.sensors[place] if place + 1 < len(self.rows) and self.rows[place + 1] == cells else None


_newest: _Parsed | None = None
"""The table in force that was parsed last. A change leaves nearly all rows as they are, and a parsed row costs many
times what a compared one does."""


def write_in_force(table: SensorTable) -> bytes:
    """Return the table as CSV, with the column `before` and with the sensors that were removed."""
    text = io.StringIO(newline="")
    write = row_writer(text)
    write([*REQUIRED, *OPTIONAL, BEFORE, *table.attributes])
    for sensor in table.sensors:
        numbers = [sensor.number(name) for name in NUMBERS]
        cells = ["" if math.isnan(number) else repr(number) for number in numbers]
        words = (sensor.name, sensor.edge, sensor.group, sensor.unit, sensor.was)
        write([*words, *cells, sensor.before, *(sensor.attributes or ("",) * len(table.attributes))])
    return text.getvalue().encode()


def _parse(rows: list[Line], path: Path, *, in_force: bool = False, known: _Parsed | None = None) -> SensorTable:
    if not rows:
        raise SensorsError(f"{path}: empty; expected a header starting with sensor,edge")
    header, top = [name.strip() for name in rows[0].cells], rows[0].number
    columns = (*REQUIRED, *OPTIONAL, BEFORE) if in_force else REQUIRED + OPTIONAL
    for name in REQUIRED:
        if name not in header:
            raise SensorsError(f"{path}, line {top}: column {name!r} is missing (found {','.join(header)})")
    for name in header:
        if name not in columns:
            _check_attribute(f"{path}, line {top}", name)
    if len(set(header)) != len(header):
        raise SensorsError(f"{path}, line {top}: a column stands twice")
    attributes = tuple(name for name in header if name not in columns)
    before = known if known is not None and known.rows[0] == rows[0].cells else None
    sensors: list[Sensor] = []
    lines: dict[str, int] = {}
    for line, row in rows[1:]:
        sensor = None if before is None else before.sensor(len(sensors), row)
        if sensor is None:
            sensor = _sensor(len(sensors), row, header, attributes, f"{path}, line {line}", in_force=in_force)
        for name in {sensor.name, sensor.key}:
            if name in lines:
                raise SensorsError(f"{path}, line {line}: sensor {name!r} stands already in line {lines[name]}")
            lines[name] = line
        sensors.append(sensor)
    if not sensors:
        raise SensorsError(f"{path}: no sensors below the header")
    return SensorTable(tuple(sensors), attributes)


def _sensor(
    number: int, row: list[str], header: list[str], attributes: tuple[str, ...], where: str, *, in_force: bool
) -> Sensor:
    """Return the sensor that a row says, with this id."""
    if len(row) != len(header):
        raise SensorsError(f"{where}: found {len(row)} fields, expected {len(header)}")
    fields = {name: cell.strip() for name, cell in zip(header, row, strict=True)}
    for name in REQUIRED:
        if not fields[name] and not (in_force and name == "edge"):
            raise SensorsError(f"{where}: {name} is empty")
    _check_names(where, fields)
    numbers = {name: _number(where, name, fields.get(name, "")) for name in NUMBERS}
    if numbers["min"] > numbers["max"]:
        raise SensorsError(f"{where}: min = {numbers['min']} is greater than max = {numbers['max']}")
    return Sensor(
        id=number,
        name=fields["sensor"],
        edge=fields["edge"],
        group=fields.get("group", ""),
        unit=fields.get("unit", ""),
        attributes=tuple(fields[name] for name in attributes),
        was=fields.get("was", "") if fields.get("was", "") != fields["sensor"] else "",
        before=fields.get(BEFORE, "") if in_force else "",
        **{_FIELDS.get(name, name): number for name, number in numbers.items()},
    )


def _check_attribute(where: str, name: str) -> None:
    """Refuse names that queries cannot use, and those that are likely to be mistyped names of columns."""
    known = REQUIRED + OPTIONAL
    like = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.8)
    if like:
        raise SensorsError(f"{where}: unknown column {name!r}; did you mean {like[0]}?")
    if not _ATTRIBUTE.fullmatch(name) or name.lower() in _TAKEN:
        raise SensorsError(
            f"{where}: column {name!r}: expected {','.join(known)} or an attribute, whose name has letters (a-z), "
            f"digits and '_', and is none of {', '.join(sorted(_TAKEN))}"
        )


def _check_names(where: str, fields: dict[str, str]) -> None:
    """Refuse names that cannot be used as names of files, nodes, users and keys."""
    for column, fault in (
        ("sensor", sensor_fault(fields["sensor"])),
        ("was", sensor_fault(fields.get("was", ""))),
        ("edge", edge_fault(fields["edge"]) if fields["edge"] else ""),
        ("group", text_fault(fields.get("group", ""))),
        ("unit", text_fault(fields.get("unit", ""))),
    ):
        if fault:
            raise SensorsError(f"{where}: {column}: {fault}")


def _number(where: str, name: str, cell: str) -> float:
    if not cell:
        return math.nan
    try:
        value = float(cell)
    except ValueError:
        raise SensorsError(f"{where}: {name}: found {cell!r}, expected a number") from None
    if math.isnan(value) and name not in _ABOVE_ZERO:
        return math.nan  # the one object: tables are compared by it
    if math.isinf(value) or (name in _ABOVE_ZERO and not value > 0):
        raise SensorsError(f"{where}: {name}: found {cell!r}, expected a finite number above zero")
    return value
