from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.world import World, write_table
from tests.unit.spark.small_job import layout_of
from tsunagi.runtime import metrics
from tsunagi.runtime.sensors import read_sensors
from tsunagi.runtime.settings import Settings, SlotsSettings
from tsunagi_spark.frontier import NEVER, SlotMark
from tsunagi_spark.layout import Layout
from tsunagi_spark.progress import Stages, describe, show

REPORTS: list[dict[str, Any]] = [
    {"core": 0, "taken": 5, "carried": 3, "appended_us": [1_000_000, 4_000_000], "sent_us": 4_500_000},
    {"core": 1, "taken": 7, "carried": 4, "appended_us": [], "sent_us": 4_500_000},
    {"core": -1, "rows": 2, "appended_us": [], "sent_us": 0},
]


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    write_table(tmp_path / "sensors.csv", sensors=12, groups=2)
    settings = Settings(sensors=tmp_path / "sensors.csv", slots=SlotsSettings(count=3))
    return layout_of(World(settings, read_sensors(settings.sensors)))


def test_it_says_where_the_frontier_is_and_what_holds_it(layout: Layout) -> None:
    marks = {0: SlotMark(step=20), 1: SlotMark(step=17)}
    beat = describe(layout, marks, [16, NEVER], frozenset({2}), REPORTS)
    assert (beat.frontier, beat.newest, beat.carried, beat.order) == (16, 20, 7, "basic")
    assert list(beat.held_by) == [1]
    assert list(beat.left_behind) == [2]
    assert beat.latency_us == 500_000
    assert list(describe(layout, marks, [16], frozenset(), REPORTS).held_by) == [2], "it has not given anything yet"
    even = describe(layout, {slot: SlotMark(step=9) for slot in range(3)}, [9], frozenset(), [])
    assert not even.held_by
    show(beat, layout, marks, REPORTS)
    assert metrics.FRONTIER_HELD_BY.labels("1")._value.get() == 3
    assert metrics.SPARK_CARRIED._value.get() == 7


def test_sparks_own_durations_are_exported() -> None:
    stages = Stages()
    stages.look(None)
    stages.look({"batchId": 3, "durationMs": {"addBatch": 250, "walCommit": 12}})
    assert metrics.SPARK_STAGE_S.labels("addBatch")._value.get() == 0.25
    assert metrics.SPARK_STAGE_S.labels("walCommit")._value.get() == 0.012
