"""What changes in a fleet when the table in force is replaced by what the user's file says."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tsunagi.runtime.sensors import NUMBERS, Sensor, SensorsError, SensorTable


@dataclass(frozen=True, slots=True)
class FleetChange:
    """The difference between the table in force and the user's.

    Attributes:
        table: the table that is to be in force: each sensor keeps the row that it has, and new ones come behind.
        added, removed: names of sensors.
        renamed: (the old name, the new name) of sensors.
        moved: (the sensor, its edge before, its edge from now on).
        edited: (the sensor, the column, the old cell, the new cell) for all other cells that differ.
        new_edges, idle_edges: edges that come with the change, and those that have no sensor any more.
    """

    table: SensorTable
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    moved: tuple[tuple[str, str, str], ...] = ()
    edited: tuple[tuple[str, str, str, str], ...] = ()
    new_edges: tuple[str, ...] = ()
    idle_edges: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything differs."""
        return bool(self.added or self.removed or self.renamed or self.moved or self.edited)

    def lines(self) -> list[str]:
        """Return the difference for people, one line for each sensor and cell."""
        after = {sensor.name: sensor for sensor in self.table.present}
        return [
            *(f"+ {name}, a new sensor of edge {after[name].edge}" for name in self.added),
            *(f"- {name}, which is removed" for name in self.removed),
            *(f"~ {old} is called {new}" for old, new in self.renamed),
            *(f"~ {name} moves from edge {old} to edge {new}" for name, old, new in self.moved),
            *(
                f"~ {name}: {column} is {new or 'empty'} instead of {old or 'empty'}"
                for name, column, old, new in self.edited
            ),
        ]


def fleet_change(before: SensorTable, wanted: SensorTable) -> FleetChange:
    """Compare the table in force with the one that the user wants.

    Raises:
        SensorsError: the change is impossible; the message names the sensor, and says what was found and expected.
    """
    rows = _matched(before, wanted)
    added = [sensor for sensor in wanted.sensors if sensor.id not in rows]
    place_of = {row: sensor for sensor, row in rows.items()}
    found: list[Sensor] = []
    renamed: list[tuple[str, str]] = []
    moves: list[tuple[str, str, str]] = []
    edited: list[tuple[str, str, str, str]] = []
    came, removed = [sensor.name for sensor in added], []
    for old in before.sensors:
        place = place_of.get(old.id)
        if place is None:
            if not old.removed:
                removed.append(old.name)
            found.append(old if old.removed else replace(old, edge="", before=old.edge))
            continue
        new = wanted.sensors[place]
        if old.group != new.group:
            raise SensorsError(
                f"sensor {new.name!r}: found group {new.group!r}, expected {old.group!r}: a sensor keeps its group, "
                "since its results are in the group's order. Give it another name, then it is a new sensor"
            )
        moved = not old.removed and old.edge != new.edge
        found.append(
            replace(
                new,
                id=old.id,
                was=old.key if old.key != new.name else "",
                before=old.edge if moved else old.before,
            )
        )
        if old.removed:
            came.append(new.name)
            continue
        if old.name != new.name:
            renamed.append((old.name, new.name))
        if moved:
            moves.append((new.name, old.edge, new.edge))
        edited += _edited(old, new, before.attributes, wanted.attributes)
    found += [replace(sensor, id=len(before) + number) for number, sensor in enumerate(added)]
    table = SensorTable(tuple(_widened(sensor, wanted.attributes) for sensor in found), wanted.attributes)
    return FleetChange(
        table,
        tuple(came),
        tuple(removed),
        tuple(renamed),
        tuple(moves),
        tuple(edited),
        new_edges=tuple(sorted(set(table.edges) - set(before.edges))),
        idle_edges=tuple(sorted(set(before.edges) - set(table.edges))),
    )


def differs(in_force: SensorTable, file: SensorTable) -> bool:
    """Return whether the user's file says something else than the table in force, be it something impossible."""
    try:
        return bool(fleet_change(in_force, file))
    except SensorsError:
        return True


def _matched(before: SensorTable, wanted: SensorTable) -> dict[int, int]:
    """Return the row in force of each wanted sensor that has one, both by their numbers.

    Raises:
        SensorsError: a name belongs to another sensor, or `was` names none.
    """
    owner = {name: sensor.id for sensor in before.sensors for name in (sensor.key, sensor.name)}
    rows: dict[int, int] = {}
    taken: dict[int, str] = {}
    for sensor in wanted.sensors:
        by_name, by_was = owner.get(sensor.name), owner.get(sensor.was) if sensor.was else None
        if sensor.was and by_was is None and by_name is None:
            raise SensorsError(f"sensor {sensor.name!r}: was: found {sensor.was!r}, expected a name that it had before")
        if by_was is not None and by_name is not None and by_was != by_name:
            other = before.sensors[by_name]
            raise SensorsError(
                f"sensor {sensor.name!r}: found a name that belongs to another sensor ({other.key!r}), expected a new "
                "one: a name stays with its sensor for good"
            )
        row = by_name if by_was is None else by_was
        if row is None:
            continue
        if row in taken:
            raise SensorsError(f"sensor {sensor.name!r}: found a name of {taken[row]!r}, expected one of its own")
        rows[sensor.id], taken[row] = row, sensor.name
    return rows


def _edited(
    old: Sensor, new: Sensor, old_names: tuple[str, ...], new_names: tuple[str, ...]
) -> list[tuple[str, str, str, str]]:
    before, after = _cells(old, old_names), _cells(new, new_names)
    return [
        (new.name, column, before.get(column, ""), after.get(column, ""))
        for column in dict.fromkeys((*before, *after))
        if before.get(column, "") != after.get(column, "")
    ]


def _cells(sensor: Sensor, attributes: tuple[str, ...]) -> dict[str, str]:
    """Return the cells of a sensor's row, but its names, its edge and its group."""
    found = {"unit": sensor.unit}
    for name in NUMBERS:
        number = sensor.number(name)
        found[name] = "" if math.isnan(number) else f"{number:g}"
    return found | dict(zip(attributes, sensor.attributes, strict=False))


def _widened(sensor: Sensor, attributes: tuple[str, ...]) -> Sensor:
    """Return a sensor with a cell for each attribute; a removed one has none of those that are new."""
    return sensor if len(sensor.attributes) == len(attributes) else replace(sensor, attributes=("",) * len(attributes))
