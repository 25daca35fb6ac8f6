"""How much is launched for a queue that is there."""

from __future__ import annotations

import numpy as np
import pytest

from tsunagi.scaler.guarding import AMOUNTS, Queue, expected_late


def queue(waiting: float, *ready: tuple[float, float]) -> Queue:
    return Queue(waiting, np.array(ready), slo_s=10.0, boot_s=100.0, span_s=300.0, step_s=10.0)


def test_a_queue_that_drains_by_itself_is_late_until_then() -> None:
    late = queue(2000.0, (0.0, 100.0)).late(50.0, np.zeros(1))
    assert late[0] == pytest.approx(50.0 * 10.0, abs=50.0 * 10.0)  # 20 s of work, 10 of them promised


def test_without_capacity_for_the_rate_all_that_comes_is_late() -> None:
    held = queue(5000.0, (0.0, 100.0))
    late = held.late(150.0, np.array([0.0, 50.0, 200.0]))
    assert late[0] == pytest.approx(150.0 * 400.0)
    assert late[1] == pytest.approx(late[0])  # it carries the rate, and the queue stays as it is
    assert late[2] < 0.7 * late[0]


def test_what_boots_already_is_reckoned_with() -> None:
    nothing, coming = queue(5000.0, (0.0, 100.0)), queue(5000.0, (0.0, 100.0), (20.0, 200.0))
    assert coming.late(150.0, np.zeros(1))[0] < 0.5 * nothing.late(150.0, np.zeros(1))[0]
    assert coming.amounts(150.0)[-1] < nothing.amounts(150.0)[-1]


def test_the_most_that_is_compared_drains_the_queue_within_a_slot() -> None:
    held = queue(3000.0, (0.0, 100.0))
    amounts = held.amounts(200.0)
    assert amounts[0] == 0.0
    assert len(amounts) == AMOUNTS + 1
    assert held.late(200.0, amounts)[-1] < held.late(200.0, amounts)[0]
    assert np.all(np.diff(held.late(200.0, amounts)) <= 0.0)


def test_a_whim_is_worth_less_than_what_stays() -> None:
    held, more = queue(3000.0, (0.0, 100.0)), np.array([0.0, 200.0])
    saved = [-np.diff(expected_late(held, 200.0, 80.0, stays, more))[0] for stays in (0.0, 0.5, 1.0)]
    assert saved[0] < 0.1 * saved[2]
    assert saved[1] == pytest.approx(0.5 * (saved[0] + saved[2]))
