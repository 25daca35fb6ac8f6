from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from tsunagi_spark.blocks import RecoveredRows
from tsunagi_spark.queries import QueryReadings
from tsunagi_spark.state import (
    CoreState,
    Minute,
    StateError,
    Store,
    dump_readings,
    load_readings,
    seal,
    unseal,
    write_atomically,
)


def a_state() -> CoreState:
    rows = RecoveredRows(
        sensor=np.array([1, 2], dtype=np.uint32),
        step=np.array([7, 8]),
        mean=np.array([0.5, np.nan]),
        sd=np.array([0.0, 1.0]),
        quality=np.array([0, 2], dtype=np.uint8),
        bound=np.array([np.inf, 1.0]),
    )
    minute = Minute(np.array([3]), np.array([5]), np.array([9]), np.array([[1, 2]]))
    return CoreState(np.array([6, -(2**61)]), np.array([1, 2, 3]), np.array([0, 1, 2]), rows, minute=minute)


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    state = a_state()
    back = CoreState.load(state.dump(), tmp_path)
    assert back.dump() == state.dump()
    assert back.minute.dropped.tolist() == [[1, 2]]
    assert back.rows.mean.tobytes() == state.rows.mean.tobytes()


@pytest.mark.parametrize(("place", "word"), [(0, "not a state file"), (4, "version"), (-1, "damaged")])
def test_a_damaged_state_is_refused(tmp_path: Path, place: int, word: str) -> None:
    data = bytearray(a_state().dump())
    data[place] ^= 0x10
    with pytest.raises(StateError, match=f"state-3.*{word}"):
        CoreState.load(bytes(data), tmp_path / "state-3")


def test_missing_state_says_what_to_do(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(StateError, match=r"core-0/state-4: state is missing; restore it, or empty the checkpoint"):
        store.read("core-0/state-4")
    with pytest.raises(StateError, match="rows-4: state is missing"):
        load_readings(tmp_path / "rows-4", 0, 1)


def test_readings_are_read_by_steps(tmp_path: Path) -> None:
    readings = QueryReadings(
        np.arange(6, dtype=np.uint32), np.array([1, 1, 2, 3, 3, 5]), np.array([True, False, True, False, True, False])
    )
    path = tmp_path / "rows-1"
    path.write_bytes(dump_readings(readings))
    part = load_readings(path, 1, 3)
    assert part.sensor.tolist() == [2, 3, 4]
    assert part.above.tolist() == [True, False, True]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StateError, match="rows-1: damaged"):
        load_readings(path, 1, 3)


def test_two_drivers_cannot_have_one_checkpoint(tmp_path: Path) -> None:
    refused = pytest.raises(StateError, match=f"in use by another driver .process {os.getpid()}")
    with Store(tmp_path).lock(), refused:
        Store(tmp_path).lock()
    Store(tmp_path).lock().close()


def test_a_full_disk_is_named_and_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state-1"
    write_atomically(path, b"old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StateError, match="state-1: state cannot be written: No space left on device"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [item.name for item in tmp_path.iterdir()] == ["state-1"]


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "tsunagi").write_text("a file")
    with pytest.raises(StateError, match="state directory cannot be made"):
        Store(tmp_path).prepare(2)


def test_clear_keeps_the_lock(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.lock():
        store.prepare(2)
        store.write_json("query.json", {"id": "x"})
        store.clear()
        assert [item.name for item in store.root.iterdir()] == ["lock"]


def test_json_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.prepare(1)
    store.write("query.json", b'{"version": 9}')
    with pytest.raises(StateError, match="found version 9"):
        store.read_json("query.json")
    store.write("query.json", b"{")
    with pytest.raises(StateError, match="damaged"):
        store.read_json("query.json")


def test_a_store_is_prepared_anew_at_every_start_and_keeps_what_it_holds(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.prepare(2)
    store.write_json("driver/offsets", {"batch": 3})
    store.prepare(3)
    assert store.read_json("driver/offsets")["batch"] == 3
    store.remove("driver/offsets")
    store.remove("driver/offsets")
    assert store.find("driver/offsets") is None


def test_a_state_of_before_there_were_rates_and_windows_has_none(tmp_path: Path) -> None:
    arrays = unseal(a_state().dump(), tmp_path)
    del arrays["rate"], arrays["panes"]
    back = CoreState.load(seal(arrays), tmp_path)
    assert back.rate.tolist() == [0.0, 0.0, 0.0]
    assert len(back.panes) == 0


def test_writing_leaves_no_file_open(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    write_atomically(tmp_path / "state", b"whole")
    assert len(list(Path("/proc/self/fd").iterdir())) == before
