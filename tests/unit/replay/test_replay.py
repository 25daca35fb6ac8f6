"""The plain loop of `tsunagi replay` says the same as the gateway's slot, whatever stands in the log."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.unit.hashes import SHA
from tests.unit.slot.small_slot import SLOT, make_config, random_log
from tests.unit.slot.small_slot import load as load_small
from tsunagi.recovery.model import Model
from tsunagi.replay.compare import compare
from tsunagi.replay.recompute import recompute
from tsunagi.runtime.columns import floats, octets, pack_floats, pack_octets, pack_sensors
from tsunagi.runtime.log import RECOVERED, Record
from tsunagi.runtime.messages import (
    BOUNDED,
    EdgeOut,
    LogRecord,
    ModelChange,
    Ownership,
    Punctuation,
    Quarantine,
    Recovered,
    SlotSettings,
    TupleBatch,
)
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.slot import Slot

SLIDE_US = 200_000
FIRST = 1000
CONFIG = SlotConfig(
    slot=0,
    sensors=(0, 2, 3, 5),
    names=("a", "b", "c", "d"),
    edges=("e1", "e1", "e2", "e3"),
    slide_us=SLIDE_US,
    max_ahead_us=4 * SLIDE_US,
    max_skew_steps=2,
    max_gap_steps=20,
    operators=({"use": "recover"},),
    eps=1.0,
    delta=0.9,
)
COVARIANCE = 0.5 * np.eye(4) + 0.5
JOINT = np.block([[COVARIANCE, 0.9 * COVARIANCE], [0.9 * COVARIANCE, COVARIANCE]])
MODEL = Model.from_joint(np.zeros(8), JOINT, ["a", "b", "c", "d"])


def load(_sha256: str) -> Model:
    return MODEL


class RandomLog:
    """Writes a log with everything in it that may stand in one."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.records: list[Record] = []
        self.epoch = 0
        self.now_us = FIRST * SLIDE_US
        self.step = dict.fromkeys(("e1", "e2", "e3"), FIRST)
        self.incarnation = dict.fromkeys(("e1", "e2", "e3"), 1)

    def append(self, value: bytes) -> None:
        self.records.append(Record("tuples", 0, len(self.records), self.now_us, b"", value))

    def message(self, **body: Any) -> None:
        self.append(LogRecord(version=1, **body).SerializeToString())

    def batch(self, edge: str, step: int, incarnation: int, sensors: list[int]) -> None:
        values = [self.random.gauss(0, 1) for _ in sensors]
        self.message(
            batch=TupleBatch(
                edge=edge,
                incarnation=incarnation,
                step=step,
                event_time_us=step * SLIDE_US,
                sensor=pack_sensors(sensors),
                value=pack_floats(values),
            )
        )

    def own(self) -> None:
        self.epoch += 1
        self.message(ownership=Ownership(epoch=self.epoch, node="n", generation=7, first_step=FIRST))

    def settings(self, config: SlotConfig, *, kills: bool) -> None:
        """Write settings. If they kill, two owners die, and their successor sets the settings' record aside."""
        self.message(settings=SlotSettings(epoch=self.epoch, hash=config.hash, text=config.text()))
        if kills:
            self.message(quarantine=Quarantine(epoch=self.epoch, offset=len(self.records) - 1))

    def write(self, turns: int, *, kills: bool = False) -> list[Record]:
        """Write a log. In the middle the slot gets other settings: steps of another length, with which open steps end.

        Args:
            kills: whether settings kill.
        """
        self.batch("e1", FIRST, 1, [0, 2])  # before anybody owns the slot: set aside
        self.own()
        self.batch("e2", FIRST, 1, [3])
        self.settings(CONFIG, kills=kills)
        for _ in range(turns):
            self.turn()
        self.settings(replace(CONFIG, slide_us=2 * SLIDE_US), kills=kills)
        self.settings(CONFIG, kills=kills)
        for _ in range(turns // 2):
            self.turn()
        return self.records

    def turn(self) -> None:
        kind = self.random.random()
        behind = min(self.step, key=lambda name: self.step[name])
        edge = behind if self.random.random() < 0.8 else self.random.choice(["e1", "e2", "e3"])
        step = self.step[edge]
        if kind < 0.6:
            self.now_us += SLIDE_US // 3
            mine = [sensor for sensor, of in zip(CONFIG.sensors, CONFIG.edges, strict=True) if of == edge]
            self.batch(edge, step, self.incarnation[edge], [s for s in mine if self.random.random() < 0.9])
            jump = 1 if self.random.random() < 0.95 else self.random.choice([2, 5, 40])
            self.step[edge] = step + jump
            self.now_us += (jump - 1) * SLIDE_US
        elif kind < 0.68:
            self.batch(edge, step - self.random.randint(0, 3), self.incarnation[edge], [])  # a repeat, or late
        elif kind < 0.72:
            self.incarnation[edge] += 1
            self.batch(edge, step, self.incarnation[edge] - 1, [])
            self.batch(edge, step, self.incarnation[edge] - 2, [])
        elif kind < 0.75:
            self.batch(edge, step + 1000, self.incarnation[edge], [])  # ahead
        elif kind < 0.78:
            self.batch(self.random.choice(["e9", "e2"]), step, 1, [0])  # unknown edge, foreign sensor
        elif kind < 0.80:
            self.append(self.random.choice([b"", b"\xff\xff", LogRecord(version=9).SerializeToString()]))
        else:
            self.control(edge, step)

    def control(self, edge: str, step: int) -> None:
        epoch = self.epoch + self.random.choice([0, 0, 0, -1, 1])
        kind = self.random.choice(["out", "out", "punctuation", "own", "void", "model", "quarantine"])
        if kind == "out":
            self.message(edge_out=EdgeOut(epoch=epoch, edge=edge, from_step=step))
        elif kind == "punctuation":
            self.message(punctuation=Punctuation(epoch=epoch, step=min(self.step.values())))
        elif kind == "own":
            self.own()
        elif kind == "void":
            self.message(ownership=Ownership(epoch=self.epoch, node="zombie", generation=8, first_step=5))
        elif kind == "model":
            self.message(model=ModelChange(epoch=epoch, sha256=self.random.choice(["", SHA])))
        else:
            place = len(self.records) + self.random.choice([-3, -1])
            self.message(quarantine=Quarantine(epoch=epoch, offset=place))


def written(records: list[Record]) -> list[Record]:
    """Return what the gateway's slot writes to `recovered`."""
    first, slot = Slot(0, load), Slot(0, load)
    for record in records:  # a node that is promoted reads to the end before it processes: it knows of quarantines
        first.apply(record)
    slot.register.quarantined |= first.register.quarantined
    out: list[Record] = []
    for record in records:
        for output in slot.apply(record):
            if output.topic == RECOVERED:
                key, value = output.encode(0, slot.register.generation)
                out.append(Record(RECOVERED, 0, len(out), record.appended_us, key, value))
    return out


@pytest.mark.parametrize("kills", [False, True], ids=["", "settings-kill"])
@pytest.mark.parametrize("seed", range(15))
def test_the_loop_agrees_with_the_slot(seed: int, kills: bool) -> None:
    log = RandomLog(seed).write(150, kills=kills)
    recovered = written(log)
    result = compare(recompute(log, load), recovered)
    assert result.differences == []
    assert result.compared == result.outputs == len(recovered)
    assert result.outputs > 20
    assert result.largest_sd == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(15))
def test_the_loop_agrees_with_the_slot_on_helpers_refits_and_other_bounds(seed: int) -> None:
    log = random_log(seed, make_config({"use": "recover"}), turns=400, helped=True)
    slot = Slot(SLOT, load_small)
    recovered: list[Record] = []
    slot.register.quarantined |= _buried(log)
    for record in log:
        for output in slot.apply(record):
            if output.topic == RECOVERED:
                key, value = output.encode(SLOT, slot.register.generation)
                recovered.append(Record(RECOVERED, SLOT, len(recovered), record.appended_us, key, value))
    result = compare(recompute(log, load_small), recovered)
    assert result.differences == []
    assert result.compared == result.outputs == len(recovered) > 20
    assert result.largest_sd == 0.0


def _buried(log: list[Record]) -> set[int]:
    first = Slot(SLOT, load_small)
    for record in log:
        first.apply(record)
    return first.register.quarantined


def changed(recovered: list[Record], place: int, change: Callable[[Recovered], None]) -> list[Record]:
    message = Recovered.FromString(recovered[place].value or b"")
    change(message)
    return [*recovered[:place], replace(recovered[place], value=message.SerializeToString()), *recovered[place + 1 :]]


def shift(amount: float) -> Callable[[Recovered], None]:
    def change(message: Recovered) -> None:
        values = floats(message.mean).copy()
        values[-1] += amount
        message.mean = pack_floats(values)

    return change


def retag(message: Recovered) -> None:
    quality = octets(message.quality).copy()
    quality[0] = BOUNDED
    message.quality = pack_octets(quality)


@pytest.fixture
def log() -> list[Record]:
    return RandomLog(1).write(150)


@pytest.mark.parametrize("change", [shift(1e-5), retag], ids=["value", "tag"])
def test_a_difference_is_found(log: list[Record], change: Callable[[Recovered], None]) -> None:
    recovered = written(log)
    place = next(n for n, record in enumerate(recovered) if Recovered.FromString(record.value or b"").quality)
    result = compare(recompute(log, load), changed(recovered, place, change))
    assert result.differing == 1
    assert f"offset {place}" in result.differences[0]


def test_a_difference_below_the_tolerance_is_measured_only(log: list[Record]) -> None:
    recovered = written(log)
    place = next(n for n, record in enumerate(recovered) if Recovered.FromString(record.value or b"").quality)
    result = compare(recompute(log, load), changed(recovered, place, shift(1e-8)))
    assert result.differing == 0
    assert result.largest_sd == pytest.approx(1e-8, rel=0.01)


def test_a_missing_and_an_invented_output_are_found(log: list[Record]) -> None:
    recovered = written(log)
    assert compare(recompute(log, load), [*recovered[:5], *recovered[6:]]).differing == 1
    shorter = [record for record in log if record.offset != log[-1].offset]
    assert compare(recompute(shorter[:40], load), recovered).differing > 0


def test_outputs_not_written_yet_are_no_difference(log: list[Record]) -> None:
    recovered = written(log)
    result = compare(recompute(log, load), recovered[:-4])
    assert (result.differing, result.pending) == (0, 4)
