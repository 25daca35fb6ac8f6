"""The fluid queue against a simulation of it in very small steps."""

from __future__ import annotations

import numpy as np
import pytest

from tsunagi.scaler.queueing import backlogs, effective_rate, late_tuples

STEP_S, FINE_S = 10.0, 0.01


def late_by_steps(rates: np.ndarray, capacity: np.ndarray, slo_s: float) -> float:
    """Count late tuples one hundredth of a second at a time."""
    fine = round(STEP_S / FINE_S)
    extra = round(slo_s / FINE_S) + 1
    arrivals = np.concatenate((np.repeat(rates, fine), np.zeros(extra)))
    able = np.concatenate((np.repeat(capacity, fine), np.full(extra, capacity[-1])))
    arrived = np.concatenate(([0.0], np.cumsum(arrivals) * FINE_S))
    waiting = np.concatenate(([0.0], backlogs(arrivals, able, FINE_S)))
    done = arrived - waiting
    at = np.arange(len(rates) * fine)
    return float(arrivals[at][done[at + extra - 1] < arrived[at] - 1e-6].sum() * FINE_S)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("slo_s", [10.0, 7.3, 25.0])
def test_late_tuples_are_those_of_a_fine_simulation(seed: int, slo_s: float) -> None:
    draw = np.random.default_rng(seed)
    rates = draw.uniform(0, 200, 30)
    capacity = draw.uniform(60, 140, 30)
    found = late_tuples(rates, capacity, STEP_S, slo_s).sum()
    assert found == pytest.approx(late_by_steps(rates, capacity, slo_s), abs=0.002 * rates.sum() * STEP_S)


def test_the_backlog_starts_with_what_waits() -> None:
    np.testing.assert_allclose(backlogs(np.array([5.0, 0.0, 9.0]), np.full(3, 6.0), 1.0, first=3.0), [2.0, 0.0, 3.0])


@pytest.mark.parametrize("seed", range(8))
def test_the_effective_rate_is_the_least_that_keeps_the_limit(seed: int) -> None:
    draw = np.random.default_rng(seed)
    rates = draw.gamma(1.0, 50.0, 30)
    rate = effective_rate(rates, STEP_S, 10.0)
    assert late_tuples(rates, np.full(30, rate * 1.0001), STEP_S, 10.0).sum() == pytest.approx(0.0, abs=1e-3)
    assert late_tuples(rates, np.full(30, rate * 0.99), STEP_S, 10.0).sum() > 0
    assert effective_rate(rates, STEP_S, 10.0, waiting=1e5) >= 1e4
