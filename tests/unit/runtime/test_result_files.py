from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from tests.unit.runtime.test_results import a_block, write, write_rows
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.log import RESULTS, OffsetLostError
from tsunagi.runtime.result_files import ResultFiles
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import ConfigError, Settings
from tsunagi.runtime.settings import ResultsSettings as ResultsSection
from tsunagi.runtime.testing import MemoryLog

TABLE = SensorTable((Sensor(0, "a", "e", "g", unit="K"), Sensor(1, "b", "e", "g")))


class Place:
    def __init__(self, directory: Path) -> None:
        self.log = MemoryLog(ManualClock(), {RESULTS: 2})
        self.directory = directory
        self.now_s = 0.0

    def open(self, form: str = "blocks") -> ResultFiles:
        section = ResultsSection(format=form, files=str(self.directory), files_s=20)
        return ResultFiles(self.log, Settings(results=section), lambda: TABLE, clock=lambda: self.now_s)

    def digests(self) -> dict[str, str]:
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in self.directory.glob("*.parquet")}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "out")


def drain(files: ResultFiles) -> None:
    for _ in range(5):
        files.poll(0)
    files.close()


@pytest.mark.slow
def test_files_are_one_table_without_repeats(place: Place) -> None:
    for step in range(25):
        write(place.log, 0, a_block("g", step))
        write(place.log, 1, a_block("h", step, 2))
        if step % 7 == 6:
            for again in range(step - 6, step + 1):
                write(place.log, 0, a_block("g", again))
    drain(place.open())
    frame = pd.read_parquet(place.directory)
    assert len(frame) == len(frame.drop_duplicates(["query", "group", "step", "id"])) == 20 * 5
    some = frame[(frame.group == "g") & (frame.step == 3)]
    assert some.sensor.tolist() == ["a", "b", "2"]
    assert some.unit.tolist() == ["K", "", ""]
    assert some.value.tolist() == [3, 4, 5]
    assert some.quality.tolist() == ["exact", "bounded", "unbounded"]
    assert some.time.iloc[0] == pd.Timestamp(6, unit="s", tz="UTC")
    assert some.q3.tolist() == pytest.approx([0, 1 / 5, 2 / 6])


@pytest.mark.slow
@pytest.mark.parametrize("form", ["blocks", "json"])
def test_whoever_comes_next_goes_on_where_the_files_end(place: Place, form: str) -> None:
    def say(step: int) -> None:
        if form == "json":
            write_rows(place.log, 0, "g", step, [0, 1])
        else:
            write(place.log, 0, a_block("g", step, 2))

    for first in range(0, 60, 6):
        for step in range(max(0, first - 4), first + 6):
            say(step)
        drain(place.open(form))
    written = place.digests()
    assert pd.read_parquet(place.directory).step.tolist() == [step for step in range(50) for _ in range(2)]
    for path in place.directory.iterdir():
        path.unlink()
    drain(place.open(form))
    assert place.digests() == written, "the topic alone says what stands in which file"


def test_a_stream_that_ends_is_written_all_the_same(place: Place) -> None:
    for step in range(3):
        write(place.log, 0, a_block("g", step))
    files = place.open()
    files.poll(0)
    assert place.digests() == {}
    place.now_s = 41.0
    drain(files)
    assert sorted(set(pd.read_parquet(place.directory).step)) == [0, 1, 2]
    drain(place.open())
    write(place.log, 0, a_block("g", 2))
    write(place.log, 0, a_block("g", 3))
    write(place.log, 0, a_block("g", 30))
    drain(place.open())
    assert sorted(set(pd.read_parquet(place.directory).step)) == [0, 1, 2, 3]


def test_what_cannot_go_on_is_said(place: Place, tmp_path: Path) -> None:
    for step in range(25):
        write(place.log, 0, a_block("g", step))
    drain(place.open())
    write(place.log, 1, a_block("g", 26))
    with pytest.raises(ConfigError, match=r"'g' stood in partition 0 of results and stands in 1 now"):
        drain(place.open())
    place.log.truncate(RESULTS, 0, 24)
    with pytest.raises(OffsetLostError):
        drain(place.open())
    (place.directory / "p0-00000000000000000099.parquet").write_bytes(b"x")
    with pytest.raises(ConfigError, match="not a file of Tsunagi's results"):
        place.open()
    (tmp_path / "file").write_text("")
    place.directory = tmp_path / "file" / "out"
    with pytest.raises(ConfigError, match=r"\[results\] files = .*Not a directory"):
        place.open()


def test_a_file_that_is_being_written_is_none_of_the_table(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(25):
        write(place.log, 0, a_block("g", step))

    def full(_: object, path: Path, **__: object) -> None:
        path.write_bytes(b"PAR1")
        assert list(place.directory.glob("*.parquet")) == []
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("tsunagi.runtime.result_files.parquet.write_table", full)
        with pytest.raises(ConfigError, match=r"p0-0+.parquet: No space left on device"):
            drain(place.open())
    drain(place.open())
    assert len(list(place.directory.iterdir())) == 2, "what was left over is gone"
    assert len(pd.read_parquet(place.directory)) == 20 * 3


@pytest.mark.slow
def test_polars_reads_the_same(place: Place) -> None:
    polars = pytest.importorskip("polars")
    for step in range(25):
        write(place.log, 0, a_block("g", step))
    drain(place.open())
    frame = polars.read_parquet(place.directory / "*.parquet")
    assert frame.columns == list(pd.read_parquet(place.directory).columns)
    assert frame["step"].to_list() == [step for step in range(20) for _ in range(3)]


def test_only_its_own_leftovers_are_removed(place: Place) -> None:
    place.directory.mkdir()
    mine = [place.directory / name for name in (".probe", ".profile.new", ".p1-mine.new", "notes")]
    left = place.directory / f".p0-{7:020d}.new"
    for path in (*mine, left):
        path.write_text("x")
    place.open().close()
    assert sorted(place.directory.iterdir()) == sorted(mine)


def power_cut(log: MemoryLog) -> None:
    """The log loses its end, below what the files have."""
    log.lose_end(RESULTS, 0, 12)


def power_cut_and_more(log: MemoryLog) -> None:
    """It has grown past the old end again by the next look."""
    log.lose_end(RESULTS, 0, 12)
    for step in range(10, 25):  # the job writes some blocks again
        write(log, 0, a_block("g", step, 2))


def made_anew(log: MemoryLog) -> None:
    log.make_anew(RESULTS)


def made_anew_and_more(log: MemoryLog) -> None:
    """It has as many records as the old one had, of later steps and of some that the files have."""
    log.make_anew(RESULTS)
    for step in range(15, 45):
        write(log, 0, a_block("g", step, 2))


@pytest.mark.parametrize("change", [power_cut, power_cut_and_more, made_anew, made_anew_and_more])
def test_a_topic_that_is_not_the_one_of_the_files_is_found_and_costs_no_row(
    place: Place, change: Callable[[MemoryLog], None]
) -> None:
    for step in range(25):
        write(place.log, 0, a_block("g", step, 2))
    drain(place.open())
    assert max(pd.read_parquet(place.directory).step) == 19
    change(place.log)
    files = place.open()
    assert list(files.faults) == [0]
    drain(files)
    for step in range(20, 60):
        write(place.log, 0, a_block("g", step, 2))
    drain(place.open())
    for step in range(60, 90):
        write(place.log, 0, a_block("g", step, 2))
    files = place.open()
    assert files.faults == {}
    drain(files)
    found = pd.read_parquet(place.directory).step.tolist()
    assert sorted(found) == [step for step in range(80) for _ in range(2)]


def test_a_file_is_bounded_in_rows(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tsunagi.runtime.result_files._MOST_ROWS", 6)
    for _ in range(2):
        for step in range(9):
            write(place.log, 0, a_block("g", step, 2))
    place.now_s = 0.0
    files = place.open()
    drain(files)
    lengths = [len(pd.read_parquet(path)) for path in sorted(place.directory.glob("p0-*.parquet"))]
    assert lengths
    assert max(lengths) <= 8
