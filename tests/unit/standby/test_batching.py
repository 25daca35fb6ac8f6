"""A-SAS under the paper's two disturbances (experiments 4 and 5), and the rules at their corners."""

from __future__ import annotations

import math
from typing import Any

import pytest

from services.runtime.settings import Standby, Target
from services.standby.batching import Batching
from tests.unit.standby.stand_in import RECORD_BYTES, StandIn

OVERHEAD = RECORD_BYTES / 44.0
"""The paper's limits are for tuples of 44 bytes and nothing around them."""


def settled(stand_in: StandIn, after_s: float, limit: float) -> float:
    """Return when the recovery time was above the limit last, seconds after the disturbance."""
    above = [at - after_s for at, _, recovery in stand_in.history if at > after_s and recovery > limit]
    return max(above, default=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["step", "model"])
def test_a_rate_ten_times_as_high_is_within_both_limits_again_in_two_seconds(policy: Any) -> None:
    limits = {"max_bandwidth": 30_000 * OVERHEAD, "max_recovery_s": 0.080, "priority": "recovery"}
    standby = Standby(batch_size=1, policy=policy, cost_period_s=1.0, **limits)
    asked = StandIn(rate=100.0, standby=standby, process_s=0.0001, acks_s=0.25).run(10.0)
    asked.rate = 1000.0
    asked.run(2.0)
    for _ in range(8):
        asked.run(1.0)
        assert asked.bandwidth(1.0) <= 30_000 * OVERHEAD
        assert asked.recovery_s() <= 0.080


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["step", "model"])
def test_where_both_limits_cannot_be_the_one_with_priority_is_kept(policy: Any) -> None:
    for priority in ("recovery", "bandwidth"):
        limits = {"max_bandwidth": 15_000 * OVERHEAD, "max_recovery_s": 0.100, "priority": priority}
        standby = Standby(batch_size=1, policy=policy, **limits)
        asked = StandIn(rate=500.0, standby=standby, process_s=0.00002, owner_s=0.00002, acks_s=3.0).run(10.0)
        assert asked.bandwidth(1.0) <= 15_000 * OVERHEAD
        asked.process_s = asked.owner_s = 0.001
        asked.run(6.0)
        if priority == "recovery":
            assert asked.recovery_s() <= 0.110
            assert asked.bandwidth(2.0) > 15_000 * OVERHEAD
        else:
            assert asked.bandwidth(2.0) <= 15_000 * OVERHEAD
        verdict = asked.batching.verdict
        assert verdict is not None
        assert not (verdict.recovery_ok and verdict.bandwidth_ok)


def test_the_model_is_there_before_the_steps_are() -> None:
    found = {}
    for policy in ("step", "model"):
        standby = Standby(batch_size=500, policy=policy, cost_period_s=1.0, max_recovery_s=0.050)
        asked = StandIn(rate=1000.0, standby=standby, process_s=0.00005, owner_s=0.00005, acks_s=1.0).run(5.0)
        asked.process_s = asked.owner_s = 0.001
        asked.run(5.0)
        found[policy] = settled(asked, 5.0, 0.050 * 1.1)
    assert found["model"] < found["step"]
    assert found["model"] <= 1.0


def test_a_secondary_of_half_the_speed_stays_within_its_limit() -> None:
    standby = Standby(batch_size=100, max_recovery_s=0.100)
    asked = StandIn(rate=500.0, standby=standby, process_s=0.002, owner_s=0.001, acks_s=1.0).run(5.0)
    assert asked.recovery_s() <= 0.100


def test_without_a_limit_or_with_a_fixed_policy_nothing_changes() -> None:
    for standby in (Standby(batch_size=70), Standby(batch_size=70, policy="fixed", max_bandwidth=1.0)):
        asked = StandIn(rate=1000.0, standby=standby).run(3.0)
        assert asked.batch == 70.0


def test_the_slack_of_a_limit_is_spent_on_what_has_priority() -> None:
    common: dict[str, Any] = {"batch_size": 10, "max_bandwidth": 90_000.0, "max_recovery_s": 0.2, "cost_period_s": 1.0}
    quick = StandIn(rate=1000.0, standby=Standby(priority="recovery", **common), process_s=0.0005).run(6.0)
    cheap = StandIn(rate=1000.0, standby=Standby(priority="bandwidth", **common), process_s=0.0005).run(6.0)
    assert quick.batch < cheap.batch
    assert cheap.bandwidth(2.0) < quick.bandwidth(2.0) <= 90_000.0
    assert quick.recovery_s() < cheap.recovery_s() <= 0.2


def test_a_limit_of_recovery_alone_costs_as_little_bandwidth_as_can_be() -> None:
    asked = StandIn(rate=1000.0, standby=Standby(batch_size=1, max_recovery_s=0.1), process_s=0.001, acks_s=5.0).run(
        6.0
    )
    assert 20.0 <= asked.batch <= 60.0
    assert 0.05 <= asked.recovery_s() <= 0.1


def test_from_infinity_the_steps_lead_down() -> None:
    standby = Standby(batch_size="inf", policy="step", max_recovery_s=0.050)
    asked = StandIn(rate=1000.0, standby=standby, process_s=0.001, owner_s=0.001, acks_s=1.0).run(5.0)
    assert asked.recovery_s() <= 0.055


def test_a_slot_can_have_targets_of_its_own_and_others_while_it_runs() -> None:
    standby = Standby(batch_size=100, max_recovery_s=1.0, slots={1: {"batch_size": 7, "policy": "fixed"}})
    assert Batching(standby, 0).batch_tuples == 100.0
    own = Batching(standby, 1)
    assert (own.batch_tuples, own.target.policy, own.target.max_recovery_s) == (7.0, "fixed", 1.0)
    own.aim(Target(batch_size="inf"))
    assert own.decide(0.0) == math.inf
    own.aim(None)
    assert own.decide(1.0) == 7.0
