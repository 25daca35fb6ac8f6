"""A client that has lost sight of one partition says nothing of it, while all others go on: librdkafka can be so."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.checker import check
from tests.simulation.world import World
from tsunagi.runtime import log as topics
from tsunagi.runtime.log import Record
from tsunagi.standby.detector import STUCK_S

SLOT = 0


@pytest.mark.parametrize("seed", [1, 2, 4, 5])
def test_an_owner_that_reads_its_slot_no_more_is_replaced_and_ends(seed: int) -> None:
    world = World.of_seed(seed)
    world.run(12.0)
    name = world.owner(SLOT)
    host: Any = world.nodes[name].made
    read = host._main.read

    def blind(max_records: int, timeout_s: float, **_: Any) -> list[Record]:
        found = read(max_records, timeout_s)
        return [record for record in found if (record.topic, record.partition) != (topics.TUPLES, SLOT)]

    host._main.read = blind
    # Until it is replaced the blind owner takes the edges for silent: their steps close without them.
    world.struck |= {name, *(edge.name for edge in world.edges)}
    world.run(STUCK_S + 2.0)
    assert world.owner(SLOT) != name
    world.run(STUCK_S + 6.0)
    assert any(event.startswith(f"{name} ended: slot {SLOT}") for _, event in world.events)
    assert world.nodes[name].made is not host
    assert check(world) == []
