"""A small world for the job: a sensors table, a placement, and slots that write `recovered` as a gateway would."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tsunagi.runtime.columns import Sensors, pack_floats, pack_octets, pack_sensors
from tsunagi.runtime.kafka import KafkaLog
from tsunagi.runtime.log import PLAN, RECOVERED
from tsunagi.runtime.messages import VERSION, Placement, Plan, Recovered
from tsunagi.runtime.names import Name, pack_key
from tsunagi.runtime.sensors import SensorTable, read_sensors
from tsunagi.runtime.settings import Settings

GENERATION = 0xA5A5_0000_0000_0001
FIRST_STEP = 850_000_000


def write_table(path: Path, sensors: int = 12, groups: int = 4, edges: int = 3) -> SensorTable:
    lines = ["sensor,edge,group,unit,threshold"]
    for number in range(sensors):
        threshold = "" if number % 5 == 4 else f"{number % 3 * 0.2:.1f}"
        lines.append(f"s{number},edge-{number % edges},machine-{number % groups},degC,{threshold}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_sensors(path)


def spread(table: SensorTable, slots: int) -> Sensors:
    """Place each group's sensors in all slots: every step of every group then waits for every slot."""
    seen: Counter[str] = Counter()
    slot_of = np.zeros(len(table), dtype=np.uint32)
    for sensor in table.sensors:
        slot_of[sensor.id] = seen[sensor.group] % slots
        seen[sensor.group] += 1
    return slot_of


@dataclass
class Row:
    sensor: int
    step: int
    mean: float
    sd: float
    quality: int
    bound: float


@dataclass
class World:
    """What was written, remembered for the oracle."""

    settings: Settings
    table: SensorTable
    seed: int = 1
    nan: int | None = None
    """A sensor whose values are not numbers."""
    rows: list[Row] = field(default_factory=list)
    appended_us: dict[tuple[int, int], int] = field(default_factory=dict)
    steps: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.slot_of = spread(self.table, self.settings.slots.count)
        self._offset = dict.fromkeys(range(self.settings.slots.count), 0)

    def placement(self, serial: int = 1) -> bytes:
        body = Placement(
            serial=serial,
            slots=self.settings.slots.count,
            slot=pack_sensors(self.slot_of),
            table_sha256=self.table.digest(),
        )
        return Plan(version=VERSION, placement=body).SerializeToString()

    @property
    def groups(self) -> list[str]:
        """The group of each sensor."""
        return [sensor.group for sensor in self.table.sensors]

    def record(
        self, slot: int, step: int, *, missing: float = 0.1, silent: Collection[int] = ()
    ) -> tuple[bytes, bytes]:
        """Make the slot's next output; each sensor is left out with probability `missing`, the `silent` always."""
        mine = (int(n) for n in np.flatnonzero(self.slot_of == slot) if self.random.random() >= missing)
        sensors = [n for n in mine if n not in silent]
        rows = [
            Row(n, step, self.random.gauss(0, 1), 0.0 if (q := self.random.randrange(4)) in (0, 3) else 0.5, q, 0.7)
            for n in sensors
        ]
        for row in rows:
            row.mean = math.nan if row.sensor == self.nan else row.mean
        offset = self._offset[slot] = self._offset[slot] + self.random.randrange(1, 4)
        appended_us = step * self.settings.steps.slide_us + self.random.randrange(1_000_000)
        message = Recovered(
            version=VERSION,
            slot=slot,
            generation=GENERATION,
            offset=offset,
            index=0,
            epoch=1,
            step=step,
            event_time_us=step * self.settings.steps.slide_us,
            appended_us=appended_us,
            sensor=pack_sensors(sensors),
            mean=pack_floats([row.mean for row in rows]),
            sd=pack_floats([row.sd for row in rows]),
            quality=pack_octets([row.quality for row in rows]),
            bound=pack_floats([row.bound for row in rows]),
        )
        self.rows += rows
        self.appended_us[slot, step] = appended_us
        self.steps.setdefault(slot, []).append(step)
        return pack_key(GENERATION, slot, Name(offset, 0)), message.SerializeToString()


def write_placement(log: KafkaLog, world: World) -> None:
    producer = log.producer()
    producer.send(PLAN, 0, b"placement", world.placement())
    assert producer.flush(10) == 0
    producer.close()


def write_records(log: KafkaLog, records: list[tuple[int, bytes, bytes]]) -> None:
    producer = log.producer()
    for slot, key, value in records:
        producer.send(RECOVERED, slot, key, value)
    assert producer.flush(10) == 0
    producer.close()


def expected_blocks(world: World, last_step: int) -> dict[tuple[str, int], list[tuple[float, ...]]]:
    """Recompute every block up to a step, one row after the other: (sensor, mean, sd, quality, bound, q1, q2, q3)."""
    settings = world.settings
    span_us = round(settings.query.range_s * 1e6)
    slide = settings.steps.slide_us
    group_of = [sensor.group for sensor in world.table.sensors]
    history: dict[int, list[tuple[int, bool]]] = {}
    found: dict[tuple[str, int], list[tuple[float, ...]]] = {}
    for group in set(group_of):
        slots = {int(world.slot_of[n]) for n, name in enumerate(group_of) if name == group}
        for step in sorted({step for slot in slots for step in world.steps.get(slot, []) if step <= last_step}):
            found[group, step] = []
    for row in sorted(world.rows, key=lambda item: (item.step, item.sensor)):
        if row.step > last_step:
            continue
        threshold = world.table.sensors[row.sensor].threshold
        readings = history.setdefault(row.sensor, [])
        readings.append((row.step * slide, row.mean > threshold))
        alive = [above for time, above in readings if time > row.step * slide - span_us]
        cells = (row.sensor, row.mean, row.sd, row.quality, row.bound)
        found[group_of[row.sensor], row.step].append((*cells, len(alive), sum(alive), sum(alive) / len(alive)))
    return found
