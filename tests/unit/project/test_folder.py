"""The files of a project folder: what they say, and that they are never replaced without a word."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import parquet

from tsunagi.cli import cli
from tsunagi.edge.csv_open import CsvOpener
from tsunagi.edge.inbox import Message
from tsunagi.local.queries import check_files
from tsunagi.project.finding import FoundFleet, find_in_file, find_in_messages
from tsunagi.project.fleet import Series, areas_of, edges_of, held_s, usual_interval_s
from tsunagi.project.folder import disorder_s, project, write
from tsunagi.runtime.naming import edge_fault
from tsunagi.runtime.sensors import read_sensors
from tsunagi.runtime.settings import load
from tsunagi.runtime.tables.layout import TableError

NOW_US = 1_700_000_000_000_000


def series(name: str, every_s: float, levels: str = "") -> Series:
    found = Series(name, tuple(levels.split("/")) if levels else ())
    for number in range(10):
        found.add(NOW_US + round(number * every_s * 1e6), float(number))
    return found


def test_the_interval_is_that_of_most_sensors_and_slow_ones_hold_longer() -> None:
    some = [series("a", 1.02), series("b", 0.97), series("c", 61)]
    assert usual_interval_s(some) == 1.0
    assert [held_s(item, 1.0) for item in some] == [None, None, 183.0]
    assert usual_interval_s([Series("new")]) == 1.0


def test_areas_are_found_in_topics_or_names() -> None:
    topics = [series("1", 1, "plant/Halle Süd/x"), series("2", 1, "plant/Halle Süd/y"), series("3", 1, "plant/b/x")]
    assert areas_of([*topics, series("4", 1, "ha/z")]) == {"1": "Halle Süd", "2": "Halle Süd", "3": "b", "4": "ha"}
    assert edges_of(areas_of(topics)) == {"1": "halle-sud", "2": "halle-sud", "3": "b"}
    names = ["hall-1.a", "hall-1.b", "hall-2.a"]
    assert list(areas_of([series(name, 1) for name in names]).values()) == ["hall-1", "hall-1", "hall-2"]
    assert list(areas_of([series(name, 1) for name in ("w_n_1", "w_n_2", "w_s_1")]).values()) == ["n", "n", "s"]
    for alone in (["a", "b"], ["road-001", "road-002"]):
        assert set(areas_of([series(name, 1) for name in alone]).values()) == {"plant"}


def test_edges_have_names_that_may_be_used() -> None:
    areas = {"1": "GW-1", "2": "工場", "3": "a b", "4": "a/b", "5": "kafka"}
    found = edges_of(areas)
    assert len(set(found.values())) == len(areas)
    assert [edge_fault(name) for name in found.values()] == [""] * len(areas)
    assert list(edges_of(areas, 2).values()) == ["edge-1", "edge-2", "edge-1", "edge-2", "edge-1"]


def checked(folder: Path, found: FoundFleet, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Write a project, and read it as the services do; return the texts of its table and its settings."""
    files = project(found)
    assert write(folder, files, print)
    monkeypatch.chdir(folder)
    settings = load()
    assert len(read_sensors(settings.sensors)) == len(found.series)
    check_files(settings)
    return files["sensors.csv"], files["tsunagi.toml"]


def test_a_project_of_a_file_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.arange(30)
    file = tmp_path / "history.csv"
    lines = [f"2024-05-06T12:{row:02d}:00Z,{row},{row * 2 if row % 2 else ''}" for row in rows]
    file.write_text("\n".join(["time,hall.a,hall.b", *lines]) + "\n")
    found = find_in_file(file)
    assert (found.series["hall.b"].count, found.series["hall.b"].greatest) == (15, 58)
    table, config = checked(tmp_path / "plant", found, monkeypatch)
    assert table.splitlines()[2] == "hall.b,plant,plant,,360.0"
    assert "interval_s = 60" in config
    assert f'path = "{file}"' in config


def long_file(tmp_path: Path, kind: str, times: list[int], unit: str) -> Path:
    rows = [
        (time, name)
        for place, time in enumerate(times)
        for name in ("hall.a", "hall.b")
        if name < "hall.b" or place % 2
    ]
    file = tmp_path / f"history.{kind}"
    if kind == "csv":
        lines = [f"{time};{name};{place},5" for place, (time, name) in enumerate(rows)]
        file.write_text("\n".join(["ts;tag;value", *lines, f"{rows[-1][0]};hall.a;NA"]) + "\n")
        return file
    columns = {
        "ts": pa.array([time for time, _ in rows] + [rows[-1][0]], pa.timestamp(unit, tz="UTC")),
        "tag": pa.array([name for _, name in rows] + ["hall.a"]).dictionary_encode(),
        "value": pa.array([place + 0.5 for place in range(len(rows))] + [None]),
    }
    parquet.write_table(pa.table(columns), file, row_group_size=10)
    return file


@pytest.mark.parametrize(("kind", "unit", "per_s"), [("csv", "s", 1), ("csv", "ms", 1000), ("parquet", "ms", 1000)])
def test_a_project_of_a_long_file_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, unit: str, per_s: int
) -> None:
    file = long_file(tmp_path, kind, [per_s * (1_700_000_000 + 60 * row) for row in range(30)], unit)
    found = find_in_file(file)
    a, b = found.series["hall.a"], found.series["hall.b"]
    assert (a.count, a.least, a.greatest, a.interval_s) == (30, 0.5, 43.5, 60.0)
    assert (b.count, b.least, b.greatest, b.interval_s) == (15, 2.5, 44.5, 120.0)
    assert found.unusable == {"missing": 1}
    table, config = checked(tmp_path / "plant", found, monkeypatch)
    assert table.splitlines()[2] == "hall.b,plant,plant,,360.0"
    assert f'kind = "{kind}"' in config
    assert ('time_unit = "ms"' in config) == (kind == "csv" and unit == "ms")
    settings = load()
    opener = CsvOpener(settings, "plant", read_sensors(settings.sensors), read_sensors(settings.sensors).sensors)
    source = opener.open(NOW_US, None, 1)
    assert source.next_us() == source.origin_us
    source.close()


def test_rows_of_a_long_file_that_edges_cannot_replay_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "history.csv"
    file.write_text("time,sensor,value\n" + "".join(f"{row},{name},1\n" for name in "ab" for row in range(10)))
    found = find_in_file(file)
    assert found.unusable == {"out of order (edges need the order of time)": 9}
    assert {name: series.interval_s for name, series in found.series.items()} == {"a": 1.0, "b": 1.0}


@pytest.mark.parametrize("text", ["time,sensor,value\n", "time,a\n0,\n", "time,sensor,value\nnoon,a,1\n"])
def test_a_file_without_readings_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "history.csv").write_text(text)
    with pytest.raises(TableError, match=r"history\.csv(: found no readings|, line 2, column 'time': found 'noon')"):
        find_in_file(tmp_path / "history.csv")


@pytest.mark.parametrize("every_s", [0.05, 1, 7, 600])
def test_a_project_of_messages_can_be_used(every_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [
        Message(
            json.dumps(
                {'a "b"': n, "in": {"t": 2.5}, "on": n % 2 == 0, "time": NOW_US / 1e6 + n * every_s + 0.25}
            ).encode(),
            "",
            NOW_US + round((n * every_s + 1.75) * 1e6),
            topic=f"x/{n % 3}",
        )
        for n in range(60)
    ]
    found = find_in_messages({"kind": "mqtt", "mqtt": {"host": "broker", "topic": "x/+"}}, messages)
    assert set(found.series) >= {'0.a "b"', "1.t", "2.on"}
    _, config = checked(tmp_path / "plant", found, monkeypatch)
    assert "disorder_s = 3.0" in config
    assert 'foreign = "count"' in config


@pytest.mark.parametrize(("cut", "expected_s"), [(True, 1.5), (False, 0.5)])
def test_times_that_are_cut_to_seconds_are_waited_for(cut: bool, expected_s: float) -> None:
    found = FoundFleet({"kind": "mqtt"})
    for number in range(10):
        at_us = NOW_US + number * 1_100_000
        found.series.setdefault("a", Series("a")).add(at_us // 1_000_000 * 1_000_000 if cut else at_us, 1.0)
    assert disorder_s(found, 0.5) == expected_s


def test_sensors_that_stand_in_the_table_keep_their_rows_and_what_was_written_there() -> None:
    found = FoundFleet({"kind": "mqtt"})
    found.series |= {name: series(name, 1, f"plant/{name}") for name in ("b", "a", "new one")}
    before = "sensor,group,edge,site\nb,mine,left,north\n\ngone,mine,left,north\na,mine,right,south"
    table = project(found, before=before)["sensors.csv"]
    assert table == f"{before}\nnew one,plant,plant,\n"
    assert project(found, before=table)["sensors.csv"] == table
    assert project(found)["sensors.csv"].splitlines()[1].startswith("a,plant")


@pytest.mark.parametrize(
    ("option", "name", "says"), [("--csv", "a.parquet", "expected a CSV"), ("--parquet", "a.csv", "ends in .parquet")]
)
def test_a_file_of_the_other_kind_is_refused(tmp_path: Path, option: str, name: str, says: str) -> None:
    (tmp_path / name).write_bytes(b"PAR1")
    found = CliRunner().invoke(cli, ["init", str(tmp_path / "plant"), option, str(tmp_path / name)])
    assert found.exit_code == 2
    assert says in " ".join(found.output.split())


def test_files_that_differ_are_shown_and_left(tmp_path: Path) -> None:
    said: list[str] = []
    assert write(tmp_path / "plant", {"a.csv": "1\n", "q/b": "2\n"}, said.append)
    assert write(tmp_path / "plant", {"a.csv": "1\n", "q/b": "2\n"}, said.append)
    assert said == []
    assert not write(tmp_path / "plant", {"a.csv": "3\n", "q/b": "2\n", "new": "4\n"}, said.append)
    assert "-1\n+3" in said[0]
    assert "nothing was written" in said[1]
    assert (tmp_path / "plant" / "a.csv").read_text() == "1\n"
    assert not (tmp_path / "plant" / "new").exists()
    assert write(tmp_path / "plant", {"a.csv": "3\n"}, said.append, replace=True)
    assert (tmp_path / "plant" / "a.csv").read_text() == "3\n"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "one of --csv, --parquet, --mqtt and --kafka"),
        (["--mqtt", "here"], "--topic goes with"),
        (["--mqtt", "here", "--kafka", "there", "--topic", "#"], "one of --csv, --parquet, --mqtt and --kafka"),
        (["--mqtt", "here:x", "--topic", "#"], "expected HOST or HOST:PORT"),
    ],
)
def test_options_that_contradict_each_other(options: list[str], says: str, tmp_path: Path) -> None:
    found = CliRunner().invoke(cli, ["init", str(tmp_path / "plant"), *options])
    assert found.exit_code == 2
    assert says in " ".join(found.output.split())
    assert not (tmp_path / "plant").exists()
