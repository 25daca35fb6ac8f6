"""Several cells: the same schedules of faults hold, and in a fleet of many workers each reads of a few."""

from __future__ import annotations

import math

import pytest

from tests.bench.fleet_virtual import VirtualFleet
from tests.simulation.run import run_seed
from tsunagi.runtime import log as topics

SEEDS = (1, 2, 3, 4, 5, 6, 7, 8, 13, 22, 31, 90)
"""All kinds of worlds, which go by eights, and some with parts of contexts, queries and deadly readings."""


@pytest.mark.parametrize("seed", SEEDS)
def test_schedules_hold_with_a_cell_for_each_slot(seed: int) -> None:
    assert run_seed(seed, cells=2) == ""


def test_workers_of_a_fleet_hear_their_cells_alone_and_still_notice_deaths() -> None:
    fleet = VirtualFleet(12, 96, 48, cells=6)
    fleet.start()
    fleet.run(3.0)
    before = fleet.take()
    fleet.run(2.0)
    read = {name: taken[0] - before[name][0] for name, taken in fleet.take().items()}
    everything = sum(
        len(record.value or b"") + len(record.key or b"")
        for partition in range(1, 7)
        for record in fleet.log.records(topics.HEARTBEATS, partition)
        if record.appended_us > fleet.clock.now_us() - 2_000_000
    )
    mean = sum(count[topics.HEARTBEATS] for count in read.values()) / len(read)
    assert 0 < mean < 0.5 * everything
    assert not fleet.claimed, "nobody is suspected while all live"
    first, second = sorted(fleet.workers)[:2]
    assert max(fleet.back(fleet.kill(first), 5.0).values()) <= 1.2
    fleet.run(4.0)
    lost = fleet.kill(second)
    assert lost
    assert max(fleet.back(lost, 8.0).values()) < math.inf
    moves = fleet.moves()
    assert all(before in (first, second) or (slot, owner) in moves for slot, before, owner, _ in fleet.claimed), (
        "nobody is suspected who lives"
    )
