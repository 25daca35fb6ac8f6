"""Reads the sensors table, a CSV that all services read.

Its columns are ``sensor,edge,group,unit,interval_s,max_age_s,threshold,min,max,rate``, of which only the first two are
required. Every other column is an attribute, which queries can read: a site, a role, a place. The id of a sensor is the
number of its row, so rows may only be added at the end of the table.
"""

from __future__ import annotations

import difflib
import hashlib
import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tsunagi.runtime.columns import Sensors
from tsunagi.runtime.csv_text import CsvError, read_table
from tsunagi.runtime.naming import edge_fault, sensor_fault, text_fault

REQUIRED = ("sensor", "edge")
"""The columns that the table must have."""
OPTIONAL = ("group", "unit", "interval_s", "max_age_s", "threshold", "min", "max", "rate")
"""The columns that the table may have. From the third one on they have numbers."""
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


@dataclass(frozen=True, slots=True)
class SensorTable:
    """All sensors, by id.

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
        return tuple(sorted({sensor.edge for sensor in self.sensors}))

    def of_edge(self, edge: str) -> tuple[Sensor, ...]:
        """Return the sensors of an edge, by id."""
        return tuple(sensor for sensor in self.sensors if sensor.edge == edge)

    def ids(self, names: list[str]) -> dict[str, int]:
        """Return the id of each of the names that the table has."""
        known = {sensor.name: sensor.id for sensor in self.sensors}
        return {name: known[name] for name in names if name in known}

    def check_placed(self, rows: int, digest: str) -> None:
        """Check that the first `rows` sensors are those that were placed under this digest.

        Raises:
            SensorsError: the table shrank, or an old row's name changed.
        """
        if not self.placed(rows, digest):
            raise SensorsError(
                f"the sensors table contradicts the plan: {rows} sensors have been placed under other names; "
                f"the table ({len(self)} sensors) may only grow at its end"
            )

    def placed(self, rows: int, digest: str) -> bool:
        """Return whether the first `rows` sensors have this digest. Sensors may have moved to other edges since."""
        return rows <= len(self) and digest in (self.digest(rows), self._digest_with_edges(rows))

    def digest(self, rows: int | None = None) -> str:
        """Return the SHA-256 of the first `rows` names (None: of all). It stays the same when the table grows."""
        text = "".join(f"{sensor.name}\x1e" for sensor in self.sensors[:rows])
        return hashlib.sha256(text.encode()).hexdigest()

    def _digest_with_edges(self, rows: int) -> str:
        """Return the digest that earlier releases wrote to `plan`: it covers the edges as well."""
        text = "".join(f"{sensor.name}\x1f{sensor.edge}\x1e" for sensor in self.sensors[:rows])
        return hashlib.sha256(text.encode()).hexdigest()


def place(table: SensorTable, slots: int) -> Sensors:
    """Return the slot of each sensor id, uint32[n]. The sensors of each edge are spread evenly over the slots.

    So when an edge dies, every slot still has sensors of the other edges from which it can recover. A sensor that is
    added at the end of the table moves no other sensor.
    """
    placed = np.zeros(len(table), dtype=np.uint32)
    # Edges start at different slots, so that remainders do not pile up on slot 0.
    next_of = {edge: number for number, edge in enumerate(dict.fromkeys(sensor.edge for sensor in table.sensors))}
    for sensor in table.sensors:
        placed[sensor.id] = next_of[sensor.edge] % slots
        next_of[sensor.edge] += 1
    return placed


def read_sensors(path: Path) -> SensorTable:
    """Read and check a sensors table.

    Raises:
        SensorsError: the table cannot be used.
    """
    try:
        rows = list(read_table(path))
    except CsvError as error:
        raise SensorsError(str(error).replace("no such file", "no such sensors table")) from None
    if not rows:
        raise SensorsError(f"{path}: empty; expected a header starting with sensor,edge")
    header, top = [name.strip() for name in rows[0].cells], rows[0].number
    for name in REQUIRED:
        if name not in header:
            raise SensorsError(f"{path}, line {top}: column {name!r} is missing (found {','.join(header)})")
    for name in header:
        if name not in REQUIRED + OPTIONAL:
            _check_attribute(f"{path}, line {top}", name)
    if len(set(header)) != len(header):
        raise SensorsError(f"{path}, line {top}: a column stands twice")
    attributes = tuple(name for name in header if name not in REQUIRED + OPTIONAL)
    sensors: list[Sensor] = []
    lines: dict[str, int] = {}
    for line, row in rows[1:]:
        if len(row) != len(header):
            raise SensorsError(f"{path}, line {line}: found {len(row)} fields, expected {len(header)}")
        fields = {name: cell.strip() for name, cell in zip(header, row, strict=True)}
        for name in REQUIRED:
            if not fields[name]:
                raise SensorsError(f"{path}, line {line}: {name} is empty")
        _check_names(f"{path}, line {line}", fields)
        if fields["sensor"] in lines:
            first = lines[fields["sensor"]]
            raise SensorsError(f"{path}, line {line}: sensor {fields['sensor']!r} stands already in line {first}")
        lines[fields["sensor"]] = line
        numbers = {name: _number(path, line, name, fields.get(name, "")) for name in OPTIONAL[2:]}
        if numbers["min"] > numbers["max"]:
            raise SensorsError(f"{path}, line {line}: min = {numbers['min']} is greater than max = {numbers['max']}")
        sensors.append(
            Sensor(
                id=len(sensors),
                name=fields["sensor"],
                edge=fields["edge"],
                group=fields.get("group", ""),
                unit=fields.get("unit", ""),
                interval_s=numbers["interval_s"],
                max_age_s=numbers["max_age_s"],
                threshold=numbers["threshold"],
                minimum=numbers["min"],
                maximum=numbers["max"],
                rate=numbers["rate"],
                attributes=tuple(fields[name] for name in attributes),
            )
        )
    if not sensors:
        raise SensorsError(f"{path}: no sensors below the header")
    return SensorTable(tuple(sensors), attributes)


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
        ("edge", edge_fault(fields["edge"])),
        ("group", text_fault(fields.get("group", ""))),
        ("unit", text_fault(fields.get("unit", ""))),
    ):
        if fault:
            raise SensorsError(f"{where}: {column}: {fault}")


def _number(path: Path, line: int, name: str, cell: str) -> float:
    if not cell:
        return math.nan
    try:
        value = float(cell)
    except ValueError:
        raise SensorsError(f"{path}, line {line}: {name}: found {cell!r}, expected a number") from None
    if math.isinf(value) or (name in ("interval_s", "max_age_s", "rate") and not value > 0):
        raise SensorsError(f"{path}, line {line}: {name}: found {cell!r}, expected a finite number above zero")
    return value
