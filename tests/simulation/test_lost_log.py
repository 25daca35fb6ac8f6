"""Logs that lose their end on running hosts or with all of them, topics made anew, retention that outlasts all."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation import strikes
from tests.simulation.checker import check, expected
from tests.simulation.fleet import SLOTS
from tests.simulation.planted import PLANTED_IN_LOST_LOGS
from tests.simulation.world import World
from tsunagi.runtime import log as topics
from tsunagi.runtime.messages import Recovered

SETTLE_S = 8.0


def end_lost_by_running_hosts(world: World) -> None:
    strikes.lose_end(world, 0, world.rng.randrange(1, 20))


def end_lost_with_all(world: World) -> None:
    strikes.lose_end(world, 0, world.rng.choice((3, 12, 60)), all_die=True)


def end_lost_twice(world: World) -> None:
    strikes.lose_end(world, 1, world.rng.randrange(1, 12))
    world.run(world.rng.uniform(0.1, 4.0))
    strikes.lose_end(world, 1, world.rng.randrange(1, 12))


def end_lost_and_the_owner_killed(world: World) -> None:
    strikes.lose_end(world, 0, world.rng.randrange(1, 20))
    world.run(world.rng.uniform(2.0, 4.0))
    world.kill(world.owner(0))


def contexts_lost_by_running_hosts(world: World) -> None:
    strikes.lose_end(world, 0, 4, topic=topics.CONTEXTS)
    world.run(3.0)
    world.kill(world.owner(0))


def contexts_lost_with_all(world: World) -> None:
    strikes.lose_end(world, 0, 4, topic=topics.CONTEXTS, all_die=True)


def outputs_lost_by_running_hosts(world: World) -> None:
    strikes.lose_end(world, 0, 6, topic=topics.RECOVERED)


def outputs_lost_with_all(world: World) -> None:
    strikes.lose_end(world, 0, 6, topic=topics.RECOVERED, all_die=True)


def log_made_anew_with_all(world: World) -> None:
    for name in world.nodes:
        world.kill(name)
    strikes.make_anew(world, topics.TUPLES)


def log_made_anew_under_running_hosts(world: World) -> None:
    strikes.make_anew(world, topics.TUPLES)


def retention(world: World) -> None:
    strikes.outlast_retention(world, world.rng.uniform(0.0, 20.0))


FAULTS = (
    end_lost_by_running_hosts,
    end_lost_with_all,
    end_lost_twice,
    end_lost_and_the_owner_killed,
    contexts_lost_by_running_hosts,
    contexts_lost_with_all,
    outputs_lost_by_running_hosts,
    outputs_lost_with_all,
    log_made_anew_with_all,
    log_made_anew_under_running_hosts,
    retention,
)


def struck(fault: Callable[[World], None], seed: int) -> World:
    """Run a world that the fault strikes once."""
    world = World.of_seed(seed)
    world.run(8.0)
    fault(world)
    world.run(SETTLE_S)
    world.heal_all()
    world.run(SETTLE_S)
    return world


@pytest.mark.parametrize(
    ("fault", "seed"),
    [
        *((fault, 2) for fault in FAULTS),
        (end_lost_by_running_hosts, 7),  # a standby writes ahead what the log has lost since
        (end_lost_by_running_hosts, 13),  # the process that takes over read nothing of what was lost
        (end_lost_twice, 14),  # outputs of the generation before are on their way when the second one begins
        (end_lost_twice, 19),  # the generation that the first loss began is read again
        (end_lost_twice, 24),  # a standby that helps reads on into the generation that the first loss began
        (end_lost_twice, 30),  # an output of the generation before is the last in `recovered`
        (end_lost_twice, 45),  # behind the second jump in the log's times nothing was lost, behind the first one was
        (end_lost_twice, 54),  # the last output is a repeat of one that an acknowledgement covers
        (end_lost_twice, 141),  # the last output is named after a record that makes none
    ],
)
def test_what_follows_from_the_log_that_is_there_is_written_and_what_is_lost_is_declared(
    fault: Callable[[World], None], seed: int
) -> None:
    world = struck(fault, seed)
    assert check(world) == []


def test_large_contexts_are_written_in_parts_and_taken_by_who_starts_after_retention() -> None:
    world = World(2, standby={"batch_size": 20, "context_bytes": 300})
    world.run(8.0)
    for slot in range(SLOTS):
        world.log.truncate(topics.TUPLES, slot, world.log.stored(topics.TUPLES, slot).end - 45)
    for name in world.nodes:
        world.kill(name)
    world.run(6.0)
    assert all(len(world.log.records(topics.CONTEXTS, slot)) > 20 for slot in range(SLOTS))
    parts = [part for beat in world.last_beats().values() for part in beat.slots]
    assert sorted(part.slot for part in parts if part.role == "primary") == list(range(SLOTS))
    assert not any(part.declared for part in parts)
    for slot in range(SLOTS):
        last = Recovered.FromString(world.log.records(topics.RECOVERED, slot)[-1].value or b"")
        assert world.step_now - last.step < 5


@pytest.mark.parametrize("seed", [4])
def test_all_that_edges_send_after_retention_comes_out(seed: int) -> None:
    world = struck(retention, seed)
    for slot in range(SLOTS):
        generation = expected(world, slot).begun[-1].generation
        messages = [Recovered.FromString(record.value or b"") for record in world.log.records(topics.RECOVERED, slot)]
        steps = [message.step for message in messages if message.generation == generation]
        assert len(steps) > 5 * (2 * SETTLE_S - 3.0)


@pytest.mark.parametrize(
    ("bug", "fault"),
    [
        ("records are not compared", end_lost_by_running_hosts),
        ("the last output is taken for one of this log", end_lost_with_all),
        ("a new generation keeps its name", end_lost_with_all),
        ("nobody begins a generation", retention),
        ("outputs that the log has lost are passed over", outputs_lost_with_all),
    ],
)
def test_a_planted_bug_is_found(bug: str, fault: Callable[[World], None]) -> None:
    """Not every schedule shows it, and which do changes with every change of a time."""
    with PLANTED_IN_LOST_LOGS[bug]():
        assert any(check(struck(fault, seed)) for seed in range(2, 7))
