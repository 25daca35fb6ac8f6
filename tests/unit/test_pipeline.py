"""Pipelines in Python, run in memory: what comes out, and what is said where something is wrong."""

from __future__ import annotations

import doctest
import os
import re
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import tsunagi as ts
from tests.unit.slot.example_operator import Smooth
from tsunagi.edge.source import SourceError
from tsunagi.query.outputs import open_query
from tsunagi.recovery.model import Model
from tsunagi.runtime.birth import born
from tsunagi.runtime.sensors import SensorsError
from tsunagi.runtime.settings import ConfigError
from tsunagi.slot.testkit import LawError
from tsunagi.system import processes
from tsunagi.system.processes import Process

README = Path(__file__).parents[2] / "README.md"
BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
ONE = {"window": 1, "slide": 1}
"""A step a reading."""


def at(second: float) -> datetime:
    return BEGIN + timedelta(seconds=second)


def counting(rows: int = 6) -> list[dict[str, Any]]:
    return [{"time": at(number), "a": float(number), "b": 10.0 - number} for number in range(rows)]


def run(source: Any, operators: Any = (), **settings: Any) -> list[tuple[float, str, float]]:
    """Return (second, sensor, value) of all results in memory."""
    with ts.Pipeline(source, operators, **({"steps": ONE} | settings)).run(memory=True) as results:
        return [((row.time - BEGIN).total_seconds(), row.sensor, row.value) for row in results]


class Fails(ts.Operator):
    """Fails on a value."""

    def __init__(self, config: ts.SlotConfig, *, on: float) -> None:
        del config
        self._on = on

    def process(self, frame: ts.Frame) -> list[ts.Frame]:
        if (frame.mean == self._on).any():
            raise ZeroDivisionError("nothing to divide by")
        return [frame]


@pytest.mark.parametrize("name", ["tsunagi.pipeline", "tsunagi.results", "tsunagi.testing"])
def test_examples_of_docstrings(name: str) -> None:
    found = doctest.testmod(import_module(name))
    assert (found.failed, found.attempted > 0) == (0, True)


def test_the_example_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    (code,) = re.findall(r"```python\n(import tsunagi.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert 10 <= len(code.splitlines()) <= 17
    names: dict[str, Any] = {"__name__": "__main__"}
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "plant.py", "exec"), names)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * (60 - 5)
    assert lines[0].split() == ["2023-11-14", "22:13:25+00:00", "boiler", "179.6", "0.0"]
    assert list(tmp_path.iterdir()) == []


def test_rows_a_csv_and_a_parquet_file_give_the_same(tmp_path: Path) -> None:
    rows = counting()
    rows[2]["b"] = None
    del rows[3]["a"]
    text = ["time,a,b", *(f"{row['time'].isoformat()},{row.get('a', '')},{row['b'] or ''}" for row in rows)]
    (tmp_path / "r.csv").write_text("\n".join(text).replace("None", "") + "\n")
    columns = {name: [row.get(name) for row in rows] for name in ("time", "a", "b")}
    parquet.write_table(pa.table(columns), tmp_path / "r.parquet")
    expected = [(k, name, rows[k][name]) for k in range(1, 6) for name in "ab" if rows[k].get(name) is not None]
    sources: list[Any] = [
        rows,
        iter(rows),
        tmp_path / "r.csv",
        str(tmp_path / "r.parquet"),
        {"path": tmp_path / "r.csv"},
    ]
    assert [run(source) for source in sources] == [expected] * len(sources)


def test_windows_are_those_of_the_edges_and_the_interval_that_of_the_rows() -> None:
    rows = [{"time": at(600 * number), "a": float(number)} for number in range(8)]
    found = run(rows, steps={"window": 3, "slide": 2})
    # A window holds three rows, and ends at every multiple of 1200 s; the first whole one begins at row 0.
    assert found == [(600.0 * k, "a", k - 1.0) for k in (4, 6)]


def test_results_are_in_the_order_of_time_group_and_sensor_and_count_the_last_minute() -> None:
    table = [
        {"sensor": name, "edge": f"e{number}", "group": "gh"[number % 2], "threshold": 2.5}
        for number, name in enumerate("abcd")
    ]
    rows = [dict.fromkeys("abcd", float(number)) for number in range(9)]
    pipeline = ts.Pipeline(rows, [], sensors=table, steps=ONE, query={"range_s": 4.0}, slots={"count": 3})
    with pipeline.run(memory=True) as results:
        found = list(results)
        assert results.counts == {"before-first-window": 4}
    assert [(row.value, row.group, row.sensor) for row in found] == [
        (float(step), group, name)
        for step in range(1, 9)
        for group in "gh"
        for name in ("ac" if group == "g" else "bd")
    ]
    assert [(row.q1, row.q2) for row in found if row.sensor == "a"] == [
        (min(step, 4), sum(1 for k in range(max(1, step - 3), step + 1) if k > 2.5)) for step in range(1, 9)
    ]


def test_window_aggregates_are_there() -> None:
    aggregates = [{"name": "three", "range_s": 3.0, "by": "sensor"}]
    rows = [{"a": float(number)} for number in range(10)]
    with ts.Pipeline(rows, [], steps=ONE, query={"aggregates": aggregates}).run(memory=True) as results:
        found = [(row.value, row.q1) for row in results if row.query == "three"]
    assert [count for _, count in found][-1] == 3
    assert found[-1][0] in (7.0, 8.0, 6.0)


def test_what_is_missing_is_recovered_with_a_bound(tmp_path: Path) -> None:
    both = 0.4 * np.eye(2) + 0.6
    about = {"steps": 100, "structure": {"transition": "diagonal", "shrinkage": 0.1, "persistence": 0.9, "lag": 0}}
    zeros = np.zeros(2)
    Model(("a", "b"), np.array([20.0, 30.0]), zeros + 1, zeros + 0.9, 0.19 * both, both, zeros, about=about).save(
        tmp_path / "m.bin"
    )
    rows: list[dict[str, float]] = [{"a": 20.5, "b": 30.5} for _ in range(5)] + [{"a": 20.5}] * 3
    settings: dict[str, Any] = {
        "steps": ONE,
        "recovery": {"model": str(tmp_path / "m.bin"), "calibrate": False, "eps": 3.0},
    }
    found = [row for row in ts.Pipeline(rows, ["recover"], **settings).run(memory=True) if row.sensor == "b"]
    # A slot begins two steps before its first readings, and knows what the model says of them.
    assert [row.quality for row in found] == ["bounded"] * 2 + ["exact"] * 4 + ["bounded"] * 3
    assert all(abs(row.value - 30.5) < row.bound < 3 for row in found if row.quality == "bounded")


def test_each_tuple_as_it_comes() -> None:
    table = [{"sensor": "a", "edge": "e"}, {"sensor": "b", "edge": "f"}]
    found = run(counting(4), [{"use": "select", "at_least": 2.0}], sensors=table, query={"mode": "tuples"})
    assert sorted(found) == [
        (k, name, value) for k in range(4) for name, value in (("a", float(k)), ("b", 10.0 - k)) if value >= 2
    ]
    assert [time for time, _, _ in found] == sorted(time for time, _, _ in found)


def test_operators_by_class_of_a_module_or_a_function_by_name_and_with_options() -> None:
    class Double(ts.Operator):
        def process(self, frame: ts.Frame) -> list[ts.Frame]:
            return [frame.replace(mean=2 * frame.mean)]

    first = Double

    class Double(ts.Operator):  # type: ignore[no-redef]  # another one of the same name
        def process(self, frame: ts.Frame) -> list[ts.Frame]:
            return [frame.replace(mean=3 * frame.mean)]

    rows = [{"time": at(number), "a": float(number)} for number in range(3)]
    assert run(rows, [first]) == [(1, "a", 2.0), (2, "a", 4.0)]
    assert run(rows, [Double, first]) == [(1, "a", 6.0), (2, "a", 12.0)]
    smooth = {"weight": 0.5}
    by_class = run(rows, [{"use": Smooth, **smooth}])
    assert by_class == run(rows, [{"use": "tests.unit.slot.example_operator:Smooth", **smooth}])
    assert by_class == [(1, "a", 1.0), (2, "a", 1.5)]


def test_a_run_can_be_repeated_and_gives_the_same() -> None:
    pipeline = ts.Pipeline(iter(counting()), ["recover"], steps=ONE)
    assert list(pipeline.run(memory=True)) == list(pipeline.run(memory=True)) != []


def test_an_operator_that_fails_is_named_with_the_row() -> None:
    where = r"operator .*test_pipeline:Fails: step \d+, event time .*00:00:03\+00:00, sensor 'a', value 3.0: "
    what = r"ZeroDivisionError: nothing .*\(test_pipeline.py, line \d+\)"
    with pytest.raises(ts.OperatorFailedError, match=where + what):
        run(counting(), [{"use": Fails, "on": 3.0}])


def test_an_operator_that_fails_by_what_it_remembers_is_named_without_a_row() -> None:
    class Tires(ts.Operator):
        seen = 0

        def process(self, frame: ts.Frame) -> list[ts.Frame]:
            self.seen += 1
            if self.seen == 5:
                raise OverflowError("too much")
            return [frame]

    with pytest.raises(ts.OperatorFailedError, match=r"Tires: step \d+, event time [^,]*: OverflowError: too much"):
        run(counting(), [Tires])


def test_frames_must_come_in_a_list_and_may_be_yielded() -> None:
    class Bare(ts.Operator):
        def process(self, frame: ts.Frame) -> Any:
            return frame

    class Yields(ts.Operator):
        def process(self, frame: ts.Frame) -> Any:
            yield frame

    with pytest.raises(ts.OperatorFailedError, match="process: found Frame, expected a list of frames"):
        run(counting(), [Bare])
    assert run(counting(3), [Yields]) == run(counting(3))


def test_readings_of_one_time_are_in_one_window_and_count() -> None:
    rows = [{"time": at(second), "a": value} for second, value in ((0, 1.0), (1, 2.0), (1, 4.0), (2, 5.0))]
    pipeline = ts.Pipeline(rows, [], steps=ONE | {"interval_s": 1.0})
    with pipeline.run(memory=True) as results:
        assert [(row.value, row.q1) for row in results] == [(3.0, 1), (5.0, 2)]
        assert results.counts == {"before-first-window": 1}
    assert results.counts == {"before-first-window": 1}, "also when it is closed"


def test_a_reading_that_is_no_number_is_counted_and_set_aside() -> None:
    rows = [{"a": 1.0}, {"a": 2.0}, {"a": float("inf")}, {"a": 3.0}]
    with ts.Pipeline(rows, [], steps=ONE).run(memory=True) as results:
        assert [row.value for row in results] == [2.0, 3.0]
        assert results.counts == {"before-first-window": 1, "not-a-number": 1, "dead-letters": 1}


def test_a_source_that_ends_before_its_first_window_gives_nothing() -> None:
    assert run([{"a": 1.0}]) == []


MQTT = {"kind": "mqtt"}
TABLE = [{"sensor": "a", "edge": "e"}]


@pytest.mark.parametrize(
    ("source", "options", "error", "said"),
    [
        ([], {}, ts.PipelineError, "source: found no rows, expected at least one"),
        (iter(()), {}, ts.PipelineError, "source: found no rows"),
        (3, {}, ts.PipelineError, "source: found 3, expected a file, rows, or a mapping"),
        ({"speed": 2.0}, {}, ts.PipelineError, "found {'speed': 2.0}, expected a path, or the kind of a live source"),
        ([3], {}, ts.PipelineError, "source, row 1: found 3, expected a mapping"),
        ([{"a": 1}, {"a": "x"}], {}, ts.PipelineError, "source, row 2: a: found 'x', expected a number or None"),
        ("nowhere.csv", {}, ts.PipelineError, "nowhere.csv: cannot be read: No such file"),
        ("nowhere.parquet", {}, ValueError, "nowhere.parquet"),
        (MQTT, {}, ts.PipelineError, "sensors: found none, expected a table"),
        (MQTT, {"sensors": TABLE}, ts.PipelineError, "found kind = 'mqtt'; expected a file or rows, which end"),
        ([{"time": 1, "a": 1}], {}, ts.PipelineError, "found 1 s since 1970 in the first row"),
        (
            [{"time": at(second), "a": 1.0} for second in (0, 2, 1)],
            {},
            SourceError,
            r"^source, row 3, column 'time': time runs backwards: found '2026-03-01T00:00:01\+00:00', expected .*:02",
        ),
        ([{"time": at(0), "a": 1}, {"a": 2}], {}, SourceError, "^source, row 2, column 'time': found ''"),
        ([{"time": BEGIN.replace(tzinfo=None), "a": 1}], {}, SourceError, "^source, row 1, .*a time without a zone"),
        (counting(), {"sensors": [{"sensor": "a"}]}, SensorsError, "^sensors: column 'edge' is missing"),
        (
            counting(),
            {"sensors": [*TABLE, {"sensor": "a", "edge": "e"}]},
            SensorsError,
            "^sensors, row 2: sensor 'a' stands",
        ),
        (counting(), {"operators": [3]}, ts.PipelineError, "operators: found 3, expected a name, a class"),
        (counting(), {"operators": ["nix"]}, ts.OperatorError, "found use = 'nix', expected select"),
        (counting(), {"operators": [ts.Operator]}, ts.OperatorError, "instantiate"),
        (counting(), {"operators": [Fails]}, ts.OperatorError, "missing 1 required keyword-only argument: 'on'"),
        (counting(), {"steps": {"windows": 2}}, ConfigError, r"^Pipeline: \[steps.windows\] unknown key \(found 2\)"),
        (
            counting(),
            {"steps": {"window": 0}},
            ConfigError,
            r"\[steps.window\] .*greater than or equal to 1 \(found 0\)",
        ),
        (counting(), {"steps": 3}, ConfigError, r"\[steps\] .*\(found 3\)"),
        (counting(), {"step": ONE}, ConfigError, r"\[step\] unknown key"),
    ],
)
def test_what_cannot_be_used_is_told(source: Any, options: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        ts.Pipeline(source, **options).run(memory=True)


def test_without_the_extra_that_orders_results_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tsunagi.memory.find_spec", lambda _: None)
    with pytest.raises(ts.PipelineError, match="pyarrow, which is not installed here; run `"):
        run(counting())
    assert run(counting(2), query={"mode": "tuples"}) != []


def test_a_file_without_an_end_is_no_source_in_memory(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("a\n1\n")
    with pytest.raises(ts.PipelineError, match="found repeat = true"):
        run({"path": tmp_path / "r.csv", "repeat": True})
    (tmp_path / "r.csv").write_text("a\n")
    with pytest.raises(ts.PipelineError, match=r"r.csv: found no rows"):
        run(tmp_path / "r.csv")


def test_on_kafka_workers_must_be_able_to_import_an_operator(tmp_path: Path) -> None:
    class Here(ts.Operator):
        def process(self, frame: ts.Frame) -> list[ts.Frame]:
            return [frame]

    with pytest.raises(ts.PipelineError, match="found Here, a class of a function"):
        ts.Pipeline(counting(), [Here], state=str(tmp_path / "run")).run()
    assert not (tmp_path / "run").exists()


def test_on_kafka_a_state_directory_is_one_system_s(tmp_path: Path) -> None:
    own = Process("gw-1", "worker", os.getpid(), born(os.getpid()), ("x",))
    processes.record(tmp_path, own)
    with pytest.raises(ts.PipelineError, match=r"found running processes \(gw-1\), expected none"):
        ts.Pipeline(counting(), state=str(tmp_path)).run()


def test_on_kafka_a_file_is_replayed_once(tmp_path: Path) -> None:
    (tmp_path / "edges" / "edge-1").mkdir(parents=True)
    (tmp_path / "edges" / "edge-1" / "position.json").touch()
    with pytest.raises(ts.PipelineError, match="was replayed from here before, and its times are over"):
        ts.Pipeline(counting(), state=str(tmp_path)).run()


def test_results_of_a_log_in_memory_are_read_without_repeats(tmp_path: Path) -> None:
    (tmp_path / "sensors.csv").write_text("sensor,edge,group\na,e,g\nb,e,h\n")
    settings = import_module("tsunagi.runtime.settings").Settings(sensors=tmp_path / "sensors.csv")
    log = ts.testing.MemoryLog(ts.testing.ManualClock(), dict.fromkeys(("results", "late", "dead-letters"), 1))
    messages, columns = import_module("tsunagi.runtime.messages"), import_module("tsunagi.runtime.columns")
    for group, step in (("g", 1), ("h", 1), ("g", 2), ("g", 1), ("h", 2)):
        one = columns.pack_floats([float(step)])
        ids = columns.pack_sensors([int(group == "h")])
        named = {"version": 1, "query": "readings", "group": group, "step": step, "event_time_us": step * 10**6}
        counted = {"quality": b"\0", "q1": ids, "q2": ids, "q3": one}
        block = messages.ResultBlock(**named, **counted, sensor=ids, mean=one, sd=one, bound=one)
        log.append("results", 0, b"key", block.SerializeToString())
    log.append("late", 0, b"x", b"y")
    with ts.Results(settings, log=log) as results:
        assert [(row.step, row.sensor) for row in results] == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]
        assert results.counts == {"repeats": 1, "late": 1}
    with ts.Results(settings, log=log, groups=["h"]) as results:
        assert [row.step for row in results] == [1, 2]
    with ts.Results(settings, log=log, from_now=True) as results:
        assert (list(results), results.counts) == ([], {})


def test_check_operator_takes_classes() -> None:
    ts.testing.check_operator({"use": Smooth, "weight": 0.3})
    with pytest.raises(LawError, match="writes into"):
        ts.testing.check_operator("tests.unit.slot.test_testkit:Writes")
    with pytest.raises(ZeroDivisionError):
        ts.testing.check_operator({"use": Fails, "on": 0.0})


def test_window_aggregates_have_columns_of_their_own() -> None:
    rows = [{"a": float(number), "b": 2.0 * number} for number in range(12)]
    aggregates = [{"name": "five", "range_s": 5.0}]
    steps = {"window": 1, "slide": 1, "interval_s": 1.0}
    with ts.Pipeline(rows, steps=steps, query={"aggregates": aggregates}).run(memory=True) as results:
        found = list(results.query("five"))
        assert {row["sensor"] for row in found} == {"a", "b"}
        (window,) = [row for row in found if row["sensor"] == "a" and row["n"] == 5][:1]
        values = [row.value for row in results if row.sensor == "a" and row.query == "readings"]
        assert window["sum"] in {sum(values[at : at + 5]) for at in range(len(values))}
        assert window["maximum"] == window["minimum"] + 4
        with pytest.raises(ValueError, match="five is a window aggregate"):
            open_query(results._log, results.settings, results._followed.table, ("five", "other"))
