from __future__ import annotations

import pytest

from tsunagi.audit.silence import SlotTimes, longest, silence_s

STEP = 200_000


def times(*moments: tuple[int, int]) -> SlotTimes:
    found = SlotTimes()
    for at_us, epoch in moments:
        found.add(at_us, epoch)
    return found


def test_a_steady_slot_is_not_silent():
    found = times(*((STEP * i, 1) for i in range(50)))
    assert found.silence_s(20 * STEP, 45 * STEP, STEP) == 0.0


def test_the_gap_begins_at_the_last_output_before_the_fault():
    found = times((0, 1), (STEP, 1), (STEP + 1_000_000, 2), (2 * STEP + 1_000_000, 2))
    assert found.silence_s(STEP + 100_000, 3 * STEP + 1_000_000, STEP) == pytest.approx(0.8)


def test_a_gap_before_the_fault_does_not_count():
    found = times((0, 1), (5_000_000, 1), (5_200_000, 1), (5_400_000, 1))
    assert found.silence_s(5_100_000, 5_400_000, STEP) == 0.0


def test_a_gap_that_still_lasts_counts_up_to_now():
    assert times((0, 1)).silence_s(100_000, 3_200_000, STEP) == pytest.approx(3.0)
    assert SlotTimes().silence_s(0, 1, STEP) is None


def test_silence_is_the_longest_gap_less_the_step():
    times_us = [STEP * i for i in range(25)]
    later = [*times_us[:10], *(time_us + 700_000 for time_us in times_us[10:])]
    assert silence_s(later, 0, later[-1], STEP) == pytest.approx(0.7)
    assert silence_s(later, later[10], later[-1], STEP) == 0.0
    assert silence_s(later[:1], 0, later[0], STEP) is None


def test_the_first_output_of_a_term():
    found = times((1, 1), (2, 1), (3, 2), (4, 2))
    assert found.first_of(2) == 3
    assert found.first_of(3) is None


def test_longest():
    assert longest([None, 0.5, 1.5]) == 1.5
    assert longest([None]) is None
