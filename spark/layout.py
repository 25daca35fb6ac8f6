"""What Spark knows of the sensors: group, slot, core and threshold of each.

A layout is a version: it changes only from one batch to the next, and which one a batch used is kept, so that a batch
that is run again uses the same. It only grows: a sensor keeps its group, a group keeps its core.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from services.runtime.columns import Floats, Sensors, sensors
from services.runtime.messages import Placement
from services.runtime.sensors import SensorTable
from spark.psort import extend

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class LayoutError(ValueError):
    """The sensors table, the placement and the state that is kept do not belong together."""


@dataclass(frozen=True)
class Layout:
    """One version.

    Attributes:
        serial: counts the versions, from 1.
        placement: serial of the placement it was made from.
        cores: P-SORT cores.
        slots: partitions of `recovered`.
        names, units, edges: by sensor.
        threshold: float64[sensors], of q2; NaN = none.
        group_of: int64[sensors], index into `groups`.
        slot_of: uint32[sensors].
        groups: SPKs; only added to.
        core_of: int64[groups].
    """

    serial: int
    placement: int
    cores: int
    slots: int
    names: tuple[str, ...]
    edges: tuple[str, ...]
    units: tuple[str, ...]
    threshold: Floats
    group_of: Ints
    slot_of: Sensors
    groups: tuple[str, ...]
    core_of: Ints

    def __len__(self) -> int:
        """Sensors."""
        return len(self.names)

    @cached_property
    def held(self) -> Flags:
        """bool[groups, slots]: the slot holds sensors of the group."""
        held = np.zeros((len(self.groups), self.slots), dtype=np.bool_)
        held[self.group_of, self.slot_of] = True
        return held

    @cached_property
    def sensor_core(self) -> Ints:
        """int64[sensors]: the core of each sensor."""
        return self.core_of[self.group_of]

    def dump(self) -> bytes:
        """Write as JSON."""
        fields: dict[str, Any] = {
            "version": 1,
            "serial": self.serial,
            "placement": self.placement,
            "cores": self.cores,
            "slots": self.slots,
            "names": self.names,
            "edges": self.edges,
            "units": self.units,
            "threshold": [None if np.isnan(value) else float(value) for value in self.threshold],
            "group_of": self.group_of.tolist(),
            "slot_of": self.slot_of.tolist(),
            "groups": self.groups,
            "core_of": self.core_of.tolist(),
        }
        return json.dumps(fields).encode()

    @staticmethod
    def load(data: bytes) -> Layout:
        """Read what `dump` wrote."""
        fields = json.loads(data)
        return Layout(
            serial=fields["serial"],
            placement=fields["placement"],
            cores=fields["cores"],
            slots=fields["slots"],
            names=tuple(fields["names"]),
            edges=tuple(fields["edges"]),
            units=tuple(fields["units"]),
            threshold=np.array([np.nan if value is None else value for value in fields["threshold"]], dtype=np.float64),
            group_of=np.array(fields["group_of"], dtype=np.int64),
            slot_of=np.array(fields["slot_of"], dtype=np.uint32),
            groups=tuple(fields["groups"]),
            core_of=np.array(fields["core_of"], dtype=np.int64),
        )


def make_layout(
    table: SensorTable, placement: Placement, cores: int, unknown_group: str, previous: Layout | None = None
) -> Layout:
    """Make the layout for a sensors table and a placement; P-SORT basic, each group whole on one core.

    Sensors that the placement does not have yet are left out: nobody sends them before it has.

    Args:
        unknown_group: group of sensors without one.
        previous: the version before, which is only added to.

    Raises:
        LayoutError: the table contradicts the placement or the previous layout.
    """
    slot_of = sensors(placement.slot).copy()
    count = len(slot_of)
    if count > len(table):
        raise LayoutError(f"sensors table: found {len(table)} sensors, expected at least the {count} that are placed")
    if count == 0:
        raise LayoutError("placement: no sensor is placed")
    if placement.table_sha256 and not table.placed(count, placement.table_sha256):
        raise LayoutError(
            f"sensors table: its first {count} rows are not the sensors that the placement was made from; "
            "the table may only grow at its end"
        )
    if int(slot_of.max()) >= placement.slots:
        raise LayoutError(f"placement: found slot {int(slot_of.max())}, expected less than {placement.slots}")
    rows = table.sensors[:count]
    group_names = [sensor.group or unknown_group for sensor in rows]
    groups = list(previous.groups) if previous is not None else []
    groups += [name for name in dict.fromkeys(group_names) if name not in set(groups)]
    index = {name: number for number, name in enumerate(groups)}
    group_of = np.array([index[name] for name in group_names], dtype=np.int64)
    if previous is not None:
        _only_grows(previous, placement, cores, rows_names=[sensor.name for sensor in rows], group_of=group_of)
    load_of = dict.fromkeys(groups, 0.0)
    for sensor, name in zip(rows, group_names, strict=True):
        load_of[name] += 1.0 if np.isnan(sensor.rate) else sensor.rate
    standing = {} if previous is None else dict(zip(previous.groups, previous.core_of.tolist(), strict=True))
    core_of = extend(standing, load_of, cores)
    return Layout(
        serial=1 if previous is None else previous.serial + 1,
        placement=placement.serial,
        cores=cores,
        slots=placement.slots,
        names=tuple(sensor.name for sensor in rows),
        edges=tuple(sensor.edge for sensor in rows),
        units=tuple(sensor.unit for sensor in rows),
        threshold=np.array([sensor.threshold for sensor in rows], dtype=np.float64),
        group_of=group_of,
        slot_of=slot_of,
        groups=tuple(groups),
        core_of=np.array([core_of[name] for name in groups], dtype=np.int64),
    )


def same(one: Layout, other: Layout) -> bool:
    """Return whether two layouts say the same, whatever their serials."""
    return (
        one.names == other.names
        and one.units == other.units
        and one.groups == other.groups
        and one.slots == other.slots
        and np.array_equal(one.threshold, other.threshold, equal_nan=True)
        and np.array_equal(one.group_of, other.group_of)
        and np.array_equal(one.slot_of, other.slot_of)
    )


def _only_grows(previous: Layout, placement: Placement, cores: int, rows_names: list[str], group_of: Ints) -> None:
    if cores != previous.cores:
        raise LayoutError(
            f"[spark] cores: found {cores}, but the checkpoint was made with {previous.cores}; order across the change "
            "needs an empty checkpoint"
        )
    if placement.slots != previous.slots:
        raise LayoutError(f"placement: found {placement.slots} slots, expected {previous.slots} as before")
    if len(rows_names) < len(previous):
        raise LayoutError(
            f"placement: found {len(rows_names)} sensors, expected at least the {len(previous)} of before"
        )
    for number, name in enumerate(previous.names):
        if rows_names[number] != name:
            raise LayoutError(f"sensors table: sensor {number} is {rows_names[number]!r}, expected {name!r} as before")
        if group_of[number] != previous.group_of[number]:
            raise LayoutError(
                f"sensors table: the group of {name!r} has changed from "
                f"{previous.groups[previous.group_of[number]]!r}; a group's order needs an empty checkpoint"
            )
    moved = np.flatnonzero(sensors(placement.slot)[: len(previous)] != previous.slot_of)
    if len(moved):
        raise LayoutError(
            f"placement: sensor {previous.names[moved[0]]!r} has moved to another slot; sensors do not move"
        )
