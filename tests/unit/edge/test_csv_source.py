"""The replay: when rows are handed out, what a pause costs, where the next incarnation goes on."""

from __future__ import annotations

import pytest

from tsunagi.edge.csv_file import CsvFile
from tsunagi.edge.csv_source import CsvSource, Timing
from tsunagi.edge.source import SourceError
from tsunagi.runtime.sensors import Sensor, SensorTable

TABLE = SensorTable((Sensor(0, "a", "e1"),))
SECOND = 1_000_000
ORIGIN = 1_000 * SECOND


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("a\n" + "".join(f"{row}\n" for row in range(40)))
    return path


@pytest.fixture
def make():
    files = []

    def make(path, *, now_s=0.0, resume=None, **timing):
        files.append(CsvFile(path, TABLE, TABLE.sensors))
        return CsvSource(files[-1], Timing(SECOND, **timing), ORIGIN, at(now_s), resume)

    yield make
    for file in files:
        file.close()


def at(second: float) -> int:
    return ORIGIN + round(second * SECOND)


def walk(source: CsvSource, until: int) -> None:
    for second in range(until + 1):
        due(source, second)


def due(source: CsvSource, second: float, most: int = 1000) -> list[tuple[int, float]]:
    return [(row.number, (row.time_us - ORIGIN) / SECOND) for row in source.due(at(second), most)]


def test_rows_are_handed_out_when_their_time_has_come(path, make):
    source = make(path, now_s=-5)
    assert due(source, -0.001) == []
    assert due(source, 0) == [(0, 0.0)]
    assert due(source, 2.5) == [(1, 1.0), (2, 2.0)]
    assert source.next_us() == at(3)
    assert source.complete_until_us(at(2.5)) == at(2.5)
    assert source.complete_until_us(at(9)) == at(3) - 1
    assert source.observed_us == ORIGIN - 1


def test_the_end_is_the_last_row(path, make):
    source = make(path, now_s=-1)
    for second in range(0, 60, 4):
        due(source, second)
    assert source.finished
    assert source.next_us() is None
    assert source.complete_until_us(at(100)) == at(39)


def test_speed_and_first_row(path, make):
    source = make(path, now_s=-1, speed=4.0, first_row=10)
    assert due(source, 1.0) == [(10, 0.0), (11, 0.25), (12, 0.5), (13, 0.75), (14, 1.0)]
    with pytest.raises(SourceError, match="found 40 rows, expected more than first_row = 40"):
        make(path, first_row=40)


def test_a_time_column_says_when(tmp_path, make):
    path = tmp_path / "timed.csv"
    path.write_text("time,a\n100,1\n100.5,2\n100.5,3\n160,4\n")
    source = make(path, now_s=-1, speed=2.0)
    assert due(source, 1) == [(0, 0.0), (1, 0.25), (2, 0.25)]
    assert source.complete_until_us(at(2)) == at(2)
    assert due(source, 5) == []
    assert source.next_us() == at(30)


def test_at_most_so_many_rows_at_once(path, make):
    source = make(path, now_s=-1, skip=False)
    assert due(source, 20, 5) == [(row, row) for row in range(5)]
    assert source.complete_until_us(at(20)) == at(5) - 1
    assert due(source, 20, 5) == [(row, row) for row in range(5, 10)]


def test_a_live_source_loses_what_it_reported_to_nobody(path, make):
    source = make(path, now_s=4.5)
    assert source.skipped_rows == 5
    assert source.observed_us == at(4)
    assert due(source, 5) == [(5, 5.0)]
    assert due(source, 9.9) == [(row, row) for row in range(6, 10)]  # held up for less than a socket's buffer
    assert due(source, 20) == []
    assert source.skipped_rows == 5 + 11
    assert source.observed_us == at(20)
    assert due(source, 21) == [(21, 21.0)]


def test_a_source_that_may_send_late_loses_nothing(path, make):
    source = make(path, now_s=4.5, skip=False)
    assert source.skipped_rows == 0
    assert due(source, 30) == [(row, row) for row in range(31)]
    assert source.observed_us == ORIGIN - 1


def test_the_next_incarnation_goes_on_and_reads_open_windows_again(path, make):
    first = make(path, now_s=-1)
    walk(first, 12)
    progress = first.progress(at(8))
    assert (progress.next.row, progress.oldest.row) == (13, 9)
    second = make(path, now_s=12.5, resume=progress)
    assert [row.number for row in second.refill] == [9, 10, 11, 12]
    assert [row.time_us for row in second.refill] == [at(row) for row in range(9, 13)]
    assert second.observed_us == ORIGIN - 1
    assert due(second, 13) == [(13, 13.0)]
    assert second.progress(at(8)).oldest.row == 9


def test_after_a_gap_only_what_comes_after_it_counts_as_observed(path, make):
    first = make(path, now_s=-1)
    walk(first, 12)
    progress = first.progress(at(8))
    second = make(path, now_s=15.5, resume=progress)
    assert second.skipped_rows == 3
    assert second.observed_us == at(15)
    assert due(second, 16) == [(16, 16.0)]
    late = make(path, now_s=15.5, resume=progress, skip=False)
    assert late.observed_us == ORIGIN - 1
    assert due(late, 16) == [(row, row) for row in range(13, 17)]


def test_a_restart_at_the_end_has_nothing_left(path, make):
    first = make(path, now_s=-1, skip=False)
    due(first, 100)
    again = make(path, now_s=200, resume=first.progress(at(30)), skip=False)
    assert again.finished
    assert due(again, 300) == []
    assert again.complete_until_us(at(300)) == at(39)


def test_a_file_that_has_become_shorter_is_refused(path, make):
    first = make(path, now_s=-1)
    walk(first, 30)
    progress = first.progress(at(20))
    path.write_text("a\n" + "".join(f"{row}\n" for row in range(25)))
    with pytest.raises(SourceError, match="found 25 rows, expected the 31"):
        make(path, now_s=30.5, resume=progress)


def test_unknown_columns_are_told_once_and_counted(tmp_path, make):
    path = tmp_path / "data.csv"
    path.write_text("a,x\n1,\n2,5\n3,6\n")
    source = make(path, now_s=-1, skip=False)
    due(source, 10)
    first, second = source.unusable()
    assert (first.reason, first.sensor, first.number, first.payload) == ("unknown-sensor", "x", 1, b"5")
    assert (first.letter, second.letter) == (True, False)
    assert (first.count, second.count) == (1, 1)
    assert source.unusable() == []
