"""What lateness is measured to cost: short slots must not hide a lack of capacity."""

from __future__ import annotations

import numpy as np
import pytest

from tsunagi.scaler.persistence import Reaction
from tsunagi.scaler.risk import MULTIPLES, Risk, together

SLO_S = 10.0


@pytest.mark.parametrize(("slot_s", "slots"), [(3600.0, 1), (300.0, 1), (60.0, 5), (20.0, 15)])
def test_a_queue_goes_on_over_thirty_delays(slot_s: float, slots: int) -> None:
    assert together(slot_s, SLO_S) == slots


@pytest.mark.parametrize("slot_s", [60.0, 300.0])
def test_too_little_capacity_is_late_however_short_the_slots(slot_s: float) -> None:
    risk = Risk(2, SLO_S, together(slot_s, SLO_S))
    for _ in range(60):
        risk.update(np.full(2, 100.0), np.full(round(slot_s / 10.0), 100.0), 10.0)
    shares = risk.shares(np.full(2, 100.0))[0]
    # The greatest convex function below what was measured: short by a fiftieth, nothing is late within five minutes.
    assert shares[np.isclose(MULTIPLES, 0.9)] == pytest.approx(0.08 / 0.98)
    assert shares[np.isclose(MULTIPLES, 1.04)] == pytest.approx(0.0, abs=1e-9)


def test_the_risk_of_a_height_is_its_own() -> None:
    """Low forecasts are twice too low, high ones right: the high ones must not be topped up for it."""
    risk = Risk(1, SLO_S)
    for _ in range(300):
        risk.update(np.full(1, 64.0), np.full(30, 128.0), 10.0)
        risk.update(np.full(1, 1024.0), np.full(30, 1024.0), 10.0)
    at = np.isclose(MULTIPLES, 1.5)
    low, high, unseen = (risk.shares(np.full(1, mean))[0][at] for mean in (64.0, 1024.0, 16.0))
    assert low == pytest.approx(2.0 * 0.25 / 0.9, rel=0.2)  # the hull's line from all late to none at twice as much
    assert high < 0.1 * low
    assert 0.0 < unseen < low  # what is known of all heights


def reaction(near: float, share: float = 1.0) -> Reaction:
    return Reaction(np.full(30, near), share, 100.0)


def test_what_the_guard_makes_good_in_time_is_no_risk() -> None:
    without, guarded = Risk(1, SLO_S), Risk(1, SLO_S)
    for _ in range(20):
        without.update(np.full(1, 100.0), np.full(30, 105.0), 10.0)
        guarded.update(np.full(1, 100.0), np.full(30, 105.0), 10.0, reaction(105.0))
    # 7 % short: ten seconds late after two and a half minutes, and then a worker is there.
    late, left = (risk.shares(np.full(1, 100.0))[0][np.isclose(MULTIPLES, 0.98)] for risk in (without, guarded))
    assert late > 0.04
    assert left < 0.5 * late


def test_what_comes_too_fast_for_the_guard_stays_a_risk() -> None:
    risk = Risk(1, SLO_S)
    for _ in range(20):
        risk.update(np.full(1, 100.0), np.full(30, 200.0), 10.0, reaction(200.0))
    late = risk.shares(np.full(1, 100.0))[0][np.isclose(MULTIPLES, 1.0)]
    assert 0.1 < late < 2.0 / 3.0  # until the worker is there, not for the whole slot


def test_an_excess_that_never_lasts_is_left_to_the_plan() -> None:
    risk = Risk(1, SLO_S)
    for _ in range(20):
        risk.update(np.full(1, 100.0), np.full(30, 103.5), 10.0, reaction(103.5, share=0.0))
    assert risk.shares(np.full(1, 100.0))[0][np.isclose(MULTIPLES, 1.0)] > 0.0
