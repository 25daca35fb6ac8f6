"""A slot's way from one worker to another, wish by wish."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tsunagi.runtime.messages import Assignment, Heartbeat, SlotBeat
from tsunagi.runtime.plan import MOVE
from tsunagi.scaler.handover import MOVE_S, PREPARE, PREPARE_S, REST_S, SETTLE, Handover, Pair, Wished
from tsunagi.standby.detector import Detector

SLOT = 3
ALIVE = ("a", "b", "c", "d")
STAYS = Wished("a", "b", "protect")


class World:
    """A slot of `a` whose secondary is `b`, that shall go to `c`; `d` is to stand by then."""

    def __init__(self, *, ready: Iterable[str] = ()) -> None:
        self.detector = Detector("scaler", 1, 0.1)
        self.handover = Handover(self.detector)
        self.handover.goal = {SLOT: Pair("c", "d")}
        self.serial = 0
        self.plan = self.write(STAYS)
        for node in ready:
            self.hear(node)

    def hear(self, node: str, *, ready: bool = True) -> None:
        part = SlotBeat(slot=SLOT, role="standby", ready=ready)
        self.detector.on_heartbeat(Heartbeat(node=node, incarnation=1, slots=[part]), 0.0)

    def write(self, wished: Wished, now: float = 0.0) -> Assignment:
        self.serial += 1
        self.plan = Assignment(
            slot=SLOT, owner=wished.owner, secondary=wished.secondary, reason=wished.reason, serial=self.serial
        )
        self.handover.begun(self.plan, now)
        return self.plan

    def next(self, now: float, *, alive: Iterable[str] = ALIVE, wished: Wished = STAYS, room: bool = True) -> Wished:
        return self.handover.toward(self.plan, wished, set(alive), now, room=room)


def test_the_target_prepares_and_then_moves() -> None:
    world = World(ready=["b"])
    assert world.next(0.0) == ("a", "c", PREPARE)
    world.write(world.next(0.0))
    world.hear("c", ready=False)
    assert world.next(1.0) == ("a", "c", PREPARE)
    world.hear("c")
    assert world.next(2.0) == ("c", "d", MOVE)
    world.write(world.next(2.0))
    assert world.handover.stands(world.plan, "a", ALIVE, 3.0)
    assert not world.handover.stands(world.plan, "c", ALIVE, 4.0)
    assert world.handover.done == 1
    assert world.next(4.0, wished=Wished("c", "b", "protect")) == ("c", "d", SETTLE)


def test_without_room_a_slot_does_not_set_out_but_one_that_has_goes_on() -> None:
    world = World(ready=["b"])
    assert world.next(0.0, room=False) == STAYS
    world.write(world.next(0.0))
    assert world.next(1.0, room=False) == ("a", "c", PREPARE)


@pytest.mark.parametrize(
    ("ready", "alive", "back"),
    [
        (["b"], ALIVE, "b"),
        (["a", "b"], ALIVE, "b"),  # an owner is never its own standby
        (["a"], ALIVE, "b"),  # nobody else is ready: what the plan would say
        (["b", "d"], ("a", "c", "d"), "d"),  # one that is dead is none
        (["a", "d"], ALIVE, "d"),
        ([], ALIVE, "b"),
    ],
)
def test_a_preparation_that_leads_to_nothing_gives_way_to_a_secondary_that_is_ready(
    ready: list[str], alive: tuple[str, ...], back: str
) -> None:
    world = World(ready=ready)
    world.write(Wished("a", "c", PREPARE))
    assert world.next(PREPARE_S, alive=alive) == ("a", "c", PREPARE)
    assert world.next(PREPARE_S + 0.1, alive=alive) == ("a", back, "protect")
    assert world.handover.given_up == 1
    world.write(STAYS)
    assert world.next(PREPARE_S + REST_S - 1.0, alive=alive) == STAYS
    assert world.next(PREPARE_S + REST_S + 1.0, alive=alive) == ("a", "c", PREPARE)


@pytest.mark.parametrize(("alive", "leads"), [(("a", "b", "d"), False), (("a", "b", "c"), False), (ALIVE, True)])
def test_a_goal_with_somebody_dead_is_not_followed(alive: tuple[str, ...], leads: bool) -> None:
    world = World(ready=["b"])
    assert (world.next(0.0, alive=alive) != STAYS) == leads


def test_a_goal_without_a_secondary_needs_none_alive() -> None:
    world = World(ready=["b"])
    world.handover.goal = {SLOT: Pair("c", "")}
    assert world.next(0.0, alive=("a", "b", "c")) == ("a", "c", PREPARE)


def test_a_move_that_comes_to_nothing_is_given_up_and_counted() -> None:
    world = World(ready=["c"])
    world.write(Wished("c", "d", MOVE), 0.0)
    assert world.handover.stands(world.plan, "a", ALIVE, MOVE_S)
    assert not world.handover.stands(world.plan, "a", ALIVE, MOVE_S + 0.1)
    assert world.handover.given_up == 1
    assert not world.handover.stands(world.plan, "a", ("a", "b"), 0.0)


def test_a_wish_that_another_scaler_wrote_has_its_own_time() -> None:
    world = World(ready=["b"])
    world.write(Wished("a", "c", PREPARE), 0.0)
    world.plan = Assignment(slot=SLOT, owner="a", secondary="c", reason=PREPARE, serial=99)
    assert world.next(PREPARE_S + 1.0) == ("a", "c", PREPARE)
    assert world.next(2 * PREPARE_S + 1.0) == ("a", "c", PREPARE)
    assert world.next(2 * PREPARE_S + 1.2) == ("a", "b", "protect")


def test_a_slot_that_is_where_it_should_be_is_on_no_way() -> None:
    world = World(ready=["b"])
    world.handover.goal = {SLOT: Pair("a", "b")}
    assert world.next(0.0) == STAYS
    world.handover.goal = {}
    assert world.next(0.0) == STAYS
    assert world.handover.under_way({SLOT: world.plan}) == 0
    world.handover.goal = {SLOT: Pair("c", "d")}
    world.write(world.next(0.0))
    assert world.handover.under_way({SLOT: world.plan}) == 1


def test_a_slot_whose_goal_is_dropped_leaves_room_for_another() -> None:
    world = World(ready=["b"])
    world.write(world.next(0.0))
    world.handover.goal = {}
    assert world.next(1.0) == STAYS
    assert world.handover.under_way({SLOT: world.plan}) == 0


def test_who_prepares_for_another_goal_has_not_set_out_for_this_one() -> None:
    world = World(ready=["b"])
    world.write(Wished("a", "c", PREPARE))
    world.handover.goal = {SLOT: Pair("d", "b")}
    assert world.next(1.0, room=False) == STAYS
    assert world.next(1.0) == ("a", "d", PREPARE)


@pytest.mark.parametrize("reason", ["protect", PREPARE, SETTLE])
def test_only_a_wish_to_move_is_waited_for_while_another_owns_the_slot(reason: str) -> None:
    world = World()
    world.write(Wished("c", "d", reason))
    assert not world.handover.stands(world.plan, "a", ALIVE, 1.0)
