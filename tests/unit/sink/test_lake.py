"""Files of a lake: each row once whatever is killed, few files a day, and the same rows for whoever reads them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from importlib import import_module
from pathlib import Path

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable

from tsunagi.query.values import Kind
from tsunagi.runtime.log import LATE, RESULTS
from tsunagi.runtime.settings import Settings, SinkSettings
from tsunagi.sink import parquet
from tsunagi.sink.base import FencedError, SinkAwayError, SinkError
from tsunagi.sink.feed import CORRECTED, READING_SCHEMA
from tsunagi.sink.lake import LakeSink
from tsunagi.sink.make import make_sink
from tsunagi.sink.rows import Advance, RowOrigin, Schema, SinkBatch, SinkColumn, SinkPosition, SinkRows
from tsunagi.sink.spans import LakeSpans

BEGIN = datetime(2026, 3, 1, 23, 50, tzinfo=UTC)
TOPIC_ID = "topic-1"
PLACES = ((RESULTS, 0), (RESULTS, 1), (LATE, 0))


def made(folder: Path, files_s: float = 60.0, form: str = "parquet") -> LakeSink:
    """Return a sink that has claimed all partitions."""
    wanted = {"name": "lake", "kind": "lake", "lake": {"directory": str(folder), "files_s": files_s, "format": form}}
    sink = make_sink(Settings(), SinkSettings.model_validate(wanted))
    assert isinstance(sink, LakeSink)
    sink.positions(PLACES)
    return sink


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


def batch_of(*parts: SinkRows, topic_id: str = TOPIC_ID) -> SinkBatch:
    advances = {
        (item.origin.topic, item.origin.partition): Advance(None, SinkPosition(item.origin.offset + 1, topic_id))
        for item in parts
    }
    return SinkBatch(parts, advances)


def write(sink: LakeSink, *parts: SinkRows, topic_id: str = TOPIC_ID) -> None:
    sink.write(batch_of(*parts, topic_id=topic_id))


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
    stored = parquet._write
    monkeypatch.setattr(parquet, "_write", lambda path, *more: stored(path, *more) if "03-01" in str(path) else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        sink.flush()
    monkeypatch.undo()
    assert len(rows(tmp_path, "readings-corrections")) == 1
    again = made(tmp_path)
    assert not again.positions(PLACES)
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


@pytest.fixture(params=["parquet", "delta"])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def seen(folder: Path, name: str = "readings") -> list[tuple[datetime, str, float]]:
    """Return the rows as Polars reads them, in either format."""
    path = folder / name
    found = pl.read_delta(str(path)) if (path / "_delta_log").is_dir() else pl.read_parquet(f"{path}/**/*.parquet")
    return list(found.sort("time", "sensor").select("time", "sensor", "value").iter_rows())


class Disk:
    """Says that the disk is full before, or right after, so many of the next stores; then it is not full any more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full_before = self.full_after = 0
        for module, name in (("parquet", "_write"), ("delta", "write_deltalake")):
            target = f"tsunagi.sink.{module}.{name}"
            monkeypatch.setattr(target, self._guarded(import_module(f"tsunagi.sink.{module}"), name))

    def _guarded(self, module: object, name: str) -> Callable[..., object]:
        stored = getattr(module, name)

        def guarded(*args: object, **more: object) -> object:
            if self.full_before:
                self.full_before -= 1
                raise SinkAwayError("No space left on device")
            found = stored(*args, **more)
            if self.full_after:
                self.full_after -= 1
                raise SinkAwayError("No space left on device")
            return found

        return guarded


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.mark.parametrize(("before", "after"), [(1, 0), (3, 0), (0, 1), (0, 2)])
def test_a_disk_that_is_full_is_a_target_that_is_away_and_loses_no_row_that_waited(
    tmp_path: Path, form: str, disk: Disk, before: int, after: int
) -> None:
    sink = made(tmp_path, form=form)
    write(sink, part(0))
    write(sink, part(1), truth(1))
    disk.full_before, disk.full_after = before, after
    batch = batch_of(part(2), part(3), part(2, partition=1), part(20), part(200), truth(20))
    for _ in range(before + after):
        with pytest.raises(SinkAwayError, match="No space left on device"):
            sink.write(batch)
        sink.close()  # as the service does
        sink.open()
    sink.write(batch)
    sink.flush()
    want = expected(0, 1, 2, 3, 20, 200)
    assert [row for row in seen(tmp_path) if row[1].startswith("s0")] == want
    assert [value for _, _, value in seen(tmp_path, "readings-corrections")] == [-1.0, -20.0]
    assert made(tmp_path, form=form).positions([(RESULTS, 0)]) == {(RESULTS, 0): SinkPosition(201, TOPIC_ID)}


def test_who_claimed_a_partition_last_has_it_alone(tmp_path: Path, form: str) -> None:
    old = made(tmp_path, form=form)
    write(old, part(0), part(0, partition=1))
    new = made(tmp_path, form=form)
    write(new, part(0), part(4))
    acts: tuple[Callable[[], None], ...] = (lambda: write(old, part(4)), old.flush)
    for act in acts:
        with pytest.raises(FencedError, match="another instance has claimed it"):
            act()
    new.flush()
    assert seen(tmp_path) == expected(0, 4)
    assert old.positions([(RESULTS, 0)])[RESULTS, 0].offset == 5  # it has it again
    with pytest.raises(FencedError):
        write(new, part(5), part(9))
    write(old, part(5))
    old.flush()
    assert seen(tmp_path) == expected(0, 4, 5)


def test_a_topic_that_was_made_anew_counts_from_its_beginning(tmp_path: Path, form: str) -> None:
    sink = made(tmp_path, form=form)
    write(sink, *(part(step) for step in range(8)))
    sink.flush()
    for begin in (0, 1):  # a file of the new topic is the newest one from the first on
        moved = [part(100 + begin, sensors=1), part(140 + begin, sensors=1)]
        parts = [
            SinkRows(it.schema, it.rows, origin=RowOrigin(RESULTS, 0, 2 * begin + n)) for n, it in enumerate(moved)
        ]
        other = made(tmp_path, form=form)
        write(other, *parts, topic_id="topic-2")
        other.flush()
        place = (RESULTS, 0)
        assert made(tmp_path, form=form).positions([place])[place] == SinkPosition(2 * begin + 2, "topic-2")
    assert [value for _, _, value in seen(tmp_path)][16:] == [100.0, 101.0, 140.0, 141.0]
    assert seen(tmp_path)[:16] == expected(*range(8))


def test_a_span_is_stored_when_the_next_one_begins_and_truths_when_their_time_is_over(tmp_path: Path) -> None:
    now = 1020.0
    spans = LakeSpans(60.0, lambda: now)
    assert [span.correcting for _, span in spans.take(batch_of(part(0), truth(0)))] == []
    now += 59.0
    assert not list(spans.take(batch_of(truth(1))))
    now += 2.0
    (found,) = list(spans.take(batch_of(part(1))))  # which also says that time passes
    assert (found[0], found[1].correcting, found[1].next) == ((LATE, 0), True, 2)
    (found,) = list(spans.take(batch_of(part(2))))
    assert (found[0], found[1].correcting, found[1].first, found[1].next) == ((RESULTS, 0), False, 0, 2)


def test_a_delta_table_has_one_file_of_a_day_that_is_over_and_new_columns(tmp_path: Path) -> None:
    sink = made(tmp_path, form="delta")
    for step in range(60):
        write(sink, part(step), part(step, partition=1))
    sink.flush()
    table = DeltaTable(tmp_path / "readings")
    files = [path for path in table.file_uris() if "date=2026-03-01" in path]
    assert len(files) == 1
    assert len(seen(tmp_path)) == 60 * 2 * 2
    assert set(pl.read_delta(str(tmp_path / "readings"))["date"]) == {date(2026, 3, 1), date(2026, 3, 2)}
    wider = Schema("readings", (*READING_SCHEMA.columns, SinkColumn("note", Kind.TEXT)), READING_SCHEMA.key)
    row = (*part(60, sensors=1).rows[0], "new")
    write(sink, SinkRows(wider, [row], origin=RowOrigin(RESULTS, 0, 60)))
    sink.flush()
    assert pl.read_delta(str(tmp_path / "readings"))["note"].drop_nulls().to_list() == ["new"]
    other = Schema("readings", (READING_SCHEMA.columns[0], SinkColumn("value", Kind.TEXT)), READING_SCHEMA.key)
    write(sink, SinkRows(other, [(row[0], "a text")], origin=RowOrigin(RESULTS, 0, 61)))
    with pytest.raises(SinkError, match=r"column value: found .*double.*, expected .*string.*name another"):
        sink.flush()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "readings").write_text("a file")
    with pytest.raises(SinkError, match=r"\[sinks.lake\] directory: .*readings: File exists"):
        made(tmp_path)
    shutil.rmtree(tmp_path)
