"""A simulation that finds nothing proves nothing: every planted bug must be found, and soon."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

import pytest

from tests.simulation.checker import check
from tests.simulation.planted import PLANTED
from tests.simulation.schedule import SPECIAL, kinds_of, run_schedule
from tests.simulation.world import World
from tsunagi.runtime.log import LogError

SCHEDULES = 40
"""A bug that so many schedules do not find counts as missed."""

SEEDS = {
    "a new owner begins after the wrong name": 4,
    "an ownership counts whatever its epoch": 44,
    "the last of several claims wins": 44,
    "a void control record counts": 4,
    "a control record carries another epoch": 5,
    "an ack claims outputs that are on their way": 1,
    "a Level-1-Ack does not wait for its outputs": 1,
    "a Level-1-Ack names another position": 1,
    "the silent queue is not trimmed": 1,
    "the silent queue is trimmed too far": 4,
    "a new owner forgets its silent queue": 4,
    "a context lacks the open batches": 2,
    "a context lacks the edges": 1,
    "a duplicate counts": 13,
    "an edge that is out stays out": 12,
    "what was set aside is lost": 1,
    "a deposed primary goes on": 3,
    "silence counts while one's own heartbeats stay away": 1,
    "an outage of the broker is held against the edges": 1,
    "a jump to a context without replay": 2,
    "a primary follows its log from one record late": 1,
    "a speculation passes over what the owner survived": 47,
    "a speculation begins behind what was computed": 23,
    "a reader passes a record over": 1,
    "a context lacks the helpers": 3,
    "a context lacks the helpers' readings": 3,
    "an owner goes by helpers that are not in the log": 11,
    "a refit makes the filter forget": 3,
    "a batch that an edge hands over is lost": 2,
    "compaction takes acknowledgements that count": 4,
    "an edge follows every jump of its machine's clock": 1,
    "what nobody may compute with is computed with": 2,
    "two owners that die on a record prove nothing": 7,
    "an owner dies of a state that it cannot write down": 12,
    "new settings forget the open batches": 234,
    "a context is taken though parts of it are lost": 40,
    "an edge whose heartbeats stay away is gone": 5,
    "two processes of one name go on": 27,
    "a sensor that moves stays in its old slot as well": 11,
    "sensors move before all slots are ready": 11,
}
"""Planted bug -> a seed that finds it, tried first; when the world has changed another may have to."""

NEEDS = {
    "compaction takes acknowledgements that count": "clean-die",
    "an edge follows every jump of its machine's clock": "clock-edge",
    "what nobody may compute with is computed with": "damage",
    "two owners that die on a record prove nothing": "die-of-reading",
    "an owner dies of a state that it cannot write down": "wedge",
    "new settings forget the open batches": "settings-all",
    "a context is taken though parts of it are lost": "lose-parts",
    "an edge whose heartbeats stay away is gone": "mute-edge",
    "two processes of one name go on": "namesake",
    "a sensor that moves stays in its old slot as well": "move",
    "sensors move before all slots are ready": "move",
}
"""Planted bug -> the strike that alone finds it; schedules without that are not tried."""

SPECULATES, HAS_MODEL = (7,), (3, 5)
KINDS = {
    "a speculation passes over what the owner survived": SPECULATES,
    "a speculation begins behind what was computed": SPECULATES,
    "a context lacks the helpers": HAS_MODEL,
    "a context lacks the helpers' readings": HAS_MODEL,
    "an owner goes by helpers that are not in the log": HAS_MODEL,
    "a refit makes the filter forget": HAS_MODEL,
}
"""Planted bug -> the kinds of worlds, which go by eights, in which it can do anything at all."""


def seeds(bug: str) -> Iterator[int]:
    """Return the seeds to try, in their order."""
    if bug in SEEDS:
        yield SEEDS[bug]
    kinds = KINDS.get(bug, range(8))
    able = (seed for seed in count(1) if seed % 8 in kinds)
    if bug in NEEDS:
        able = (seed for seed in able if NEEDS[bug] in kinds_of(World.of_seed(seed)))
    yield from islice(able, SCHEDULES)


def without(bug: str) -> frozenset[str]:
    """Return the strikes that a bug is looked for without."""
    return frozenset() if bug in NEEDS else SPECIAL


def complaints(bug: str, seed: int) -> list[str]:
    """Run one schedule with a planted bug; return what the checker says, [] = it was not found."""
    world = World.of_seed(seed)
    with PLANTED[bug]():
        try:
            run_schedule(world, without=without(bug))
        except (AssertionError, LogError, LookupError, ValueError) as error:
            return [f"{type(error).__name__}: {error}"]
    return check(world)


def search(bug: str) -> int | None:
    """Return the first seed that finds a bug, None = none of them does."""
    return next((seed for seed in seeds(bug) if complaints(bug, seed)), None)


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str) -> None:
    assert search(bug) is not None


@pytest.mark.parametrize(("seed", "needs"), sorted({(seed, bug in NEEDS) for bug, seed in SEEDS.items()}))
def test_without_it_the_same_schedule_is_clean(seed: int, needs: bool) -> None:
    world = World.of_seed(seed)
    run_schedule(world, without=frozenset() if needs else SPECIAL)
    assert check(world) == []
