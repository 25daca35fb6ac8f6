"""The edge's own loop on the log in memory, under a clock that the test moves."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.unit.edge.worlds import ROWS, SLIDE, SLOTS, WINDOW, steps_of
from tsunagi.edge.spool import RETRY_S
from tsunagi.runtime.columns import floats, pack_sensors, sensors
from tsunagi.runtime.log import PLAN
from tsunagi.runtime.messages import (
    VERSION,
    HelperRequest,
    Plan,
    TupleBatch,
)
from tsunagi.runtime.testing import Network


def test_two_edges_publish_every_whole_window_once_and_end(make):
    world = make().write()
    world.place()
    world.edge("a")
    world.edge("b")
    world.run(12)
    assert all(edge.done for edge in world.edges)
    batches = world.batches()
    world.check(batches)
    first = world.origin_us() // 200_000 + WINDOW // SLIDE
    expected = list(range(first, first + (ROWS - 1 - WINDOW) // SLIDE + 1))
    assert steps_of(batches, "a") == steps_of(batches, "b") == expected
    assert len(batches) == 2 * SLOTS * len(expected)
    assert world.letters() == []


def test_a_step_is_published_only_when_its_time_is_over(make):
    world = make().write()
    world.place()
    edge = world.edge("a")
    for _ in range(200):
        world.run(0.05)
        for _, batch in world.batches():
            assert batch.event_time_us <= world.clock.now_us()
        assert edge.publisher.last_step is None or edge.publisher.last_step * 200_000 <= world.clock.now_us()


def test_nothing_is_read_before_there_is_a_placement(make):
    world = make().write()
    edge = world.edge("a")
    world.run(3)
    assert edge.ready() == (False, "no placement in the plan yet")
    assert not (world.path / "run" / "origin").exists()
    world.place()
    world.run(12)
    assert edge.ready() == (True, "")
    assert edge.done
    world.check(world.batches())


def test_a_broker_that_is_away_from_the_start_is_waited_for(make):
    world = make().write()
    world.place()
    world.log.stop()
    edge = world.edge("a")
    world.run(3)
    assert edge.ready()[1].startswith("the plan cannot be read")
    world.log.start()
    world.run(12)
    assert edge.done
    world.check(world.batches())


@pytest.mark.parametrize("network", [None, Network((0.0, 0.2), (0.0, 0.1), (0.0, 0.2), (0.0, 0.2))])
def test_an_outage_of_the_broker_costs_nothing(make, network):
    world = make(network).write()
    world.place()
    world.edge("a")
    world.edge("b")
    world.run(4)
    world.log.stop()
    world.run(3)
    assert max(edge.publisher.depth for edge in world.edges) > 10
    world.log.start()
    world.run(8)
    assert all(edge.done for edge in world.edges)
    world.check(world.batches())
    assert len(world.batches()) == 2 * SLOTS * 25


def test_a_full_queue_drops_nothing(make):
    world = make(Network(queue_records=3)).write()
    world.place()
    edge = world.edge("a")
    world.run(4)
    world.log.stop()
    world.run(3)
    world.log.start()
    world.run(6)
    assert edge.done
    world.check(world.batches())
    assert len(world.batches()) == SLOTS * 25


def test_a_sensor_without_a_place_is_counted_and_sent_once_it_has_one(make):
    world = make().write()
    world.place(serial=1, count=4)
    edge = world.edge("a")
    world.run(5)
    assert edge.publisher.unplaced_values > 0
    assert 4 not in {sensor for _, batch in world.batches() for sensor in sensors(batch.sensor).tolist()}
    unplaced = edge.publisher.unplaced_values
    world.place(serial=2)
    world.place(serial=1, count=4)  # an older one changes nothing
    world.run(0.5)
    known = edge.publisher.unplaced_values
    world.run(8)
    assert edge.publisher.unplaced_values == known
    assert known - unplaced <= 3
    assert 4 in {sensor for _, batch in world.batches() for sensor in sensors(batch.sensor).tolist()}
    world.check(world.batches(), whole=False)


def test_sensors_that_another_slot_asks_for_go_there_as_well(make):
    world = make().write()
    world.place()
    edge = world.edge("a")  # sensors 0, 4 in slot 0; 2 in slot 1
    seen: set[tuple[int, int]] = set()

    def ask(slot: int, epoch: int, *wanted: int) -> None:
        plan = Plan(version=VERSION, helpers=HelperRequest(slot=slot, epoch=epoch, sensor=pack_sensors(list(wanted))))
        world.log.append(PLAN, 0, f"helpers/{slot}".encode(), plan.SerializeToString())

    def lent_in(seconds: float) -> list[tuple[int, TupleBatch]]:
        world.run(seconds)
        new = [(slot, batch) for slot, batch in world.batches() if (slot, batch.step) not in seen]
        assert new
        seen.update((slot, batch.step) for slot, batch in new)
        return [(slot, batch) for slot, batch in new if batch.helper]

    assert lent_in(3.5) == []
    ask(1, 3, 0, 1, 2)
    found = lent_in(1.0)
    values = {batch.step: floats(batch.value)[0] for slot, batch in world.batches() if slot == 0}
    assert len(found) >= 3
    for slot, batch in found:
        assert (slot, sensors(batch.sensor).tolist(), sensors(batch.helper).tolist()) == (1, [2], [0])
        assert floats(batch.helper_value).tolist() == [values[batch.step]]
    assert edge.publisher.lent_values == len(found)
    ask(1, 2, 4)  # of an owner that has been deposed since
    assert {tuple(sensors(batch.helper)) for _, batch in lent_in(0.6)} == {(0,)}
    ask(1, 3)
    lent_in(0.4)
    assert lent_in(0.6) == []


def test_a_full_disk_costs_no_step_and_is_said(make, monkeypatch):
    world = make().write()
    world.place()
    edge = world.edge("a")
    world.run(4)
    before = len(steps_of(world.batches()))

    def full(path: Path, *args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        patched.setattr(Path, "open", full)
        world.log.stop()
        world.run(2)
        ready, reason = edge.ready()
        assert ready
        assert "position cannot be written: No space left on device" in reason
        assert "spool is kept in memory alone: No space left on device" in reason
        assert edge._counts._disk._value.get() == 1
        world.log.start()
        world.run(1)
    world.run(6)
    assert edge.done
    world.clock.advance(RETRY_S)
    edge.step()
    assert edge.ready() == (True, "")
    assert edge._counts._disk._value.get() == 0
    world.check(world.batches())
    steps = steps_of(world.batches())
    assert steps == list(range(steps[0], steps[0] + len(steps)))
    assert len(steps) > before
