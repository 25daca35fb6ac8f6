"""An edge dies and its slots need sensors of others to keep their promise: asked for in `plan`, sent, used, dropped."""

from __future__ import annotations

import time
from collections.abc import Iterator

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
from tsunagi.runtime.log import RECOVERED, TUPLES
from tsunagi.runtime.messages import BOUNDED, EXACT, Recovered
from tsunagi.runtime.sensors import place
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
