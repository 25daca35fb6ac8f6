"""A policy is asked at its times and sees what was measured; what is paid for is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future

import numpy as np
import pytest

from tsunagi.runtime.columns import Floats
from tsunagi.scaler.policy import HOUR_S, NEVER, Answer, Billing, PolicySettings, PolicyView, WorkerType
from tsunagi.scaler.policy_runner import STEPS, PolicyDecision, PolicyRunner, ScalerMeasurement

SLOT_S = 300.0
STEP_S = SLOT_S / STEPS
BOOT_S = 100.0
TYPES = (WorkerType("small", 40.0, 0.095, boot_s=BOOT_S), WorkerType("big", 90.0, 0.19, boot_s=BOOT_S))


class Policy:
    """Answers what a test wants, and keeps what it saw."""

    looks_again = False

    def __init__(self) -> None:
        self.wanted: Mapping[str, int] = {"small": 0}
        self.alarm: Mapping[str, int] | None = None
        self.views: list[PolicyView] = []
        self.guards: list[PolicyView] = []

    def learn(self, rates: Floats, step_s: float) -> None:
        del rates, step_s

    def decide(self, view: PolicyView) -> Answer:
        self.views.append(view)
        return Answer(self.wanted, reason="told")

    def guard(self, view: PolicyView) -> Answer | None:
        self.guards.append(view)
        return None if self.alarm is None else Answer(self.alarm, reason="lag")


class World:
    """Workers are there as soon as they are wanted, and go when they are due."""

    def __init__(self, billing: Billing = "second", drain_s: float = 0.0, hour_s: float = HOUR_S) -> None:
        self.policy = Policy()
        settings = PolicySettings(types=TYPES, slot_s=SLOT_S, billing=billing, hour_s=hour_s)
        self.runner = PolicyRunner(self.policy, settings, drain_s, 0.0)
        self.now = 0.0
        self.arrived = 0.0
        self.late = 0.0
        self.rate = 100.0
        self.workers: dict[str, str] = {}
        self.ready: set[str] = set()
        self.decisions: list[PolicyDecision] = []
        self.delay_s = 0.5
        self.number = 0
        self.runner.step(ScalerMeasurement(0.0, 0.0, 0.0, 0.0, {}, (), 1600.0), 0.0)

    def run(self, seconds: float, turn_s: float = 1.0) -> None:
        for _ in range(round(seconds / turn_s)):
            self.now += turn_s
            self.arrived += self.rate * turn_s
            self.late += 2.0 * turn_s
            seen = ScalerMeasurement(
                self.arrived, self.late, 7.0, self.delay_s, dict(self.workers), self.ready, 1600.0, {"small": 33.0}
            )
            found = self.runner.step(seen, self.now)
            if found is not None:
                self.decisions.append(found)
            for kind, count in self.runner.target.items():
                have = [name for name, own in self.workers.items() if own == kind and name not in self.runner.due]
                for _ in range(count - len(have)):
                    self.number += 1
                    self.workers[f"{kind}-{self.number}"] = kind
            for name in self.runner.due:
                del self.workers[name]


def test_it_is_asked_once_a_slot_and_sees_the_rates_since() -> None:
    world = World()
    world.run(SLOT_S)
    world.rate = 200.0
    world.run(SLOT_S)
    assert len(world.policy.views) == 2
    first, second = world.policy.views
    assert first.rates == pytest.approx(np.full(STEPS, 100.0))
    assert second.rates == pytest.approx(np.full(STEPS, 200.0))
    assert (second.step_s, second.backlog, second.local_rate, second.delay_s) == (STEP_S, 7.0, 1600.0, 0.5)
    assert second.late == pytest.approx(2.0 * SLOT_S)
    assert second.saturated == {"small": 33.0}
    assert len(world.policy.guards) == 2 * (STEPS - 1)


@pytest.mark.parametrize(("slot_s", "steps"), [(5.0, 5), (0.5, 1), (45.0, 30), (3600.0, 30)])
def test_a_step_is_not_shorter_than_what_is_measured(slot_s: float, steps: int) -> None:
    policy = Policy()
    runner = PolicyRunner(policy, PolicySettings(slot_s=slot_s), 0.0, 0.0)
    for turn in range(2 * round(slot_s / 0.5) + 1):
        now = turn * 0.5
        # As it is measured: once a second.
        runner.step(ScalerMeasurement(100.0 * int(now), 0.0, 0.0, 0.0, {}, (), 0.0), now)
    assert len(policy.views[0].rates) == steps
    assert policy.views[0].step_s * steps == pytest.approx(slot_s)


def test_a_scaler_that_was_held_up_loses_no_tuple_of_the_rates() -> None:
    world = World()
    world.run(SLOT_S, turn_s=75.0)
    assert world.policy.views[0].rates.sum() * STEP_S == pytest.approx(100.0 * SLOT_S)


def test_a_policy_that_thinks_for_long_holds_nobody_up_and_is_asked_again_when_it_has_answered() -> None:
    thoughts: list[tuple[Callable[[], Answer], Future[Answer]]] = []

    def ponder(think: Callable[[], Answer]) -> Future[Answer]:
        thoughts.append((think, Future()))
        return thoughts[-1][1]

    world = World()
    world.runner = PolicyRunner(
        world.policy, PolicySettings(types=TYPES, slot_s=SLOT_S, billing="second"), 0.0, 0.0, ponder
    )
    world.runner.step(ScalerMeasurement(0.0, 0.0, 0.0, 0.0, {}, (), 1600.0), 0.0)
    world.policy.wanted = {"small": 2, "big": 1}
    world.run(1.5 * SLOT_S)
    asked = len(world.policy.guards)
    assert (len(thoughts), world.decisions, world.workers, asked) == (1, [], {}, STEPS - 1)
    world.run(SLOT_S)  # the end of another slot
    assert (len(thoughts), len(world.policy.guards)) == (1, asked)
    think, answer = thoughts[0]
    answer.set_result(think())
    world.run(1.0)
    assert [(item.kind, item.launches) for item in world.decisions] == [("slot", {"small": 2, "big": 1})]
    assert world.policy.views[0].rates == pytest.approx(np.full(STEPS, 100.0))
    world.run(0.6 * SLOT_S)
    assert len(thoughts) == 2
    thoughts[1][0]()
    assert world.policy.views[1].rates == pytest.approx(np.full(2 * STEPS, 100.0))  # nothing since the first is lost


def test_launches_follow_and_workers_are_seen_as_they_boot() -> None:
    world = World()
    world.policy.wanted = {"small": 2, "big": 1}
    world.run(SLOT_S)
    assert world.decisions[0].launches == {"small": 2, "big": 1}
    assert world.runner.target == {"small": 2, "big": 1}
    world.ready.add("small-1")
    world.run(SLOT_S)
    view = world.policy.views[1]
    assert {(worker.type, worker.ready_s) for worker in view.workers} == {
        ("small", SLOT_S + 1.0),
        ("small", SLOT_S + 1.0 + BOOT_S),
        ("big", SLOT_S + 1.0 + BOOT_S),
    }
    assert all(worker.stop_s == NEVER for worker in view.workers)
    assert world.decisions[1].launches.get("small", 0) == 0


def test_billed_by_the_second_they_go_at_once() -> None:
    world = World()
    world.policy.wanted = {"small": 3}
    world.run(SLOT_S)
    world.policy.wanted = {"small": 1}
    world.run(SLOT_S)
    assert len(world.decisions[1].stops) == 2
    assert world.runner.target["small"] == 1
    assert len(world.workers) == 1


@pytest.mark.parametrize("hour_s", [HOUR_S, 1200.0])
def test_billed_by_the_hour_what_is_paid_is_used(hour_s: float) -> None:
    world = World(billing="hourly", drain_s=20.0, hour_s=hour_s)
    world.policy.wanted = {"small": 2}
    world.run(SLOT_S)
    world.policy.wanted = {"small": 0}
    world.run(hour_s - SLOT_S - 30.0)
    assert len(world.workers) == 2
    world.run(SLOT_S + 30.0)
    assert world.workers == {}
    assert world.runner.target["small"] == 0
    (stops,) = [decision.stops for decision in world.decisions if decision.stops]
    assert set(stops.values()) == {SLOT_S + 1.0 + hour_s - 20.0}  # a turn passes before a worker is there


def test_the_guard_launches_between_slots_and_never_stops() -> None:
    world = World()
    world.policy.wanted = {"small": 2}
    world.run(SLOT_S)
    world.policy.alarm = {"small": 1, "big": 1}
    world.run(2 * STEP_S)
    world.policy.alarm = None
    assert world.runner.target == {"small": 2, "big": 1}
    assert {decision.kind for decision in world.decisions} == {"slot", "guard"}


def test_one_that_looks_again_lets_a_block_end_between_slots() -> None:
    world = World(billing="hourly", hour_s=1210.0)
    world.policy.looks_again = True
    world.policy.wanted = {"small": 2}
    world.run(SLOT_S)
    world.policy.alarm = {"small": 1}
    world.run(1100.0)
    assert len(world.workers) == 2
    assert not any(decision.stops for decision in world.decisions)  # no block ends before the next look
    world.run(150.0)
    assert len(world.workers) == 1
    assert world.runner.target["small"] == 1
    (kind,) = {decision.kind for decision in world.decisions if decision.stops}
    assert kind == "guard"


def test_a_dead_worker_is_still_wanted() -> None:
    world = World()
    world.policy.wanted = {"small": 2}
    world.run(SLOT_S)
    del world.workers["small-1"]
    assert world.runner.target["small"] == 2


def test_one_that_dies_before_its_hour_is_over_is_not_replaced() -> None:
    world = World(billing="hourly")
    world.policy.wanted = {"small": 1}
    world.run(SLOT_S)
    world.policy.wanted = {"small": 0}
    while not any(decision.stops for decision in world.decisions):
        world.run(SLOT_S)
    world.workers.clear()
    world.number = 100
    world.run(2.0)
    assert world.runner.target["small"] == 0
    assert world.workers == {}


def test_a_policy_that_names_types_that_are_none_gets_none_of_them() -> None:
    world = World()
    world.policy.wanted = {"huge": 3, "small": 1}
    world.run(SLOT_S)
    assert world.runner.target == {"small": 1, "big": 0}


def test_a_scaler_that_starts_anew_keeps_what_was_decided() -> None:
    world = World()
    world.runner.resume({"small": 2, "local": 5})
    assert world.runner.target == {"small": 2, "big": 0}
    world.policy.wanted = {"small": 2}
    world.workers = {"small-1": "small", "small-2": "small"}
    world.run(SLOT_S)
    assert world.decisions[0].launches.get("small", 0) == 0
