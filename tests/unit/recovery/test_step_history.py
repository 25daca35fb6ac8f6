"""A history that is collected step by step, and what `tsunagi fit` refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tsunagi.cli import cli
from tsunagi.local.logged import read_logged
from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.step_history import StepCollector
from tsunagi.runtime.settings import Settings
from tsunagi.runtime.times import read_length_us


def test_steps_come_in_any_order_and_the_later_value_counts() -> None:
    collector = StepCollector("here", ["a", "b"], 1 << 20)
    collector.add(7, np.array([1], np.uint32), np.array([4.0]))
    collector.add(5, np.array([0, 9], np.uint32), np.array([1.0, 8.0]))
    collector.add(7, np.array([1], np.uint32), np.array([5.0]))
    found = collector.history()
    assert (found.first, found.names) == (5, ("a", "b"))
    np.testing.assert_array_equal(found.values, [[1, np.nan], [np.nan, np.nan], [np.nan, 5]])


def test_the_oldest_steps_are_left_out_where_there_is_no_room_and_counted() -> None:
    collector = StepCollector("here", ["a"], 8 * 10)
    for step in [*range(100), 3]:
        collector.add(step, np.array([0], np.uint32), np.array([float(step)]))
    found = collector.history()
    assert found.first == 90
    assert found.values[:, 0].tolist() == list(range(90, 100))
    assert collector.left_out == 90


def test_sensors_that_come_later_have_had_no_values_before() -> None:
    collector = StepCollector("here", ["a"], 8 * 10)
    for step in range(10):
        collector.add(step, np.array([0], np.uint32), np.array([1.0]))
    collector.grow(["alpha", "b"])
    collector.add(9, np.array([1], np.uint32), np.array([2.0]))
    found = collector.history()
    assert (found.first, found.names) == (5, ("alpha", "b")), "there is room for half as many steps"
    np.testing.assert_array_equal(found.values[:, 1], [np.nan] * 4 + [2.0])
    assert collector.readings.tolist() == [10, 1]


def test_nothing_is_an_error() -> None:
    with pytest.raises(ModelError, match="here: found no readings"):
        StepCollector("here", ["a"], 100).history()
    with pytest.raises(ModelError, match="expected steps"):
        read_logged(Settings.model_validate({"query": {"mode": "tuples"}}), None, print)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("1.5h", 5400), ("7d", 604_800), ("5", None), ("h", None)])
def test_lengths_of_time(text: str, seconds: int | None) -> None:
    assert read_length_us(text) == (None if seconds is None else seconds * 1_000_000)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "either a HISTORY or --from-log"),
        (["--from-log", "HISTORY"], "either a HISTORY or --from-log"),
        (["--last", "1h", "HISTORY"], "--last goes with --from-log"),
        (["--from-log", "--last", "soon"], "found 'soon', expected a length of time"),
        (["--from-log", "--rows", "0.5"], "expected no --rows"),
    ],
)
def test_options_that_contradict_each_other(
    options: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "history.csv").write_text("a\n1\n")
    (tmp_path / "sensors.csv").write_text("sensor,edge\na,e\n")
    monkeypatch.setenv("TSUNAGI_SENSORS", str(tmp_path / "sensors.csv"))
    given = [str(tmp_path / "history.csv") if option == "HISTORY" else option for option in options]
    found = CliRunner().invoke(cli, ["fit", "--out", str(tmp_path / "model.bin"), *given])
    assert found.exit_code == 2
    assert says in " ".join(found.output.split())
