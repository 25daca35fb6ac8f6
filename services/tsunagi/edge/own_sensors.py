"""The sensors of one edge: by which names its source may call them, and which of them stay when the table changes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tsunagi.edge.window import NEW, Places
from tsunagi.runtime.sensors import Sensor, SensorTable


def places_by_name(sensors: Sequence[Sensor]) -> dict[str, int]:
    """Return the place of each sensor among these; a device may still use the first name of a renamed sensor."""
    return {name: place for place, sensor in enumerate(sensors) for name in (sensor.key, sensor.name)}


def edges_by_name(table: SensorTable) -> dict[str, str]:
    """Return the edge of each sensor of the fleet, by both of its names."""
    return {name: sensor.edge for sensor in table.present for name in (sensor.key, sensor.name)}


def removed_names(table: SensorTable) -> frozenset[str]:
    """Return both names of each sensor that has been removed."""
    return frozenset(name for sensor in table.sensors if sensor.removed for name in (sensor.key, sensor.name))


def kept_places(before: Sequence[Sensor], sensors: Sequence[Sensor]) -> Places:
    """Return the earlier place of each sensor, intp[n]; `NEW` stands for one that the edge did not have before."""
    places = {sensor.id: place for place, sensor in enumerate(before)}
    return np.array([places.get(sensor.id, NEW) for sensor in sensors], dtype=np.intp)
