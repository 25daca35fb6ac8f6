"""A-SAS under the paper's two disturbances (experiments 4 and 5), and the rules at their corners."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.unit.standby.stand_in import RECORD_BYTES, StandIn
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.settings import StandbySettings, Target
from tsunagi.standby.batching import MARGIN, MODEL_INTERVAL_S, STEP_INTERVAL_S, WORTH, Batching
from tsunagi.standby.costs import GRID, Estimate, StandbyCosts

OVERHEAD = RECORD_BYTES / 44.0
"""The paper's limits are for tuples of 44 bytes and nothing around them."""


def settled(stand_in: StandIn, after_s: float, limit: float) -> float:
    """Return when the recovery time was above the limit last, seconds after the disturbance."""
    above = [at - after_s for at, _, recovery in stand_in.history if at > after_s and recovery > limit]
    return max(above, default=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("stepwise", [True, False])
def test_a_rate_ten_times_as_high_is_within_both_limits_again_in_two_seconds(stepwise: bool) -> None:
    limits = {"max_bandwidth": 30_000 * OVERHEAD, "max_recovery_s": 0.080, "priority": "recovery"}
    standby = StandbySettings(batch_size=1, cost_period_s=1.0, **limits)
    asked = StandIn(rate=100.0, standby=standby, stepwise=stepwise, process_s=0.0001, acks_s=0.25).run(10.0)
    asked.rate = 1000.0
    asked.run(2.0)
    for _ in range(8):
        asked.run(1.0)
        assert asked.bandwidth(1.0) <= 30_000 * OVERHEAD
        assert asked.recovery_s() <= 0.080


@pytest.mark.slow
@pytest.mark.parametrize("stepwise", [True, False])
def test_where_both_limits_cannot_be_the_one_with_priority_is_kept(stepwise: bool) -> None:
    for priority in ("recovery", "bandwidth"):
        limits = {"max_bandwidth": 15_000 * OVERHEAD, "max_recovery_s": 0.100, "priority": priority}
        standby = StandbySettings(batch_size=1, **limits)
        asked = StandIn(
            rate=500.0, standby=standby, stepwise=stepwise, process_s=0.00002, owner_s=0.00002, acks_s=3.0
        ).run(10.0)
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
        standby = StandbySettings(batch_size=500, cost_period_s=1.0, max_recovery_s=0.050)
        asked = StandIn(
            rate=1000.0, standby=standby, stepwise=policy == "step", process_s=0.00005, owner_s=0.00005, acks_s=1.0
        ).run(5.0)
        asked.process_s = asked.owner_s = 0.001
        asked.run(5.0)
        found[policy] = settled(asked, 5.0, 0.050 * 1.1)
    assert found["model"] < found["step"]
    assert found["model"] <= 1.0


def test_a_secondary_of_half_the_speed_stays_within_its_limit() -> None:
    standby = StandbySettings(batch_size=100, max_recovery_s=0.100)
    asked = StandIn(rate=500.0, standby=standby, process_s=0.002, owner_s=0.001, acks_s=1.0).run(5.0)
    assert asked.recovery_s() <= 0.100


def test_without_a_limit_or_with_a_fixed_policy_nothing_changes() -> None:
    for standby in (StandbySettings(batch_size=70), StandbySettings(batch_size=70, policy="fixed", max_bandwidth=1.0)):
        asked = StandIn(rate=1000.0, standby=standby).run(3.0)
        assert asked.batch == 70.0


def test_the_slack_of_a_limit_is_spent_on_what_has_priority() -> None:
    common: dict[str, Any] = {"batch_size": 10, "max_bandwidth": 90_000.0, "max_recovery_s": 0.2, "cost_period_s": 1.0}
    quick = StandIn(rate=1000.0, standby=StandbySettings(priority="recovery", **common), process_s=0.0005).run(6.0)
    cheap = StandIn(rate=1000.0, standby=StandbySettings(priority="bandwidth", **common), process_s=0.0005).run(6.0)
    assert quick.batch < cheap.batch
    assert cheap.bandwidth(2.0) < quick.bandwidth(2.0) <= 90_000.0
    assert quick.recovery_s() < cheap.recovery_s() <= 0.2


def test_a_limit_of_recovery_alone_costs_as_little_bandwidth_as_can_be() -> None:
    asked = StandIn(
        rate=1000.0, standby=StandbySettings(batch_size=1, max_recovery_s=0.1), process_s=0.001, acks_s=5.0
    ).run(6.0)
    assert 20.0 <= asked.batch <= 60.0
    assert 0.05 <= asked.recovery_s() <= 0.1


def test_from_infinity_the_steps_lead_down() -> None:
    standby = StandbySettings(batch_size="inf", max_recovery_s=0.050)
    asked = StandIn(rate=1000.0, standby=standby, stepwise=True, process_s=0.001, owner_s=0.001, acks_s=1.0).run(5.0)
    assert asked.recovery_s() <= 0.055


def test_a_slot_can_have_targets_of_its_own_and_others_while_it_runs() -> None:
    standby = StandbySettings(batch_size=100, max_recovery_s=1.0, slots={1: {"batch_size": 7, "policy": "fixed"}})
    assert Batching(standby, 0).batch_tuples == 100.0
    own = Batching(standby, 1)
    assert (own.batch_tuples, own.target.policy, own.target.max_recovery_s) == (7.0, "fixed", 1.0)
    own.set_target(Target(batch_size="inf"))
    assert own.decide(0.0) == math.inf
    own.set_target(None)
    assert own.decide(1.0) == 7.0


class Known(StandbyCosts):
    """Costs that are known: bandwidth falls with B, and is 100,000 / B; recovery time rises, and is B / 1,000."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.asked = 0

    def estimate(self, batch_tuples: float) -> Estimate:
        self.asked += 1
        return Estimate(batch_tuples, 1.0, 1.0, 0.0, 0.001, 1e5 / batch_tuples, 0.0, batch_tuples / 1000.0)

    def bandwidth(self) -> Floats:
        return 1e5 / GRID

    def recovery(self, batch_tuples: Floats) -> Floats:
        return batch_tuples / 1000.0

    def most_held(self) -> float:
        return 1e9

    def process_s(self) -> float:
        return 0.001


def known(batch: float = 1.0, **options: Any) -> Batching:
    stepwise = options.pop("stepwise", False)
    batching = Batching(StandbySettings(batch_size=1, **options), 0, stepwise=stepwise)
    batching.costs = Known()
    batching.batch_tuples = batch
    return batching


FIRST, LAST = 40, 60
"""Places in the grid: from the first on a limit of bandwidth holds, up to the last one of recovery time."""


def limits(first: int | None, last: int | None) -> dict[str, float]:
    """Limits that hold, with the margin, from one place in the grid to another; None = there is no such limit."""
    found = {}
    if first is not None:
        found["max_bandwidth"] = float(1e5 / GRID[first] / MARGIN * 1.0001)
    if last is not None:
        found["max_recovery_s"] = float(GRID[last] / 1000.0 / MARGIN * 1.0001)
    return found


@pytest.mark.parametrize(
    ("first", "last", "priority", "expected"),
    [
        (FIRST, LAST, "bandwidth", GRID[LAST]),  # what is left of the time is spent on bandwidth
        (FIRST, LAST, "recovery", GRID[FIRST]),
        (None, LAST, "recovery", GRID[LAST]),  # bandwidth is free: nobody limits it, so as little as can be
        (None, LAST, "bandwidth", GRID[LAST]),
        (FIRST, None, "recovery", GRID[FIRST]),
        (FIRST, None, "bandwidth", GRID[FIRST]),  # time is not limited, and not given away for nothing
        (LAST, FIRST, "recovery", GRID[FIRST]),  # both cannot be
        (LAST, FIRST, "bandwidth", GRID[LAST]),
    ],
)
def test_the_model_goes_to_the_best_batch_at_once(
    first: int | None, last: int | None, priority: Any, expected: float
) -> None:
    batching = known(batch=3000.0, priority=priority, **limits(first, last))
    assert batching.decide(0.0) == expected


@pytest.mark.parametrize(("priority", "expected"), [("recovery", 1.0), ("bandwidth", math.inf)])
def test_where_no_batch_keeps_the_limit_of_priority_the_end_of_the_grid_does_best(
    priority: Any, expected: float
) -> None:
    batching = known(batch=50.0, priority=priority, max_bandwidth=0.01, max_recovery_s=0.001)
    assert batching.decide(0.0) == expected


@pytest.mark.parametrize("priority", ["recovery", "bandwidth"])
def test_the_model_stays_where_another_batch_is_little_better(priority: Any) -> None:
    best = GRID[LAST] if priority == "bandwidth" else GRID[FIRST]
    little = float(best / WORTH if priority == "bandwidth" else best * WORTH)
    much = little / 1.01 if priority == "bandwidth" else little * 1.01
    options = {"priority": priority, **limits(FIRST, LAST)}
    assert known(batch=little, **options).decide(0.0) == little
    assert known(batch=much, **options).decide(0.0) == best


def test_between_two_places_of_the_grid_a_batch_is_as_good_as_the_greater() -> None:
    between = 0.95 * float(GRID[FIRST])
    assert known(batch=between, **limits(FIRST, FIRST)).decide(0.0) == between


def test_beyond_the_grid_a_batch_is_as_good_as_its_last() -> None:
    options = {"priority": "bandwidth", **limits(0, len(GRID) - 1)}
    assert known(batch=1.1 * GRID[-1], **options).decide(0.0) == 1.1 * GRID[-1]


@pytest.mark.parametrize(("stepwise", "interval_s"), [(False, MODEL_INTERVAL_S), (True, STEP_INTERVAL_S)])
def test_a_batch_is_chosen_once_an_interval_from_the_first_look_on(*, stepwise: bool, interval_s: float) -> None:
    batching = known(batch=64.0, stepwise=stepwise, max_recovery_s=1.0)
    costs = batching.costs
    assert isinstance(costs, Known)
    for now, asked in ((0.0, 1), (0.9 * interval_s, 1), (interval_s, 2), (1.9 * interval_s, 2), (2 * interval_s, 3)):
        batching.decide(now)
        assert costs.asked == asked


@pytest.mark.parametrize(("limit", "holds"), [(0.99, False), (1.0, True), (1.01, True)])
def test_a_limit_that_is_just_reached_holds(limit: float, holds: bool) -> None:
    batching = known(batch=1000.0, stepwise=True, max_bandwidth=100 * limit, max_recovery_s=limit)
    batching.decide(0.0)
    assert batching.verdict is not None
    assert (batching.verdict.bandwidth_ok, batching.verdict.recovery_ok) == (holds, holds)


@pytest.mark.parametrize(
    ("batch", "options", "expected"),
    [
        (100.0, {"max_bandwidth": 1.0}, 110.0),  # only bandwidth is over its limit
        (100.0, {"max_recovery_s": 0.05}, 90.0),
        (100.0, {"max_bandwidth": 1.0, "max_recovery_s": 0.05, "priority": "bandwidth"}, 110.0),
        (100.0, {"max_bandwidth": 1.0, "max_recovery_s": 0.05, "priority": "recovery"}, 90.0),
        (100.0, {"max_bandwidth": 1e4, "max_recovery_s": 1.0}, 100.0),
        (5.0, {"max_recovery_s": 0.001}, 1.0),
        (float(GRID[-1]) - 1.0, {"max_bandwidth": 0.01}, float(GRID[-1])),
        (math.inf, {"max_recovery_s": 0.05}, float(GRID[-1]) - 10.0),
    ],
)
def test_a_step_goes_as_algorithm_3_says(
    monkeypatch: pytest.MonkeyPatch, batch: float, options: dict[str, Any], expected: float
) -> None:
    monkeypatch.setattr("tsunagi.standby.batching.STEP_TUPLES", 10)
    batching = known(batch=batch, stepwise=True, **options)
    assert batching.decide(0.0) == expected
