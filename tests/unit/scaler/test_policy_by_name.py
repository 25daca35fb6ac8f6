"""Policies in short simulations on made-up days: who is launched, who stops when, what stands in."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from tests.bench.scaler.rivals import RIVALS, make_rival
from tsunagi.runtime.columns import Floats
from tsunagi.scaler.bound import BoundError, cost_bound
from tsunagi.scaler.lookahead_policy import LookaheadPolicy
from tsunagi.scaler.policy import Answer, PolicySettings, PolicyView, Worker, WorkerType, actions
from tsunagi.scaler.policy_by_name import PolicyError, make_policy
from tsunagi.scaler.simulate import Simulation, SimulationResult

DAY = 8640
SETTINGS = PolicySettings()


def load(days: int, seed: int = 1) -> Floats:
    """Return rates in steps of 10 s: a day's wave and some noise, held for five minutes."""
    draw = np.random.default_rng(seed)
    slot = np.arange(288 * days)
    wave = 400 + 300 * np.sin(slot / 288 * 2 * np.pi) + draw.normal(0, 15, len(slot))
    return np.repeat(np.maximum(wave, 0.0), 30)


@lru_cache  # several tests compare with the same run
def simulate(settings: PolicySettings, *, history: int = 3, days: float = 1.0, speed: float = 1.0) -> SimulationResult:
    rates = load(history + 1)[: round((history + days) * DAY)]
    policy = make_rival(settings)
    policy.learn(rates[: history * DAY], 10.0)
    return Simulation(settings, policy, rates[history * DAY :], 400.0, speed).run()


class Raises:
    """A forecaster that gives up after a while."""

    def __init__(self, slot_s: float) -> None:
        self._left = 300

    def update(self, value: float) -> None:
        self._left -= 1
        if self._left < 0:
            raise RuntimeError("no more")

    def means(self, horizon: int) -> Floats:
        return np.full(horizon, 500.0)


class NotANumber(Raises):
    def update(self, value: float) -> None: ...

    def means(self, horizon: int) -> Floats:
        return np.full(horizon, math.nan)


@pytest.mark.slow
@pytest.mark.parametrize("name", RIVALS)
@pytest.mark.parametrize("billing", ["hourly", "second"])
def test_every_policy_runs(name: str, billing: str) -> None:
    run = simulate(
        replace(SETTINGS, policy=name, billing="hourly" if billing == "hourly" else "second"), history=1, days=0.4
    )
    assert run.cost > 0
    assert run.late_share < (0.9 if name == "elasticstream" else 0.2)  # as published it plans for the mean
    assert (run.capacity >= 400).all()


@pytest.mark.slow
def test_looking_ahead_is_cheaper_than_what_users_run_and_keeps_the_limit() -> None:
    ahead = simulate(SETTINGS)
    threshold = simulate(replace(SETTINGS, policy="threshold"))
    assert ahead.cost < threshold.cost
    assert ahead.late_share < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("forecaster", ["Raises", "NotANumber"])
def test_a_forecast_that_fails_costs_no_more_than_the_threshold(forecaster: str) -> None:
    run = simulate(replace(SETTINGS, forecast=f"{__name__}:{forecaster}"))
    threshold = simulate(replace(SETTINGS, policy="threshold"))
    assert run.cost <= 1.1 * threshold.cost
    assert all(decision.answer.fallback.startswith("threshold: ") for decision in run.decisions if not decision.guard)


@pytest.mark.slow
def test_slower_workers_are_found_out() -> None:
    rates = load(8)
    policy = make_policy(replace(SETTINGS, policy="lookahead"))
    policy.learn(rates[: 6 * DAY], 10.0)
    run = Simulation(SETTINGS, policy, rates[6 * DAY :], 400.0, 0.7).run()
    assert policy.rates["medium"] < 80.0  # type: ignore[attr-defined]
    assert run.late[DAY:].sum() < 0.01 * run.rates[DAY:].sum() * 10.0


def test_a_type_that_keeps_the_promise_with_less_than_its_rate_counts_for_less() -> None:
    policy = LookaheadPolicy(SETTINGS)
    policy.learn(load(1), 10.0)
    view = PolicyView(0.0, np.full(30, 500.0), 10.0, 0.0, (), 400.0, within={"small": 0.6})
    policy.decide(view)
    told = {kind.name: kind.rate for kind in SETTINGS.types}
    assert policy.rates == {"small": pytest.approx(0.6 * told["small"]), "medium": told["medium"]}
    policy.decide(replace(view, now_s=300.0, within={}, saturated={"small": told["small"]}))
    assert policy.rates == told


@pytest.mark.slow
def test_a_promise_that_cannot_be_kept_is_not_chased_without_end() -> None:
    kept, chased = simulate(SETTINGS), replace(SETTINGS, slo_s=1e-3)
    assert simulate(chased).cost <= 2.5 * kept.cost


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["program", "marginal"])
def test_a_program_that_fails_is_replaced_by_the_marginal_plan(solver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make_policy(replace(SETTINGS, solver="program" if solver == "program" else "marginal", solve_s=1e-9))
    rates = load(3)
    policy.learn(rates[: 2 * DAY], 10.0)
    view = PolicyView(0.0, rates[2 * DAY - 30 : 2 * DAY], 10.0, 5e5, (), 50.0)
    answer = policy.decide(view)
    assert bool(answer.fallback) == (solver == "program")
    assert sum(answer.wanted.values()) > 0


def test_a_paid_worker_stops_at_the_end_of_its_block_and_not_before() -> None:
    workers = (
        Worker("a", "small", 100.0, 3600.0),
        Worker("b", "small", 100.0, 3700.0),
        Worker("c", "small", 100.0, 4000.0),
    )
    view = PolicyView(3500.0, np.zeros(30), 10.0, 0.0, workers)
    assert actions(view, {"small": 0}, "hourly", 300.0).stops == {"a": 3600.0, "b": 3700.0}
    assert actions(view, {"small": 2}, "hourly", 300.0).stops == {"a": 3600.0}
    assert actions(replace(view, drain_s=50.0), {"small": 2}, "hourly", 300.0).stops == {"a": 3550.0}
    assert actions(view, {"small": 1}, "second", 300.0).stops == {"a": 3500.0, "b": 3500.0}
    assert actions(view, {"small": 5}, "hourly", 300.0).launches == {"small": 2}


def test_a_worker_that_is_to_stop_counts_no_more() -> None:
    worker = Worker("a", "small", 100.0, 3600.0, stop_s=3600.0)
    view = PolicyView(3500.0, np.zeros(30), 10.0, 0.0, (worker,))
    assert actions(view, {"small": 1}, "hourly", 300.0).launches == {"small": 1}


def test_hours_are_paid_whole() -> None:
    run = simulate(replace(SETTINGS, policy="always-on"), history=1)
    hours = run.cost / (0.19 * round(run.cost / 0.19 / 24)) if run.cost else 0
    assert hours == pytest.approx(24.0, rel=0.1)
    assert run.stops == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lookahead", "elasticstream"])
def test_an_hour_may_be_compressed(name: str) -> None:
    long = simulate(replace(SETTINGS, policy=name), history=1, days=0.25)
    short = simulate(replace(SETTINGS, policy=name, hour_s=900.0), history=1, days=0.25)
    # A quarter of the hour costs as much as the whole one did, and surplus workers go sooner.
    assert short.stops > long.stops
    assert short.cost > long.cost
    bound = cost_bound(long.rates, 10.0, SETTINGS.types, 400.0, 10.0)
    assert cost_bound(long.rates, 10.0, SETTINGS.types, 400.0, 10.0, 900.0) == pytest.approx(4 * bound)


@pytest.mark.slow
def test_short_slots_keep_the_promise_too() -> None:
    run = simulate(replace(SETTINGS, slot_s=60.0), history=2, days=0.6)
    assert run.late_share < 0.02


@pytest.mark.slow
def test_tasks_go_to_workers_that_hold_whole_streams() -> None:
    settings = replace(
        SETTINGS,
        policy="elasticstream",
        application="tasks",
        tasks=12,
        types=(WorkerType("small", 1000.0, 0.095), WorkerType("medium", 2500.0, 0.19)),
    )
    policy = make_policy(settings)
    rates = load(1)
    policy.learn(rates[:600], 10.0)
    answer = policy.decide(PolicyView(6000.0, rates[600:630], 10.0, 0.0, (), 1000.0))
    rate = answer.forecast
    # A task is one evaluation of the whole stream: workers hold whole ones, and the local machines the rest.
    held = sum(math.floor(kind.rate / rate) * answer.wanted[kind.name] for kind in settings.types)
    assert held + math.floor(1000.0 / rate) >= 12
    assert answer.rate > 12 * 0.8 * rate


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policy": "best"}, "policy: found 'best', expected one of lookahead"),
        ({"types": ()}, "types: found none"),
        ({"types": (WorkerType("a", 1.0, 1.0), WorkerType("a", 2.0, 1.0))}, "found a name twice"),
        ({"types": (WorkerType("a", -1.0, 1.0),)}, "type a: found rate = -1.0, expected a number above 0"),
        ({"types": (WorkerType("a", 1.0, math.nan),)}, "type a: found price_h = nan"),
        ({"application": "tasks"}, "needs policy"),
    ],
)
def test_settings_that_make_no_policy_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        make_policy(replace(SETTINGS, **change))  # type: ignore[arg-type]


def test_the_bound_is_the_load_s_price_where_nothing_moves() -> None:
    bound = cost_bound(np.full(360, 490.0), 10.0, SETTINGS.types, 400.0, 10.0)
    due_later = 490.0 * 10.0 / 90.0 / 3600.0  # what comes in the last 10 s is due after the end
    assert bound == pytest.approx(0.19 * (1 - due_later), rel=1e-6)


@pytest.mark.slow
def test_nobody_beats_the_bound() -> None:
    run = simulate(SETTINGS)
    assert cost_bound(run.rates, 10.0, SETTINGS.types, 400.0, 10.0) < run.cost


def test_limits_below_the_load_have_no_bound() -> None:
    with pytest.raises(BoundError, match="expected types whose limits can carry"):
        cost_bound(np.full(60, 900.0), 10.0, (WorkerType("small", 40.0, 0.1, limit=2),), 100.0, 10.0)


@pytest.mark.slow
def test_blocks_are_decided_by_what_the_rate_is_at_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates are held for half an hour and change with a slot's start, which nobody knows before."""
    draw = np.random.default_rng(5)
    wave = 600 + 300 * np.sin(np.arange(48 * 5) / 48 * 2 * np.pi) + draw.normal(0, 60, 48 * 5)
    rates = np.repeat(np.maximum(wave, 0.0), 180)

    def run() -> SimulationResult:
        policy = make_policy(SETTINGS)
        policy.learn(rates[: 3 * DAY], 10.0)
        return Simulation(SETTINGS, policy, rates[3 * DAY :], 400.0).run()

    looked = run()
    seconds = [decision for decision in looked.decisions if decision.answer.reason == "second look"]
    assert seconds
    assert all(decision.guard for decision in seconds)
    monkeypatch.setattr(LookaheadPolicy, "_look_again", lambda _self, _view: None)
    assert looked.cost < run().cost


def test_billed_by_the_second_nobody_is_stopped_whom_the_guard_would_launch_again() -> None:
    """The plan trusts its forecast, which knows nothing of this burst; the guard sees the queue."""
    policy = make_policy(replace(SETTINGS, billing="second", slo_s=30.0))
    policy.learn(np.full(DAY, 1000.0), 10.0)
    burst = np.interp(np.arange(360.0), (60, 150, 270, 330), (1000.0, 2000.0, 2000.0, 1000.0))
    answers: list[tuple[float, str, int, int]] = []

    class Watched:
        looks_again = policy.looks_again

        def learn(self, rates: Floats, step_s: float) -> None:
            policy.learn(rates, step_s)

        def decide(self, view: PolicyView) -> Answer:
            return self._note(view, policy.decide(view))

        def guard(self, view: PolicyView) -> Answer | None:
            found = policy.guard(view)
            return None if found is None else self._note(view, found)

        def _note(self, view: PolicyView, answer: Answer) -> Answer:
            there = sum(view.count(kind) for kind in answer.wanted)
            answers.append((view.now_s, answer.reason, there, sum(answer.wanted.values())))
            return answer

    run = Simulation(replace(SETTINGS, billing="second", slo_s=30.0), Watched(), burst, 1360.0).run()
    stopped = {at_s for at_s, reason, there, wanted in answers if reason == "plan" and wanted < there}
    again = {at_s for at_s, reason, there, wanted in answers if reason == "guard" and wanted > there}
    assert again  # the burst was a surprise
    assert stopped  # and it went again
    assert not any(at_s - 30.0 <= stop_s <= at_s for stop_s in stopped for at_s in again)
    assert run.late_share < 0.15
