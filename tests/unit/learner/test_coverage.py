"""Bounds of a model that was learned from few steps hold as often as they promise, once the owner has measured them."""

from __future__ import annotations

import pytest

from tests.bench.learned import measure


@pytest.mark.slow
@pytest.mark.parametrize("learned", [60, 200])
def test_bounds_of_a_learned_model_hold_as_often_as_they_promise(learned: int) -> None:
    found = measure(learned, 6000, 0.9, seed=0)
    assert found["coverage"] == pytest.approx(0.9, abs=0.03)
    assert found["error"] < 0.3 * found["last_value"]
    assert found["bounded"] > 0.95
