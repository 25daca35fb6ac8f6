"""The wishes of the scaler, from heartbeats alone; time is the test's."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tsunagi.runtime.cells import Cells
from tsunagi.runtime.messages import Assignment, Heartbeat, SlotBeat
from tsunagi.scaler.handover import MOVE_S
from tsunagi.scaler.loads import Loads
from tsunagi.scaler.planner import SLACK, Planner
from tsunagi.standby.detector import Detector

DEAD_S = 2.0
PATIENCE_S = 8.0


class Fleet:
    """Workers by name, each with the roles it says it has; what is wished is read back at once."""

    def __init__(self, slots: int = 2, workers: int = 3, cells: int = 1) -> None:
        self.now = 0.0
        self.detector = Detector("scaler", 1, 0.1)
        self.planner = Planner(slots, workers, DEAD_S, PATIENCE_S, self.detector, Cells(cells))
        self.alive: dict[str, dict[int, tuple[str, int]]] = {}
        self.written: list[Assignment] = []

    def run(self, seconds: float, *, own: bool = True) -> None:
        for _ in range(round(seconds / 0.1)):
            self.now += 0.1
            if own:
                self.detector.on_heartbeat(Heartbeat(node="scaler", incarnation=1), self.now)
            for name, roles in self.alive.items():
                parts = [SlotBeat(slot=slot, role=role, epoch=epoch) for slot, (role, epoch) in roles.items()]
                beat = Heartbeat(node=name, role="worker", incarnation=1, slots=parts)
                self.detector.on_heartbeat(beat, self.now)
            for assignment in self.decide():
                self.written.append(assignment)
                self.planner.on_assignment(assignment)

    def decide(self, after_s: float = 0.0) -> list[Assignment]:
        now = self.now + after_s
        return self.planner.decide(self.planner.alive(now), now)

    def follow(self, epoch: int = 1) -> None:
        """Let every living worker do what is wished."""
        for slot, wish in self.planner.assignments.items():
            if wish.owner in self.alive:
                self.alive[wish.owner][slot] = ("primary", epoch)
            if wish.secondary in self.alive:
                self.alive[wish.secondary][slot] = ("standby", epoch)

    def plan(self) -> dict[int, tuple[str, str]]:
        return {slot: (wish.owner, wish.secondary) for slot, wish in self.planner.assignments.items()}


def started(slots: int = 2, names: str = "abc") -> Fleet:
    fleet = Fleet(slots, len(names))
    fleet.alive = {name: {} for name in names}
    fleet.run(1.0)
    fleet.follow()
    fleet.run(1.0)
    return fleet


def test_the_first_plan_spreads_owners_and_secondaries() -> None:
    fleet = started(slots=4, names="abcd")
    plan = fleet.plan()
    assert sorted(owner for owner, _ in plan.values()) == list("abcd")
    assert sorted(secondary for _, secondary in plan.values()) == list("abcd")
    assert all(owner != secondary for owner, secondary in plan.values())
    assert {wish.reason for wish in fleet.written} == {"first"}
    assert [wish.serial for wish in fleet.written] == [1, 2, 3, 4]


def test_it_waits_for_all_workers_but_not_for_ever() -> None:
    fleet = Fleet(workers=3)
    fleet.alive = {"a": {}, "b": {}}
    fleet.run(PATIENCE_S - 0.5)
    assert fleet.plan() == {}
    fleet.run(1.0)
    assert fleet.plan() == {0: ("a", "b"), 1: ("b", "a")}


def test_nothing_is_written_twice() -> None:
    fleet = started()
    written = len(fleet.written)
    fleet.run(5.0)
    assert len(fleet.written) == written


def test_a_slot_that_somebody_owns_already_stays_with_him() -> None:
    fleet = Fleet(slots=1, workers=3)
    fleet.alive = {"a": {}, "b": {}, "c": {0: ("primary", 5)}}
    fleet.run(1.0)
    assert fleet.plan()[0][0] == "c"


def test_it_follows_a_takeover_and_finds_a_new_secondary() -> None:
    fleet = started(slots=1)
    owner, secondary = fleet.plan()[0]
    (idle,) = set("abc") - {owner, secondary}
    del fleet.alive[owner]
    fleet.alive[secondary][0] = ("primary", 2)
    fleet.run(DEAD_S + 1.0)
    assert fleet.plan()[0] == (secondary, idle)
    assert fleet.written[-1].reason == "protect"


def test_after_a_takeover_the_new_secondary_is_one_that_is_heard_not_the_owner_that_has_just_fallen_silent() -> None:
    fleet = started(slots=1)
    owner, secondary = fleet.plan()[0]
    (idle,) = set("abc") - {owner, secondary}
    del fleet.alive[owner]
    fleet.run(0.4 * DEAD_S)
    fleet.alive[secondary][0] = ("primary", 2)
    fleet.run(0.1)
    assert fleet.plan()[0] == (secondary, idle)  # at once, not when the old owner is given up
    fleet.run(2 * DEAD_S)
    assert [wish.reason for wish in fleet.written] == ["first", "protect"]


def test_while_the_secondary_lives_its_takeover_is_not_anticipated() -> None:
    fleet = started(slots=1)
    before = fleet.plan()[0]
    del fleet.alive[before[0]]
    fleet.run(DEAD_S + 3.0)
    assert fleet.plan()[0] == before


def test_a_dead_secondary_is_replaced() -> None:
    fleet = started(slots=1)
    owner, secondary = fleet.plan()[0]
    (idle,) = set("abc") - {owner, secondary}
    del fleet.alive[secondary]
    fleet.run(DEAD_S + 0.5)
    assert fleet.plan()[0] == (owner, idle)


def test_with_nobody_left_the_old_secondary_may_come_back() -> None:
    fleet = started(slots=1, names="ab")
    owner, secondary = fleet.plan()[0]
    del fleet.alive[secondary]
    fleet.run(DEAD_S + 1.0)
    assert fleet.plan()[0] == (owner, secondary)


def test_owner_and_secondary_dead_together_the_slot_is_built_anew() -> None:
    fleet = started(slots=1, names="abcd")
    owner, secondary = fleet.plan()[0]
    del fleet.alive[owner]
    del fleet.alive[secondary]
    fleet.run(DEAD_S + 0.5)
    new = fleet.plan()[0]
    assert set(new) == set(fleet.alive)
    assert fleet.written[-1].reason in ("rebuild", "protect")


def test_a_deposed_owner_that_lives_is_preferred_as_secondary() -> None:
    fleet = started(slots=1, names="abcd")
    owner, secondary = fleet.plan()[0]
    fleet.alive[owner][0] = ("standby", 2)
    fleet.alive[secondary][0] = ("primary", 2)
    fleet.run(1.0)
    assert fleet.plan()[0] == (secondary, owner)


def test_of_two_that_claim_a_slot_the_greater_epoch_is_believed() -> None:
    fleet = started(slots=1)
    owner, secondary = fleet.plan()[0]
    fleet.alive[secondary][0] = ("primary", 2)
    fleet.run(1.0)
    assert fleet.plan()[0][0] == secondary
    assert owner in fleet.alive


def test_nothing_is_written_while_our_own_heartbeats_stay_away() -> None:
    fleet = started(slots=1)
    written = len(fleet.written)
    fleet.alive.clear()
    fleet.run(10.0, own=False)
    assert len(fleet.written) == written


def test_after_a_restart_it_goes_on_from_what_stands_on_plan() -> None:
    fleet = Fleet(slots=1, workers=2)
    fleet.planner.on_assignment(Assignment(slot=0, owner="b", secondary="a", serial=41))
    fleet.planner.on_assignment(Assignment(slot=0, owner="x", secondary="y", serial=40))
    fleet.alive = {"a": {}, "b": {}, "c": {}}
    fleet.run(1.0)
    assert fleet.plan() == {0: ("b", "a")}
    del fleet.alive["a"]
    fleet.run(DEAD_S + 0.5)
    assert fleet.written[-1].serial == 42
    assert fleet.plan() == {0: ("b", "c")}


def test_a_worker_that_leaves_is_planned_without() -> None:
    fleet = started(slots=1)
    owner, secondary = fleet.plan()[0]
    del fleet.alive[secondary]
    fleet.detector.on_heartbeat(Heartbeat(node=secondary, role="worker", incarnation=1, leaving=True), fleet.now)
    fleet.run(0.3)
    assert fleet.plan()[0][1] != secondary
    assert fleet.plan()[0][0] == owner


def put(fleet: Fleet, slot: int, owner: str, secondary: str, reason: str) -> None:
    serial = fleet.planner.serial + 1
    fleet.planner.on_assignment(Assignment(slot=slot, owner=owner, secondary=secondary, serial=serial, reason=reason))


def test_a_wish_to_move_stands_until_it_is_carried_out() -> None:
    fleet = started(slots=1)
    owner, secondary = fleet.plan()[0]
    put(fleet, 0, secondary, owner, "move")
    fleet.run(1.0)
    assert fleet.plan()[0] == (secondary, owner)
    assert fleet.planner.assignments[0].reason == "move"
    fleet.alive[secondary][0], fleet.alive[owner][0] = ("primary", 2), ("standby", 2)
    fleet.run(1.0)
    assert fleet.plan()[0] == (secondary, owner)
    assert fleet.planner.assignments[0].reason == "moved"


def test_a_move_that_was_carried_out_is_not_wished_again_after_a_takeover() -> None:
    fleet = started(slots=1)
    owner, secondary = fleet.plan()[0]
    put(fleet, 0, secondary, owner, "move")
    fleet.alive[secondary][0], fleet.alive[owner][0] = ("primary", 2), ("standby", 2)
    fleet.run(0.5)
    fleet.alive[secondary][0], fleet.alive[owner][0] = ("standby", 3), ("primary", 3)
    fleet.run(0.5)
    assert fleet.plan()[0] == (owner, secondary)


def test_a_move_to_a_worker_that_dies_is_given_up() -> None:
    fleet = started(slots=1)
    owner, secondary = fleet.plan()[0]
    (idle,) = set("abc") - {owner, secondary}
    put(fleet, 0, idle, secondary, "move")
    del fleet.alive[idle]
    fleet.run(DEAD_S + 0.5)
    assert fleet.plan()[0] == (owner, secondary)


def test_a_move_whose_present_owner_dies_goes_to_its_target() -> None:
    fleet = started(slots=1)
    owner, secondary = fleet.plan()[0]
    (idle,) = set("abc") - {owner, secondary}
    put(fleet, 0, secondary, idle, "move")
    del fleet.alive[owner]
    fleet.run(DEAD_S + 0.5)
    assert fleet.plan()[0] == (secondary, idle)
    fleet.alive[secondary][0] = ("primary", 2)
    fleet.run(0.5)
    assert fleet.plan()[0] == (secondary, idle)
    assert fleet.planner.assignments[0].reason == "moved"


def test_a_move_that_leads_nowhere_is_given_up_in_time() -> None:
    fleet = started(slots=1)
    owner, secondary = fleet.plan()[0]
    put(fleet, 0, secondary, owner, "move")
    fleet.run(MOVE_S + 1.0)
    assert fleet.plan()[0] == (owner, secondary)
    assert fleet.planner.handover.given_up == 1


def test_a_wish_that_another_scaler_overtook_is_read_as_the_log_has_it() -> None:
    fleet = started(slots=1)
    owner, secondary = fleet.plan()[0]
    (idle,) = set("abc") - {owner, secondary}
    del fleet.alive[secondary]
    while True:  # until the planner writes, not read back yet
        fleet.now += 0.1
        fleet.detector.on_heartbeat(Heartbeat(node="scaler", incarnation=1), fleet.now)
        for name in (owner, idle):
            parts = [SlotBeat(slot=0, role=role, epoch=epoch) for role, epoch in fleet.alive[name].values()]
            fleet.detector.on_heartbeat(Heartbeat(node=name, role="worker", incarnation=1, slots=parts), fleet.now)
        if wishes := fleet.decide():
            break
    (ours,) = wishes
    assert fleet.decide(0.05) == []
    theirs = Assignment(slot=0, owner=owner, secondary="x", serial=ours.serial, reason="protect")
    fleet.planner.on_assignment(theirs)
    fleet.planner.on_assignment(ours)
    assert fleet.plan()[0] == (owner, "x")


# ---- several cells


def large(workers: int, slots: int, cells: int) -> Fleet:
    fleet = Fleet(slots, workers, cells)
    fleet.alive = {f"w{number:03d}": {} for number in range(workers)}
    fleet.run(1.0)
    fleet.follow()
    fleet.run(1.0)
    return fleet


def loads_of(fleet: Fleet) -> dict[str, int]:
    found = Counter(name for pair in fleet.plan().values() for name in pair)
    return {name: found[name] for name in fleet.alive}


def cells_of(fleet: Fleet) -> dict[str, int]:
    """Return of how many cells each worker has slots."""
    cells = fleet.planner.cells
    held = {(name, cells.of(slot)) for slot, pair in fleet.plan().items() for name in pair}
    return dict(Counter(name for name, _ in held))


@pytest.mark.parametrize(("workers", "slots", "cells"), [(20, 200, 10), (50, 1000, 31), (7, 200, 6), (60, 1200, 37)])
def test_slots_of_a_worker_are_of_few_cells_and_the_balance_stays(workers: int, slots: int, cells: int) -> None:
    """Whether or not a worker's slots fill cells."""
    fleet = large(workers, slots, cells)
    owned = Counter(owner for owner, _ in fleet.plan().values())
    assert max(owned.values()) <= slots / workers + 1
    loads = loads_of(fleet)
    assert max(loads.values()) <= 2 * slots / workers + 2
    assert min(loads.values()) >= 2 * slots / workers - (slots / workers) // 5
    assert max(cells_of(fleet).values()) <= 3
    assert sum(cells_of(fleet).values()) <= 2.6 * workers
    assert all(owner != secondary for owner, secondary in fleet.plan().values())


def test_two_others_stand_by_for_a_workers_slots() -> None:
    fleet = large(workers=20, slots=200, cells=10)
    pairs = Counter(fleet.plan().values())
    assert set(pairs.values()) == {5}
    assert set(Counter(owner for owner, _ in pairs).values()) == {2}


def test_after_deaths_slots_stay_in_few_hands() -> None:
    fleet = large(workers=20, slots=200, cells=10)
    for name in ("w003", "w011"):
        del fleet.alive[name]
        for slot, (owner, secondary) in fleet.plan().items():  # the secondary takes over
            if owner == name:
                fleet.alive[secondary][slot] = ("primary", 2)
        fleet.run(DEAD_S + 0.5)
        fleet.follow(2)
    loads = loads_of(fleet)
    assert sum(loads.values()) == 400
    assert max(loads.values()) <= 400 / 18 * (1 + SLACK)
    assert max(cells_of(fleet).values()) <= 4
    assert sum(cells_of(fleet).values()) <= 2.5 * 18


@pytest.mark.parametrize("cells", [1, 8])
def test_a_turn_counts_the_loads_of_each_slot_once(monkeypatch: pytest.MonkeyPatch, cells: int) -> None:
    """The work of a turn grows with the slots, and not with their square."""
    counted = [0]
    add = Loads.add

    def counting(self: Loads, *args: Any) -> None:
        counted[0] += 1
        add(self, *args)

    monkeypatch.setattr(Loads, "add", counting)
    found = []
    for workers in (8, 32):
        fleet = large(workers, 8 * workers, cells)
        counted[0] = 0
        fleet.run(0.1)
        at_rest = counted[0]
        del fleet.alive["w000"]
        counted[0] = 0
        fleet.run(DEAD_S + 0.2)
        found.append((at_rest / workers, counted[0] / workers))
    assert found[0][0] == found[1][0] == 0, "loads are counted only if a slot needs a worker"
    assert 0 < found[1][1] <= found[0][1]
