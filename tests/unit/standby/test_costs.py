"""The cost models against a secondary that is played through; time is the test's."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.unit.standby.stand_in import POLL_S, StandIn
from tsunagi.standby.costs import GRID, OWNER_KEPT, TAKEOVER_ASKS, TAKEOVER_READS, LogExtent, StandbyCosts, Wire


def grid_place(batch: float) -> int:
    return int(np.searchsorted(GRID, batch))


@pytest.mark.parametrize("batch", [1.0, 50.0, 200.0, 330.0, 1e5])
def test_a_shadow_reads_what_a_secondary_with_that_batch_size_reads(batch: float) -> None:
    batch = float(GRID[grid_place(batch)])
    asked = StandIn(rate=1000.0, batch=1.0)
    real = StandIn(rate=1000.0, batch=batch)
    for _ in range(round(8.0 / POLL_S)):
        asked.poll()
        real.poll()
    shadow = asked.costs.bandwidth()[grid_place(batch)]
    assert shadow == pytest.approx(real.bandwidth(2.0), rel=0.15, abs=1.0)
    assert real.costs.estimate(batch).bandwidth == pytest.approx(real.bandwidth(2.0), rel=0.15, abs=1.0)


def test_what_is_trimmed_before_it_is_read_costs_nothing() -> None:
    costs = StandIn(rate=1000.0, batch=50.0, acks_s=0.25).run(5.0).costs
    bandwidth = costs.bandwidth()
    assert bandwidth[grid_place(1)] == pytest.approx(1000 * 114, rel=0.1)
    assert bandwidth[grid_place(1000)] == 0.0
    assert 0.0 < bandwidth[grid_place(180)] < 0.9 * bandwidth[grid_place(1)]


def test_without_resume_points_every_batch_size_reads_everything() -> None:
    costs = StandIn(rate=1000.0, batch=50.0, acks_s=math.inf).run(5.0).costs
    assert costs.bandwidth()[grid_place(300)] == pytest.approx(1000 * 114, rel=0.2)
    assert costs.most_held() == math.inf
    assert costs.estimate(math.inf).recovery_s == math.inf


def test_recovery_is_the_batch_times_the_costs_of_a_tuple() -> None:
    asked = StandIn(rate=1000.0, batch=100.0, acks_s=9.0, process_s=0.001, request_s=0.004, send_s=0.00002)
    asked.run(5.0)
    estimate = asked.costs.estimate(100.0)
    assert estimate.process_s == pytest.approx(0.001, rel=0.01)
    most = 100 + 1000 * POLL_S - 1  # a look comes when up to so many are held
    assert most * estimate.send_s == pytest.approx(0.006, rel=0.1)  # pulls of one size tell no slope
    assert estimate.recovery_s == pytest.approx(most * (estimate.send_s + estimate.process_s))
    asked.costs.on_asked(0.002)
    assert asked.costs.takeover_s() == pytest.approx(0.002 * TAKEOVER_ASKS + 0.006 * TAKEOVER_READS, rel=0.1)
    assert asked.costs.estimate(100.0).recovery_s == pytest.approx(estimate.recovery_s + asked.costs.takeover_s())
    assert estimate.tuple_bytes == pytest.approx(114.0)
    assert estimate.sends_per_s * 100 == pytest.approx(1000, rel=0.1)


def test_pulls_of_several_sizes_tell_the_request_from_its_tuples() -> None:
    costs = StandbyCosts(2.0)
    costs.on_extent(0.0, LogExtent(10, 0, 0, 1.0, 114.0))
    for tuples in (10, 100, 200, 400):
        costs.on_pull(0.1, 0.004 + tuples * 0.00005, tuples)
    assert costs.send_s(np.array([1.0, 1000.0])) == pytest.approx([0.004, 0.054], rel=0.1)


def test_no_more_is_read_again_than_the_log_holds() -> None:
    costs = StandIn(rate=1000.0, batch=50.0, acks_s=0.25, process_s=0.001).run(5.0).costs
    assert costs.most_held() == pytest.approx(0.25 * 1000 + 50, rel=0.3)
    assert costs.estimate(math.inf).recovery_s == pytest.approx(costs.most_held() * 0.001, rel=0.2)


def test_a_standby_that_has_had_no_time_says_how_long_a_takeover_would_take_now() -> None:
    costs = StandIn(rate=1000.0, batch=50.0, acks_s=math.inf, process_s=0.001).run(5.0).costs
    usual_s = costs.estimate(50.0).recovery_s
    costs.behind = 60.0  # a little more than B is usual
    assert costs.estimate(50.0).recovery_s == usual_s
    costs.behind = 2000.0
    assert costs.estimate(50.0).recovery_s == pytest.approx(2.0, rel=0.1)


def test_what_comes_over_the_network_is_measured_not_assumed() -> None:
    wire = Wire()
    assert wire.update(20_000.0, 50.0) == 1.0  # of getting ready
    assert wire.update(20_100.0, 10.0) == 1.0  # too little to tell
    wire = Wire()
    wire.update(0.0, 0.0)
    for second in range(1, 20):
        factor = wire.update(15_000.0 * second, 10_000.0)
    assert factor == pytest.approx(1.5, rel=0.01)
    for second in range(20, 140):
        factor = wire.update(15_000.0 * 19 + 9_000.0 * (second - 19), 10_000.0)
    assert factor == pytest.approx(0.9, rel=0.03)


def test_a_secondary_of_half_the_speed_is_told_right() -> None:
    slow = StandIn(rate=500.0, batch=100.0, process_s=0.002, owner_s=0.001).run(5.0)
    assert slow.costs.process_s() == pytest.approx(0.002)


def test_a_change_is_noticed_by_the_owners_cost_before_the_secondary_works_again() -> None:
    asked = StandIn(rate=500.0, batch=100.0, process_s=0.0001, owner_s=0.00005).run(5.0)
    for _ in range(OWNER_KEPT // 2 + 1):
        asked.costs.on_owner(0.001)
    assert asked.costs.process_s() == pytest.approx(0.002)


def test_one_heartbeat_of_an_owner_that_was_held_up_changes_nothing() -> None:
    asked = StandIn(rate=500.0, batch=100.0, process_s=0.001, owner_s=0.001).run(5.0)
    asked.costs.on_owner(0.005)
    assert asked.costs.process_s() == pytest.approx(0.001)


def test_before_anything_is_measured_the_owner_is_believed() -> None:
    costs = StandbyCosts(2.0)
    assert costs.process_s() == costs.takeover_s() == 0.0
    costs.on_asked(0.002)  # no read has been measured: as long as asking
    assert costs.takeover_s() == pytest.approx(0.002 * (TAKEOVER_ASKS + TAKEOVER_READS))
    costs.on_extent(0.0, LogExtent(10, 0, 0, 10.0, 100.0))
    costs.on_owner(0.01)
    assert costs.process_s() == pytest.approx(0.001)
    assert costs.estimate(100.0).bandwidth == 0.0


def test_a_log_that_is_acknowledged_to_its_end_holds_nothing() -> None:
    costs = StandbyCosts(2.0)
    costs.on_extent(0.0, LogExtent(10, 10, 0, 5.0, 100.0))
    assert costs.estimate(1.0).tuple_bytes == 20.0
    assert costs.most_held() == 0.0
    assert costs.estimate(math.inf).recovery_s == 0.0


def test_what_is_older_than_the_period_is_forgotten_down_to_a_few() -> None:
    costs = StandbyCosts(2.0)
    costs.on_extent(0.0, LogExtent(1000, 10, 0, 1.0, 100.0))
    for at in range(10):
        costs.on_pull(float(at), 1.0 if at < 6 else 0.5, 1)
    assert costs.takeover_s() == 0.0  # nobody has asked yet
    assert costs.send_s(np.array([1.0]))[0] == pytest.approx(0.5)  # of the last four
    costs.on_extent(9.0, LogExtent(20, 10, 0, 1.0, 100.0))
    assert costs.most_held() == 10.0


def test_a_jump_to_a_context_pays_where_the_context_is_smaller_than_what_it_spares() -> None:
    for context_bytes, read in ((400, 400.0), (500, 500.0), (600, 500.0)):
        costs = StandbyCosts(1.0)
        costs.on_extent(0.0, LogExtent(0, 0, context_bytes, 1.0, 100.0))
        costs.on_extent(1.0, LogExtent(5, 5, context_bytes, 1.0, 100.0))
        costs.on_extent(1.5, LogExtent(5 + 10**6, 5, context_bytes, 1.0, 100.0))
        assert costs.bandwidth()[-1] * 1.5 == pytest.approx(read + 1e8, abs=1.0)
