"""Long tables as histories: the steps are those of a wide table with the same readings, whatever the order of rows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import parquet

from tsunagi.cli import cli
from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.fit import fit_history, fit_steps
from tsunagi.recovery.panes import PaneCollector
from tsunagi.recovery.table_history import has_long, read_tables
from tsunagi.recovery.windows import Cut, history_steps
from tsunagi.runtime import result_files
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import StepsSettings, TableSettings
from tsunagi.runtime.tables import csv_table
from tsunagi.runtime.tables.layout import find_layout

NAMES = ("a", "b", "c")
TABLE = SensorTable(tuple(Sensor(number, name, "e") for number, name in enumerate(NAMES)))
BEGIN = 1_700_000_000
FORM = TableSettings()


def field(rows: int = 400, *, gaps: float = 0.3) -> tuple[Any, Any]:
    """Return times in seconds, int64[rows], and values, float64[rows, 3], of which some are NaN."""
    rng = np.random.default_rng(4)
    values = np.round(np.cumsum(rng.normal(size=(rows, 1)), axis=0) + rng.normal(size=(rows, 3)), 3)
    values[rng.random(values.shape) < gaps] = np.nan
    times = BEGIN + np.arange(rows)
    times[rows // 2 :] += 90  # a gap
    return times, values


def long_rows(times: Any, values: Any) -> list[tuple[int, str, float]]:
    return [
        (int(time), NAMES[place], float(value))
        for time, row in zip(times, values, strict=True)
        for place, value in enumerate(row)
        if math.isfinite(value)
    ]


def write(path: Path, rows: list[tuple[int, str, float]]) -> Path:
    path.write_text("time,sensor,value\n" + "".join(f"{time},{name},{value!r}\n" for time, name, value in rows))
    return path


ORDERS: dict[str, Any] = {
    "by time": lambda rows: rows,
    "by sensor": lambda rows: sorted(rows, key=lambda row: row[1]),
    "backwards": lambda rows: rows[::-1],
    "any": lambda rows: [rows[place] for place in np.random.default_rng(1).permutation(len(rows))],
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("aggregate", ["mean", "sum", "min", "max", "last"])
@pytest.mark.parametrize(("window", "slide"), [(5, 1), (5, 3), (4, 4)])
def test_the_steps_are_those_of_a_wide_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str, aggregate: str, window: int, slide: int
) -> None:
    monkeypatch.setattr("tsunagi.recovery.panes._CHUNK", 7)
    monkeypatch.setattr("tsunagi.recovery.panes._BLOCK", 11)
    monkeypatch.setattr(csv_table, "CHUNK_BYTES", 500)
    steps = StepsSettings.model_validate({"window": window, "slide": slide, "aggregate": aggregate})
    times, values = field()
    table = SensorTable((Sensor(0, "a", "e"), Sensor(1, "b", "e", max_age_s=9.0), Sensor(2, "c", "e")))
    expected, first, _ = history_steps(values, times * 1_000_000, steps, np.array([math.nan, 9.0, math.nan]))
    found = read_tables(write(tmp_path / "a.csv", ORDERS[order](long_rows(times, values))), table, steps, FORM)
    assert (found.first, found.names) == (first, NAMES)
    np.testing.assert_allclose(found.values, expected, rtol=1e-12, atol=1e-9)


def test_a_model_of_a_long_table_is_that_of_the_wide_one(tmp_path: Path) -> None:
    times, values = field()
    steps = StepsSettings(window=4, slide=2)
    lines = [
        ",".join([str(time), *("" if np.isnan(v) else repr(float(v)) for v in row)])
        for time, row in zip(times, values, strict=True)
    ]
    (tmp_path / "wide.csv").write_text("\n".join(["time,a,b,c", *lines]) + "\n")
    wide, wide_report = fit_history(tmp_path / "wide.csv", TABLE, steps)
    history = read_tables(write(tmp_path / "long.csv", long_rows(times, values)), TABLE, steps, FORM)
    model, report = fit_steps(history, TABLE, steps)
    assert (report.steps, report.missing_share) == (wide_report.steps, wide_report.missing_share)
    assert report.nrmse == pytest.approx(wide_report.nrmse)
    np.testing.assert_allclose(model.mean, wide.mean, rtol=1e-9)
    assert model.about["period"] != []


def test_rows_far_apart_are_a_replay_that_is_faster(tmp_path: Path) -> None:
    times, values = BEGIN + 600 * np.arange(200), field(200, gaps=0)[1]
    steps = StepsSettings(window=4, slide=2)
    expected, _, cut = history_steps(values, times * 1_000_000, steps, np.full(3, np.nan))
    found = read_tables(write(tmp_path / "a.csv", long_rows(times, values)), TABLE, steps, FORM)
    assert found.cut == cut
    assert not cut.numbered
    np.testing.assert_allclose(found.values, expected, rtol=1e-12)


def test_a_folder_may_hold_both_layouts_and_kinds(tmp_path: Path) -> None:
    times, values = field(gaps=0)
    steps = StepsSettings(window=4, slide=2)
    lines = [
        ",".join(map(repr, [float(time), *row.tolist()])) for time, row in zip(times[:100], values[:100], strict=True)
    ]
    (tmp_path / "1.csv").write_text("\n".join(["time,a,b,c", *lines]) + "\n")
    write(tmp_path / "2.csv", long_rows(times[100:300], values[100:300]))
    rest = long_rows(times[300:], values[300:])
    columns = {
        "time": pa.array([time for time, _, _ in rest]),
        "sensor": pa.array([name for _, name, _ in rest]).dictionary_encode(),
        "value": pa.array([value for _, _, value in rest]),
    }
    parquet.write_table(pa.table(columns), tmp_path / "3.parquet")
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "notes.txt").write_text("ours")
    assert has_long(tmp_path, FORM)
    expected, first, _ = history_steps(values, times * 1_000_000, steps, np.full(3, np.nan))
    found = read_tables(tmp_path, TABLE, steps, FORM)
    assert found.first == first
    np.testing.assert_allclose(found.values, expected, rtol=1e-12)


def test_of_results_only_what_was_measured_counts_and_the_rest_is_told(tmp_path: Path) -> None:
    rows = [
        (BEGIN + 2 * step, name, float(step), quality, query)
        for step in range(10)
        for name, quality, query in (
            ("a", "exact", "readings"),
            ("b", "bounded", "readings"),
            ("a", "exact", "overview"),
        )
    ]
    columns = dict(
        zip(("time", "sensor", "value", "quality", "query"), map(list, zip(*rows, strict=True)), strict=True)
    )
    parquet.write_table(pa.table(columns | {"bound": [0.5] * len(rows)}), tmp_path / "p0.parquet")
    told: list[str] = []
    found = read_tables(tmp_path, TABLE, StepsSettings(window=10, slide=2), FORM, tell=told.append)
    assert (found.first, found.names) == (BEGIN // 2, ("a", "b"))
    np.testing.assert_array_equal(found.values[:, 0], np.arange(10.0))
    assert np.isnan(found.values[:, 1]).all()
    assert told == ["note: rows not used: 20 estimated, or of queries"]
    write(tmp_path / "more.csv", [(BEGIN, "a", 1.0)])
    with pytest.raises(ModelError, match=r"p0\.parquet: found results and other tables in one folder"):
        read_tables(tmp_path, TABLE, StepsSettings(), FORM)


def test_the_files_that_the_job_writes_are_known_as_results() -> None:
    names = result_files.SCHEMA.names
    found = find_layout(names, FORM, "p0.parquet")
    columns = ("time", "sensor", "value", "quality", "query")
    assert tuple(names[place] for place in found) == columns


def test_what_is_not_used_is_counted(tmp_path: Path) -> None:
    table = SensorTable((Sensor(0, "a", "e", minimum=0.0, maximum=10.0), *TABLE.sensors[1:]))
    rows = "".join(f"{BEGIN + row},a,{row % 5}\n" for row in range(30))
    path = tmp_path / "a.csv"
    path.write_text(f"time,sensor,value\n{rows}{BEGIN},b,NA\n{BEGIN},b,nan\n{BEGIN},a,99\n{BEGIN},a,-1\n")
    told: list[str] = []
    found = read_tables(path, table, StepsSettings(window=1, slide=1), FORM, tell=told.append)
    assert np.nanmax(found.values) == 4.0
    assert found.outside == 2
    assert told == [
        "note: rows not used: 1 without a value, 1 not finite, 2 outside the plausible range of their sensors"
    ]


@pytest.mark.parametrize(
    ("rows", "share", "says"),
    [
        ([(0, "x", 1.0)], 1.0, "sensor 'x' is not in the sensors table"),
        ([], 1.0, "found no readings"),
        ([(BEGIN + n % 3 + n // 3 * 10**8, "a", 1.0) for n in range(6)], 1.0, "expected no gap as long as that"),
        ([(BEGIN + n, "a", 1.0) for n in range(20)], 0.01, "the share 0.01 of 11 steps is none"),
    ],
)
def test_histories_that_cannot_be_used(tmp_path: Path, rows: Any, share: float, says: str) -> None:
    with pytest.raises(ModelError) as caught:
        read_tables(write(tmp_path / "a.csv", rows), TABLE, StepsSettings(slide=1), FORM, share, most_bytes=10**5)
    assert str(caught.value).startswith(str(tmp_path / "a.csv"))
    assert says in str(caught.value)


def test_older_readings_are_left_out_where_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tsunagi.recovery.panes._CHUNK", 10)
    cut = Cut(1, 1, 1, 0, numbered=True)
    collector = PaneCollector(cut, "mean", np.array([np.nan]), most_bytes=3 * 10 * 12)
    at = np.arange(1, 101)
    for part in (at[:50], at[50:], at[:50]):
        collector.add(part, np.zeros(50, dtype=np.int64), part.astype(np.float64))
    first, values = collector.steps(10**6)
    assert values[:, 0].tolist() == [float(step) for step in range(first, 101)]
    assert collector.left_out + len(values) == 150
    assert len(values) >= 20


def test_the_command_fits_a_long_table(tmp_path: Path) -> None:
    times, values = field()
    rows = "".join(
        f"{time * 1000};{name};{str(value).replace('.', ',')}\n" for time, name, value in long_rows(times, values)
    )
    (tmp_path / "long.csv").write_text(f"when;tag;x\n{rows}")
    (tmp_path / "sensors.csv").write_text("sensor,edge\na,e\nb,e\nc,e\n")
    command = [
        "fit",
        str(tmp_path / "long.csv"),
        "--sensors",
        str(tmp_path / "sensors.csv"),
        "--out",
        str(tmp_path / "m"),
    ]
    said = [f"--table={pair}" for pair in ("time=when", "value=x", "time_unit=ms")]
    done = CliRunner().invoke(cli, [*command, *said])
    assert done.exit_code == 0, done.output
    assert "3 sensors" in done.output
    for options, message in (
        ([*said, "--spark"], "found a long table, which is fitted in memory"),
        ([*said, "--table", "unit=ms"], "found 'unit=ms', expected KEY=VALUE with one of the keys time, sensor, value"),
        ([*said, "--table", "time_zone=Mars"], "time_zone: Value error, found 'Mars', expected a time zone"),
    ):
        done = CliRunner().invoke(cli, [*command, *options])
        assert message in str(done.exception)
