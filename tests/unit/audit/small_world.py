"""A small run that is right in every row: 2 slots, 2 edges, 8 sensors, 4 groups, an edge and an owner killed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.unit.hashes import SHA
from tsunagi.audit.evidence import Collected, Kill, Outage, Read
from tsunagi.audit.truth import TrueReadings, Truth, World, read_readings, windows
from tsunagi.runtime.columns import pack_floats, pack_octets, pack_sensors
from tsunagi.runtime.log import Record
from tsunagi.runtime.messages import (
    BOUNDED,
    EXACT,
    VERSION,
    Late,
    LogRecord,
    ModelChange,
    Ownership,
    Recovered,
    ResultBlock,
    TupleBatch,
)
from tsunagi.runtime.names import Name, pack_key
from tsunagi.runtime.sensors import SensorTable, read_sensors
from tsunagi.runtime.settings import StepsSettings

ROWS = 60
GENERATION = 77
INTERVAL_US = 100_000
ORIGIN_US = 1_700_000_000_000_000
STEPS = StepsSettings(interval_s=0.1, window=10, slide=2)
DELAY_US = 5_000
DEAD = ("edge-2", 8, 16)  # its steps 8..15 of the stream were never sent
LATE_STEP = 1  # edge-1's batch of slot 1 came too late: it had just started
TAKEOVER_STEP = 12  # slot 0 has a new owner from here on; it repeats the output before
RANGE_US = 2_000_000
Rows = dict[int, tuple[float, float, int]]
IsLate = Callable[[str, int, int], bool]


@dataclass(slots=True)
class SmallWorld:
    """The run, in records that a test may change before `collected` packs them."""

    world: World
    readings: TrueReadings
    tuples: dict[int, list[Record]]
    recovered: dict[int, list[Record]]
    results: dict[int, list[Record]]
    late: list[Record]
    kills: list[Kill]
    outages: list[Outage]
    reads: list[Read]

    def collected(self) -> Collected:
        """Return what the checker takes."""
        return Collected(
            tuples=self.tuples,
            recovered=self.recovered,
            results=self.results,
            late=self.late,
            dead_letters=[],
            placement=np.array([0, 1] * 4, dtype=np.uint32),
            kills=self.kills,
            outages=self.outages,
            reads=self.reads,
            notes=[
                {"event": "takeover", "slot": 0, "epoch": 2, "detect_s": 0.5, "promote_s": 0.01, "catch_up_s": 0.02}
            ],
        )


def write_inputs(directory: Path) -> tuple[Path, Path]:
    """Write (data CSV, sensors table)."""
    sensors = directory / "sensors.csv"
    lines = ["sensor,edge,group,threshold"]
    lines += [f"s{i},edge-{i // 4 + 1},{'' if i == 7 else 'g' + str(i % 3)},{'' if i == 0 else 1.0}" for i in range(8)]
    sensors.write_text("\n".join(lines) + "\n")
    random = np.random.default_rng(5)
    data = directory / "data.csv"
    text = [",".join(f"s{i}" for i in range(8))]
    for row in range(ROWS):
        cells = [f"{value:.4f}" for value in np.sin(row / 9 + np.arange(8)) + 1 + random.normal(0, 0.1, 8)]
        if row % 7 == 3:
            cells[2] = ""
        text.append(",".join(cells))
    data.write_text("\n".join(text) + "\n")
    return data, sensors


def just_started(edge: str, slot: int, number: int) -> bool:
    """Return whether an edge's batch for a slot and step comes too late: usually one, of an edge that just started."""
    return edge == "edge-1" and slot == 1 and number == LATE_STEP


def make(directory: Path, *, late: IsLate = just_started, late_us: int = 2_000) -> SmallWorld:
    """Make the run.

    Args:
        late: see `just_started`.
        late_us: how long after the step's output such a batch comes.
    """
    data, sensors = write_inputs(directory)
    table = read_sensors(sensors)
    readings = read_readings(data, table, origin_us=ORIGIN_US, interval_us=INTERVAL_US)
    truth = windows(readings, STEPS, np.full(8, np.nan))
    world = World(
        table=table,
        truth=truth,
        steps=STEPS,
        modelled=frozenset(range(8)),
        range_us=RANGE_US,
        restart_us=300_000,
        scale=np.nanstd(truth.values, axis=0),
    )
    built = _Builder(table, truth, late, late_us)
    for step in range(truth.first_step, truth.last_step + 1):
        built.step(step)
    at_us = built.takeover_us
    kill = Kill(
        "owner",
        "gw-1",
        4711,
        at_us - 2_000,
        0,
        1,
        "gw-1",
        built.takeover_offset,
        built.takeover_offset - 2,
        at_us - 3_000,
    )
    from_us = (truth.first_step + DEAD[1]) * STEPS.slide_us - 50_000
    to_us = (truth.first_step + DEAD[2]) * STEPS.slide_us - STEPS.window_us - 100_000
    reads = [Read(p, r.offset, r.appended_us + 1_000) for p, records in built.results.items() for r in records]
    return SmallWorld(
        world,
        readings,
        dict(built.tuples),
        dict(built.recovered),
        dict(built.results),
        built.late,
        [Kill("edge", "edge-2", 4710, from_us), kill],
        [Outage("edge-2", from_us, to_us)],
        reads,
    )


class _Builder:
    """Writes the run step by step, as plainly as can be."""

    def __init__(self, table: SensorTable, truth: Truth, late: IsLate, late_us: int) -> None:
        self.table, self.truth, self.is_late, self.late_us = table, truth, late, late_us
        self.tuples: dict[int, list[Record]] = defaultdict(list)
        self.recovered: dict[int, list[Record]] = defaultdict(list)
        self.results: dict[int, list[Record]] = defaultdict(list)
        self.late: list[Record] = []
        self.history: dict[int, list[tuple[int, float]]] = defaultdict(list)
        self.epoch = {0: 1, 1: 1}
        self.takeover_us = self.takeover_offset = 0
        for slot in (0, 1):
            owner = Ownership(epoch=1, node=f"gw-{slot + 1}", generation=GENERATION, first_step=truth.first_step)
            self._log(slot, LogRecord(version=VERSION, ownership=owner), ORIGIN_US)
            self._log(slot, LogRecord(version=VERSION, model=ModelChange(epoch=1, sha256=SHA)), ORIGIN_US)

    def step(self, step: int) -> None:
        number = step - self.truth.first_step
        now_us = step * STEPS.slide_us + DELAY_US
        if number == TAKEOVER_STEP:
            owner = Ownership(epoch=2, node="sec-1", generation=GENERATION)
            self.takeover_us, self.takeover_offset = now_us - 1_000, len(self.tuples[0])
            self._log(0, LogRecord(version=VERSION, ownership=owner), now_us - 1_000)
            self.epoch[0] = 2
            again = self.recovered[0][-1]
            self._append(self.recovered[0], "recovered", 0, again.key, again.value, now_us - 500)
        rows: Rows = {}
        for slot in (0, 1):
            rows.update(self._slot(slot, step, number, now_us))
        self._results(step, rows, now_us + 3_000)

    def _slot(self, slot: int, step: int, number: int, now_us: int) -> Rows:
        values = self.truth.row(step)
        rows: Rows = {}
        offset = -1
        too_late = []
        for edge in self.table.edges:
            mine = [s.id for s in self.table.of_edge(edge) if s.id % 2 == slot and not np.isnan(values[s.id])]
            dead = edge == DEAD[0] and DEAD[1] <= number < DEAD[2]
            if dead:
                continue
            if self.is_late(edge, slot, number):
                too_late.append((edge, mine))
            else:
                offset = self._batch(slot, edge, step, mine, now_us)
                rows.update({sensor: (float(values[sensor]), 0.0, EXACT) for sensor in mine})
        for sensor in range(8):
            if sensor % 2 == slot and sensor not in rows:
                rows[sensor] = (float(self.truth.values[:, sensor].mean()), 0.4, BOUNDED)
        ids = [sensor for sensor in sorted(rows) if sensor % 2 == slot]
        message = Recovered(
            version=VERSION,
            slot=slot,
            generation=GENERATION,
            offset=offset,
            index=0,
            epoch=self.epoch[slot],
            step=step,
            event_time_us=step * STEPS.slide_us,
            appended_us=now_us,
            **_columns(ids, rows),
        )
        key = pack_key(GENERATION, slot, Name(offset, 0))
        self._append(self.recovered[slot], "recovered", slot, key, message.SerializeToString(), now_us + 1_000)
        for edge, mine in too_late:
            offset = self._batch(slot, edge, step, mine, now_us + self.late_us)
            letter = Late(version=VERSION, slot=slot, offset=offset, reason="closed")
            key = pack_key(GENERATION, slot, Name(offset, 0))
            self._append(self.late, "late", 0, key, letter.SerializeToString(), now_us + self.late_us + 500)
        return rows

    def _batch(self, slot: int, edge: str, step: int, ids: list[int], now_us: int) -> int:
        batch = TupleBatch(
            edge=edge,
            incarnation=1,
            step=step,
            event_time_us=step * STEPS.slide_us,
            sensor=pack_sensors(ids),
            value=pack_floats(self.truth.row(step)[ids]),
            count=pack_sensors([10] * len(ids)),
        )
        return self._log(slot, LogRecord(version=VERSION, batch=batch), now_us)

    def _results(self, step: int, rows: Rows, now_us: int) -> None:
        time_us = step * STEPS.slide_us
        groups: dict[str, list[int]] = defaultdict(list)
        for sensor in sorted(rows):
            self.history[sensor].append((time_us, rows[sensor][0]))
            groups[self.table.sensors[sensor].group or "ungrouped"].append(sensor)
        for group, ids in sorted(groups.items()):
            q1, q2 = [], []
            for sensor in ids:
                inside = [value for at, value in self.history[sensor] if at > time_us - RANGE_US]
                q1.append(len(inside))
                q2.append(sum(value > self.table.sensors[sensor].threshold for value in inside))
            block = ResultBlock(
                version=VERSION,
                query="readings",
                group=group,
                step=step,
                event_time_us=time_us,
                appended_us=now_us - 3_000,
                q1=pack_sensors(q1),
                q2=pack_sensors(q2),
                q3=pack_floats(np.array(q2) / np.array(q1)),
                **_columns(ids, rows),
            )
            core = 0 if group in ("g0", "g2") else 1
            self._append(
                self.results[core],
                "results",
                core,
                f"readings/{group}/{step}".encode(),
                block.SerializeToString(),
                now_us,
            )

    def _log(self, slot: int, message: LogRecord, now_us: int) -> int:
        self._append(self.tuples[slot], "tuples", slot, b"", message.SerializeToString(), now_us)
        return len(self.tuples[slot]) - 1

    @staticmethod
    def _append(
        to: list[Record], topic: str, partition: int, key: bytes | None, value: bytes | None, now_us: int
    ) -> None:
        to.append(Record(topic, partition, len(to), now_us, key, value))


def _columns(ids: list[int], rows: Rows) -> dict[str, Any]:
    return {
        "sensor": pack_sensors(ids),
        "mean": pack_floats([rows[i][0] for i in ids]),
        "sd": pack_floats([rows[i][1] for i in ids]),
        "quality": pack_octets([rows[i][2] for i in ids]),
        "bound": pack_floats([1.7 * rows[i][1] for i in ids]),
    }
