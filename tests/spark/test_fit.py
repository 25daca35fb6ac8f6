"""A history fitted through Spark is fitted as in memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.fit import fit_history as in_memory
from tsunagi.recovery.model import Model
from tsunagi.recovery.moments import Moments, of_covariance, of_joint
from tsunagi.recovery.moments import Structure as Kind
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import ConfigError, Settings, SparkSettings, StepsSettings
from tsunagi_spark.fit import fit_history, some_sensors, start

SENSORS = 30
DAY = 96
STEPS = StepsSettings(interval_s=450.0, window=4, slide=2)
TABLE = SensorTable(
    tuple(
        Sensor(i, f"s{i:02d}", f"e{i % 5}", unit="K", max_age_s=1800.0 if i % 4 else math.nan, maximum=80.0)
        for i in range(SENSORS)
    )
)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    settings = Settings(spark=SparkSettings(master="local[2]", checkpoint=tmp_path_factory.mktemp("checkpoint")))
    made = start(settings)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(steps=STEPS, spark=SparkSettings(checkpoint=tmp_path_factory.mktemp("scratch")))


def readings(rows: int = 1200, *, gaps: bool) -> tuple[list[int], Floats]:
    """Event times, microseconds, and values of sensors that share a day and slow waves."""
    rng = np.random.default_rng(20230305)
    times = 1_600_000_200_000_000 + np.arange(rows) * 450_000_000
    if gaps:
        times[rows // 2 :] += 40 * 450_000_000 + 1
    waves = np.zeros((rows, 4))
    for row in range(1, rows):
        waves[row] = 0.97 * waves[row - 1] + 0.25 * rng.normal(size=4)
    day = np.sin(2 * np.pi * times / 86_400e6)[:, None]
    values = 40 + waves @ rng.normal(size=(4, SENSORS)) * 3 + day * rng.uniform(2, 6, SENSORS)
    values += rng.normal(size=values.shape)
    if gaps:
        values[rng.random(values.shape) < 0.1] = np.nan
        values[500:550, ::3] = np.nan
        values[300, 4] = 900.0  # implausible
    return times.tolist(), values


def write_parquet(directory: Path, times: list[int] | None, values: Floats) -> Path:
    directory.mkdir()
    columns = {f"s{i:02d}": pa.array(values[:, i], mask=np.isnan(values[:, i])) for i in range(SENSORS)}
    if times is not None:
        columns["time"] = pa.array(times, pa.timestamp("us", tz="UTC"))
    table = pa.table(columns)
    for number in range(4):
        rows = len(values) // 4
        parquet.write_table(
            table.slice(number * rows, rows), directory / f"part-{number}.parquet", row_group_size=rows // 3
        )
    return directory


def write_csv(file: Path, times: list[int] | None, values: Floats) -> Path:
    names = [f"s{i:02d}" for i in range(SENSORS)]
    lines = [",".join(names if times is None else ["time", *names])]
    for number, row in enumerate(values.tolist()):
        cells = ["" if math.isnan(cell) else repr(cell) for cell in row]
        lines.append(",".join(cells if times is None else [repr(times[number] / 1e6), *cells]))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def same(one: Model, other: Model) -> None:
    assert one.names == other.names
    for key in ("mean", "scale", "transition", "Q", "prior", "drift"):
        np.testing.assert_allclose(getattr(one, key), getattr(other, key), rtol=1e-9, atol=1e-9, err_msg=key)
    if one.profile is None or other.profile is None:
        assert one.profile is other.profile
    else:
        np.testing.assert_allclose(one.profile, other.profile, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(one.calibration, other.calibration, rtol=1e-6)
    about, expected = dict(one.about), dict(other.about)
    assert about.pop("sample_steps") == about["steps"]
    for key, wanted in expected.items():
        assert about[key] == (pytest.approx(wanted, rel=1e-6) if isinstance(wanted, float) else wanted), key
    assert about.keys() == expected.keys()


@pytest.mark.parametrize(("rows", "gaps"), [(5000, True), (1200, False)])
def test_parquet_with_times(session, settings, tmp_path, rows, gaps):
    path = write_parquet(tmp_path / "history", *readings(rows, gaps=gaps))
    told: list[str] = []
    model, report = fit_history(settings, path, TABLE, session=session, period="24h", tell=told.append)
    expected, _ = in_memory(path, TABLE, STEPS, period="24h")
    same(model, expected)
    assert report.profile[:1] == ((DAY,) if rows == 5000 else ())  # of the shorter one the trial is no better for it
    assert model.about["numbered"]
    assert any("summing" in line for line in told)


@pytest.mark.parametrize("timed", [False, True])
def test_csv(session, settings, tmp_path, monkeypatch, timed):
    monkeypatch.setattr("tsunagi.recovery.history_csv.PIECE_BYTES", 100_000)
    times, values = readings(gaps=True)
    path = write_csv(tmp_path / "history.csv", times if timed else None, values)
    model, _ = fit_history(settings, path, TABLE, session=session)
    same(model, in_memory(path, TABLE, STEPS)[0])


def test_a_share_of_the_rows(session, settings, tmp_path):
    path = write_parquet(tmp_path / "history", *readings(gaps=True))
    model, _ = fit_history(settings, path, TABLE, session=session, share=0.71)
    same(model, in_memory(path, TABLE, STEPS, 0.71)[0])


def test_moments_are_of_all_steps_and_sensors_where_the_search_saw_some(session, settings, tmp_path, monkeypatch):
    monkeypatch.setattr("tsunagi_spark.fit.SEARCHED", 13)
    times, values = readings(gaps=True)
    path = write_parquet(tmp_path / "history", times, values)
    model, report = fit_history(settings, path, TABLE, session=session, sample=400)
    assert (report.steps, report.sensors, model.about["sample_steps"]) == (618, SENSORS, 400)
    from tsunagi.recovery.fit import HistoryColumns
    from tsunagi.recovery.history import list_history
    from tsunagi.recovery.windows import history_steps

    columns = HistoryColumns.of(list_history(path), TABLE, STEPS)
    clean, _ = columns.plausible(values)
    steps, _, _ = history_steps(clean, np.array(times), STEPS, columns.max_age)
    np.testing.assert_allclose(model.mean, np.nanmean(steps, axis=0), rtol=1e-12)
    scale = np.nanstd(steps, axis=0, ddof=1)
    np.testing.assert_allclose(model.scale, scale, rtol=1e-12)
    structure = Kind.of(model.about)
    moments = Moments((steps - model.mean) / scale)
    found = moments.joint(structure.lag) if structure.lag else moments.covariance()
    expected = (of_joint if structure.lag else of_covariance)(found, structure, model)
    np.testing.assert_allclose(model.Q, expected.Q, atol=1e-9)
    np.testing.assert_allclose(model.prior, expected.prior, atol=1e-9)


def test_sensors_to_search_on_are_those_of_whole_edges_and_some_others():
    edges = [f"e{i % 7}" for i in range(70)]
    chosen = some_sensors(edges, 33)
    assert len(chosen) == len(set(chosen.tolist())) == 33
    sizes = Counter(edges[place] for place in chosen)
    assert sorted(sizes.values(), reverse=True)[:3] == [10, 10, 10]
    assert some_sensors(edges, 70).tolist() == list(range(70))
    assert len(some_sensors(["e"] * 70, 33)) == 33


def test_a_bad_row_is_named_by_a_task(session, settings, tmp_path, monkeypatch):
    times, values = readings(gaps=False)
    times[50] = times[49]
    path = write_parquet(tmp_path / "history", times, values)
    with pytest.raises(ModelError, match=r"part-0.parquet, row group 0, row 50: its time is not later"):
        fit_history(settings, path, TABLE, session=session, sample=400)
    few = replace(TABLE, sensors=TABLE.sensors[:-1])
    with pytest.raises(ModelError, match="'s29' is not in the sensors table"):
        fit_history(settings, path, few, session=session)


def test_a_scratch_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"\[spark\] checkpoint = .*file/checkpoint: .*Not a directory"):
        start(Settings(spark=SparkSettings(checkpoint=tmp_path / "file" / "checkpoint")))
