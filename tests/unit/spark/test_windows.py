from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tests.spark.world import FIRST_STEP, Row, World, write_table
from tests.unit.spark.small_job import SmallJob, layout_of
from tsunagi.runtime.columns import floats, octets, sensors
from tsunagi.runtime.messages import ResultBlock
from tsunagi.runtime.sensors import read_sensors
from tsunagi.runtime.settings import (
    AggregateSettings,
    ConfigError,
    QuerySettings,
    Settings,
    SlotsSettings,
    StepsSettings,
)
from tsunagi_spark.decode import Arrived
from tsunagi_spark.layout import Order
from tsunagi_spark.windows import GROUP, Spec, specs_of

STEPS = 30
LAST = FIRST_STEP + STEPS - 1
SPECS = (
    Spec("tumbling", 5, 5, by_group=False),
    Spec("sliding", 6, 4, by_group=False),
    Spec("groups", 8, 2, by_group=True),
    Spec("every", 3, 1, by_group=True),
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    write_table(tmp_path / "sensors.csv", sensors=14, groups=4)
    return Settings(
        sensors=tmp_path / "sensors.csv",
        slots=SlotsSettings(count=2),
        query=QuerySettings(range_s=7.0),
        steps=StepsSettings(slide=1),
    )


def run(settings: Settings, order: Order, most: int = 4, *, nan: int | None = None) -> tuple[World, SmallJob]:
    world = World(settings, read_sensors(settings.sensors), seed=5, nan=nan)
    records: dict[int, list[Arrived]] = {0: [], 1: []}
    for step in range(FIRST_STEP, FIRST_STEP + STEPS):
        for slot, made in records.items():
            made.append(Arrived(slot, len(made), *world.record(slot, step, missing=0.3)))
    job = SmallJob(settings, layout_of(world, order=order), specs=SPECS)
    for first in range(0, STEPS, most):
        job.run([record for slot in records for record in records[slot][first : first + most]])
    return world, job


def expected(world: World, spec: Spec) -> dict[tuple[str, int, int], list[Row]]:
    """Rows by (group, end, sensor), of the windows that the last step completes."""
    found: dict[tuple[str, int, int], list[Row]] = {}
    for row in world.rows:
        if math.isnan(row.mean):
            continue
        for end in range(row.step, row.step + spec.length):
            if end % spec.slide == 0 and end <= LAST:
                sensor = GROUP if spec.by_group else row.sensor
                found.setdefault((world.groups[row.sensor], end, sensor), []).append(row)
    return found


@pytest.mark.parametrize("order", ["basic", "optimised", "full"])
@pytest.mark.parametrize("nan", [None, 3])
def test_every_window_is_what_its_values_make(settings: Settings, order: Order, nan: int | None) -> None:
    world, job = run(settings, order, nan=nan)
    for spec in SPECS:
        wanted = expected(world, spec)
        found = 0
        for _, key, value in job.sent:
            block = ResultBlock.FromString(value)
            if block.query != spec.name:
                continue
            assert key == f"{spec.name}/{block.group}/{block.step}".encode()
            assert block.event_time_us == block.step * settings.steps.slide_us
            assert block.window.length_us == spec.length * settings.steps.slide_us
            assert block.appended_us == max(world.appended_us[slot, block.step] for slot in (0, 1))
            for number, sensor in enumerate(sensors(block.sensor).tolist()):
                rows = wanted[block.group, block.step, sensor]
                values = [row.mean for row in rows]
                sds = [row.sd for row in rows]
                filled = [row.quality for row in rows if row.quality in (1, 2)]
                window = block.window
                assert sensors(block.q1)[number] == len(rows)
                assert sensors(block.q2)[number] == len(filled)
                assert octets(block.quality)[number] == max(filled, default=0)
                assert floats(window.sum)[number] == pytest.approx(sum(values))
                assert floats(block.mean)[number] == pytest.approx(np.mean(values))
                assert floats(window.minimum)[number] == min(values)
                assert floats(window.maximum)[number] == max(values)
                assert floats(window.sum_sd)[number] == pytest.approx(sum(sds))
                assert floats(block.sd)[number] == pytest.approx(np.mean(sds))
                assert floats(window.extreme_sd)[number] == pytest.approx(math.sqrt(sum(sd**2 for sd in sds)))
                assert floats(block.bound)[number] == pytest.approx(np.mean([row.bound for row in rows]))
                found += 1
        assert found == len(wanted)
    for state in job.states.values():
        assert len(state.panes) <= 14 * sum(spec.length // spec.pane for spec in SPECS), "only open panes are kept"


def test_the_bounds_hold_however_the_errors_correlate() -> None:
    rng = np.random.default_rng(3)
    for correlation in (0.0, 0.6, 1.0):
        sd = rng.uniform(0.1, 2, 8)
        values = rng.normal(size=8)
        common = rng.normal(size=(20_000, 1))
        errors = sd * (math.sqrt(correlation) * common + math.sqrt(1 - correlation) * rng.normal(size=(20_000, 8)))
        assert np.std(np.mean(errors, axis=1)) <= np.mean(sd) * 1.02
        assert np.std(np.sum(errors, axis=1)) <= np.sum(sd) * 1.02
        off = np.min(values + errors, axis=1) - np.min(values)
        assert math.sqrt(np.mean(off**2)) <= math.sqrt(np.sum(sd**2)) * 1.02


def test_windows_are_whole_steps() -> None:
    steps = StepsSettings(interval_s=1.0, slide=2)
    (spec,) = specs_of([AggregateSettings(name="a", range_s=10, slide_s=4, by="group")], steps)
    assert (spec.length, spec.slide, spec.pane, spec.by_group) == (5, 2, 1, True)
    with pytest.raises(
        ConfigError, match=r"\[\[query.aggregates\]\] a: range_s = 5: expected a multiple of a step, 2 s"
    ):
        specs_of([AggregateSettings(name="a", range_s=5)], steps)


@pytest.mark.parametrize(
    ("aggregates", "word"),
    [
        ([{"name": "readings", "range_s": 4}], "taken"),
        ([{"name": "a", "range_s": 4, "slide_s": 8}], "values would be lost"),
        ([{"name": "a", "range_s": 4}, {"name": "a", "range_s": 8}], "found a name twice"),
        ([{"name": "a/b", "range_s": 4}], "pattern"),
    ],
)
def test_unusable_aggregates_are_refused(aggregates: list[dict[str, object]], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        QuerySettings.model_validate({"aggregates": aggregates})
