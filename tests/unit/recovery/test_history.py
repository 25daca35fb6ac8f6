from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.history import list_history, read_history

NOON = datetime(2024, 3, 1, 12, tzinfo=UTC)
NOON_US = round(NOON.timestamp() * 1e6)


def write(path: Path, columns: dict[str, pa.Array], row_group_size: int | None = None) -> Path:
    parquet.write_table(pa.table(columns), path, row_group_size=row_group_size)
    return path


TIMES = {
    "timestamps with a zone": pa.array([NOON, NOON + timedelta(seconds=1)], pa.timestamp("ms", tz="Asia/Tokyo")),
    "epoch seconds": pa.array([NOON_US / 1e6, NOON_US / 1e6 + 1]),
    "whole epoch seconds": pa.array([NOON_US // 10**6, NOON_US // 10**6 + 1]),
    "texts": pa.array(["2024-03-01T12:00:00Z", "2024-03-01T21:00:01+09:00"]),
}


@pytest.mark.parametrize("times", TIMES.values(), ids=TIMES.keys())
def test_parquet_with_every_kind_of_time(tmp_path, times):
    path = write(tmp_path / "a.parquet", {"b": pa.array([1, None]), "time": times, "a": pa.array([0.5, 1.5])})
    history = read_history(path)
    assert history.names == ("b", "a")
    assert history.times_us is not None
    assert history.times_us.tolist() == [NOON_US, NOON_US + 1_000_000]
    np.testing.assert_array_equal(history.values, [[1, 0.5], [np.nan, 1.5]])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"time": pa.array([1.0])}, "a.parquet: empty; expected a column a sensor"),
        ({"a": pa.array(["x"])}, "a.parquet: a: found a column of string, expected numbers"),
        ({"time": pa.array([NOON], pa.timestamp("us")), "a": pa.array([1.0])}, "time: found timestamps without a zone"),
        ({"time": pa.array([1.0, None]), "a": pa.array([1.0, 2.0])}, "time: found nothing, expected a time in every"),
        ({"time": pa.array([1.0, 1.0]), "a": pa.array([1.0, 2.0])}, "row group 0, row 1: its time is not later"),
        (
            {"time": pa.array([1_700_000_000_000]), "a": pa.array([1.0])},
            "or below: time: found 1700000000000: looks",
        ),
        ({"time": pa.array([1.7e18]), "a": pa.array([1.0])}, "looks like nanoseconds, expected seconds since 1970"),
        (
            {"time": pa.array([2**62], pa.timestamp("ms", tz="UTC")), "a": pa.array([1.0])},
            "time: Casting from",
        ),
        ({"a": pa.array([2**53 + 1])}, "row 0: a: Integer value 9007199254740993 not in range"),
        ({"a": pa.array([2**63], pa.uint64())}, "expected at most 2^53"),
        ({"a\nb": pa.array([1.0])}, "found 'a\\nb', expected a name without line breaks"),
        ({"time": pa.array([1.0]), "Time": pa.array([1.0]), "a": pa.array([1.0])}, "expected one column of times"),
        ({"time": pa.array([True]), "a": pa.array([1.0])}, "time: found a column of bool"),
        ({"a": pa.array([], pa.float64())}, "no readings"),
    ],
)
def test_bad_parquet_is_named(tmp_path, columns, message):
    path = write(tmp_path / "a.parquet", columns)
    with pytest.raises(ModelError, match=r"a\.parquet") as caught:
        read_history(path)
    assert message in str(caught.value)


def test_a_file_that_is_no_parquet(tmp_path):
    (tmp_path / "a.parquet").write_text("a,b\n1,2\n")
    with pytest.raises(ModelError, match=r"a\.parquet: cannot be read"):
        list_history(tmp_path / "a.parquet")


def test_a_directory_is_one_history(tmp_path):
    for number in (1, 0, 2):
        at = [float(100 * number + row) for row in range(5)]
        write(tmp_path / f"{number}.parquet", {"time": pa.array(at), "a": pa.array(at)}, row_group_size=2)
    (tmp_path / "_SUCCESS").write_text("")
    history = read_history(tmp_path)
    assert history.values[:, 0].tolist() == [100.0 * number + row for number in range(3) for row in range(5)]
    assert len(list_history(tmp_path).pieces) == 9


def test_files_of_a_directory_without_times_are_numbered_through(tmp_path, monkeypatch):
    monkeypatch.setattr("tsunagi.recovery.history_csv.PIECE_BYTES", 8)
    for number in range(2):
        (tmp_path / f"{number}.csv").write_text("a,b\n" + "".join(f"{row},{number}\n\n" for row in range(20)))
    files = list_history(tmp_path)
    assert len(files.pieces) > 10
    assert np.concatenate([rows.times for piece in files.pieces for rows in files.read(piece)]).tolist() == [*range(40)]
    assert files.tail()[-1] == 39


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({}, "found no file that ends in .csv or .parquet"),
        ({"a.csv": "a,b\n1,2\n", "b.csv": "a,c\n1,2\n"}, "b.csv: does not go on from a.csv: sensor 'b' stands in only"),
        ({"a.csv": "a,b\n1,2\n", "b.csv": "b,a\n1,2\n"}, "b.csv: does not go on from a.csv: they have other columns"),
        ({"a.csv": "time,a\n5,2\n", "b.csv": "time,a\n4,2\n"}, "b.csv: its time is not later than that of a.csv"),
        (
            {"a.csv": "time,a\n5,2\n9,2\n", "b.csv": "time,a\n8,2\n"},
            "b.csv: time is not later than that of the row before",
        ),
    ],
)
def test_files_that_do_not_go_together(tmp_path, texts, message):
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ModelError) as caught:
        read_history(tmp_path)
    assert message in str(caught.value)


@pytest.mark.parametrize("timed", [False, True])
def test_pieces_of_a_csv_are_its_rows(tmp_path, monkeypatch, timed):
    rng = np.random.default_rng(0)
    values = np.round(rng.normal(size=(200, 3)), 3)
    lines = ["time,a,b,c" if timed else "a,b,c"]
    lines += [",".join([*([str(1000 + row)] if timed else []), *map(str, cells)]) for row, cells in enumerate(values)]
    path = tmp_path / "a.csv"
    path.write_text("\r\n".join(lines))
    whole = read_history(path)
    monkeypatch.setattr("tsunagi.recovery.history_csv.PIECE_BYTES", 300)
    monkeypatch.setattr("tsunagi.recovery.history_piece.BATCH_CELLS", 12)
    files = list_history(path)
    assert len(files.pieces) > 10
    np.testing.assert_array_equal(whole.values, values)
    again = read_history(path)
    np.testing.assert_array_equal(again.values, values)
    if timed:
        assert again.times_us is not None
        assert again.times_us.tolist() == [(1000 + row) * 10**6 for row in range(200)]
        assert [piece.first for piece in files.pieces] == sorted(piece.first for piece in files.pieces)
    part = files.part(0.3)
    assert sum(len(rows.times) for piece in part.pieces for rows in part.read(piece)) == 60
    with pytest.raises(ModelError, match=r"a\.csv: rows: the share 0.001 of 200 rows is none"):
        files.part(0.001)


def test_a_bad_cell_far_down_is_named_by_its_line(tmp_path, monkeypatch):
    monkeypatch.setattr("tsunagi.recovery.history_csv.PIECE_BYTES", 50)
    path = tmp_path / "a.csv"
    path.write_text("a,b\n" + "1,2\n" * 99 + "1,x\n")
    with pytest.raises(ModelError, match=r"a\.csv, line 101, column .b.: found 'x'"):
        read_history(path)
    files = list_history(path)
    with pytest.raises(ModelError, match=r"a\.csv, byte 400, column .b.: found 'x'"):
        list(files.read(files.pieces[-1]))


def test_the_footer_of_a_parquet_is_parsed_once_for_all_its_pieces(tmp_path, monkeypatch):
    path = write(tmp_path / "a.parquet", {"a": pa.array(np.arange(50.0))}, row_group_size=5)
    read_metadata, parsed = parquet.read_metadata, []

    def counted(where: Path) -> parquet.FileMetaData:
        parsed.append(where)
        return read_metadata(where)

    monkeypatch.setattr(parquet, "read_metadata", counted)
    files = list_history(path)
    assert len(files.pieces) == 10
    assert sum(len(rows.times) for piece in files.pieces for rows in files.read(piece)) == 50
    assert parsed == [path]
    write(path, {"a": pa.array(np.arange(100.0))}, row_group_size=5)
    assert len(list_history(path).pieces) == 20, "a file that was written anew is looked at anew"
