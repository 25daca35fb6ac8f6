"""Whatever a power cut leaves of the checkpoint, the job starts from the last batch that is whole."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.spark.world import World, write_table
from tests.unit.spark.small_job import layout_of
from tsunagi.runtime import metrics
from tsunagi.runtime.settings import KafkaSettings, Settings, SlotsSettings, SparkSettings
from tsunagi_spark.blocks import RecoveredRows
from tsunagi_spark.checkpoint import ASIDE, Checkpoint, query_id
from tsunagi_spark.frontier import SlotMark
from tsunagi_spark.queries import QueryReadings
from tsunagi_spark.service import begin
from tsunagi_spark.standing import JobStanding
from tsunagi_spark.state import KEPT, CoreState, Minute, StateError, Store, dump_readings

TOPIC = "t.recovered"
CORES = 2
LAST = 9
"""The last batch that both Spark and the job have."""


class Place:
    def __init__(self, directory: Path) -> None:
        write_table(directory / "sensors.csv", sensors=8, groups=2)
        self.root = directory / "checkpoint"
        self.settings = Settings(
            sensors=directory / "sensors.csv",
            kafka=KafkaSettings(prefix="t."),
            slots=SlotsSettings(count=2),
            spark=SparkSettings(checkpoint=self.root, cores=CORES),
        )
        self.store = Store(self.root)
        self.store.prepare(CORES)
        self.store.write_json("query.json", {"id": "q"})
        layout = layout_of(World(self.settings, write_table(directory / "sensors.csv", sensors=8, groups=2)))
        self.store.write("layouts/1", layout.dump())
        self._spark("metadata", '{"id":"q"}')
        self._spark("sources/0/0", '\0v1\n{"t.recovered":{"0":0,"1":0}}')
        for batch in range(LAST - KEPT + 1, LAST + 1):
            self.offsets(batch)
            self._spark(f"commits/{batch}", 'v1\n{"nextBatchWatermarkMs":0}')
            self.state(batch)

    def _spark(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.with_name(f".{path.name}.crc").write_bytes(b"crc\0\0\0\2\0abcd")

    def offsets(self, batch: int) -> None:
        ends = {TOPIC: {str(slot): end for slot, end in self.ends(batch).items()}}
        self._spark(
            f"offsets/{batch}", f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":7,"conf":{{}}}}\n{json.dumps(ends)}'
        )

    def state(self, batch: int) -> None:
        marks = {slot: SlotMark(1, end, 0, 100 + batch, 1, end) for slot, end in self.ends(batch).items()}
        standing = JobStanding(batch=batch, marks=marks, delivered=[100 + batch] * 2, layout=1)
        self.store.write_json(f"driver/before-{batch}", {"layout": 1, "overdue": [], "dropped": [], "silent_s": {}})
        self.store.write_json(f"driver/after-{batch}", standing.as_json())
        minute = Minute(np.array([batch]), np.array([batch]), np.array([2]))
        readings = QueryReadings(np.arange(3, dtype=np.uint32), np.arange(batch, batch + 3), np.ones(3, dtype=np.bool_))
        for core in range(CORES):
            state = CoreState(
                np.zeros(2, np.int64), np.zeros(8, np.int64), np.zeros(8, np.int64), RecoveredRows.empty()
            )
            state.minute = minute
            self.store.write(f"core-{core}/rows-{batch}", dump_readings(readings))
            self.store.write(f"core-{core}/state-{batch}", state.dump())

    def ends(self, batch: int) -> dict[int, int]:
        return {0: 10 * batch, 1: 7 * batch}

    def files(self) -> list[Path]:
        return sorted(path for path in self.root.rglob("*") if path.is_file() and ASIDE not in path.parts)

    def check(self, standing: JobStanding) -> None:
        """Read the checkpoint as Spark does at a start, and the state as the next batch does."""
        checkpoint = Checkpoint(self.root, TOPIC)
        offsets, commits = checkpoint.batches("offsets"), checkpoint.batches("commits")
        if standing.batch < 0:
            assert (offsets, commits) == ([], [])
            return
        assert commits[-1] == standing.batch
        assert offsets[-1] - standing.batch in (0, 1)
        for batch in range(offsets[-1] - 1, offsets[-1] + 1):
            checkpoint.positions(batch)
        assert checkpoint.positions(standing.batch) == self.ends(standing.batch)
        assert standing == JobStanding.of(self.store.read_json(f"driver/after-{standing.batch}"))
        assert standing.marks[1].read_to == self.ends(standing.batch)[1]
        for core in range(CORES):
            name = f"core-{core}/state-{standing.batch}"
            CoreState.load(self.store.read(name), self.root / name)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(os, "fsync", lambda _file: None)  # a file takes 10 ms with it
    return Place(tmp_path)


def zeros(data: bytes, choice: random.Random) -> bytes:
    first = choice.randrange(len(data))
    return data[:first] + bytes(len(data) - first)


TEARS: dict[str, Callable[[bytes, random.Random], bytes | None]] = {
    "empty": lambda _data, _choice: b"",
    "cut": lambda data, choice: data[: choice.randrange(len(data))],
    "zeros": zeros,
    "noise": lambda data, choice: choice.randbytes(len(data)),
    "version": lambda data, _choice: data.replace(b"v1", b"v9").replace(b'"version": 2', b'"version": 9'),
    "missing": lambda _data, _choice: None,
}


def tear(path: Path, kind: str, choice: random.Random) -> None:
    data = TEARS[kind](path.read_bytes(), choice)
    if data is None:
        path.unlink()
    else:
        path.write_bytes(data)


@pytest.mark.parametrize("kind", ["empty", "cut", "zeros", "noise", "version", "missing"])
@pytest.mark.parametrize("name", ["offsets", "commits"])
@pytest.mark.parametrize("lost", [1, 2, 4])
def test_sparks_logs_do_not_decide(place: Place, name: str, kind: str, lost: int) -> None:
    for batch in range(LAST - lost + 1, LAST + 1):
        tear(place.root / name / str(batch), kind, random.Random(batch))
    standing = begin(place.store, place.settings)
    assert standing.batch == LAST, "its state is whole"
    place.check(standing)


@pytest.mark.parametrize("seed", range(60))
def test_any_damage_is_started_from(place: Place, seed: int) -> None:
    choice = random.Random(seed)
    if choice.random() < 0.5:
        place.offsets(LAST + 1)  # a batch that was running
        if choice.random() < 0.5:
            place.state(LAST + 1)
    before = metrics.SPARK_SET_ASIDE._value.get()
    kinds = sorted(set(TEARS) - {"missing"})
    victims = choice.sample(place.files(), choice.randrange(1, 6))
    for path in victims:
        tear(path, choice.choice(kinds), choice)
    standing = begin(place.store, place.settings)
    place.check(standing)
    if not any(path.name == "1" or path.name[:5] in ("after", "state", "rows-") for path in victims):
        assert standing.batch >= LAST, "all state is whole"
    set_aside = [path for path in (place.root / ASIDE).rglob("*") if path.is_file()]
    if standing.batch >= 0:
        assert metrics.SPARK_SET_ASIDE._value.get() - before == len(set_aside)
    assert begin(place.store, place.settings) == standing, "what was mended once is whole"


def test_the_batch_before_is_gone_on_from_where_the_last_ones_state_is_torn(place: Place) -> None:
    (place.root / "tsunagi" / "core-1" / f"state-{LAST}").write_bytes(b"")
    (place.root / "tsunagi" / "driver" / f"after-{LAST - 1}").write_bytes(b"{")
    standing = begin(place.store, place.settings)
    assert standing.batch == LAST - 2
    place.check(standing)
    aside = {
        str(path.relative_to(place.root / ASIDE / "1")) for path in (place.root / ASIDE).rglob("*") if path.is_file()
    }
    assert {f"tsunagi/core-1/state-{LAST}", f"tsunagi/driver/after-{LAST - 1}", f"commits/{LAST}"} <= aside


def test_rows_that_a_state_needs_are_looked_at(place: Place) -> None:
    (place.root / "tsunagi" / "core-0" / f"rows-{LAST}").write_bytes(bytes(39))
    assert begin(place.store, place.settings).batch == LAST - 1


def test_nothing_whole_starts_anew_and_nothing_is_deleted(place: Place) -> None:
    for path in (place.root / "tsunagi" / "driver").glob("after-*"):
        path.write_bytes(b"")
    files = {path.name for path in place.files() if path.suffix != ".crc"}
    assert begin(place.store, place.settings) == JobStanding()
    place.check(JobStanding())
    assert not place.files()
    assert {path.name for path in (place.root / ASIDE).rglob("*") if path.is_file()} == files
    assert begin(place.store, place.settings) == JobStanding()


@pytest.mark.parametrize("name", ["metadata", "tsunagi/query.json"])
def test_the_querys_id_is_kept_twice(place: Place, name: str) -> None:
    (place.root / name).write_bytes(b"")
    assert begin(place.store, place.settings).batch == LAST
    assert query_id(place.root) == place.store.read_json("query.json")["id"] == "q"


def test_a_whole_checkpoint_is_left_alone(place: Place) -> None:
    place.offsets(LAST + 1)
    files = {path: path.read_bytes() for path in place.files() if path.suffix != ".crc"}
    assert begin(place.store, place.settings).batch == LAST
    assert {path: path.read_bytes() for path in place.files()} == files
    assert not (place.root / ASIDE).exists()


def test_a_first_batch_that_was_only_planned_is_planned_anew(place: Place) -> None:
    for path in [*place.root.glob("commits/*"), *place.root.glob("offsets/*"), *place.store.root.glob("*/[ars]*-*")]:
        path.unlink()
    place.offsets(0)
    assert begin(place.store, place.settings) == JobStanding()
    place.check(JobStanding())
    assert (place.root / ASIDE / "1" / "offsets" / "0").exists()
    assert (place.root / ASIDE / "1" / "sources" / "0" / "0").exists(), "it may be of a topic that is no more"


def test_state_that_somebody_took_away_is_asked_for(place: Place) -> None:
    for path in (place.root / "tsunagi" / "driver").glob("after-*"):
        path.unlink()
    with pytest.raises(StateError, match=f"driver/after-{LAST}: state is missing; restore it"):
        begin(place.store, place.settings)


def test_a_disk_that_takes_nothing_is_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    (place.root / "commits" / str(LAST)).write_bytes(b"")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(StateError, match=f"commits/{LAST}: damaged .* cannot be moved .*: No space left"):
        begin(place.store, place.settings)
