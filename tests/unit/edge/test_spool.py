"""What waits for the log: in order, over restarts, within its bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from services.edge.source import SourceError
from services.edge.spool import SPILL_S, Item, Spool

LOGGER = structlog.stdlib.get_logger("test")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "edges" / "e1" / "spool.bin"


Make = Callable[..., Spool]


@pytest.fixture
def make() -> Iterator[Make]:
    """Make a spool, as a process that starts does; one that was made before has been killed."""
    made = []

    def make(path: Path, max_bytes: int = 10_000) -> Spool:
        made.append(Spool(path, max_bytes, LOGGER, 0.0))
        return made[-1]

    yield make
    for spool in made:
        spool.close()


def fill(spool: Spool, numbers: range, now_s: float = 0.0) -> None:
    for number in numbers:
        spool.put(number % 2, str(number).encode(), now_s)


def taken(spool: Spool) -> list[Item]:
    return list(iter(spool.take, None))


def numbers(items: list[Item]) -> list[int]:
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
    assert not path.parent.exists()


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
    first.spill()
    first.close()
    content = path.read_bytes()
    path.write_bytes(content[:-3])
    second = make(path)
    assert second.left == 3
    fill(second, range(10, 12))
    second.spill()
    assert numbers(taken(make(path))) == [0, 1, 2, 10, 11]


def test_a_file_that_is_no_spool_is_named(make: Make, path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"something else")
    with pytest.raises(SourceError, match=r"spool\.bin: found b'something else', expected a spool of version 1"):
        make(path)
