"""Figure 1 of the paper against a dynamic program; what has no solution; tasks; the greedy plan and its program."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.optimize import OptimizeResult, milp

from tests.unit.scaler.oracles import cheapest, instance
from tsunagi.scaler import lookahead_program
from tsunagi.scaler.lookahead_program import Lookahead
from tsunagi.scaler.marginal import Offer, Prices, plan
from tsunagi.scaler.policy import WorkerType
from tsunagi.scaler.program import Cover, ProgramError, Size, data_sizes, solve, spread, task_sizes

TYPES = (WorkerType("small", 40.0, 0.095), WorkerType("medium", 90.0, 0.19))


def price(found: dict[str, int], sizes: list[Size]) -> float:
    return sum(size.price * found[size.name] for size in sizes)


@pytest.mark.parametrize("seed", range(12))
def test_it_finds_the_optimum_of_a_dynamic_program(seed: int) -> None:
    need, sizes = instance(np.random.default_rng(seed))
    best = cheapest(need, sizes)
    if math.isinf(best):
        with pytest.raises(ProgramError, match="no optimum: Infeasible"):
            solve(need, sizes)
    else:
        found = solve(need, sizes)
        assert sum(size.amount * found[size.name] for size in sizes) >= need
        assert price(found, sizes) == pytest.approx(best)


@pytest.mark.parametrize(
    ("need", "offers", "best"),
    [
        (102, [(61, 0.409, None), (85, 0.415, 1), (7, 0.327, 1), (14, 0.242, 1), (97, 0.396, 3)], 0.638),
        (557, [(66, 0.41, 0), (67, 0.411, 3), (66, 0.072, None), (105, 0.112, 2)], 0.616),
        (112, [(101, 0.235, None), (94, 0.11, None), (71, 0.198, 4), (68, 0.47, None), (39, 0.059, None)], 0.169),
    ],
)
def test_where_the_solver_s_cuts_lose_the_optimum(
    need: int, offers: list[tuple[int, float, int | None]], best: float
) -> None:
    sizes = [Size(f"t{i}", float(amount), cost, limit, 0.0) for i, (amount, cost, limit) in enumerate(offers)]
    assert cheapest(need, sizes) == pytest.approx(best)
    assert price(solve(need, sizes), sizes) == pytest.approx(best)


def test_the_paper_s_sizes() -> None:
    sizes = data_sizes(TYPES, 1000.0)
    assert solve(0.0, sizes) == {"small": 0, "medium": 0}
    assert solve(100.0, sizes) == {"small": 3, "medium": 0} or price(solve(100.0, sizes), sizes) == pytest.approx(0.285)
    assert solve(360.0, sizes) == {"small": 0, "medium": 4}


def test_an_answer_serves_all_needs_up_to_its_amount() -> None:
    cover = Cover(data_sizes(TYPES, 1000.0))
    assert cover(50.0) is cover(80.0)  # two small, or one medium
    assert price(dict(cover(91.0)), data_sizes(TYPES, 1000.0)) == pytest.approx(0.285)


def test_traffic_has_its_price() -> None:
    near = WorkerType("near", 50.0, 0.10, region="near", price_gb=0.0)
    far = WorkerType("far", 50.0, 0.08, region="far", price_gb=0.2)
    # 50 tuples/s of 1 KB are 0.18 GB an hour: 0.036.
    assert solve(100.0, data_sizes((near, far), 1000.0)) == {"near": 2, "far": 0}
    assert solve(100.0, data_sizes((near, far), 100.0)) == {"near": 0, "far": 2}


def test_tasks_are_whole_and_their_streams_fit_the_bandwidth() -> None:
    sizes = task_sizes((*TYPES, WorkerType("tiny", 10.0, 0.01)), 20.0, 1000.0)
    assert [(size.name, size.amount) for size in sizes] == [("small", 2.0), ("medium", 4.0)]
    assert price(solve(7, sizes), sizes) == pytest.approx(0.38)
    assert solve(7, sizes, bandwidth=2 * 20_000.0) == {"small": 0, "medium": 2}
    with pytest.raises(ProgramError, match="Infeasible"):
        solve(9, sizes, bandwidth=2 * 20_000.0)
    assert spread(9, sizes, bandwidth=2 * 20_000.0) == {"small": 0, "medium": 2}


def test_the_rule_that_stands_in_takes_the_best_value_up_to_its_limit() -> None:
    sizes = data_sizes((TYPES[0], WorkerType("medium", 90.0, 0.19, limit=2)), 1000.0)
    assert spread(300.0, sizes) == {"small": 3, "medium": 2}


def test_nothing_that_can_carry_anything() -> None:
    with pytest.raises(ProgramError, match="no type"):
        solve(5.0, [])


def random_prices(draw: np.random.Generator, slots: int = 24) -> Prices:
    multiples = np.array([0.0, 0.5, 0.8, 1.0, 1.2, 1.5, 2.0])
    share = np.array([1.0, 0.55, 0.3, 0.15, 0.06, 0.02, 0.0])
    means = draw.uniform(0, 300) + 150 * np.abs(np.sin(np.arange(slots) / draw.uniform(3, 20)))
    return Prices(means, np.zeros(slots), multiples, share * (means * 300 * draw.uniform(5, 30) * 6e-7)[:, None])


@pytest.mark.parametrize("seed", range(6))
def test_the_greedy_plan_is_near_the_program(seed: int) -> None:
    """The first slot's blocks differ by no more than a few workers, and never in whether any is worth it."""
    draw = np.random.default_rng(seed)
    prices, capacity = random_prices(draw), np.full(24, draw.uniform(50, 250))
    ends = np.zeros((2, 24))
    ends[1, 0] = draw.integers(0, 3)
    rates = {kind.name: kind.rate for kind in TYPES}
    found = Lookahead(TYPES, 300.0, "hourly").solve(prices, capacity, ends, [0, int(ends[1, 0])], rates)
    offers = [Offer(kind.rate, kind.price_h, 1, 2 / 3, 10**6, ends[i]) for i, kind in enumerate(TYPES)]
    greedy = plan(prices, capacity, offers, 12)
    amounts = [sum(kind.rate * n for kind, n in zip(TYPES, counts, strict=True)) for counts in (found, greedy)]
    assert abs(amounts[0] - amounts[1]) <= 90 + 0.25 * max(amounts)


def test_what_pays_is_bought_and_what_does_not_is_not() -> None:
    multiples = np.array([0.0, 1.0])
    offer = Offer(90.0, 0.19, 1, 2 / 3, 10**6, np.zeros(24))
    for late, bought in ((0.3, 1), (0.001, 0)):
        prices = Prices(np.full(24, 90.0), np.zeros(24), multiples, np.tile([late, 0.0], (24, 1)))
        assert plan(prices, np.zeros(24), [offer], 12) == [bought]
        found = Lookahead(TYPES[1:], 300.0, "hourly").solve(
            prices, np.zeros(24), np.zeros((1, 24)), [0], {"medium": 90.0}
        )
        assert found == [bought]


def test_a_backlog_of_more_than_can_be_had_has_a_plan() -> None:
    kind = WorkerType("medium", 90.0, 0.19, limit=3)
    shift = np.zeros(24)
    shift[0] = 1e5
    prices = Prices(np.full(24, 90.0), shift, np.array([0.0, 1.0]), np.tile([9.0, 0.0], (24, 1)))
    found = Lookahead((kind,), 300.0, "hourly").solve(prices, np.zeros(24), np.zeros((1, 24)), [0], {"medium": 90.0})
    assert 0 < found[0] <= 3
    prices.price[0] = 0.0  # nothing there is late, and yet there is a backlog
    found = Lookahead((kind,), 300.0, "hourly").solve(prices, np.zeros(24), np.zeros((1, 24)), [0], {"medium": 90.0})
    assert 0 < found[0] <= 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_plan_that_is_fractional_at_first_is_made_whole(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole at once, among the neighbours of the relaxed plan, or by the program as it is: one optimum."""
    draw = np.random.default_rng(seed)
    kinds = tuple(WorkerType(f"t{i}", float(draw.uniform(20, 90)), 0.1, limit=9) for i in range(5))
    prices, capacity = random_prices(draw), np.full(24, draw.uniform(0, 60))
    prices.shift[0] = 200.0
    rates = {kind.name: kind.rate for kind in kinds}
    calls: list[tuple[dict[str, Any], OptimizeResult]] = []

    def watched(price: np.ndarray, **rest: Any) -> OptimizeResult:
        calls.append(({"c": price, **rest}, milp(price, **rest)))
        return calls[-1][1]

    monkeypatch.setattr(lookahead_program, "milp", watched)
    Lookahead(kinds, 300.0, "hourly").solve(prices, capacity, np.zeros((5, 24)), [0] * 5, rates)
    whole = np.zeros(len(calls[0][0]["c"]))
    whole[: 2 * 5 * 24].reshape(2, 5, 24)[:, :, :2] = 1  # launches and renewals of the first two slots
    best = milp(**calls[0][0] | {"integrality": whole})
    assert calls[-1][1].fun == pytest.approx(best.fun, rel=2e-3)
    assert np.abs(calls[-1][1].x[whole > 0] % 1.0 - 0.5).min() == pytest.approx(0.5, abs=1e-5)


def test_a_limit_holds() -> None:
    kind = WorkerType("medium", 90.0, 0.19, limit=2)
    prices = Prices(np.full(24, 900.0), np.zeros(24), np.array([0.0, 1.0]), np.tile([9.0, 0.0], (24, 1)))
    found = Lookahead((kind,), 300.0, "hourly").solve(prices, np.zeros(24), np.zeros((1, 24)), [1], {"medium": 90.0})
    assert found == [1]
    assert plan(prices, np.zeros(24), [Offer(90.0, 0.19, 1, 2 / 3, 1, np.zeros(24))], 12) == [1]
