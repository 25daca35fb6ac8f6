"""A whole edge on a live source whose wall clock jumps, or is wrong from the start."""

from __future__ import annotations

import pytest
import structlog

from tests.unit.edge.worlds import (
    DISORDER_US,
    SLIDE_US,
    WINDOW_US,
    LiveWorld,
    live_steps,
)
from tsunagi.edge.live import LiveSource
from tsunagi.edge.service import EdgeService

HOUR_US = 3_600_000_000


@pytest.mark.parametrize("jump_us", [-HOUR_US, -3_000_000, 3_000_000, HOUR_US])
def test_a_clock_that_jumps_costs_no_step_names_none_twice_and_is_said(tmp_path, jump_us):
    world = LiveWorld(tmp_path)
    edge = world.edge()
    world.run(edge, 5)
    first = live_steps(world)[0]
    world.clock.skew_us = jump_us
    world.run(edge, 5)
    ready, reason = edge.ready()
    assert ready
    assert reason == f"the clock has jumped by {jump_us / 1e6:+.1f} s: steps go on as before it"
    world.clock.skew_us = 0
    world.run(edge, 5)
    assert edge.ready() == (True, "")
    assert edge._counts.clock_jumps._value.get() >= 2
    found = [batch.step for _, batch in world.batches()]
    assert len(found) == 2 * len(set(found))
    assert live_steps(world) == list(range(first, (world.clock.now_us() - DISORDER_US) // SLIDE_US + 1))
    edge.close()


def test_an_edge_whose_clock_was_wrong_from_its_start_goes_on_at_the_true_time_when_it_is_set_right(tmp_path):
    world = LiveWorld(tmp_path)
    world.clock.skew_us = HOUR_US
    edge = world.edge()
    world.run(edge, 5)
    wrong = live_steps(world)
    world.clock.skew_us = 0
    world.run(edge, 5)
    right = sorted(set(live_steps(world)) - set(wrong))
    assert right == list(range(right[0], (world.clock.now_us() - DISORDER_US) // SLIDE_US + 1))
    assert len(right) * SLIDE_US > 5e6 - WINDOW_US - 1e6
    assert edge.ready() == (True, "")
    found = [batch.step for _, batch in world.batches()]
    assert len(found) == 2 * len(set(found))
    world.clock.skew_us = -HOUR_US  # slow from now on, and the log says that this is wrong
    world.run(edge, 2)
    assert edge.publisher.last_step is not None
    assert edge.publisher.last_step > right[-1]
    edge.close()


@pytest.mark.parametrize("mode", ["steps", "tuples"])
def test_a_wait_for_the_next_step_is_said_where_there_are_steps(tmp_path, mode):
    world = LiveWorld(tmp_path)
    world.settings = world.settings.model_copy(update={"query": world.settings.query.model_copy(update={"mode": mode})})
    world.clock.skew_us = 2_000_000  # within what slots take
    edge = world.edge()
    for _ in range(100):
        world.feed.say("s0", world.clock.now_us())
        world.run(edge, 0.05)
    assert edge.ready() == (True, "")
    assert edge.publisher.last_step is not None
    world.clock.skew_us = 0
    world.run(edge, 0.2)
    said = edge.ready()[1]
    assert said.startswith("the clock was set back: the next step comes in 1.") if mode == "steps" else said == ""
    world.run(edge, 5)
    assert edge.ready() == (True, "")
    found = [batch.step for _, batch in world.batches()]
    slots = 2 if mode == "steps" else 1
    assert len(found) == slots * len(set(found))
    edge.close()


def test_readings_are_stamped_by_the_edges_clock_while_the_wall_clock_is_off(tmp_path):
    world = LiveWorld(tmp_path, kind="lines", lines={"listen": "127.0.0.1:0"})
    logger = structlog.stdlib.get_logger("test")
    edge = EdgeService(world.settings, "a", world.log.client("a"), world.clock, logger)
    world.run(edge, 3)
    world.clock.skew_us = -HOUR_US
    world.run(edge, 1)
    source = edge._source
    assert isinstance(source, LiveSource)
    assert source._inbox.now_us() == world.clock.now_us() + HOUR_US
    edge.close()
