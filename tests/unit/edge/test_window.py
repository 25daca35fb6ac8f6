"""Windows: what is in them, what is held, what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tsunagi.edge.window import LATE, NOT_A_NUMBER, OUT_OF_RANGE, ClosedWindow, SlidingWindows
from tsunagi.runtime.sensors import Sensor
from tsunagi.runtime.settings import StepsSettings

SECOND = 1_000_000
AGGREGATES: dict[str, Callable[[Any], Any]] = {
    "mean": np.mean,
    "sum": np.sum,
    "min": np.min,
    "max": np.max,
    "last": lambda values: values[-1],
}


def make(
    count: int = 1, *, max_age_s: float = math.nan, low: float = math.nan, high: float = math.nan, **steps: object
) -> SlidingWindows:
    sensors = tuple(
        Sensor(id=10 + number, name=f"s{number}", edge="e", max_age_s=max_age_s, minimum=low, maximum=high)
        for number in range(count)
    )
    return SlidingWindows(sensors, StepsSettings.model_validate(steps))


def add(windows: SlidingWindows, time_s: float, *values: float) -> list[str]:
    rejected = windows.add(round(time_s * SECOND), np.arange(len(values)), np.array(values, dtype=np.float64))
    return [reading.reason for reading in rejected]


def content(closed: ClosedWindow) -> dict[int, Any]:
    return {
        int(sensor): (float(value), int(count))
        for sensor, value, count in zip(closed.sensors, closed.values, closed.counts, strict=True)
    }


def test_a_window_is_open_at_its_begin_and_closed_at_its_end():
    windows = make(window=10, slide=2)
    windows.observe_from(-1)
    for second in range(14):
        add(windows, second, second)
    assert windows.next_step == 5
    assert content(windows.close(5)) == {10: (np.mean(range(1, 11)), 10)}
    assert content(windows.close(6)) == {10: (np.mean(range(3, 13)), 10)}


def test_no_step_is_closed_before_its_window_is_whole():
    windows = make(window=10, slide=2)
    windows.observe_from(3 * SECOND)
    assert windows.next_step == 7  # (4 s, 14 s]; step 6 begins at 2 s
    with pytest.raises(ValueError, match="step 6 cannot be closed"):
        windows.close(6)
    windows.close(7)
    with pytest.raises(ValueError, match="the next is 8"):
        windows.close(7)
    windows.observe_from(-100 * SECOND)
    assert windows.next_step == 8
    windows.observe_from(0, not_before=20)
    assert windows.next_step == 20


def test_a_step_whose_window_begins_where_observation_began_is_whole():
    windows = make(window=10, slide=2)
    windows.observe_from(4 * SECOND)
    assert windows.next_step == 7
    windows = make(window=10, slide=2)
    windows.observe_from(4 * SECOND + 1)
    assert windows.next_step == 8


@pytest.mark.parametrize("aggregate", sorted(AGGREGATES))
def test_aggregates_are_those_of_numpy_whatever_the_order_of_arrival(aggregate):
    generator = np.random.default_rng(3)
    readings = generator.normal(1e6, 1.0, (60, 4))
    windows = make(4, window=10, slide=3, aggregate=aggregate)
    windows.observe_from(-1)
    closed = {}
    for begin in range(0, 60, 6):
        for second in generator.permutation(np.arange(begin, begin + 6)).tolist():
            add(windows, second, *readings[second])
        while windows.next_step is not None and windows.next_step * 3 < begin + 6:
            found = windows.close(windows.next_step)
            closed[found.step] = found
    assert sorted(closed) == list(range(4, 20))
    for step, found in closed.items():
        for place in range(4):
            expected = AGGREGATES[aggregate](readings[step * 3 - 9 : step * 3 + 1, place])
            assert content(found)[10 + place] == (pytest.approx(expected, rel=1e-12), 10)


@pytest.mark.slow
def test_sums_do_not_drift():
    windows = make(window=10, slide=1, aggregate="sum")
    windows.observe_from(-1)
    for second in range(5000):
        add(windows, second, 1e12 if second == 500 else 0.1)
        if windows.next_step is not None and windows.next_step <= second:
            closed = windows.close(windows.next_step)
            if second > 510:
                assert content(closed)[10][0] == pytest.approx(1.0, rel=1e-14)


def test_a_silent_sensor_is_left_out_or_held_as_long_as_its_reading_holds():
    for max_age_s, held in ((math.nan, []), (15.0, [(7, 0), (7, 0)]), (14.0, [(7, 0)]), (5.0, [])):
        windows = make(max_age_s=max_age_s, window=4, slide=2)
        windows.observe_from(-1)
        add(windows, 2, 7.0)
        found = []
        for step in range(2, 12):
            closed = content(windows.close(step))
            if 10 in closed and closed[10][1] == 0:
                found.append(closed[10])
            elif step > 2:
                assert closed == {}
        # the reading of second 2 has left the window at step 3 (2 s, 6 s]
        assert found[: len(held)] == held
        assert len(found) == (0 if math.isnan(max_age_s) else max(0, math.ceil((max_age_s + 2) / 2) - 3))


def test_what_is_held_is_what_was_known_at_the_end_of_the_step():
    windows = make(max_age_s=100, window=4, slide=2)
    windows.observe_from(-1)
    add(windows, 1, 1.0)
    add(windows, 9, 9.0)  # has arrived, but belongs to a later step
    windows.close(2)
    assert content(windows.close(3)) == {10: (1.0, 0)}
    assert content(windows.close(4)) == {10: (1.0, 0)}
    assert content(windows.close(5)) == {10: (9.0, 1)}


def test_a_step_without_any_value_is_empty():
    windows = make(3, window=4, slide=2)
    windows.observe_from(-1)
    closed = windows.close(2)
    assert closed.sensors.tolist() == []
    assert closed.sensors.dtype == np.uint32
    assert closed.counts.dtype == np.uint32


def test_readings_that_are_late_or_senseless_are_named_and_left_out():
    windows = make(2, low=0.0, high=10.0, window=4, slide=2)
    windows.observe_from(-1)
    assert add(windows, 3, 5.0, 11.0) == [OUT_OF_RANGE]
    assert add(windows, 4, math.inf, math.nan) == [NOT_A_NUMBER, NOT_A_NUMBER]
    assert add(windows, 4, -0.1, 0.0) == [OUT_OF_RANGE]
    assert content(windows.close(2)) == {10: (5.0, 1), 11: (0.0, 1)}
    assert add(windows, 4, 1.0, 2.0) == [LATE, LATE]
    assert add(windows, 4.000001, 1.0, 2.0) == []
    assert content(windows.close(3)) == {10: (3.0, 2), 11: (1.0, 2)}


def test_many_readings_stay_in_bounds():
    windows = make(2000, window=10, slide=2)
    windows.observe_from(-1)
    values = np.arange(2000.0)
    for second in range(41):
        add(windows, second, *values)
        if windows.next_step is not None and windows.next_step * 2 <= second:
            closed = windows.close(windows.next_step)
            assert closed.counts.tolist() == [10] * 2000
            np.testing.assert_allclose(closed.values, values)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    window=st.integers(1, 8),
    slide=st.integers(1, 8),
    readings=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 2), st.floats(-100, 100)), max_size=60),
)
def test_every_step_holds_exactly_the_readings_of_its_window(data, window, slide, readings):
    window, slide = max(window, slide), min(window, slide)
    windows = make(3, window=window, slide=slide, aggregate="sum", max_age_s=float(window + 5))
    windows.observe_from(0)
    taken = []
    order = data.draw(st.permutations(readings))
    for time_s, place, value in order:
        rejected = windows.add(time_s * SECOND, np.array([place]), np.array([value]))
        if not rejected:
            taken.append((time_s, place, value))
        if data.draw(st.booleans()):
            step = windows.next_step
            assert step is not None
            found = content(windows.close(step))
            end = step * slide
            for place_ in range(3):
                inside = [v for t, p, v in taken if p == place_ and end - window < t <= end]
                before = sorted((t, n) for n, (t, p, v) in enumerate(taken) if p == place_ and t <= end)
                if inside:
                    assert found[10 + place_] == (pytest.approx(math.fsum(inside), abs=1e-9), len(inside))
                elif before and end - before[-1][0] < window + 5:
                    assert found[10 + place_] == (taken[before[-1][1]][2], 0)
                else:
                    assert 10 + place_ not in found


def test_what_came_before_the_first_whole_window_is_in_none():
    windows = make(2, window=10, slide=2)
    both = np.array([0, 1])
    assert windows.early(0, both) == 0
    windows.observe_from(3 * SECOND)
    assert windows.begin_us(windows.next_step or 0) == 4 * SECOND
    assert [windows.early(second * SECOND, both) for second in (3, 4, 5)] == [2, 2, 0]
    windows.close(7)
    assert windows.early(5 * SECOND, both) == 0  # they had their windows, or are late
