import math

import numpy as np
import pytest

from tsunagi.edge.window import SlidingWindows
from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.windows import Cut, WindowAggregator, history_steps
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.sensors import Sensor
from tsunagi.runtime.settings import StepsSettings

NAN = math.nan
START_US = 1_600_000_000_000_000


def edge_steps(
    times_us, values: Floats, steps: StepsSettings, max_age_s: list[float], first: int, count: int
) -> Floats:
    """What an edge sends of the same readings."""
    sensors = tuple(Sensor(i, f"s{i}", "e", max_age_s=age) for i, age in enumerate(max_age_s))
    edge = SlidingWindows(sensors, steps)
    edge.observe_from(int(times_us[0]) - round(steps.interval_s * 1e6))
    assert edge.next_step == first
    for time, row in zip(times_us.tolist(), values, strict=True):
        seen = np.flatnonzero(np.isfinite(row))
        edge.add(time, seen, row[seen])
    result = np.full((count, len(sensors)), NAN)
    for step in range(count):
        closed = edge.close(first + step)
        result[step, closed.places] = closed.values
    return result


def readings(rows: int, seed: int, *, jitter_us: int = 0, gap_us: int = 0):
    rng = np.random.default_rng(seed)
    times = START_US + np.arange(rows, dtype=np.int64) * 1_000_000
    times += rng.integers(-jitter_us, jitter_us + 1, size=rows)
    times[rows // 2 :] += gap_us
    values = rng.normal(size=(rows, 4))
    values[rng.random(values.shape) < 0.5] = NAN
    return times, values


@pytest.mark.parametrize("aggregate", ["mean", "sum", "min", "max", "last"])
@pytest.mark.parametrize(("window", "slide"), [(10, 2), (3, 3), (5, 3), (1, 1)])
@pytest.mark.parametrize(("jitter_us", "gap_us"), [(0, 0), (400_000, 0), (0, 33_700_000)])
def test_steps_are_those_of_an_edge_with_numbers(aggregate, window, slide, jitter_us, gap_us):
    times, values = readings(60, 1, jitter_us=jitter_us, gap_us=gap_us)
    steps = StepsSettings(window=window, slide=slide, aggregate=aggregate)
    ages = [NAN, 0.5, 7.0, 25.0]
    found, first, cut = history_steps(values, times, steps, np.array(ages))
    assert cut.numbered
    assert first + len(found) - 1 == int(times[-1]) // steps.slide_us
    np.testing.assert_allclose(found, edge_steps(times, values, steps, ages, first, len(found)), rtol=1e-12)


def test_sensors_that_do_not_read_together_have_the_steps_of_an_edge():
    rng = np.random.default_rng(5)
    times = START_US + np.sort(rng.choice(60_000_000, size=240, replace=False))
    values = np.full((240, 4), NAN)
    values[np.arange(240), rng.integers(0, 4, size=240)] = rng.normal(size=240)
    steps, ages = StepsSettings(window=5, slide=2), [NAN, 0.5, 7.0, 25.0]
    found, first, cut = history_steps(values, times, steps, np.array(ages))
    assert cut.numbered
    np.testing.assert_allclose(found, edge_steps(times, values, steps, ages, first, len(found)), rtol=1e-12)


@pytest.mark.parametrize("chunk", [1, 7, 60])
def test_pieces_of_rows_make_the_same_steps(chunk):
    times, values = readings(60, 2, gap_us=3_600_000_000)
    steps, ages = StepsSettings(window=10, slide=3), np.array([NAN, 0.5, 7.0, 25.0])
    whole, first, cut = history_steps(values, times, steps, ages)
    made = WindowAggregator(cut, steps.aggregate, ages * cut.interval)
    result = np.full(whole.shape, NAN)
    blocks = [
        block for at in range(0, 60, chunk) for block in made.add(times[at : at + chunk], values[at : at + chunk])
    ]
    for block in blocks:
        result[block.step - first : block.step - first + len(block.values)] = block.values
    np.testing.assert_array_equal(result, whole)


def test_a_long_gap_is_leapt_over(monkeypatch):
    monkeypatch.setattr("tsunagi.recovery.windows.BLOCK_CELLS", 80)
    times, values = readings(60, 3, gap_us=365 * 86_400_000_000)
    steps, ages = StepsSettings(), np.full(4, NAN)
    made = WindowAggregator(Cut.of(steps, times), steps.aggregate, ages)
    assert sum(len(block.values) for block in made.add(times, values)) < 100
    with pytest.raises(ModelError, match=r"no gap as long as that of 3.15\d+e\+07 s after row 30"):
        history_steps(values, times, steps, ages, most_bytes=2**20)


def test_rows_of_another_pace_are_a_replay():
    steps, ages = StepsSettings(), np.full(4, NAN)
    times, values = readings(60, 4)
    slow = START_US + (times - START_US) * 600
    found, first, cut = history_steps(values, slow, steps, ages)
    assert (cut.numbered, cut.speed, first) == (False, 600.0, 0)
    np.testing.assert_array_equal(found, history_steps(values, None, steps, ages)[0])
