"""Workers that the scaler launches and stops itself, in the simulated world: by hand, by a policy, and under faults."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import pytest

from tests.simulation.checker import check
from tests.simulation.fleet import SLOTS
from tests.simulation.nodes import Node, NodeClock
from tests.simulation.world import World
from tsunagi.runtime import log as topics
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.messages import VERSION, Plan, Workers
from tsunagi.runtime.plan import Words
from tsunagi.runtime.settings import LOCAL, ScalerSettings, SizeSettings
from tsunagi.scaler import elastic, launcher_thread, scaler
from tsunagi.scaler.policy import Answer, PolicyView
from tsunagi.standby.stages.base import ReplicaStage

SMALL = "small"
SIZES = {LOCAL: SizeSettings(rate=20.0), SMALL: SizeSettings(rate=15.0, price_h=0.1, boot_s=5.0)}
"""The edges send 60 tuples/s; nobody keeps a worker from processing more."""


class Immediate:
    """A pool that does all at once, as virtual time stands still in a call."""

    def __init__(self, **options: Any) -> None:
        del options

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*arguments))
        except Exception as error:  # noqa: BLE001 - as an executor does
            future.set_exception(error)
        return future

    def shutdown(self, **options: Any) -> None:
        del options


class Follow:
    """A policy that wants what the last rate takes, at once."""

    looks_again = False

    def learn(self, rates: Floats, step_s: float) -> None:
        del rates, step_s

    def decide(self, view: PolicyView) -> Answer:
        need = max(0.0, float(view.rates.mean()) - view.local_rate)
        return Answer({SMALL: min(3, math.ceil(need / 15.0))}, reason="follow")

    def guard(self, view: PolicyView) -> Answer | None:
        del view
        return None


class Launcher:
    """Adds nodes to the world, and takes them away."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.launched: list[str] = []
        self.stopped: list[str] = []
        self.refuses = False

    def launch(self, name: str, kind: str) -> None:
        del kind
        if self.refuses:
            raise OSError("no more machines")
        world = self.world
        self.launched.append(name)
        world.nodes[name] = Node(name, world.log.client(name), NodeClock(world.clock), restart_at=world.now + 1.0)
        world.struck.add(name)

    def running(self) -> Mapping[str, str]:
        return {name: SMALL if name.startswith(SMALL) else LOCAL for name in self.world.nodes}

    def stop(self, name: str) -> None:
        node = self.world.nodes.pop(name, None)
        if node is None:
            return
        self.stopped.append(name)
        if node.made is not None:
            owned = [slot for slot, replica in node.made.replicas.items() if replica.stage is ReplicaStage.OWN]
            assert owned == [], f"{name} was stopped and owns {owned}"
            node.made.close()
        node.client.crash()
        node.made, node.restart_at = None, None

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture
def small_world(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[World, Launcher]]:
    def make(seed: int, **settings: Any) -> tuple[World, Launcher]:
        world = World(seed)
        options = ScalerSettings(workers=2, launcher="local", boot_s=5.0, **{"sizes": SIZES, **settings})
        world.settings = world.settings.model_copy(update={"scaler": options})
        world.nodes = {name: world.nodes[name] for name in ("gw-1", "gw-2")}
        world.struck.update(world.nodes)
        launcher = Launcher(world)
        monkeypatch.setattr(launcher_thread, "ThreadPoolExecutor", Immediate)
        monkeypatch.setattr(elastic, "make_policy", lambda _settings: Follow())
        monkeypatch.setattr(scaler, "make_launcher", lambda _settings, _config: launcher)
        world.run(12.0)
        return world, launcher

    return make


def ask(world: World, **count: int) -> None:
    words = Words()
    for record in world.log.records(topics.PLAN, 0):
        words.take(Plan.FromString(record.value or b""), record.offset)
    plan = Plan(version=VERSION, workers=Workers(count=count, by="operator"), serial=words.next("workers"))
    world.log.client("user").producer().send(topics.PLAN, 0, b"workers", plan.SerializeToString())


def test_workers_come_and_go_as_an_operator_wants(small_world: Callable[..., tuple[World, Launcher]]) -> None:
    world, launcher = small_world(3)
    assert set(world.nodes) == {"gw-1", "gw-2"}
    ask(world, local=4)
    world.run(12.0)
    assert sorted(launcher.launched) == ["worker-1", "worker-2"]
    ask(world, local=0, small=2)
    world.run(25.0)
    assert set(world.nodes) == {"small-1", "small-2"}
    assert {world.owner(slot) for slot in range(SLOTS)} <= set(world.nodes)
    ask(world, local=1, small=1)
    world.run(25.0)
    assert len(world.nodes) == 2
    assert check(world) == []


def test_one_worker_alone_owns_all_and_gets_a_secondary_again(
    small_world: Callable[..., tuple[World, Launcher]],
) -> None:
    world, _ = small_world(4)
    ask(world, local=1)
    world.run(15.0)
    (alone,) = world.nodes
    assert {world.owner(slot) for slot in range(SLOTS)} == {alone}
    ask(world, local=2)
    world.run(15.0)
    assert check(world) == []


def test_a_worker_that_dies_is_replaced(small_world: Callable[..., tuple[World, Launcher]]) -> None:
    world, launcher = small_world(5)
    victim = world.owner(0)
    node = world.nodes.pop(victim)
    node.client.crash()
    world.run(12.0)
    assert launcher.launched == ["worker-1"]
    assert check(world) == []


def test_a_launcher_that_refuses_costs_nobody_a_slot(small_world: Callable[..., tuple[World, Launcher]]) -> None:
    world, launcher = small_world(6)
    launcher.refuses = True
    ask(world, local=0, small=2)
    world.run(12.0)
    assert set(world.nodes) == {"gw-1", "gw-2"}
    launcher.refuses = False
    world.run(40.0)
    assert {name for name in world.nodes if name.startswith(SMALL)} == set(world.nodes)
    assert check(world) == []


@pytest.mark.parametrize("seed", range(20, 23))
def test_faults_strike_while_workers_come_and_go(small_world: Callable[..., tuple[World, Launcher]], seed: int) -> None:
    world, _ = small_world(seed)
    for _ in range(3):
        ask(world, local=world.rng.randrange(0, 3), small=world.rng.randrange(2, 4))
        world.run(world.rng.uniform(0.5, 8.0))
        world.kill_inside(world.owner(world.rng.randrange(SLOTS)), world.rng.randrange(12))
        if world.rng.random() < 0.5:
            world.kill("scaler")
        world.run(world.rng.uniform(0.5, 4.0))
    ask(world, local=1, small=2)
    world.heal_all()
    world.run(40.0)
    assert len(world.nodes) == 3
    assert check(world) == []


def test_a_policy_launches_what_the_load_takes_and_stops_it_again(
    small_world: Callable[..., tuple[World, Launcher]],
) -> None:
    world, launcher = small_world(7, policy="threshold", slot_s=5.0, billing="second")
    world.run(30.0)
    smalls = [name for name in world.nodes if name.startswith(SMALL)]
    assert smalls, "60 tuples/s are more than two local workers of 20 process"
    assert {"gw-1", "gw-2"} <= set(world.nodes)
    for edge in world.edges:
        edge.paused = True
        world.struck.add(edge.name)
    world.run(60.0)
    assert set(world.nodes) == {"gw-1", "gw-2"}
    assert set(smalls) <= set(launcher.stopped)
    for edge in world.edges:
        edge.paused = False
    world.run(10.0)
    assert check(world) == []


def test_an_operators_word_stands_against_the_policys(small_world: Callable[..., tuple[World, Launcher]]) -> None:
    world, launcher = small_world(8, policy="threshold", slot_s=5.0, billing="second")
    ask(world, local=2)
    world.run(15.0)
    before = list(launcher.launched)
    world.run(20.0)
    assert launcher.launched == before
    assert set(world.nodes) == {"gw-1", "gw-2"}
    assert check(world) == []


def test_a_type_whose_workers_stall_is_asked_for_less(small_world: Callable[..., tuple[World, Launcher]]) -> None:
    world, _ = small_world(9, slo_s=0.3, sizes={LOCAL: SizeSettings(rate=20.0), SMALL: SizeSettings(rate=40.0)})
    ask(world, local=0, small=2)
    world.run(20.0)
    smalls = list(world.nodes)
    assert smalls == ["small-1", "small-2"]
    for _ in range(60):  # shorter than detection takes, and with time to catch up: throughput says nothing of it
        for name in smalls:
            world.pause(name, paused=True)
        world.run(0.6)
        for name in smalls:
            world.pause(name, paused=False)
        world.run(0.7)
    within = world.scaler.made.elastic.capacities.within
    assert set(within) == {SMALL}
    assert 0.5 <= within[SMALL] < 0.95
    assert check(world) == []
