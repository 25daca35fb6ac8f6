"""The truth of the demo: windows cut by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tsunagi.audit.truth import queries, read_readings, windows
from tsunagi.runtime.sensors import SensorTable, read_sensors
from tsunagi.runtime.settings import StepsSettings

STEPS = StepsSettings(interval_s=1.0, window=4, slide=2)
ORIGIN_US = 1_000_000_000


@pytest.fixture
def table(tmp_path: Path) -> SensorTable:
    path = tmp_path / "sensors.csv"
    path.write_text("sensor,edge,max_age_s,min,max\na,e1,,,\nb,e1,10,0,100\n")
    return read_sensors(path)


def test_windows(tmp_path: Path, table: SensorTable) -> None:
    data = tmp_path / "data.csv"
    data.write_text("a,b\n1,10\n2,20\n3,-5\n4,\n5,\n6,\n7,\n8,\n")
    readings = read_readings(data, table, origin_us=ORIGIN_US, interval_us=1_000_000)
    truth = windows(readings, STEPS, np.array([math.nan, 6e6]))
    # The first row's time is a multiple of the slide: the window (origin, origin + 4 s] is the first whole one.
    assert truth.first_step * STEPS.slide_us == ORIGIN_US + 4_000_000
    assert truth.last_step * STEPS.slide_us == ORIGIN_US + 6_000_000
    assert truth.values[:, 0].tolist() == [3.5, 5.5]
    assert truth.counts.tolist() == [[4, 1], [4, 0]]
    assert truth.values[:, 1].tolist() == [20.0, 20.0]  # -5 is implausible; then 20 is held, 5 s old


def test_a_reading_is_held_for_its_age_only(tmp_path: Path, table: SensorTable) -> None:
    data = tmp_path / "data.csv"
    data.write_text("a,b\n1,10\n2,20\n3,\n4,\n5,\n6,\n7,\n")
    readings = read_readings(data, table, origin_us=ORIGIN_US, interval_us=1_000_000)
    truth = windows(readings, STEPS, np.array([math.nan, 5e6]))
    assert np.isnan(truth.values[-1, 1])


@pytest.mark.parametrize(
    ("aggregate", "expected"), [("mean", 3.5), ("sum", 14.0), ("min", 2.0), ("max", 5.0), ("last", 5.0)]
)
def test_aggregates(tmp_path: Path, table: SensorTable, aggregate: str, expected: float) -> None:
    data = tmp_path / "data.csv"
    data.write_text("a,b\n1,1\n2,1\n3,1\n4,1\n5,1\n")
    readings = read_readings(data, table, origin_us=ORIGIN_US, interval_us=1_000_000)
    steps = STEPS.model_copy(update={"aggregate": aggregate})
    assert windows(readings, steps, np.full(2, np.nan)).values[0, 0] == expected


def test_a_time_column_gives_the_spacing(tmp_path: Path, table: SensorTable) -> None:
    data = tmp_path / "data.csv"
    data.write_text("time,a,b\n2024-01-01T00:00:00+00:00,1,1\n2024-01-01T01:10:00+01:00,2,2\n1704069000,3,3\n")
    readings = read_readings(data, table, origin_us=ORIGIN_US, interval_us=1, speed=600.0)
    assert (readings.times_us - ORIGIN_US).tolist() == [0, 1_000_000, 3_000_000]


def test_queries_count_the_range() -> None:
    steps = np.arange(10, 15)
    present = np.array([[True], [True], [False], [True], [True]])
    above = np.array([[True], [False], [True], [True], [False]])
    q1, q2, q3 = queries(steps, present, above, slide_us=2, range_us=5)  # (t - 5, t]: this step and the two before
    assert q1[:, 0].tolist() == [1, 2, 2, 2, 2]
    assert q2[:, 0].tolist() == [1, 1, 1, 1, 1]
    assert q3[-1, 0] == 0.5
