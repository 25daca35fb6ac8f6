"""The sensors table: one CSV that every part reads.

Columns ``sensor,edge,group,unit,interval_s,max_age_s,threshold,min,max,rate``; only the first two must be there. A
sensor's id is its row number, so the table may grow at its end and nowhere else.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tsunagi.runtime.columns import Sensors
from tsunagi.runtime.csv_text import CsvError, read_table
from tsunagi.runtime.naming import edge_fault, sensor_fault, text_fault

REQUIRED = ("sensor", "edge")
OPTIONAL = ("group", "unit", "interval_s", "max_age_s", "threshold", "min", "max", "rate")


class SensorsError(ValueError):
    """The sensors table cannot be used; the message names file, line, column, found and expected."""


@dataclass(frozen=True, slots=True)
class Sensor:
    """One row.

    Attributes:
        group: SPK of P-SORT: results are in time order within it.
        interval_s: nominal time between readings; NaN = as configured in [steps].
        max_age_s: how long a reading holds before the sensor counts as missing; NaN = one window.
        threshold: of q2; NaN = none.
        minimum, maximum: plausible range; NaN = open.
        rate: rows a second, for placement; NaN = like the others.
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


@dataclass(frozen=True, slots=True)
class SensorTable:
    """All sensors, by id."""

    sensors: tuple[Sensor, ...]

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
        """Return name -> id for those of `names` that the table has."""
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
        """Return whether the first `rows` sensors have this digest; a sensor may have moved to another edge since."""
        return rows <= len(self) and digest in (self.digest(rows), self._digest_with_edges(rows))

    def digest(self, rows: int | None = None) -> str:
        """Return the SHA-256 of the first `rows` names; a table that grew at its end keeps it."""
        text = "".join(f"{sensor.name}\x1e" for sensor in self.sensors[:rows])
        return hashlib.sha256(text.encode()).hexdigest()

    def _digest_with_edges(self, rows: int) -> str:
        """Return what earlier releases wrote into `plan`."""
        text = "".join(f"{sensor.name}\x1f{sensor.edge}\x1e" for sensor in self.sensors[:rows])
        return hashlib.sha256(text.encode()).hexdigest()


def place(table: SensorTable, slots: int) -> Sensors:
    """Spread each edge's sensors evenly over the slots: uint32[n], slot by sensor id.

    A dead edge then leaves every slot with the sensors of the other edges to recover from. A sensor added at the
    table's end gets a place without moving another.
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
        SensorsError: see the class.
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
            raise SensorsError(f"{path}, line {top}: unknown column {name!r}; expected {','.join(REQUIRED + OPTIONAL)}")
    if len(set(header)) != len(header):
        raise SensorsError(f"{path}, line {top}: a column stands twice")
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
            )
        )
    if not sensors:
        raise SensorsError(f"{path}: no sensors below the header")
    return SensorTable(tuple(sensors))


def _check_names(where: str, fields: dict[str, str]) -> None:
    """Refuse names that cannot become those of files, nodes, users and keys."""
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
