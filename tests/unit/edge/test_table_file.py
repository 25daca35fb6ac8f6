"""Long CSVs and Parquet files as an edge replays them: rows of one time together, resumed at their place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from tsunagi.edge import table_file
from tsunagi.edge.csv_file import RowFile
from tsunagi.edge.csv_open import CsvOpener
from tsunagi.edge.csv_source import CsvSource, Timing
from tsunagi.edge.source import FilePosition, SourceError, SourceRow
from tsunagi.edge.table_file import TableFile
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import Settings, SourceSettings, TableSettings
from tsunagi.runtime.tables import csv_table, parquet_table
from tsunagi.runtime.tables.files import open_table

TABLE = SensorTable((Sensor(0, "a", "e1"), Sensor(1, "b", "e2"), Sensor(2, "c", "e1")))
S = 1_000_000
ORIGIN = 1_000 * S
UTC = pa.timestamp("us", tz="UTC")
ROWS = [(0, "a", 1.0), (0, "b", 2.0), (0, "c", 3.0), (1, "c", 4.0), (1, "a", 5.0), (2, "b", 6.0), (4, "a", 7.0)]

Row = tuple[int, int | None, list[int], list[float]]
Write = Callable[..., Path]


def write_csv(path: Path, rows: list[tuple[int, str, float | None]]) -> Path:
    lines = [f"{time},{name},{'' if value is None else value}" for time, name, value in rows]
    path.with_suffix(".csv").write_text("\n".join(["time,sensor,value", *lines]) + "\n")
    return path.with_suffix(".csv")


def write_parquet(path: Path, rows: list[tuple[int, str, float | None]]) -> Path:
    columns = {
        "time": pa.array([time * S for time, _, _ in rows], UTC),
        "sensor": pa.array([name for _, name, _ in rows], pa.string()),
        "value": pa.array([value for _, _, value in rows], pa.float64()),
    }
    parquet.write_table(pa.table(columns), path.with_suffix(".parquet"), row_group_size=3)
    return path.with_suffix(".parquet")


@pytest.fixture(params=[write_csv, write_parquet])
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Write:
    return lambda rows: request.param(tmp_path / "data", rows)


@pytest.fixture(params=["whole", "small"], autouse=True)
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "small":
        monkeypatch.setattr(csv_table, "CHUNK_BYTES", 1)
        monkeypatch.setattr(parquet_table, "BLOCK_READINGS", 1)


def opened(path: Path, edge: str = "e1", *, repeat: bool = False) -> TableFile:
    return TableFile(open_table(path, TableSettings()), TABLE, TABLE.of_edge(edge), repeat=repeat)


def rows(file: RowFile, most: int = 100) -> list[Row]:
    found: list[Row] = []
    while len(found) < most and (row := file.next_row()) is not None:
        found.append((row.place.row, row.time_us, row.places.tolist(), row.values.tolist()))
    return found


def test_rows_of_one_time_are_handed_out_together(write: Write) -> None:
    path = write(ROWS)
    assert rows(opened(path)) == [
        (0, 0, [0, 1], [1.0, 3.0]),
        (3, S, [1, 0], [4.0, 5.0]),
        (6, 4 * S, [0], [7.0]),
    ]
    assert rows(opened(path, "e2")) == [(1, 0, [0], [2.0]), (5, 2 * S, [0], [6.0])]


def test_a_sensor_that_has_two_rows_of_one_time_has_two_readings(write: Write) -> None:
    path = write([(0, "a", 1.0), (0, "c", 2.0), (0, "a", 3.0), (0, "a", 4.0)])
    assert rows(opened(path)) == [(0, 0, [0, 1], [1.0, 2.0]), (2, 0, [0], [3.0]), (3, 0, [0], [4.0])]


def test_a_place_once_given_can_be_gone_back_to(write: Write) -> None:
    path = write(ROWS)
    file = opened(path)
    whole, places = rows(opened(path)), []
    for _ in range(4):
        places.append(file.place)
        file.next_row()
    for number, place in enumerate(places):
        again = opened(path)
        again.seek(place)
        assert rows(again) == whole[number:]
    file.seek(FilePosition(0, file.first.line, file.first.offset))
    file.skip(4)
    assert rows(file)[0] == (4, S, [0], [5.0])


def test_times_that_go_back_end_the_replay_with_the_row(write: Write) -> None:
    path = write([(5, "a", 1.0), (6, "a", 2.0), (4, "c", 3.0)])
    file = opened(path)
    assert len(rows(file, 2)) == 2
    where = "line 4" if path.suffix == ".csv" else "row 3"
    with pytest.raises(SourceError, match=rf"{where}: time runs backwards: found 1970-01-01T00:00:04\+00:00, expected"):
        file.next_row()
    assert len(rows(opened(path, "e2"))) == 0  # it has none of these rows


def test_what_is_no_reading_is_counted(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write([(0, "a", 1.0), (1, "a", None), (1, "x", 2.0), (1, "c", 3.0), (2, "b", None), (3, "x", 4.0)])
    source = CsvSource(opened(path), Timing(S, skip=False), ORIGIN, ORIGIN - S)
    assert [row.values.tolist() for row in source.due(ORIGIN + 9 * S, 100)] == [[1.0], [3.0], []]
    unusable = [(item.reason, item.sensor, item.count, item.letter) for item in source.unusable()]
    assert unusable == [("unknown-sensor", "x", 1, True), ("missing", "", 1, False), ("unknown-sensor", "x", 1, False)]
    monkeypatch.setattr(table_file, "_MOST", 2)
    assert [row[2:] for row in rows(opened(path))] == [([0], [1.0]), ([], []), ([1], [3.0]), ([], [])]


def test_a_file_of_other_sensors_is_refused(write: Write) -> None:
    with pytest.raises(SourceError, match=r"no sensor is in the sensors table .found 'x', expected 'a', 'c'."):
        opened(write([(0, "x", 1.0)])).next_row()


def due(source: CsvSource, second: float) -> list[tuple[int, float]]:
    return [(row.number, (row.time_us - ORIGIN) / S) for row in source.due(ORIGIN + round(second * S), 1000)]


def test_a_killed_edge_goes_on_at_its_place(write: Write) -> None:
    path = write([(second, name, float(second)) for second in range(40) for name in "abc"])
    source = CsvSource(opened(path), Timing(S, speed=2.0), ORIGIN, ORIGIN - S)
    assert due(source, 2.5)[-1] == (15, 2.5)
    assert due(source, 5.2)[-1] == (30, 5.0)
    kept = source.progress(ORIGIN + 3 * S)
    assert (kept.next.row, kept.oldest.row) == (33, 21)
    again = CsvSource(opened(path), Timing(S, speed=2.0), ORIGIN, ORIGIN + round(5.2 * S), kept)
    assert [row.number for row in again.refill] == [21, 24, 27, 30]
    assert due(again, 6.0) == [(33, 5.5), (36, 6.0)]
    late = CsvSource(opened(path), Timing(S, speed=2.0), ORIGIN, ORIGIN + 10 * S, kept)
    assert late.skipped_rows == 10
    ended = CsvSource(opened(path), Timing(S), ORIGIN, ORIGIN - S)
    for second in range(0, 60, 4):
        due(ended, second)
    assert ended.finished
    over = CsvSource(opened(path), Timing(S, skip=False), ORIGIN, ORIGIN + 60 * S, ended.progress(ORIGIN + 60 * S))
    assert (over.finished, over.refill) == (True, [])


def test_a_file_that_repeats_goes_on_with_times_and_numbers(write: Write) -> None:
    path = write([(100, "a", 1.0), (101, "a", 2.0), (103, "a", 3.0), (103, "c", 4.0)])
    file = opened(path, repeat=True)
    found = rows(file, 7)
    assert [row[1] for row in found] == [t * S for t in (100, 101, 103, 105, 106, 108, 110)]
    assert [row[0] for row in found] == [0, 1, 2, 4, 5, 6, 8]
    other = opened(path, repeat=True)
    for number in range(1, 7):
        file.seek(opened(path, repeat=True).first)
        rows(file, number)
        other.seek(file.place)
        assert rows(other, 7 - number) == found[number:]
    assert rows(opened(path, "e2", repeat=True)) == []


def test_a_file_without_rows_has_none(write: Write) -> None:
    assert rows(opened(write([]))) == []
    assert rows(opened(write([]), repeat=True)) == []


def test_a_wide_parquet_has_a_row_for_each_time(tmp_path: Path) -> None:
    columns = {"time": pa.array([0, S, 2 * S], UTC), "c": [1.0, None, 3.0], "b": [0, 0, 0], "a": [None, None, 4.0]}
    parquet.write_table(pa.table(columns), tmp_path / "data.parquet")
    assert rows(opened(tmp_path / "data.parquet")) == [(0, 0, [1], [1.0]), (2, 2 * S, [1, 0], [3.0, 4.0])]
    parquet.write_table(pa.table({"a": [1.0], "b": [0]}), tmp_path / "data.parquet")
    with pytest.raises(SourceError, match=r"the sensors table contradicts the data: no column for 'c' .edge 'e1'."):
        opened(tmp_path / "data.parquet")


def replayed(settings: Settings) -> list[SourceRow]:
    opener = CsvOpener(settings, "e1", TABLE, TABLE.of_edge("e1"))
    source = opener.open(ORIGIN - S, None, 1)
    found = source.due(ORIGIN + 100 * S, 1000)
    source.close()
    return found


@pytest.mark.parametrize(
    ("name", "text", "table"),
    [
        ("wide", "time;a;b;c\n0;1,5;2;\n1;NA;2;3\n", {}),
        ("long", "time;tag;value\n0;a;1,5\n0;b;2\n1;c;3\n", {}),
        ("said", "when;tag;x\n0;a;1,5\n1000;c;3\n", {"time": "when", "value": "x", "time_unit": "ms"}),
    ],
)
def test_the_opener_finds_the_layout(tmp_path: Path, name: str, text: str, table: dict[str, str]) -> None:
    (tmp_path / f"{name}.csv").write_text(text)
    source = SourceSettings(
        path=tmp_path / f"{name}.csv", origin_us=ORIGIN, when_behind="send", table=TableSettings.model_validate(table)
    )
    found = replayed(Settings(state=tmp_path, source=source))
    assert [(row.time_us - ORIGIN, row.places.tolist(), row.values.tolist()) for row in found] == [
        (0, [0], [1.5]),
        (S, [1], [3.0]),
    ]


def test_the_opener_reads_parquet_and_names_what_is_wrong(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "data", [*ROWS])
    source = SourceSettings(kind="parquet", path=path, origin_us=ORIGIN, when_behind="send")
    assert [row.number for row in replayed(Settings(state=tmp_path, source=source))] == [0, 3, 6]
    path.write_bytes(b"PAR1")
    with pytest.raises(SourceError, match=r"data\.parquet: cannot be read"):
        replayed(Settings(state=tmp_path, source=source))
