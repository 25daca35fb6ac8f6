"""The figures of an overload, from latencies that are known."""

from __future__ import annotations

import pytest

from tests.bench.overload import figures

BEGUN, ENDED = 100, 160
RATE, CALM, LOAD = 100, 50, 200
"""Outputs a second: what workers can do, and what comes before and after, and between."""


def outputs(spare: float) -> list[tuple[int, float]]:
    """Return (when, latency) of each output. After the overload workers do `spare` a second more than the load."""
    found = [(at * 1_000_000, 0.01) for at in range(BEGUN - 20, BEGUN) for _ in range(CALM)]
    number, at = 0, float(BEGUN)
    while True:
        came = BEGUN + number / LOAD if number < LOAD * (ENDED - BEGUN) else ENDED + (number - 12_000) / CALM
        at = max(at + 1.0 / (RATE if at < ENDED else CALM + spare), came)
        found.append((round(at * 1e6), at - came))
        number += 1
        if at > ENDED + 10.0 and at - came < 1e-6:
            return found


@pytest.mark.parametrize("spare", [RATE - CALM, (RATE - CALM) / 2])
def test_the_backlog_over_spare_capacity_is_due_and_what_it_took_is_told(spare: float) -> None:
    late = outputs(spare)
    times = {"begun_us": BEGUN * 1e6, "ended_us": ENDED * 1e6}
    found = figures(late, times, {"calm": CALM, "tuples": float(len(late))})
    assert found["capacity"] == pytest.approx(RATE, rel=0.02)
    assert found["backlog"] == pytest.approx((LOAD - RATE) * (ENDED - BEGUN), rel=0.02)
    assert found["due_s"] == pytest.approx(120.0, rel=0.03)
    assert found["back_over_due"] == pytest.approx((RATE - CALM) / spare, rel=0.05)
    assert found["latency_most_s"] == pytest.approx(6000 / (CALM + spare), rel=0.05)
