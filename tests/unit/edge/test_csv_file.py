"""CSV: what is read, and every way in which it may be malformed."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tsunagi.edge.csv_file import CsvFile, check_csv
from tsunagi.edge.csv_open import CsvOpener
from tsunagi.edge.source import SourceError
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import Settings, SourceSettings

TABLE = SensorTable((Sensor(0, "a", "e1"), Sensor(1, "b", "e2"), Sensor(2, "c", "e1")))


@pytest.fixture
def write(tmp_path):
    def write(content):
        path = tmp_path / "data.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def rows(path: Path, edge: str = "e1") -> list[tuple[Any, ...]]:
    file = CsvFile(path, TABLE, TABLE.of_edge(edge))
    found = []
    while (row := file.next_row()) is not None:
        found.append((row.place.row, row.time_us, row.places.tolist(), row.values.tolist(), row.strangers))
    file.close()
    return found


def test_columns_are_found_by_name_and_empty_cells_are_no_readings(write):
    path = write("c,a,b\n1,2,3\n,4,5\n 6 ,,\n,,\n")
    assert rows(path) == [
        (0, None, [0, 1], [2.0, 1.0], []),
        (1, None, [0], [4.0], []),
        (2, None, [1], [6.0], []),
        (3, None, [], [], []),
    ]
    assert rows(path, "e2") == [
        (0, None, [0], [3.0], []),
        (1, None, [0], [5.0], []),
        (2, None, [], [], []),
        (3, None, [], [], []),
    ]


def test_time_is_iso_8601_with_a_zone_or_seconds(write):
    path = write("time,a,b,c\n2024-01-01T00:00:00Z,1,1,1\n2024-01-01T01:00:01.5+01:00,1,1,1\n1704067202.25,1,1,1\n")
    assert [row[1] for row in rows(path)] == [1704067200_000000, 1704067201_500000, 1704067202_250000]


def test_quotes_blank_lines_a_mark_and_carriage_returns_are_understood(write):
    path = write(b'\xef\xbb\xbf"a",b,c\r\n"1",2,3\r\n\r\n4,5,6')
    assert [row[3] for row in rows(path)] == [[1.0, 3.0], [4.0, 6.0]]


def test_not_a_number_is_a_reading_that_the_windows_will_refuse(write):
    (row,) = rows(write("a,b,c\nnan,1,-inf\n"))
    assert math.isnan(row[3][0])
    assert row[3][1] == -math.inf


def test_unknown_columns_are_told_with_their_cells(write):
    path = write("a,b,x,c,y\n1,2,3,4,\n1,2,text,4,5\n")
    assert [row[4] for row in rows(path)] == [[("x", "3")], [("x", "text"), ("y", "5")]]
    assert check_csv(write("a,b,x,c\n1,2,3,4\n"), TABLE).unknown == ("x",)


def test_a_place_once_given_can_be_gone_back_to(write):
    file = CsvFile(write("time,a,b,c\n1,1,1,1\n\n2,2,2,2\n3,3,3,3\n"), TABLE, TABLE.of_edge("e1"))
    file.next_row()
    place = file.place
    second = file.next_row()
    assert second is not None
    assert second.place.row == 1
    assert second.place.line == 4
    file.next_row()
    assert file.next_row() is None
    file.seek(place)
    again = file.next_row()
    assert again is not None
    assert (again.place, again.values.tolist()) == (second.place, [2.0, 2.0])
    file.seek(second.place)
    assert file.skip_row()
    assert file.skip_row()
    assert not file.skip_row()
    file.close()


def test_the_summary_counts_rows_columns_and_readings(write):
    summary = check_csv(write("time,a,b,c\n0,1,2,\n60,,,3\n"), TABLE)
    assert (summary.rows, summary.columns, summary.readings, summary.unknown) == (2, 3, 3, ())
    assert (summary.first_time, summary.last_time) == (
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(1970, 1, 1, 0, 1, tzinfo=UTC),
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "empty; expected a header"),
        ("\n# none\n", "empty; expected a header"),
        ("a,b,c\n", "no rows below the header"),
        ("a,b,c\n1,2,3\n1,2\n", "line 3: found 2 fields, expected 3"),
        ("a,b,c\n1,2,3,4\n", "line 2: found 4 fields, expected 3"),
        ("a,b,c\n1,2,3\n1,two,3\n", "line 3, column 'b': found 'two', expected a number"),
        ("a,b,c\n1_000,2,3\n", "line 2, column 'a': found '1_000', expected a number"),
        ("a,b,a,c\n1,2,3,4\n", "line 1: sensor 'a' stands in columns 1 and 3"),
        ("a,,c\n1,2,3\n", "line 1, column 2: found no name"),
        ("a,c\n1,2\n", "line 1: the sensors table contradicts the data: no column for 'b' .edge 'e2'."),
        ("x,y\n1,2\n", "line 1: no column is in the sensors table .found 'x', 'y', expected 'a', 'b', 'c'."),
        (
            "time,a,b,c\n2024-01-01T00:00:00,1,2,3\n",
            "line 2, column 'time': found '2024-01-01T00:00:00', a time without a zone",
        ),
        ("time,a,b,c\nnoon,1,2,3\n", "line 2, column 'time': found 'noon', expected ISO 8601"),
        ("time,a,b,c\n,1,2,3\n", "line 2, column 'time': found ''"),
        ("time,a,b,c\nnan,1,2,3\n", "line 2, column 'time': found 'nan'"),
        (
            "time,a,b,c\n5,1,2,3\n4,1,2,3\n",
            "line 3, column 'time': time runs backwards: found '4', expected 1970-01-01T00:00:05",
        ),
        ("time,a,b,c\n1.7e12,1,2,3\n", "line 2, column 'time': found '1.7e12': looks like milliseconds, expected sec"),
        ("a;b;c\n1,5;2;3\n", "line 1: found columns separated by ';', expected commas"),
        ("a,b,c,Time\n1,2,3,4\n", "line 1, column 4: found 'Time', expected the column of times to be the first"),
        ('a,b,"c\n1,2,3\n', "line 1: .*expected quotes that are closed"),
        ('"a\nb",b,c\n1,2,3\n', "line 1, column 1: found 'a.nb', expected a name without line breaks"),
        ('a,b,c\n1,2,"3\n4"\n', "line 2: .*expected quotes that are closed in the same line"),
        (b"a,b,c\n1,\xff2,3\n", "line 2: found byte 0xff at 3, expected UTF-8"),
        ("a,b,c\n1,2,3\n".encode("utf-16"), "found UTF-16, expected UTF-8"),
    ],
)
def test_malformed_files_are_refused_by_place(write, content, message):
    with pytest.raises(SourceError, match=message) as caught:
        check_csv(write(content), TABLE)
    assert "data.csv" in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(SourceError, match="no such file"):
        check_csv(tmp_path / "none.csv", TABLE)
    with pytest.raises(SourceError, match="cannot be read"):
        check_csv(tmp_path, TABLE)


def test_a_file_that_repeats_goes_on_with_its_first_row_and_with_the_numbers(write):
    file = CsvFile(write("a,b,c\n1,0,0\n2,0,0\n"), TABLE, TABLE.of_edge("e1"), repeat=True)
    found = [file.next_row() for _ in range(5)]
    assert [row.place.row for row in found if row] == [0, 1, 2, 3, 4]
    assert [row.values[0] for row in found if row] == [1.0, 2.0, 1.0, 2.0, 1.0]
    assert found[3] is not None
    file.seek(found[3].place)
    again = file.next_row()
    assert again is not None
    assert (again.place, again.values[0]) == (found[3].place, 2.0)
    file.close()


def test_times_go_on_where_a_file_repeats_also_after_a_seek(write):
    path = write("time,a,c\n100,1,0\n101,2,0\n103,3,0\n")
    file = CsvFile(path, TABLE, TABLE.of_edge("e1"), repeat=True)
    found = [file.next_row() for _ in range(7)]
    assert [row.time_us for row in found if row] == [t * 1_000_000 for t in (100, 101, 103, 105, 106, 108, 110)]
    assert found[4] is not None
    other = CsvFile(path, TABLE, TABLE.of_edge("e1"), repeat=True)
    other.seek(found[4].place)
    again = other.next_row()
    assert again is not None
    assert (again.place.row, again.time_us, again.values[0]) == (4, 106_000_000, 2.0)
    file.close()
    other.close()


def test_a_file_without_rows_does_not_repeat(write):
    for header in ("a,c\n", "time,a,c\n"):
        file = CsvFile(write(header), TABLE, TABLE.of_edge("e1"), repeat=True)
        assert file.next_row() is None
        file.close()


def test_times_of_another_unit_end_the_edge_before_it_joins(write, tmp_path):
    path = write("time,a,b,c\n1700000000000,1,2,3\n")
    settings = Settings(state=tmp_path, source=SourceSettings(path=path))
    with pytest.raises(SourceError, match="looks like milliseconds, expected seconds since 1970"):
        CsvOpener(settings, "e1", TABLE, TABLE.of_edge("e1"))
