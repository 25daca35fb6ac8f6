"""The schedules once more, while somebody appends genuine records again, of every topic, as they stand.

Nobody signs here, so what holds repeats back is the rule of each kind of record alone.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import pytest

from tests.simulation.checker import check
from tests.simulation.fleet import SLOTS
from tests.simulation.schedule import run_schedule
from tests.simulation.world import World
from tsunagi.owner.closer import Closer
from tsunagi.runtime import log as topics
from tsunagi.runtime.log import LogError, Record
from tsunagi.runtime.messages import Heartbeat, LogRecord, Plan, RecoveryTarget, StandbyTarget, Workers
from tsunagi.runtime.plan import Words
from tsunagi.slot.edges import NEVER
from tsunagi.slot.ownership import Register
from tsunagi.slot.steps import StepBook
from tsunagi.standby.detector import Detector

SEEDS = (3, 5, 21)
OF_CONTROL = 0.5
"""The share of control records among the repeats in `tuples`: they are few, and drawn evenly would hardly come."""

RATE = 0.15
"""Repeats in a turn of the world."""


class Repeating(World):
    """A world in which edges leave in good order now and then, people ask for things, and records come again."""

    def __init__(self, seed: int, **options: Any) -> None:
        super().__init__(seed, **options)
        self.draw = random.Random(seed + 99)
        self.asked: dict[str, Plan] = {}
        self.repeating = True
        self.farewells: list[Record] = []

    def tick(self) -> None:
        super().tick()
        if self.broker_up and self.repeating and self.draw.random() < RATE:
            self._repeat()
        if self.broker_up and self.repeating and self.draw.random() < 0.01:
            self._ask()

    def kill_edge(self, number: int, down_s: float, *, repeats: bool = False) -> None:
        edge = self.edges[number]
        if edge.producer is not None and edge.name not in self.cut and self.draw.random() < 0.5:
            edge.beat(leaving=True)
            self.run(0.2)  # it arrives
            said = reversed(self.log.records(topics.HEARTBEATS))
            last = next(record for record in said if record.key == edge.name.encode())
            self.farewells += [last] * Heartbeat.FromString(last.value or b"").leaving
        super().kill_edge(number, down_s, repeats=repeats)

    def _repeat(self) -> None:
        topic = self.draw.choice((topics.TUPLES, topics.HEARTBEATS, topics.PLAN, topics.ACKS, topics.CONTEXTS))
        partition = self.draw.randrange(SLOTS) if topic in (topics.TUPLES, topics.CONTEXTS) else 0
        records = self.log.records(topic, partition)
        if topic == topics.TUPLES and self.draw.random() < OF_CONTROL:
            records = [record for record in records if (record.key or b"").startswith(b"!")]
        elif topic == topics.HEARTBEATS and self.farewells and self.draw.random() < 0.5:
            records = self.farewells
        if records:
            record = self.draw.choice(records)
            place = topic, partition, self.log.stored(topic, partition).end
            self.repeats.add(place)
            if (topic, partition, record.offset) in self.damaged:
                self.damaged.add(place)
            self.log.append(topic, partition, record.key, record.value)

    def _ask(self) -> None:
        """Ask for one of the things that operators ask for."""
        key, body = self.draw.choice(
            (
                ("target/0", {"target": StandbyTarget(slot=0, batch_size=self.draw.randrange(1, 50))}),
                ("recovery", {"recovery": RecoveryTarget(delta=self.draw.uniform(0.5, 0.99))}),
                ("workers", {"workers": Workers(count={"local": 4}, by=f"operator {self.draw.random()}")}),
            )
        )
        self.asked[key] = self.ask(key, **body)


def complaints(seed: int) -> list[str]:
    """Run a schedule with repeats; return what does not hold."""
    world = Repeating.of_seed(seed)
    assert isinstance(world, Repeating)
    try:
        run_schedule(world)
        world.repeating = False
        world.run(1.0)  # what follows from the last of them arrives
    except (AssertionError, LogError, LookupError, ValueError) as error:
        return [f"{type(error).__name__}: {error}"]
    return [*check(world), *_not_in_force(world), *_verdicts(world)]


def _not_in_force(world: Repeating) -> list[str]:
    """What was asked for last is in force in every worker, those that started anew included."""
    wrong = []
    for node in world.nodes.values():
        book = None if node.made is None else node.made._plan
        if book is None:
            continue
        found = {"recovery": book._recovery, "target/0": book._targets.get(0)}
        for key in found.keys() & world.asked.keys():
            asked = world.asked[key]
            if found[key] != getattr(asked, str(asked.WhichOneof("body"))):
                wrong.append(f"{node.name}: {key} is not what was asked for last")
    return wrong


def _verdicts(world: Repeating) -> list[str]:
    """If all else is well, an edge is put out when something struck it; twice, if a batch comes after its last word."""
    if world.struck & {*world.nodes, "broker"}:
        return []
    wrong = []
    for slot in range(SLOTS):
        records = [item for item in world.usable(topics.TUPLES, slot) if (item.key or b"").startswith(b"!")]
        written = [item for item in records if (topics.TUPLES, slot, item.offset) not in world.repeats]
        bodies = [LogRecord.FromString(item.value or b"") for item in written]
        outs = Counter(body.edge_out.edge for body in bodies if 0 < body.edge_out.from_step < NEVER)
        for edge, count in outs.items():
            strikes = sum(edge in event for _, event in world.events if event.startswith(("kill", "cut")))
            if count > 2 * strikes:
                wrong.append(f"slot {slot}: {edge} was put out {count} times, struck {strikes} times")
    return wrong


@pytest.mark.parametrize("seed", SEEDS)
def test_records_that_come_again_change_nothing(seed: int) -> None:
    assert complaints(seed) == []


def _last_word_counts(self: Words, plan: Plan, offset: int) -> bool:
    return plan.WhichOneof("body") is not None


_on_heartbeat = Detector.on_heartbeat


def _all_is_news(self: Detector, beat: Heartbeat, now: float) -> bool:
    _on_heartbeat(self, beat, now)
    return True


_read = Register.read


def _unnumbered(self: Register, offset: int, record: LogRecord) -> bool:
    self.serial = 0
    return _read(self, offset, record)


def _left_for_good(self: Closer, book: StepBook, name: str) -> bool:
    return name in self._left


PLANTED: dict[str, tuple[tuple[int, ...], tuple[tuple[type, str, Any], ...]]] = {
    "the last word in the plan counts": ((3, 4, 5), ((Words, "take", _last_word_counts),)),
    "a control record of the same epoch counts again": ((6, 11, 13), ((Register, "read", _unnumbered),)),
    "an edge that has left is out whatever is said since": (
        (37, 11, 2),
        ((Detector, "on_heartbeat", _all_is_news), (Closer, "_has_left", _left_for_good)),
    ),
}
"""What is wrong -> (seeds, the methods that are patched, and by what). Several seeds are tried, since what a seed
strikes changes with the fields of messages."""


@pytest.mark.parametrize("bug", PLANTED)
def test_without_a_rule_the_repeats_are_found(bug: str) -> None:
    seeds, patches = PLANTED[bug]
    with ExitStack() as planted:
        for owner, name, wrong in patches:
            planted.enter_context(patch.object(owner, name, wrong))
        assert any(complaints(seed) for seed in seeds)
