"""A slot of five sensors on three edges, and logs for it with everything in them that may stand in one."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np

from tests.unit.hashes import OTHER_SHA, SHA
from tsunagi.query.form import table_columns
from tsunagi.query.values import Kind
from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.model import Model
from tsunagi.runtime.columns import pack_floats, pack_sensors
from tsunagi.runtime.log import TUPLES, Record
from tsunagi.runtime.messages import (
    VERSION,
    Calibrated,
    EdgeOut,
    Events,
    Helpers,
    LogRecord,
    ModelChange,
    Ownership,
    Punctuation,
    Quarantine,
    SensorOut,
    SlotSettings,
    TupleBatch,
)
from tsunagi.runtime.names import Name
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.slot import Slot

SLOT = 3
GENERATION = 77
SLIDE_US = 200_000
FIRST = 1000
EDGES = ("e1", "e2", "e3")
SENSORS = {"e1": [0, 2], "e2": [3], "e3": [5, 8]}
NAMES = ("a", "b", "c", "d", "e")

HELPERS = {"x": (6, "e3"), "y": (9, "e4"), "z": (11, "e4")}
"""Sensors of other slots: name -> (sensor, edge); the model does not know the last."""

_COVARIANCE = 0.4 * np.eye(7) + 0.6
FLEET = Model.from_joint(
    np.zeros(14), np.block([[_COVARIANCE, 0.9 * _COVARIANCE], [0.9 * _COVARIANCE, _COVARIANCE]]), [*NAMES, "x", "y"]
)
MODEL = FLEET.select(NAMES)
REFIT = replace(MODEL, mean=MODEL.mean + 0.1, Q=1.5 * MODEL.Q)


def load(sha256: str) -> Model:
    found = {SHA: FLEET, OTHER_SHA: REFIT}.get(sha256)
    if found is None:
        raise ModelError(f"{sha256}: no such model")
    return found


def make_config(*operators: dict[str, Any], **changes: Any) -> SlotConfig:
    fields: dict[str, Any] = {
        "slot": SLOT,
        "sensors": (0, 2, 3, 5, 8),
        "names": NAMES,
        "edges": ("e1", "e1", "e2", "e3", "e3"),
        "slide_us": SLIDE_US,
        "max_ahead_us": 4 * SLIDE_US,
        "max_skew_steps": 0,
        "max_gap_steps": 20,
        "operators": operators,
        "eps": 1.0,
        "delta": 0.9,
    }
    return SlotConfig(**(fields | changes))


def batch(
    edge: str,
    step: int,
    values: dict[int, float] | None = None,
    incarnation: int = 1,
    helpers: dict[int, float] | None = None,
    events: int = 0,
) -> TupleBatch:
    lent = helpers or {}
    given = {sensor: float(step) for sensor in SENSORS[edge]} if values is None else values
    return TupleBatch(
        edge=edge,
        incarnation=incarnation,
        step=step,
        event_time_us=step * SLIDE_US,
        sensor=pack_sensors(sorted(given)),
        value=pack_floats([given[sensor] for sensor in sorted(given)]),
        count=pack_sensors([1] * len(given)),
        helper=pack_sensors(sorted(lent)),
        helper_value=pack_floats([lent[sensor] for sensor in sorted(lent)]),
        events=[events_of(edge, step, events)] if events else [],
    )


def events_of(edge: str, step: int, rows: int, stream: str = "doors") -> Events:
    """Return events of an edge in a step."""
    kinds = {"time": Kind.TIMESTAMP, "by": Kind.TEXT, "weight": Kind.DOUBLE}
    cells = [{"time": step * SLIDE_US - rows + row, "by": f"{edge}/{row}", "weight": None} for row in range(rows)]
    return Events(stream=stream, rows=rows, column=table_columns(cells, kinds))


class Writer:
    """Appends records to a log; the append time follows the step of the last batch unless `now_us` is set."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.now_us = FIRST * SLIDE_US

    def raw(self, value: bytes | None) -> Record:
        record = Record(TUPLES, SLOT, len(self.records), self.now_us, b"key", value)
        self.records.append(record)
        return record

    def add(self, **body: Any) -> Record:
        return self.raw(LogRecord(version=VERSION, **body).SerializeToString())

    def batch(
        self,
        edge: str,
        step: int,
        values: dict[int, float] | None = None,
        incarnation: int = 1,
        helpers: dict[int, float] | None = None,
        events: int = 0,
    ) -> Record:
        return self.add(batch=batch(edge, step, values, incarnation, helpers, events))

    def helpers(self, *names: str, epoch: int = 1, model: str = SHA) -> Record:
        chosen = sorted((*HELPERS[name], name) for name in names)
        return self.add(
            helpers=Helpers(
                epoch=epoch,
                model=model,
                sensor=pack_sensors([sensor for sensor, _, _ in chosen]),
                name=[name for _, _, name in chosen],
                edge=[edge for _, edge, _ in chosen],
            )
        )

    def own(self, epoch: int, node: str = "n1", generation: int = GENERATION, first_step: int = FIRST) -> Record:
        return self.add(ownership=Ownership(epoch=epoch, node=node, generation=generation, first_step=first_step))

    def settings(self, config: SlotConfig, epoch: int = 1) -> Record:
        return self.add(settings=SlotSettings(epoch=epoch, hash=config.hash, text=config.text()))

    def out(self, edge: str, from_step: int, epoch: int = 1) -> Record:
        return self.add(edge_out=EdgeOut(epoch=epoch, edge=edge, from_step=from_step))

    def punctuation(self, step: int, epoch: int = 1) -> Record:
        return self.add(punctuation=Punctuation(epoch=epoch, step=step))

    def model(self, sha256: str, epoch: int = 1, refit_of: str = "") -> Record:
        return self.add(model=ModelChange(epoch=epoch, sha256=sha256, refit_of=refit_of))

    def calibrated(self, factors: list[float], epoch: int = 1, model: str = SHA) -> Record:
        return self.add(calibrated=Calibrated(epoch=epoch, model=model, factor=pack_floats(factors)))

    def sensor_out(self, sensor: int, epoch: int = 1, model: str = SHA, *, out: bool = True) -> Record:
        return self.add(sensor_out=SensorOut(epoch=epoch, model=model, sensor=sensor, out=out))

    def quarantine(self, offset: int, epoch: int = 1) -> Record:
        return self.add(quarantine=Quarantine(epoch=epoch, offset=offset))


def owned(config: SlotConfig) -> Writer:
    """Return a log whose slot is owned and set."""
    writer = Writer()
    writer.own(1)
    writer.settings(config)
    return writer


def random_log(  # noqa: C901 - one kind of record after the other
    seed: int, config: SlotConfig, turns: int = 60, *, helped: bool = False
) -> list[Record]:
    """Write a log: late and repeated batches, restarts, silence, jumps, zombies' records, models, quarantines.

    Args:
        helped: with a model and helpers from the start, and for longer; nobody quarantines what is still to come.
    """
    draw, with_events = random.Random(seed), random.Random(f"{seed}/events")
    writer = Writer()
    writer.batch("e1", FIRST)
    writer.own(1)
    writer.batch("e2", FIRST, incarnation=2)
    writer.settings(config)
    if helped:
        writer.model(SHA)
        writer.helpers(*HELPERS)
    epoch = 1
    step = dict.fromkeys(EDGES, FIRST)
    for _ in range(turns):
        edge = min(step, key=lambda name: step[name]) if draw.random() < 0.8 else draw.choice(EDGES)
        chance = draw.random()
        if chance < 0.62:
            values = {sensor: draw.gauss(0, 1) for sensor in SENSORS[edge] if draw.random() < 0.9}
            lent = {
                sensor: draw.gauss(0, 1) for sensor, home in HELPERS.values() if home == edge or draw.random() < 0.05
            }
            incarnation, lends = draw.choice((2, 2, 2, 3, 1)), lent if draw.random() < 0.7 else None
            writer.batch(edge, step[edge], values, incarnation, lends, with_events.choice((0, 1, 3)))
            if draw.random() < 0.5:  # of an edge of other slots
                lent = {sensor: draw.gauss(0, 1) for sensor, home in HELPERS.values() if home == "e4"}
                writer.batch("e4", min(step.values()) + draw.choice((0, 0, 0, 1, -2, 40)), {}, helpers=lent)
            jump = draw.choice((1, 1, 1, 1, 1, 2, 30))
            step[edge] += jump
            writer.now_us += jump * SLIDE_US // 3
        elif chance < 0.70:
            writer.batch(edge, step[edge] - draw.randint(1, 3), incarnation=3)
        elif chance < 0.74:
            writer.raw(draw.choice((b"\xff", b"", None, LogRecord(version=VERSION + 1).SerializeToString())))
        elif chance < 0.82:
            writer.out(edge, step[edge], epoch + draw.choice((0, 0, -1)))
        elif chance < 0.87:
            writer.punctuation(max(step.values()), epoch + draw.choice((0, 1)))
        elif chance < 0.91:
            writer.own(epoch + draw.choice((0, 1)), "n2", generation=1)
            epoch += (
                writer.records[-1].value
                == LogRecord(
                    version=VERSION,
                    ownership=Ownership(epoch=epoch + 1, node="n2", generation=1, first_step=FIRST),
                ).SerializeToString()
            )
        elif chance < 0.95:
            if not helped:
                writer.model(draw.choice(("", SHA, SHA)), epoch)
            if draw.random() < 0.7:
                writer.model(OTHER_SHA, epoch, refit_of=draw.choice((SHA, SHA, OTHER_SHA)))
        elif chance < 0.955:
            names = [name for name in HELPERS if draw.random() < (0.9 if helped else 0.6)]
            writer.helpers(*names, epoch=epoch - draw.choice((0, 0, 0, 1)), model=draw.choice((SHA, SHA, "")))
        elif chance < 0.968:
            factors = [draw.uniform(0.5, 3.0) for _ in range(5)]
            writer.calibrated(
                draw.choice((factors, factors, factors[:4], [*factors[:4], 0.0])),
                epoch - draw.choice((0, 0, 0, 1)),
                draw.choice((SHA, SHA, "")),
            )
        elif chance < 0.975:
            writer.sensor_out(draw.choice((0, 3, 5, 99)), epoch, draw.choice((SHA, "")), out=draw.random() < 0.7)
        elif chance < 0.985:
            writer.quarantine(len(writer.records) + (draw.randint(-3, -1) if helped else draw.randint(-2, 4)), epoch)
        else:
            changes: dict[str, Any] = {
                "eps": draw.choice((0.2, 1.0)),
                "delta": 0.8,
                "unbounded": draw.choice(("tag", "withhold")),
            }
            writer.settings(replace(config, **changes) if draw.random() < 0.6 else config, epoch)
    return writer.records


Encoded = list[tuple[str, Name, bytes]]


def play(slot: Slot, records: list[Record]) -> Encoded:
    """Apply records; return (topic, name, value) of what follows."""
    return [
        (output.topic, output.name, output.encode(slot.slot, slot.register.generation)[1])
        for record in records
        for output in slot.apply(record)
    ]
