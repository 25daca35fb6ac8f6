"""A worker keeps to its rate whatever it does besides."""

from __future__ import annotations

import pytest

from tsunagi.worker.pace import LENT_S, Pace


@pytest.mark.parametrize("besides_s", [0.0, 0.02, 0.04])
def test_what_a_worker_does_besides_does_not_slow_it(besides_s: float) -> None:
    pace, now, tuples = Pace(1000.0), 100.0, 0
    while now < 110.0:
        began = now
        now += 0.005
        tuples += 50
        now += pace.rest_s(50, began, now) + besides_s
    assert tuples / 10.0 == pytest.approx(1000.0, rel=0.05)


def test_an_idle_time_is_not_made_up_for() -> None:
    pace = Pace(1000.0)
    assert pace.rest_s(100, 100.0, 100.0) == pytest.approx(0.0)
    assert pace.rest_s(100, 200.0, 200.0) == 0.0
    assert pace.rest_s(1000, 200.0, 200.0) == pytest.approx(1.1 - LENT_S)
