from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsunagi_spark.frontier import NEVER, CompletedSteps, Waiting, appended_at, frontiers


def brute_force(held, last_step, counted) -> list[int]:
    found = []
    for group in held:
        slots = [slot for slot, holds in enumerate(group) if holds]
        waiting = [last_step[slot] for slot in slots if counted[slot]]
        everybody = [last_step[slot] for slot in slots]
        found.append(min(waiting) if waiting else max(everybody, default=NEVER))
    return found


@pytest.mark.slow
@given(st.data())
def test_frontiers_are_the_least_of_the_slots_that_count(data) -> None:
    groups, slots = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    held = np.array(
        data.draw(st.lists(st.lists(st.booleans(), min_size=slots, max_size=slots), min_size=groups, max_size=groups))
    )
    steps = data.draw(st.lists(st.integers(-5, 50) | st.just(NEVER), min_size=slots, max_size=slots))
    counted = data.draw(st.lists(st.booleans(), min_size=slots, max_size=slots))
    found = frontiers(held, np.array(steps, dtype=np.int64), np.array(counted))
    assert found.tolist() == brute_force(held, steps, counted)


def test_a_silent_slot_is_waited_for_and_then_left_behind() -> None:
    waiting = Waiting(wait_s=30, cap_s=10)
    steps = {0: 5, 1: 3}
    assert [waiting.elapse(1, steps) for _ in range(29)] == [frozenset()] * 29
    assert waiting.elapse(1, {0: 6, 1: 3}) == {1}
    assert waiting.elapse(1, {0: 7, 1: 3}) == {1}
    waiting.delivered(1)
    assert waiting.elapse(1, {0: 7, 1: 4}) == frozenset()


def test_a_slot_that_has_delivered_has_all_its_time_again() -> None:
    waiting = Waiting(wait_s=3, cap_s=10)
    waiting.elapse(2.5, {0: 5, 1: 3})
    waiting.delivered(1)
    assert waiting.elapse(2.5, {0: 6, 1: 4}) == frozenset()
    assert waiting.elapse(0.5, {0: 6, 1: 4}) == {1}


def test_a_slot_that_owes_nothing_is_not_silent() -> None:
    waiting = Waiting(wait_s=30, cap_s=100)
    assert waiting.elapse(60, {0: 5, 1: 5}) == frozenset()
    assert waiting.elapse(60, {0: 5, 1: 5}) == frozenset()
    assert waiting.elapse(60, {0: 6, 1: 5}) == {1}


def test_a_time_in_which_nobody_delivered_counts_little() -> None:
    waiting = Waiting(wait_s=30, cap_s=10)
    assert waiting.elapse(3600, {0: 5, 1: 3}) == frozenset()
    assert waiting.silent_s[1] == 10


def test_a_slot_that_never_gave_anything_is_waited_for_likewise() -> None:
    waiting = Waiting(wait_s=3, cap_s=10)
    assert waiting.elapse(2, {0: 5, 1: NEVER}) == frozenset()
    assert waiting.elapse(2, {0: 5, 1: NEVER}) == {1}
    assert Waiting(wait_s=3, cap_s=10).elapse(9, {0: NEVER, 1: NEVER}) == frozenset()


def test_a_clock_that_steps_back_counts_as_no_time() -> None:
    waiting = Waiting(wait_s=3, cap_s=10)
    waiting.elapse(-5, {0: 5, 1: 3})
    assert waiting.silent_s[1] == 0


def test_appended_at_finds_the_first_step_of_a_group_at_or_after_what_is_asked_for() -> None:
    closed = [
        CompletedSteps(np.array([0, 2]), np.array([3, 5, 9]), np.array([30, 50, 90])),
        CompletedSteps(np.array([1]), np.array([4]), np.array([41])),
    ]
    group, step = np.array([2, 0, 1, 2, 3]), np.array([5, 4, 4, 9, 4])
    appended_us, exact = appended_at(closed, 4, group, step)
    assert appended_us.tolist() == [50, 50, 41, 90, 0]
    assert exact.tolist() == [True, False, True, True, False]
    assert appended_at([], 4, group[:0], step[:0])[0].tolist() == []
