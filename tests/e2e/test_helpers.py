"""An edge dies and its slots need sensors of others to keep their promise: asked for in `plan`, sent, used, dropped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.stream import Inputs
from tests.e2e.system import SLOTS, Rig
from tests.e2e.verdict import parsed, validate, wait_exact
from tsunagi.broker.broker import Broker
from tsunagi.local.recovery import ask
from tsunagi.recovery.model import Model, half_width
from tsunagi.replay.slots import replay_slots
from tsunagi.runtime.columns import octets, sensors
from tsunagi.runtime.log import DEAD_LETTERS, RECOVERED, TUPLES
from tsunagi.runtime.messages import BOUNDED, EXACT, DeadLetter, Recovered
from tsunagi.runtime.sensors import place
from tsunagi.slot.config import SlotConfig
from tsunagi.system.topics import read_partition

EDGE = "edge-1"


def bounds(inputs: Inputs, *, helped: bool) -> float:
    """Return the widest bound of what the edge's sensors are worth to the others at one moment, in sd."""
    model, slot_of = Model.load(inputs.model), place(inputs.table, SLOTS)
    widest = 0.0
    for slot in range(SLOTS):
        lost = [s.id for s in inputs.table.sensors if s.edge == EDGE and slot_of[s.id] == slot]
        read = [s.id for s in inputs.table.sensors if s.edge != EDGE and (helped or slot_of[s.id] == slot)]
        prior = model.prior
        spread = prior[np.ix_(lost, lost)] - prior[np.ix_(lost, read)] @ np.linalg.solve(
            prior[np.ix_(read, read)], prior[np.ix_(read, lost)]
        )
        widest = max(widest, float(np.sqrt(np.diag(spread)).max()))
    return widest * half_width(0.9) * model.inflation(0.9)


@pytest.fixture(scope="module")
def eps(inputs: Inputs) -> float:
    alone, helped = bounds(inputs, helped=False), bounds(inputs, helped=True)
    assert helped < 0.9 * alone
    return float(np.sqrt(alone * helped))


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory, broker: Broker, inputs: Inputs, eps: float) -> Iterator[Rig]:
    changes = {"recovery": {"eps": eps, "calibrate": False}}
    system = Rig(tmp_path_factory.mktemp("helpers"), inputs, servers=broker.servers, prefix="helpers.", changes=changes)
    try:
        system.start()
        yield system
    finally:
        system.close()


def in_force(rig: Rig, kind: str) -> list[list[int]]:
    """Return what the newest control record of this kind says in each slot's log, as sensors."""
    found = []
    for slot in range(SLOTS):
        messages = [parsed(record) for record in read_partition(rig.log, TUPLES, slot)]
        said = [m for m in messages if m is not None and m.WhichOneof("body") == kind]
        found.append(sensors(said[-1].helpers.sensor).tolist() if said else [])
    return found


def tags(rig: Rig, from_us: int, to_us: int) -> list[int]:
    """Return the tags of the edge's sensors in the steps of that time."""
    mine = np.array([s.id for s in rig.inputs.table.of_edge(EDGE)])
    found: list[int] = []
    for slot in range(SLOTS):
        for record in read_partition(rig.log, RECOVERED, slot):
            message = Recovered.FromString(record.value or b"")
            if from_us < message.event_time_us <= to_us:
                found += octets(message.quality)[np.isin(sensors(message.sensor), mine)].tolist()
    return found


def now_us() -> int:
    return time.time_ns() // 1000


def test_sensors_of_other_slots_help_over_a_takeover_until_the_edge_is_back(rig: Rig) -> None:
    rig.wait_protected()
    rig.kill_edge(EDGE)
    rig.wait(lambda: all(in_force(rig, "helpers")), "helpers of both slots")
    for slot, chosen in enumerate(in_force(rig, "helpers")):
        slot_of = place(rig.inputs.table, SLOTS)
        assert not [sensor for sensor in chosen if slot_of[sensor] == slot]
        assert not [sensor for sensor in chosen if rig.inputs.table.sensors[sensor].edge == EDGE]
    rig.advance()
    helped_us = now_us()
    rig.advance(30)
    found = tags(rig, helped_us, helped_us + 4_000_000)
    assert found.count(EXACT) == 0
    assert found.count(BOUNDED) > 0.95 * len(found) > 0
    kill = rig.kill_owner(0)
    rig.wait_owner(0, kill.epoch)
    rig.wait_protected()
    rig.advance()
    after_us = now_us()
    rig.advance(30)
    found = tags(rig, after_us, after_us + 4_000_000)
    assert found.count(BOUNDED) > 0.95 * len(found) > 0
    rig.edge_back(EDGE)
    rig.wait(lambda: not any(in_force(rig, "helpers")), "the end of the helpers")
    wait_exact(rig, [EDGE], lambda: validate(rig))
    said: list[str] = []
    assert replay_slots(rig.settings, (), said.append) == 0, said


def test_another_eps_comes_into_force_while_the_slots_run(rig: Rig, eps: float) -> None:
    rig.wait_protected()
    ask(rig.settings, {"eps": eps / 100, "helpers": 0}, rig.said.append)

    def told() -> bool:
        texts = []
        for slot in range(SLOTS):
            messages = [parsed(record) for record in read_partition(rig.log, TUPLES, slot)]
            texts += [m.settings.text for m in messages if m is not None and m.WhichOneof("body") == "settings"][-1:]
        return all(f'"eps":{eps / 100}' in text for text in texts)

    rig.wait(told, "settings with the new eps")
    rig.kill_edge(EDGE)
    rig.advance()
    from_us = now_us()
    rig.advance(20)
    found = tags(rig, from_us, from_us + 2_000_000)
    assert found
    assert BOUNDED not in found
    assert not any(in_force(rig, "helpers"))
    rig.edge_back(EDGE)
    ask(rig.settings, {}, rig.said.append)
    wait_exact(rig, [EDGE], lambda: validate(rig))
    said: list[str] = []
    assert replay_slots(rig.settings, (), said.append) == 0, said


def test_a_sensor_moves_to_another_edge_and_nothing_is_refused(tmp_path: Path, broker: Broker, inputs: Inputs) -> None:
    table = tmp_path / "sensors.csv"
    table.write_text(inputs.sensors.read_text())
    rig = Rig(tmp_path, replace(inputs, sensors=table), servers=broker.servers, prefix="sensor-moves.")
    moved, name = 0, inputs.table.sensors[0].name
    to = next(edge for edge in inputs.table.edges if edge != inputs.table.sensors[0].edge)

    def restart(node: str, role: str) -> None:
        rig.restart(
            node, role, ["edge", "run", "--edge", node] if role == "edge" else ["gateway", "run", "--node", node]
        )

    def hosted() -> bool:
        """Return whether every slot would go on without its owner: towards the end with the new settings only."""
        return all(
            (owner := rig.fleet.of_slot(slot, "primary")) is not None
            and owner[0] == rig.watches[slot].owner
            and any(
                part.slot == slot and part.role == "standby" and (part.ready or "settings differ" in part.reason)
                for node, beat in rig.fleet.fresh("worker").items()
                if node != owner[0]
                for part in beat.slots
            )
            for slot in range(SLOTS)
        )

    def home() -> str:
        """Return the moved sensor's edge as its slot's log has it."""
        for slot in range(SLOTS):
            messages = [parsed(record) for record in read_partition(rig.log, TUPLES, slot)]
            texts = [m.settings.text for m in messages if m is not None and m.WhichOneof("body") == "settings"]
            config = SlotConfig.parse(texts[-1])
            if moved in config.sensors:
                return config.edges[config.sensors.index(moved)]
        return ""

    def exact(after_us: int) -> bool:
        messages = [
            Recovered.FromString(record.value or b"")
            for slot in range(SLOTS)
            for record in read_partition(rig.log, RECOVERED, slot)
        ]
        return any(
            (octets(message.quality)[sensors(message.sensor) == moved] == EXACT).any()
            for message in messages
            if message.event_time_us > after_us
        )

    try:
        rig.start()
        rig.wait_protected()
        table.write_text(table.read_text().replace(f"{name},{inputs.table.sensors[0].edge},", f"{name},{to},"))
        restart(inputs.table.sensors[0].edge, "edge")  # first whoever lets go, last whoever takes up
        for node in sorted(node for node in rig.pids() if node.startswith(("gw-", "sec-"))):
            restart(node, "worker")
            rig.wait(hosted, "an owner and a standby, of whichever settings, of every slot")
        rig.wait(lambda: home() == to, "the settings that give the sensor to its new edge")
        restart(to, "edge")
        taken_up_us = now_us()
        rig.wait(lambda: exact(taken_up_us + 2_000_000), "measured values of the moved sensor")
        letters = read_partition(rig.log, DEAD_LETTERS, 0)
        assert not letters, [DeadLetter.FromString(record.value or b"").detail for record in letters]
        said: list[str] = []
        assert replay_slots(rig.settings, (), said.append) == 0, said
    finally:
        rig.close()
