"""When in a step a fault strikes."""

from __future__ import annotations

import pytest

from services.chaos.run import into_step_s

STEP_US = 200_000


@pytest.mark.parametrize("phase", [0.0, 0.25, 0.999])
@pytest.mark.parametrize("now_us", [1_000_000_000_000_000, 1_000_000_000_123_456])
def test_a_fault_waits_for_its_place_in_a_step(phase: float, now_us: int) -> None:
    wait_s = into_step_s(phase, STEP_US, now_us)
    assert 0.0 <= wait_s <= STEP_US / 1e6
    assert (now_us + wait_s * 1e6) % STEP_US / STEP_US == pytest.approx(phase, abs=1e-3)


def test_without_steps_it_strikes_at_once() -> None:
    assert into_step_s(0.5, 0, 123) == 0.0
