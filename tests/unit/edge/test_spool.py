"""What waits for the log: in order, over restarts, within its bound."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from tsunagi.edge.directory_lock import DirectoryLock
from tsunagi.edge.source import SourceError
from tsunagi.edge.spool import RETRY_S, SPILL_S, Spool, SpooledRecord
from tsunagi.runtime.heartbeat import ReplacedError

LOGGER = structlog.stdlib.get_logger("test")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "edges" / "e1" / "spool.bin"


Make = Callable[..., Spool]


@pytest.fixture
def make() -> Iterator[Make]:
    """Make a spool, as a process that starts does; one that was made before has been killed."""
    made: list[Spool] = []

    def make(path: Path, max_bytes: int = 10_000) -> Spool:
        for before in made:
            before.lock.close()  # as the system does with a killed process's locks
        made.append(Spool(path, max_bytes, LOGGER, 0.0))
        return made[-1]

    yield make
    for spool in made:
        spool.close()


def fill(spool: Spool, numbers: range, now_s: float = 0.0) -> None:
    for number in numbers:
        spool.put(number % 2, str(number).encode(), now_s)


def taken(spool: Spool) -> list[SpooledRecord]:
    return list(iter(spool.take, None))


def numbers(items: list[SpooledRecord]) -> list[int]:
    assert all(item.slot == int(item.value) % 2 for item in items)
    return [int(item.value) for item in items]


def test_what_is_delivered_at_once_never_touches_the_disk(make: Make, path: Path) -> None:
    spool = make(path)
    for second in range(5):
        fill(spool, range(10), float(second))
        for item in taken(spool):
            spool.delivered(item)
        spool.tidy(second + SPILL_S)
    assert len(spool) == 0
    assert not path.exists()


def test_what_has_waited_outlives_the_process_in_its_order(make: Make, path: Path) -> None:
    first = make(path)
    fill(first, range(10))
    first.tidy(SPILL_S / 2)
    assert not path.exists()
    first.tidy(SPILL_S * 1.1)
    fill(first, range(10, 20), 2.0)  # what comes after it goes to disk at once, and the process dies here
    second = make(path)
    assert (second.left, len(second), second.disk_bytes) == (20, 20, path.stat().st_size)
    fill(second, range(20, 25))
    assert numbers(taken(second)) == list(range(25))


def test_the_file_goes_when_all_is_delivered_in_whatever_order(make: Make, path: Path) -> None:
    spool = make(path)
    fill(spool, range(6))
    spool.tidy(2 * SPILL_S)
    items = taken(spool)
    for item in (*items[3:], *items[:2]):
        spool.delivered(item)
    spool.tidy(3 * SPILL_S)
    assert len(spool) == 1
    assert numbers(taken(make(path))) == list(range(6))  # the slots drop the five that they have
    spool.delivered(items[2])
    spool.tidy(3 * SPILL_S)
    assert not path.exists()
    assert spool.disk_bytes == 0


def test_what_could_not_be_sent_is_taken_again(make: Make, path: Path) -> None:
    spool = make(path)
    fill(spool, range(2))
    spool.take()
    spool.untake()
    assert numbers(taken(spool)) == [0, 1]


def test_a_full_spool_gives_up_the_oldest_that_nobody_is_sending_and_counts_it(make: Make, path: Path) -> None:
    spool = make(path, max_bytes=20)
    fill(spool, range(10, 15))
    sending = [spool.take(), spool.take()]
    fill(spool, range(15, 25))
    assert spool.dropped == 5
    assert numbers([item for item in sending if item is not None]) == [10, 11]
    assert numbers(taken(spool)) == list(range(17, 25))
    assert len(spool) == 10


def test_the_file_does_not_grow_for_ever_while_little_waits(make: Make, path: Path) -> None:
    spool = make(path, max_bytes=200)
    fill(spool, range(10, 12))
    spool.tidy(2 * SPILL_S)
    stuck = spool.take()
    for turn in range(200):
        fill(spool, range(10, 20), 2.0)
        for item in taken(spool):
            spool.delivered(item)
        spool.tidy(2.0 + turn)
        assert spool.disk_bytes <= 3 * 200 + 10 * 14
    assert stuck is not None
    assert numbers(taken(make(path)))[0] == 10


def test_a_damaged_end_is_given_up_and_what_comes_later_is_not_lost_behind_it(make: Make, path: Path) -> None:
    first = make(path)
    fill(first, range(4))
    first.spill(0.0)
    first.close()
    content = path.read_bytes()
    path.write_bytes(content[:-3])
    second = make(path)
    assert second.left == 3
    fill(second, range(10, 12))
    second.spill(0.0)
    assert numbers(taken(make(path))) == [0, 1, 2, 10, 11]


def test_a_file_that_is_no_spool_is_named(make: Make, path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"something else")
    with pytest.raises(SourceError, match=r"spool\.bin: found b'something else', expected a spool of version 1"):
        make(path)


class Disk:
    """A disk whose calls fail: opening, writing (after some bytes), cutting, removing, reading."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failing: set[str] = set()
        self.room = 0  # bytes that a failing write takes first
        self.calls = 0
        open_it, unlink, read = Path.open, Path.unlink, Path.read_bytes

        def failing_open(path: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
            if path.name != "spool.bin" or mode != "ab":
                return open_it(path, mode, *args, **options)
            self.fail("open", path)
            return FailingFile(path, self)

        def failing_unlink(path: Path, **options: Any) -> None:
            self.fail("unlink", path)
            unlink(path, **options)

        def failing_read(path: Path) -> bytes:
            self.fail("read", path)
            return read(path)

        monkeypatch.setattr(Path, "open", failing_open)
        monkeypatch.setattr(Path, "unlink", failing_unlink)
        monkeypatch.setattr(Path, "read_bytes", failing_read)

    def fail(self, what: str, path: Path) -> None:
        if what in self.failing and path.name == "spool.bin":
            self.calls += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FailingFile(io.FileIO):
    def __init__(self, path: Path, disk: Disk) -> None:
        super().__init__(path, "ab")
        self._path, self._disk = path, disk

    def write(self, data: Any) -> int:
        if "write" in self._disk.failing:
            part = min(self._disk.room, len(data))
            if part > 0:
                self._disk.room -= part
                return super().write(data[:part])
            self._disk.fail("write", self._path)
        return super().write(data)

    def truncate(self, size: int | None = None, /) -> int:
        self._disk.fail("truncate", self._path)
        return super().truncate(size)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.mark.parametrize("call", ["open", "write", "truncate"])
def test_a_disk_that_takes_nothing_costs_nothing_while_the_process_lives(
    make: Make, path: Path, disk: Disk, call: str
) -> None:
    spool = make(path)
    disk.failing, disk.room = {call}, 30
    fill(spool, range(10))
    spool.tidy(2 * SPILL_S)
    assert "No space left on device" in spool.fault
    assert spool.dropped == 0
    tried = disk.calls
    for _ in range(20):  # neither each turn nor each record asks the disk again
        spool.tidy(2 * SPILL_S + RETRY_S / 2)
    fill(spool, range(10, 20), 2 * SPILL_S + RETRY_S / 2)
    assert disk.calls == tried
    disk.failing = set()
    spool.tidy(3 * SPILL_S + RETRY_S)
    assert spool.fault == ""
    assert numbers(taken(spool)) == list(range(20))
    assert numbers(taken(make(path))) == list(range(20))


def test_what_the_disk_did_not_take_by_the_end_is_counted(make: Make, path: Path, disk: Disk) -> None:
    spool = make(path)
    disk.failing, disk.room = {"write"}, 100
    fill(spool, range(10))
    lost = spool.keep(0.0)
    spool.close()
    assert 0 < lost < 10
    assert spool.dropped == lost
    assert numbers(taken(make(path))) == list(range(10 - lost))


def test_a_file_that_cannot_be_read_or_removed_is_neither_lost_nor_the_end(make: Make, path: Path, disk: Disk) -> None:
    first = make(path)
    fill(first, range(4))
    first.keep(0.0)
    disk.failing = {"read"}
    second = make(path)
    assert (second.left, len(second)) == (0, 0)
    assert second.fault
    fill(second, range(10, 14))
    second.tidy(2 * SPILL_S)
    disk.failing = {"unlink"}
    second.tidy(2 * RETRY_S)
    assert (second.left, second.fault) == (4, "")
    for item in taken(second):
        second.delivered(item)
    second.tidy(3 * RETRY_S)
    assert second.fault
    disk.failing = set()
    second.tidy(5 * RETRY_S)
    assert not path.exists()


def test_a_full_disk_leaves_no_file_that_the_next_start_refuses(make: Make, path: Path, disk: Disk) -> None:
    for room in range(40):
        spool = make(path)
        disk.failing, disk.room = {"write"}, room
        fill(spool, range(2))
        spool.tidy(2 * SPILL_S)
        assert spool.fault
        disk.failing = set()
        assert make(path).left <= 1
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_fails_and_when_nothing_is_lost_or_turned_round(make: Make, path: Path, disk: Disk, seed: int) -> None:
    """A record is delivered, or counted as dropped, or there after the next start; in order within each start."""
    chance = random.Random(seed)
    now_s, following = 0.0, 10
    delivered: set[int] = set()
    dropped = 0
    spool = make(path)
    for _ in range(12):
        for _ in range(chance.randrange(30)):
            now_s += chance.choice([0.1, 1.5, RETRY_S])
            disk.failing = {call for call in ("open", "write", "truncate", "unlink") if chance.random() < 0.3}
            disk.room = chance.randrange(60)
            if chance.random() < 0.7:
                fill(spool, range(following, following + 3), now_s)
                following += 3
            if chance.random() < 0.3:
                items = taken(spool)
                assert numbers(items) == sorted(numbers(items))
                for item in items:
                    spool.delivered(item)
                delivered |= set(numbers(items))
            spool.tidy(now_s)
        spool.keep(now_s)
        dropped += spool.dropped
        disk.failing = set()
        spool = make(path)
    there = set(numbers(taken(spool)))
    missing = set(range(10, following)) - delivered - there
    assert len(missing) == dropped


def test_a_second_process_goes_on_with_all_that_the_first_held_and_the_first_ends(make: Make, path: Path) -> None:
    def end(spool: Spool) -> None:
        """As an edge does that is told."""
        with contextlib.suppress(ReplacedError):
            while True:
                spool.tidy(1.0)
        fill(spool, range(3, 6), 1.0)
        spool.keep(1.0)
        spool.close()

    first = Spool(path, 10_000, LOGGER, 0.0)
    fill(first, range(3))
    older = threading.Thread(target=end, args=(first,))
    older.start()
    second = make(path)
    older.join()
    assert numbers(taken(second)) == list(range(6))
    with pytest.raises(ReplacedError, match=rf"newer process.*host .*, pid {os.getpid()}, started 20.* ends"):
        raise_again(path, second)


def raise_again(path: Path, spool: Spool) -> None:
    third = DirectoryLock(path.parent, LOGGER, wait_s=0.0)
    try:
        spool.tidy(9.0)
    finally:
        third.close()


def test_a_process_that_stood_still_and_was_given_up_writes_nothing_any_more(make: Make, path: Path) -> None:
    first = make(path)
    fill(first, range(3))
    other = DirectoryLock(path.parent, LOGGER, wait_s=0.0)
    assert first.keep(9.0) == 3
    assert not path.exists()
    path.write_bytes(b"")
    for item in taken(first):
        first.delivered(item)
    assert first.keep(9.0) == 0
    assert path.exists()
    with pytest.raises(ReplacedError):
        first.lock.check()
    other.check()
    other.close()


@pytest.mark.parametrize("given_up", [False, True])
def test_the_file_goes_at_the_end_if_all_is_delivered_and_nobody_newer_has_it(
    make: Make, path: Path, given_up: bool
) -> None:
    spool = make(path)
    fill(spool, range(3))
    spool.spill(0.0)
    for item in taken(spool):
        spool.delivered(item)
    newer = DirectoryLock(path.parent, LOGGER, wait_s=0.0) if given_up else None
    assert spool.keep(9.0) == 0
    assert path.exists() is given_up
    if newer is not None:
        newer.close()
