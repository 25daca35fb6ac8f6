"""Seeded fault schedules over the real hosts and the real scaler; a failing run prints its seed and events."""

from __future__ import annotations

import os

import pytest

from tests.simulation.checker import check
from tests.simulation.schedule import run_schedule
from tests.simulation.world import World

SCHEDULES = int(os.environ.get("TSUNAGI_SIMULATIONS", "120"))
FIRST = int(os.environ.get("TSUNAGI_SIMULATION_SEED", "1"))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SCHEDULES))
def test_schedule(seed: int) -> None:
    world = World.of_seed(seed)
    run_schedule(world)
    wrong = check(world)
    history = "\n".join(f"  {at:8.3f} {event}" for at, event in world.events)
    assert not wrong, f"seed {seed}: {wrong}\n{history}"
