"""The stream `readings` of queries: recovered values with what the sensors table says of their sensors.

What the table says is the same at every step, so each of its columns is made once and looked up by sensor.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tsunagi.query.relations import Rows
from tsunagi.query.values import Array, Column, Floats, Ints, Kind, Spread, column, texts
from tsunagi.runtime.messages import BOUNDED, QUALITY_NAMES, UNBOUNDED
from tsunagi.runtime.sensors import SensorTable


def attribute_kinds(table: SensorTable) -> dict[str, Kind]:
    """Return the kinds of the table's attributes: DOUBLE if all that is there is a number, else TEXT."""
    found = {}
    for place, name in enumerate(table.attributes):
        cells = [sensor.attributes[place] for sensor in table.present if sensor.attributes[place]]
        found[name] = Kind.DOUBLE if cells and all(map(_is_number, cells)) else Kind.TEXT
    return found


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


class Readings:
    """Makes rows of readings.

    Args:
        slide_us: length of a step, microseconds.
        kinds: the kinds of the attributes; None = as the table's cells are.
    """

    def __init__(self, table: SensorTable, slide_us: int, kinds: Mapping[str, Kind] | None = None) -> None:
        self._slide_us = slide_us
        kinds = attribute_kinds(table) if kinds is None else kinds
        names = tuple(sensor.name for sensor in table.sensors)
        # What a query has kept of a renamed sensor has its earlier name.
        self._numbers = {name: sensor.id for sensor in table.sensors for name in (sensor.key, sensor.name)}
        self._columns: dict[str, Column] = {
            # The code of a name is the id of the sensor.
            "sensor": Column(Kind.TEXT, np.arange(len(names)), None, names),
            "edge": texts([sensor.edge or sensor.before or None for sensor in table.sensors]),
            "group": texts([sensor.group or None for sensor in table.sensors]),
            "unit": texts([sensor.unit or None for sensor in table.sensors]),
            "threshold": _numbers([sensor.threshold for sensor in table.sensors]),
        }
        for place, name in enumerate(table.attributes):
            cells = [sensor.attributes[place] for sensor in table.sensors]
            if kinds.get(name) is Kind.DOUBLE:
                self._columns[name] = _numbers([float(cell) if _is_number(cell) else math.nan for cell in cells])
            else:
                self._columns[name] = texts([cell or None for cell in cells])

    def of_sensor(self, name: str) -> Column:
        """Return a column that the table has of each sensor, [sensors]."""
        return self._columns[name]

    def of_sensors(self, names: Column, wanted: Collection[str]) -> dict[str, Column]:
        """Return columns that the table has of sensors, by their names; NULL where it has no such sensor."""
        known = [self._numbers.get(name, 0) for name in names.pool]
        there = np.array([name in self._numbers for name in names.pool] or [False])[names.values] & names.present()
        sensor = np.array(known or [0], dtype=np.int64)[names.values]
        found = {name: self._columns[name].take(sensor) for name in wanted}
        if there.all():
            return found
        return {name: replace(item, valid=item.present() & there) for name, item in found.items()}

    def rows(
        self, step: Ints, sensor: Array, columns: Mapping[str, Array], wanted: Collection[str] | None = None
    ) -> Rows:
        """Return readings as rows.

        Args:
            step: int64[n], ascending; within a step the rows are in the order of sensors.
            sensor: uint32[n], ids.
            columns: float64[n] `mean`, `sd` and `bound`, uint8[n] `quality`, as in `recovered`; a mean that is NaN is
                NULL.
            wanted: the columns of the result, by name; None = all that `readings` has.
        """
        mean, sd, bound, quality = (columns[name] for name in ("mean", "sd", "bound", "quality"))
        found = {name: item.take(sensor) for name, item in self._columns.items() if wanted is None or name in wanted}
        missing = np.isnan(mean)
        valid = ~missing if missing.any() else None
        value = np.where(missing, 0.0, mean) if valid is not None else mean
        found["value"] = Column(Kind.DOUBLE, value, valid, (), _spread(value, sd, bound, quality))
        found["time"] = Column(Kind.TIMESTAMP, step * self._slide_us)
        found["quality"] = Column(Kind.TEXT, quality.astype(np.int64), None, QUALITY_NAMES)
        found["sd"] = _numbers(sd)
        found["bound"] = _numbers(bound)
        if wanted is not None:
            found = {name: item for name, item in found.items() if name in wanted}
        return Rows(step, found)


def _spread(value: Floats, sd: Floats, bound: Floats, quality: Array) -> Spread | None:
    """Return between which ends the truth of readings lies; None if all are measured."""
    estimated = (quality == BOUNDED) | (quality == UNBOUNDED)
    if not estimated.any():
        return None
    width = np.where(estimated, np.where(np.isnan(bound), np.inf, bound), 0.0)
    return Spread(value - width, value + width, np.where(estimated, sd, 0.0))


def _numbers(values: Sequence[float] | Floats) -> Column:
    """Return numbers as a column in which NaN is NULL."""
    array = np.asarray(values, dtype=np.float64)
    missing = np.isnan(array)
    if not missing.any():
        return Column(Kind.DOUBLE, array)
    return column(Kind.DOUBLE, [None if gone else item for item, gone in zip(array.tolist(), missing, strict=True)])
