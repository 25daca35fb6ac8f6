"""What the demo makes of a user's data."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tsunagi.demo.inputs import (
    LEAST_ROWS,
    SLIDE,
    WINDOW,
    DemoError,
    choose_interval,
    configuration,
    make_table,
    prepare,
)
from tsunagi.recovery.fit import fit_history
from tsunagi.runtime.sensors import read_sensors
from tsunagi.runtime.settings import StepsSettings, load
from tsunagi.runtime.toml_text import to_toml


@pytest.mark.parametrize(
    ("rows", "interval_s", "used"),
    [(500, 0.1, 500), (450, 0.1, 450), (100, 0.5, 100), (900, 0.056, 900), (5000, 0.05, 1200)],
)
def test_the_stream_lasts_45_to_60_seconds(rows: int, interval_s: float, used: int) -> None:
    assert choose_interval(rows) == (interval_s, used)
    assert 45 <= interval_s * used <= 60.5


def own(tmp_path: Path, rows: int, columns: int = 30) -> Path:
    path = tmp_path / "own.csv"
    lines = ["time," + ",".join(f"t {i}" for i in range(columns))]
    lines += [f"{1_700_000_000 + 300 * row}," + ",".join(str(row + i) for i in range(columns)) for row in range(rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_columns_are_spread_over_edges_and_groups(tmp_path: Path) -> None:
    inputs = prepare(own(tmp_path, 167), 3, None, tmp_path)
    assert inputs.table.edges == ("edge-1", "edge-2", "edge-3")
    assert {len(inputs.table.of_edge(edge)) for edge in inputs.table.edges} == {10}
    assert sorted({sensor.group for sensor in inputs.table.sensors}) == ["group-01", "group-02", "group-03"]
    assert inputs.interval_s == 0.5
    assert inputs.speed == 600.0  # one row every 300 s becomes one every 0.5 s
    assert inputs.notes


@pytest.mark.parametrize(("rows", "fitted", "streamed"), [(125, 50, 75), (2000, 800, 1200), (5000, 800, 1200)])
def test_no_row_is_both_fitted_and_streamed(tmp_path: Path, rows: int, fitted: int, streamed: int) -> None:
    """On rows that it has seen a model is right, and bounds would be tried on those until the faults begin."""
    data = own(tmp_path, rows)
    inputs = prepare(data, 2, None, tmp_path)
    assert (inputs.fit_rows, inputs.rows) == (fitted, streamed)
    assert inputs.history == data
    lines, copied = data.read_text().splitlines(), inputs.data.read_text().splitlines()
    assert copied == [lines[0], *lines[1 + fitted : 1 + fitted + streamed]]
    assert str(rows) in inputs.notes[-1]


def test_blank_lines_are_no_rows(tmp_path: Path) -> None:
    data = own(tmp_path, 125)
    lines = data.read_text().splitlines()
    data.write_text("\n\n".join(lines) + "\n")
    inputs = prepare(data, 2, None, tmp_path)
    assert inputs.data.read_text().splitlines() == [lines[0], *lines[51:]]


def test_the_shortest_file_that_is_taken_can_be_fitted(tmp_path: Path) -> None:
    inputs = prepare(own(tmp_path, LEAST_ROWS), 2, None, tmp_path)
    settings = StepsSettings(interval_s=inputs.interval_s, window=WINDOW, slide=SLIDE)
    model, _ = fit_history(inputs.history, inputs.table, settings, (0, inputs.fit_rows))
    assert len(model.names) == 30


def test_a_short_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="found 20 rows, expected at least"):
        prepare(own(tmp_path, 20), 2, None, tmp_path)


def test_too_few_columns_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="found 3 sensors, expected at least 8 for 4 edges"):
        make_table(own(tmp_path, 3, columns=3), 4)


def test_one_edge_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "one.csv"
    table.write_text("sensor,edge\n" + "".join(f"t {i},e\n" for i in range(30)))
    with pytest.raises(DemoError, match="found one edge"):
        prepare(own(tmp_path, 100), 2, table, tmp_path)


def test_the_configuration_is_read_back(tmp_path: Path) -> None:
    inputs = prepare(own(tmp_path, 167), 3, None, tmp_path)
    file = tmp_path / "tsunagi.toml"
    file.write_text(to_toml(configuration(inputs, tmp_path, 12345, tmp_path / "m.bin", 77)))
    assert tomllib.loads(file.read_text())["source"]["origin_us"] == 77
    settings = load(file)
    assert settings.kafka.servers == "127.0.0.1:12345"
    assert settings.steps.slide_us == 1_000_000
    assert read_sensors(settings.sensors).edges == inputs.table.edges


def test_toml_strings_are_escaped() -> None:
    assert tomllib.loads(to_toml({"a": 'x"\\y', "b": {"c": True, "d": 0.5}})) == {
        "a": 'x"\\y',
        "b": {"c": True, "d": 0.5},
    }
