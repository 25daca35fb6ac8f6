"""Files of a lake: each row once whatever is killed, few files a day, and the same rows for whoever reads them."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import polars as pl
import pytest

from tsunagi.runtime.log import LATE, RESULTS
from tsunagi.runtime.settings import SinkSettings
from tsunagi.sink.base import SinkError
from tsunagi.sink.feed import CORRECTED, READING_SCHEMA
from tsunagi.sink.lake import LakeSink
from tsunagi.sink.rows import Advance, RowOrigin, SinkBatch, SinkPosition, SinkRows

BEGIN = datetime(2026, 3, 1, 23, 50, tzinfo=UTC)
TOPIC_ID = "topic-1"


def made(folder: Path, files_s: float = 60.0) -> LakeSink:
    wanted = {"name": "lake", "kind": "lake", "lake": {"directory": str(folder), "files_s": files_s}}
    return LakeSink(SinkSettings.model_validate(wanted))


def part(step: int, *, partition: int = 0, sensors: int = 2, minutes: float = 0.5) -> SinkRows:
    moment = BEGIN + timedelta(minutes=minutes * step)
    rows = [
        (moment, f"s{partition}-{sensor}", "g", "K", float(step), 0.0, 0.0, "exact", 1, 0, 0.0, step)
        for sensor in range(sensors)
    ]
    return SinkRows(READING_SCHEMA, rows, origin=RowOrigin(RESULTS, partition, step))


def truth(step: int) -> SinkRows:
    moment = BEGIN + timedelta(minutes=0.5 * step)
    row = (moment, "s0-0", "g", "K", -float(step), 0.0, 0.0, CORRECTED, None, None, None, step)
    return SinkRows(READING_SCHEMA, [row], correcting=True, origin=RowOrigin(LATE, 0, step))


def write(sink: LakeSink, *parts: SinkRows) -> None:
    advances = {
        (item.origin.topic, item.origin.partition): Advance(None, SinkPosition(item.origin.offset + 1, TOPIC_ID))
        for item in parts
    }
    sink.write(SinkBatch(parts, advances))


def rows(folder: Path, name: str = "readings") -> list[tuple[datetime, str, float]]:
    if not list(folder.glob(f"{name}/date=*/*.parquet")):
        return []
    found = duckdb.sql(f"SELECT time, sensor, value FROM '{folder}/{name}/date=*/*.parquet' ORDER BY time, sensor")
    assert found is not None
    return [(time.astimezone(UTC), sensor, value) for time, sensor, value in found.fetchall()]


def expected(*steps: int) -> list[tuple[datetime, str, float]]:
    return [(BEGIN + timedelta(minutes=0.5 * step), f"s0-{sensor}", float(step)) for step in steps for sensor in (0, 1)]


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_files_of_a_day_that_is_over_become_one_and_readers_see_the_same_rows(tmp_path: Path) -> None:
    sink = made(tmp_path)
    for step in range(60):
        write(sink, part(step), part(step, partition=1))
    assert len(list(tmp_path.glob("readings/date=2026-03-01/*"))) == 2
    assert len(list(tmp_path.glob("readings/date=2026-03-02/*"))) == 2 * 19  # the last minutes wait
    sink.flush()
    steps = [
        (BEGIN + timedelta(minutes=0.5 * step), f"s{p}-{s}", float(step))
        for step in range(60)
        for p in (0, 1)
        for s in (0, 1)
    ]
    assert rows(tmp_path) == steps
    seen = pl.read_parquet(f"{tmp_path}/readings/**/*.parquet").sort("time", "sensor")
    assert list(seen.select("time", "sensor", "value").iter_rows()) == steps
    assert not [name for name in files(tmp_path) if "/." in name]


def test_rows_that_waited_for_their_file_are_read_again_after_a_kill(tmp_path: Path) -> None:
    sink = made(tmp_path)
    for step in range(5):
        write(sink, part(step))
    position = made(tmp_path).positions([(RESULTS, 0)])[RESULTS, 0]
    assert position == SinkPosition(4, TOPIC_ID)
    assert rows(tmp_path) == expected(0, 1, 2, 3)
    other = made(tmp_path)
    other.positions([(RESULTS, 0)])
    for step in range(position.offset, 8):
        write(other, part(step))
    other.flush()
    assert rows(tmp_path) == expected(*range(8))


def test_a_write_of_several_days_that_was_cut_short_leaves_no_row_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = made(tmp_path)
    write(sink, truth(0), truth(30))  # of two days
    stored = LakeSink._store
    monkeypatch.setattr(
        LakeSink, "_store", lambda self, path, *more: stored(self, path, *more) if "03-01" in str(path) else 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        sink.flush()
    monkeypatch.undo()
    assert len(rows(tmp_path, "readings-corrections")) == 1
    again = made(tmp_path)
    assert (LATE, 0) not in {place for place, item in again.positions([(LATE, 0)]).items() if item.offset}
    write(again, truth(0))
    again.flush()
    write(again, truth(30), truth(31))
    again.flush()
    assert [value for _, _, value in rows(tmp_path, "readings-corrections")] == [-0.0, -30.0, -31.0]


@pytest.mark.parametrize("gone", range(13))
def test_a_day_that_was_being_made_one_file_is_whole_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: int
) -> None:
    """The files of the day go one after the other; a kill between any two of them leaves each row there once."""
    sink = made(tmp_path)
    for step in range(20):
        write(sink, part(step))
    left = gone
    unlink = Path.unlink

    def killed(path: Path, **more: bool) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        unlink(path, **more)

    monkeypatch.setattr(Path, "unlink", killed)
    try:
        for step in range(20, 24):
            write(sink, part(step))
    except KeyboardInterrupt:
        pass
    monkeypatch.undo()
    again = made(tmp_path)
    position = again.positions([(RESULTS, 0)])[RESULTS, 0].offset
    for step in range(position, 30):
        write(again, part(step))
    again.flush()
    assert rows(tmp_path) == expected(*range(30))
    assert not [name for name in files(tmp_path) if "/." in name]


def test_a_disk_that_is_full_is_a_target_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = made(tmp_path)
    write(sink, part(0))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tsunagi.sink.lake.parquet.write_table", full)
    with pytest.raises(OSError, match="No space left on device"):
        write(sink, part(10))
    monkeypatch.undo()
    sink.close()  # as the service does
    sink.open()
    assert not sink.positions([(RESULTS, 0)])
    write(sink, part(0), part(10))
    sink.flush()
    assert rows(tmp_path) == expected(0, 10)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "readings").write_text("a file")
    with pytest.raises(SinkError, match=r"\[sinks.lake\] directory: .*readings: File exists"):
        made(tmp_path)
    shutil.rmtree(tmp_path)
