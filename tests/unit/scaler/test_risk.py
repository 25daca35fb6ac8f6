"""What lateness is measured to cost: short slots must not hide a lack of capacity."""

from __future__ import annotations

import numpy as np
import pytest

from services.scaler.risk import MULTIPLES, Risk, together

SLO_S = 10.0


@pytest.mark.parametrize(("slot_s", "slots"), [(3600.0, 1), (300.0, 1), (60.0, 5), (20.0, 15)])
def test_a_queue_goes_on_over_thirty_delays(slot_s: float, slots: int) -> None:
    assert together(slot_s, SLO_S) == slots


@pytest.mark.parametrize("slot_s", [60.0, 300.0])
def test_too_little_capacity_is_late_however_short_the_slots(slot_s: float) -> None:
    risk = Risk(2, SLO_S, together(slot_s, SLO_S))
    for _ in range(60):
        risk.update(np.full(2, 100.0), np.full(round(slot_s / 10.0), 100.0), 10.0)
    shares = risk.shares()[0]
    assert shares[MULTIPLES == 0.9] == pytest.approx(0.1)  # the greatest convex function below what was measured
    assert shares[MULTIPLES == 1.05] == pytest.approx(0.0, abs=1e-9)
