"""A chart's points: none of the extremes and none of the changes of quality is lost when they are thinned."""

from __future__ import annotations

import numpy as np

from tsunagi.console.history import SensorHistory, thinned


def test_few_points_are_all_drawn() -> None:
    assert thinned(np.arange(10.0), np.zeros(10, np.uint8), 10) == list(range(10))


def test_extremes_and_changes_of_quality_are_kept() -> None:
    values = np.sin(np.linspace(0, 20, 10_000))
    values[4321], values[8765] = 9.0, -9.0
    quality = np.zeros(10_000, np.uint8)
    quality[5000:5003] = 1
    places = thinned(values, quality, 200)
    assert {4321, 8765, 5000, 5003, 0, 9999} <= set(places)
    assert len(places) < 400
    assert places == sorted(places)


def test_a_value_that_is_not_known_is_null() -> None:
    history = SensorHistory([1_000_000], [float("nan")], [0.0], [0.0], [3])
    found = history.as_json(10)
    assert (found["time_s"], found["value"], found["quality"]) == ([1.0], [None], ["unmodelled"])
