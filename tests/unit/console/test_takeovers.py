"""Takeovers are found in heartbeats: who died, who was moved from, and how long each part took."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tsunagi.console.takeovers import Takeovers, sums_of
from tsunagi.local.fleet import Fleet
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.log import ACKS, HEARTBEATS
from tsunagi.runtime.messages import VERSION, Heartbeat, SlotBeat
from tsunagi.runtime.metrics import PHASES
from tsunagi.runtime.testing import MemoryLog


class World:
    """Workers of which a test says when they beat; the log's clock is that of the machine, which `Fleet` compares."""

    def __init__(self, ask: Callable[[Heartbeat, int], dict[str, float] | None] = lambda *_: None) -> None:
        self.clock = ManualClock(time.time_ns() // 1000 - 60_000_000)
        self.log = MemoryLog(self.clock, {HEARTBEATS: 1, ACKS: 1})
        self.fleet = Fleet(self.log)
        self.takeovers = Takeovers(ask)
        self.sequence = 0

    def beat(self, node: str, *slots: SlotBeat, leaving: bool = False, incarnation: int = 1) -> None:
        self.sequence += 1
        message = Heartbeat(
            version=VERSION,
            node=node,
            role="worker",
            incarnation=incarnation,
            sequence=self.sequence,
            slots=slots,
            leaving=leaving,
        )
        self.log.append(HEARTBEATS, 0, node.encode(), message.SerializeToString())

    def look(self, seconds: float = 0.1) -> list[dict[str, object]]:
        self.clock.advance(seconds)
        self.fleet.update()
        self.takeovers.look(self.fleet)
        return self.takeovers.list()


def own(epoch: int, *, role: str = "primary", taking_up: bool = False) -> SlotBeat:
    return SlotBeat(slot=0, role=role, epoch=epoch, taking_up=taking_up)


def test_an_owner_that_falls_silent_has_died_and_the_new_one_says_how_long_it_took() -> None:
    sums = {"count": 1.0, "detect": 0.25, "promote": 0.02, "catch_up": 0.01}
    world = World(lambda message, slot: sums if (message.node, slot) == ("gw-2", 0) else None)
    world.beat("gw-1", own(1))
    assert world.look() == []
    silent_since = world.clock.now_us()
    world.clock.advance(60.0)
    world.beat("gw-2", own(2, role="promoting"))
    (found,) = world.look()
    assert (found["former"], found["owner"], found["cause"], found["caught_up_us"]) == ("gw-1", "gw-2", "died", 0)
    assert isinstance(found["heard_us"], int)
    assert isinstance(found["seen_us"], int)
    assert found["heard_us"] <= silent_since
    assert found["seen_us"] - found["heard_us"] >= 60_000_000

    world.beat("gw-2", own(2, taking_up=True))
    assert world.look()[0]["caught_up_us"] == 0
    world.beat("gw-2", own(2))
    world.look()
    deadline = time.monotonic() + 10.0
    while not world.takeovers.list()[0]["phases"] and time.monotonic() < deadline:
        time.sleep(0.01)
    (found,) = world.takeovers.list()
    assert found["caught_up_us"]
    assert found["phases"] == {phase: sums[phase] for phase in PHASES}


@pytest.mark.parametrize("leaving", [True, False])
def test_an_owner_that_gives_the_slot_up_has_left_or_moved_it(leaving: bool) -> None:
    world = World()
    world.clock.advance(60.0)
    world.beat("gw-1", own(1))
    world.look()
    world.beat("gw-2", own(2))
    world.beat("gw-1", own(2, role="standby"), leaving=leaving)
    (found,) = world.look()
    assert found["cause"] == ("left" if leaving else "moved")


@pytest.mark.parametrize(
    ("silence_s", "incarnation", "cause"),
    [(0.0, 1, "moved"), (0.08, 1, "moved"), (30.0, 1, "silent"), (0.08, 2, "died"), (30.0, 2, "died")],
)
def test_an_owner_has_died_unless_its_process_is_heard_again(silence_s: float, incarnation: int, cause: str) -> None:
    world = World()
    world.beat("gw-1", own(1))
    world.look()
    world.clock.advance(silence_s)
    world.beat("gw-2", own(2))
    (found,) = world.look(0.0)
    assert found["cause"] == "died"
    world.clock.advance(0.2)
    world.beat("gw-1", own(2, role="standby"), incarnation=incarnation)
    (found,) = world.look()
    assert found["cause"] == cause


def test_the_same_owner_in_a_new_epoch_is_no_takeover() -> None:
    world = World()
    world.beat("gw-1", own(1))
    world.look()
    world.beat("gw-1", own(2))
    assert world.look() == []


def test_the_sums_of_a_slot_are_read_from_metrics() -> None:
    text = "# TYPE tsunagi_takeover_seconds histogram\n"
    for slot, phase, total in ((0, "detect", 0.5), (0, "promote", 0.1), (0, "catch_up", 0.2), (1, "detect", 9.0)):
        labels = f'{{phase="{phase}",slot="{slot}"}}'
        text += f"tsunagi_takeover_seconds_count{labels} 2.0\ntsunagi_takeover_seconds_sum{labels} {total}\n"
    assert sums_of(text, 0) == {"count": 2.0, "detect": 0.5, "promote": 0.1, "catch_up": 0.2}
    assert sums_of(text, 5) == {}
