"""A small true stream of records, as a system without a fault writes it; tests spoil one thing and look for it."""

from __future__ import annotations

import numpy as np

from tsunagi.audit.ledger import AuditLedger
from tsunagi.runtime.columns import pack_floats, pack_octets, pack_sensors
from tsunagi.runtime.log import HEARTBEATS, LATE, RECOVERED, RESULTS, TUPLES, Record
from tsunagi.runtime.messages import (
    BOUNDED,
    EXACT,
    Heartbeat,
    Late,
    LogRecord,
    Ownership,
    Recovered,
    ResultBlock,
    SlotBeat,
    TupleBatch,
)

STEP_US = 200_000
EDGES = {"edge-1": (0, 1), "edge-2": (2, 3)}
SLOTS = 1
SENSORS = (0, 1, 2, 3)
GROUPS = {"a": (0, 2), "b": (1, 3)}
FIRST = 1000


class Flow:
    """Writes steps; every record can be changed or left out on its way."""

    def __init__(self, kept: int = 2000) -> None:
        self.ledger = AuditLedger(SLOTS, np.zeros(len(SENSORS), dtype=np.uint32), kept=kept)
        self.offset = 0
        self.ends: dict[str, int] = {}
        self.now_us = FIRST * STEP_US
        self.ledger.take(self.ownership(1, "gw-1"))
        self.step = FIRST
        for _ in range(5):
            self.write(self.step)
        self.ledger.begin()

    def record(self, topic: str, value: bytes, *, partition: int = 0) -> Record:
        offset = self.ends.get(topic, 0)
        self.ends[topic] = offset + 1
        return Record(topic, partition, offset, self.now_us, None, value)

    def ownership(self, epoch: int, node: str) -> Record:
        body = LogRecord(version=1, ownership=Ownership(epoch=epoch, node=node, generation=7))
        return self.record(TUPLES, body.SerializeToString())

    def value(self, step: int, sensor: int) -> float:
        return step * 10.0 + sensor

    def batch(self, edge: str, step: int) -> Record:
        ids = EDGES[edge]
        body = TupleBatch(
            edge=edge,
            incarnation=1,
            step=step,
            event_time_us=step * STEP_US,
            sensor=pack_sensors(ids),
            value=pack_floats([self.value(step, sensor) for sensor in ids]),
        )
        return self.record(TUPLES, LogRecord(version=1, batch=body).SerializeToString())

    def output(
        self, step: int, *, offset: int, epoch: int = 1, out: tuple[str, ...] = (), ids: tuple[int, ...] = SENSORS
    ) -> Recovered:
        gone = {sensor for edge in out for sensor in EDGES[edge]}
        return Recovered(
            version=1,
            generation=7,
            offset=offset,
            epoch=epoch,
            step=step,
            event_time_us=step * STEP_US,
            sensor=pack_sensors(ids),
            mean=pack_floats([self.value(step, sensor) for sensor in ids]),
            sd=pack_floats([float(sensor in gone) for sensor in ids]),
            quality=pack_octets([BOUNDED if sensor in gone else EXACT for sensor in ids]),
            bound=pack_floats([float(sensor in gone) for sensor in ids]),
        )

    def block(self, output: Recovered, group: str, ids: tuple[int, ...] | None = None) -> ResultBlock:
        ids = GROUPS[group] if ids is None else ids
        places = [np.frombuffer(output.sensor, "<u4").tolist().index(sensor) for sensor in ids]
        return ResultBlock(
            version=1,
            query="readings",
            group=group,
            step=output.step,
            event_time_us=output.event_time_us,
            sensor=pack_sensors(ids),
            mean=pack_floats(np.frombuffer(output.mean)[places]),
            sd=pack_floats(np.frombuffer(output.sd)[places]),
            quality=pack_octets(np.frombuffer(output.quality, "u1")[places]),
            bound=pack_floats(np.frombuffer(output.bound)[places]),
            q1=pack_sensors([1] * len(ids)),
            q2=pack_sensors([0] * len(ids)),
            q3=pack_floats([0.0] * len(ids)),
        )

    def write(self, step: int, *, epoch: int = 1) -> Recovered:
        """Write a whole step; return its output."""
        self.now_us = step * STEP_US
        last = 0
        for edge in EDGES:
            record = self.batch(edge, step)
            last = record.offset
            self.ledger.take(record)
        output = self.output(step, offset=last, epoch=epoch)
        self.take(output, *(self.block(output, group) for group in GROUPS))
        self.step = step + 1
        return output

    def take(self, *messages: Recovered | ResultBlock | Late) -> None:
        topics = {Recovered: RECOVERED, ResultBlock: RESULTS, Late: LATE}
        for message in messages:
            self.ledger.take(self.record(topics[type(message)], message.SerializeToString()))
        self.ledger.advance()

    def go_on(self, steps: int = 5) -> None:
        for _ in range(steps):
            self.write(self.step)

    def beat(self, node: str, *parts: SlotBeat, at_us: int, incarnation: int = 1) -> None:
        beat = Heartbeat(version=1, node=node, role="worker", incarnation=incarnation, slots=parts)
        self.ledger.take(Record(HEARTBEATS, 0, 0, at_us, None, beat.SerializeToString()))
