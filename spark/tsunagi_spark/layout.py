"""What Spark knows about the sensors: group, slot, core and threshold of each.

A layout is a version. It changes only between two batches, and it is kept which batch used which one, so that a batch
that is run again uses the same. What a reader sees only grows: a sensor keeps its group, a group its partition of
`results`. The core that works on a sensor may change (tsunagi_spark.balance).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tsunagi.runtime.columns import Floats, Sensors
from tsunagi.runtime.messages import Placement
from tsunagi.runtime.moving import SensorSlots
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi_spark.psort import assign, extend

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Order = Literal["none", "basic", "optimised", "full"]
"""How results are ordered; see `Layout`."""
HANDING_ON = 0.1
"""Cost for a core to pack a row for the merge, as a share of the cost of processing the row (docs/measured/psort.md,
"What decides these figures")."""

_REMOVED_RATE = 1e-6
"""The rate of a sensor that was removed, in rows a second. It has a core as all have, and rates are above zero."""


class LayoutError(ValueError):
    """The sensors table, the placement and the kept state do not belong together."""


@dataclass(frozen=True)
class Layout:
    """One version of the layout.

    Attributes:
        serial: number of the version, from 1.
        placement: serial of the placement from which it was made.
        cores: number of P-SORT cores.
        slots: number of partitions of `recovered`.
        names, units, edges: name, unit and edge of each sensor; "" is the edge of one that was removed.
        threshold: float64[sensors], threshold of q2; NaN if there is none.
        group_of: int64[sensors], index into `groups`.
        slot_of: uint32[sensors], the slot of each sensor.
        groups: names of the groups (SPKs); names are only added.
        order: `none`: sensors are spread over the cores, and a group comes in parts. `basic`: each group is whole on
            one core. `optimised`: a group that is too much for one core is cut over several cores and merged. `full`:
            sensors are spread, and everything is merged into one stream in the order of (event time, group, sensor).
        sensor_core: int64[sensors], the core that works on the sensor.
        home: int64[groups], the partition of `results` that holds the group, for good.
        attributes: the names of the further columns of the sensors table.
        cells: what these columns say of each sensor; "" where they say nothing.
        keys: the name that each sensor had first; () = none has been renamed.
        before: the edge of each sensor before its last move, or its removal; () = none has had another.
        slot_before: uint32[sensors], the slot of each sensor before its last move, or its present one; None = none has
            had another.
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
    order: Order
    sensor_core: Ints
    home: Ints
    attributes: tuple[str, ...] = ()
    cells: tuple[tuple[str, ...], ...] = ()
    keys: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    slot_before: Sensors | None = None

    def __len__(self) -> int:
        """Number of sensors."""
        return len(self.names)

    @cached_property
    def table(self) -> SensorTable:
        """What queries can read of the sensors."""
        none = ("",) * len(self)
        rows = (
            Sensor(
                place,
                name,
                self.edges[place],
                self.groups[self.group_of[place]],
                self.units[place],
                threshold=float(self.threshold[place]),
                attributes=self.cells[place] if self.cells else (),
                was=(self.keys or none)[place],
                before=(self.before or none)[place],
            )
            for place, name in enumerate(self.names)
        )
        return SensorTable(tuple(rows), self.attributes)

    @cached_property
    def held(self) -> Flags:
        """bool[groups, slots]: whether the slot holds sensors of the group, or has held them before their last move.

        Slots go on after a move, so to wait for the earlier ones as well costs nothing, and a job that is behind finds
        the steps before the move complete.
        """
        held = np.zeros((len(self.groups), self.slots), dtype=np.bool_)
        held[self.group_of, self.slot_of] = True
        if self.slot_before is not None:
            held[self.group_of, self.slot_before] = True
        return held

    def of_slot(self, sensor: Sensors, slot: int) -> Flags:
        """Return which of these sensors are the slot's, or were before their last move, bool[n]."""
        mine: Flags = self.slot_of[sensor] == slot
        return mine if self.slot_before is None else mine | (self.slot_before[sensor] == slot)

    @cached_property
    def awaited(self) -> Flags:
        """bool[groups, slots]: whether a step of the group is complete only when the slot has delivered it."""
        return np.broadcast_to(self.held.any(axis=0), self.held.shape) if self.order == "full" else self.held

    @cached_property
    def holds(self) -> Flags:
        """bool[groups, cores]: whether the core works on sensors of the group."""
        holds = np.zeros((len(self.groups), self.cores), dtype=np.bool_)
        holds[self.group_of, self.sensor_core] = True
        return holds

    @cached_property
    def cut(self) -> Flags:
        """bool[groups]: whether the group is merged after the cores have worked on it."""
        if self.order in ("none", "full"):
            return np.full(len(self.groups), self.order == "full")
        return np.asarray(self.holds.sum(axis=1) > 1, dtype=np.bool_)

    @cached_property
    def listing(self) -> Ints:
        """int64[groups]: the core that lists all blocks of a group, even without rows: it has most of its sensors."""
        sensors = np.zeros((len(self.groups), self.cores), dtype=np.int64)
        np.add.at(sensors, (self.group_of, self.sensor_core), 1)
        return np.asarray(sensors.argmax(axis=1), dtype=np.int64)

    def dump(self) -> bytes:
        """Return the layout as JSON."""
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
            "order": self.order,
            "sensor_core": self.sensor_core.tolist(),
            "home": self.home.tolist(),
            "attributes": self.attributes,
            "cells": self.cells,
            "keys": self.keys,
            "before": self.before,
            "slot_before": None if self.slot_before is None else self.slot_before.tolist(),
        }
        return json.dumps(fields).encode()

    @staticmethod
    def load(data: bytes) -> Layout:
        """Read a layout that `dump` has written."""
        fields = json.loads(data)
        group_of = np.array(fields["group_of"], dtype=np.int64)
        if "order" not in fields:  # written when only P-SORT basic existed: a group's partition was its core
            core_of = np.array(fields["core_of"], dtype=np.int64)
            fields |= {"order": "basic", "sensor_core": core_of[group_of], "home": core_of}
        return Layout(
            serial=fields["serial"],
            placement=fields["placement"],
            cores=fields["cores"],
            slots=fields["slots"],
            names=tuple(fields["names"]),
            edges=tuple(fields["edges"]),
            units=tuple(fields["units"]),
            threshold=np.array([np.nan if value is None else value for value in fields["threshold"]], dtype=np.float64),
            group_of=group_of,
            slot_of=np.array(fields["slot_of"], dtype=np.uint32),
            groups=tuple(fields["groups"]),
            order=fields["order"],
            sensor_core=np.array(fields["sensor_core"], dtype=np.int64),
            home=np.array(fields["home"], dtype=np.int64),
            attributes=tuple(fields.get("attributes", ())),
            cells=tuple(map(tuple, fields.get("cells", ()))),
            keys=tuple(fields.get("keys", ())),
            before=tuple(fields.get("before", ())),
            slot_before=None if fields.get("slot_before") is None else np.array(fields["slot_before"], dtype=np.uint32),
        )


def make_layout(
    table: SensorTable,
    placement: Placement,
    cores: int,
    unknown_group: str,
    previous: Layout | None = None,
    *,
    order: Order = "basic",
) -> Layout:
    """Return the layout for a sensors table and a placement.

    Sensors that the placement does not have yet are left out: nobody sends them before it has them.

    Args:
        unknown_group: group for sensors without one.
        previous: the version before, to which the new one only adds; its order stays.

    Raises:
        LayoutError: the table contradicts the placement or the previous layout.
    """
    slots = SensorSlots.of(placement)
    # Until all slots have agreed on a move, its boundary may be put off. What is in the new slots comes after that.
    slot_of = slots.sending[1].copy()
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
    groups = list(dict.fromkeys([*groups, *group_names]))
    index = {name: number for number, name in enumerate(groups)}
    group_of = np.array([index[name] for name in group_names], dtype=np.int64)
    if previous is not None:
        _only_grows(previous, placement, cores, rows, group_of)
    rates = {number: rate_of(sensor) for number, sensor in enumerate(rows)}
    if previous is not None:
        order = previous.order
        sensor_core = _extended(previous, group_of, rates)
    else:
        sensor_core = assigned(group_of, cores, rates, order)
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
        order=order,
        sensor_core=sensor_core,
        home=_homes(len(groups), cores, order, previous),
        attributes=table.attributes,
        cells=tuple(sensor.attributes for sensor in rows) if table.attributes else (),
        keys=tuple(sensor.key for sensor in rows) if any(sensor.was for sensor in rows) else (),
        before=tuple(sensor.before for sensor in rows) if any(sensor.before for sensor in rows) else (),
        slot_before=slots.before if slots.phase and (slots.before != slot_of).any() else None,
    )


def rate_of(sensor: Sensor) -> float:
    """Return the rows a second that the table expects for a sensor; 1 if it does not say."""
    if sensor.removed:
        return _REMOVED_RATE
    return 1.0 if np.isnan(sensor.rate) else sensor.rate


def assigned(group_of: Ints, cores: int, rates: Mapping[int, float], order: Order) -> Ints:
    """Return the core of each sensor, int64[sensors].

    Args:
        rates: rows a second of each sensor, in any unit, above zero.
    """
    if order == "none":
        return _dealt(group_of, cores)
    found = assign(dict(enumerate(group_of.tolist())), cores, rates, order, handing_on=HANDING_ON).core_of
    return np.array([found[sensor] for sensor in range(len(group_of))], dtype=np.int64)


def _dealt(group_of: Ints, cores: int) -> Ints:
    """Spread each group's sensors by their places alone: parts have names, which must not depend on rates."""
    by_group = np.argsort(group_of, kind="stable")
    first = np.searchsorted(group_of[by_group], group_of[by_group])
    core_of = np.empty(len(group_of), dtype=np.int64)
    core_of[by_group] = (np.arange(len(group_of)) - first + group_of[by_group]) % cores
    return core_of


def reassigned(layout: Layout, sensor_core: Ints, order: Order) -> Layout:
    """Return the next version, with other cores for the sensors and everything else unchanged.

    Raises:
        LayoutError: results would be in other partitions or have other names.
    """
    if order != layout.order and not {order, layout.order} <= {"basic", "optimised"}:
        raise LayoutError(
            f"order of results: found {order!r}, but the checkpoint was made with {layout.order!r}; the change needs "
            "an empty checkpoint"
        )
    return replace(layout, serial=layout.serial + 1, order=order, sensor_core=sensor_core)


def _extended(previous: Layout, group_of: Ints, rates: Mapping[int, float]) -> Ints:
    """Leave sensors on the cores that they have, and put new ones where there is least work."""
    if previous.order == "none":
        return _dealt(group_of, previous.cores)
    core_of: dict[int, int] = dict(enumerate(previous.sensor_core.tolist()))
    load_of = {sensor: rates[sensor] for sensor in core_of}
    # new sensor -> what is placed: itself, or -1 - group for a new group that stays whole
    place_of: dict[int, int] = {}
    for sensor in range(len(previous), len(group_of)):
        group = int(group_of[sensor])
        known = group < len(previous.groups)
        if known and not previous.cut[group]:
            core_of[sensor] = int(np.argmax(previous.holds[group]))
            load_of[sensor] = rates[sensor]
            continue
        place_of[sensor] = place = sensor if known or previous.order == "full" else -1 - group
        load_of[place] = load_of.get(place, 0.0) + rates[sensor]
    placed = extend(core_of, load_of, previous.cores)
    return np.array([placed[place_of.get(sensor, sensor)] for sensor in range(len(group_of))], dtype=np.int64)


def _homes(groups: int, cores: int, order: Order, previous: Layout | None) -> Ints:
    """Return the partition of each group, by its place in the table alone, so that no change of cores moves it."""
    homes = np.zeros(groups, np.int64) if order == "full" else np.arange(groups, dtype=np.int64) % cores
    if previous is not None:
        homes[: len(previous.home)] = previous.home
    return homes


def same(one: Layout, other: Layout) -> bool:
    """Return whether two layouts are equal apart from their serials."""
    return (
        one.names == other.names
        and one.edges == other.edges
        and one.units == other.units
        and one.attributes == other.attributes
        and one.cells == other.cells
        and one.keys == other.keys
        and one.before == other.before
        and one.groups == other.groups
        and one.slots == other.slots
        and np.array_equal(one.threshold, other.threshold, equal_nan=True)
        and np.array_equal(one.group_of, other.group_of)
        and np.array_equal(one.slot_of, other.slot_of)
        and np.array_equal(one.held, other.held)
        and np.array_equal(one.sensor_core, other.sensor_core)
        and one.order == other.order
    )


def _only_grows(previous: Layout, placement: Placement, cores: int, rows: Sequence[Sensor], group_of: Ints) -> None:
    if cores != previous.cores:
        raise LayoutError(
            f"[spark] cores: found {cores}, but the checkpoint was made with {previous.cores}; order across the change "
            "needs an empty checkpoint"
        )
    if placement.slots < previous.slots:
        raise LayoutError(f"placement: found {placement.slots} slots, expected {previous.slots} or more as before")
    if len(rows) < len(previous):
        raise LayoutError(f"placement: found {len(rows)} sensors, expected at least the {len(previous)} of before")
    for number, key in enumerate(previous.keys or previous.names):
        if rows[number].key != key:
            raise LayoutError(f"sensors table: sensor {number} is {rows[number].key!r}, expected {key!r} as before")
        if group_of[number] != previous.group_of[number]:
            raise LayoutError(
                f"sensors table: the group of {rows[number].name!r} has changed from "
                f"{previous.groups[previous.group_of[number]]!r}; a group's order needs an empty checkpoint"
            )
    slots = SensorSlots.of(placement)
    moved = np.flatnonzero(slots.now[: len(previous)] != previous.slot_of)
    if len(moved) and not slots.phase:
        raise LayoutError(
            f"placement: sensor {previous.names[moved[0]]!r} has moved to another slot, and it is not said from which "
            "step on"
        )
