"""A worker reads the acknowledgements of its slots' cells, and begins each slot with the newest ones."""

from __future__ import annotations

import pytest
import structlog

from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.log import ACKS, LogError, Record
from tsunagi.runtime.message_reading import read_message
from tsunagi.runtime.messages import VERSION, Ack, Level0Ack, Level1Ack
from tsunagi.runtime.testing import MemoryLog
from tsunagi.worker.acks import SlotAcks
from tsunagi.worker.slot_reader import SlotReader

CELLS = 3
SLOTS = 9


def level0(slot: int, offset: int, *, epoch: int = 1, node: str = "a") -> Ack:
    return Ack(version=VERSION, level0=Level0Ack(slot=slot, node=node, epoch=epoch, offset=offset))


def level1(slot: int, offset: int) -> Ack:
    return Ack(version=VERSION, level1=Level1Ack(slot=slot, node="a", epoch=1, offset=offset))


class Place:
    """A log, and what a worker hears of its acknowledgements."""

    def __init__(self, cells: int = CELLS) -> None:
        self.log = MemoryLog(ManualClock(), {ACKS: cells})
        self.main = self.log.client("worker").reader()
        self.logger = structlog.get_logger()
        self.past = SlotReader(self.log.client("worker"), self.logger)
        self.heard: list[tuple[int, int]] = []  # (slot, offset)
        self.acks = SlotAcks(
            self.log.client("worker"), several=cells > 1, main=self.main, past=self.past, take_in=self.take_in
        )
        self.main.assign(self.acks.first())

    def take_in(self, record: Record) -> None:
        ack = read_message(Ack, record, self.logger)
        slot = None if ack is None else self.acks.news(ack)
        if ack is not None and slot is not None:
            self.heard.append((slot, ack.level0.offset or ack.level1.offset))

    def write(self, ack: Ack) -> None:
        slot = ack.level0.slot or ack.level1.slot
        key = f"{slot}/{ack.WhichOneof('body')}/a".encode()
        self.log.append(ACKS, slot % self.log.layout[ACKS], key, ack.SerializeToString())

    def read(self) -> list[tuple[int, int]]:
        self.heard.clear()
        for record in self.main.read(100, 0.0):
            self.take_in(record)
        return self.heard


def test_only_the_cells_of_its_slots_are_read() -> None:
    place = Place()
    place.acks.follow([4, 7])  # both are of cell 1
    for slot in range(1, SLOTS):
        place.write(level0(slot, 10 + slot))
    assert place.read() == [(1, 11), (4, 14), (7, 17)]
    place.acks.follow([4, 7, 8])
    assert place.heard[-2:] == [(5, 15), (8, 18)]  # at once, before anything is read on
    place.acks.follow([8])
    place.write(level0(4, 30))
    place.write(level0(8, 31))
    assert place.read() == [(8, 31)]
    assert place.acks.of_slot(4) == []


def test_a_slot_that_is_taken_up_begins_with_the_newest_of_each_level() -> None:
    place = Place()
    for ack in (level0(5, 10), level1(5, 8), level0(5, 12), level0(5, 90, epoch=0), level0(2, 7)):
        place.write(ack)
    assert place.acks.of_slot(5) == []
    place.acks.learn(5)
    assert [(ack.level0.offset, ack.level1.offset) for ack in place.acks.of_slot(5)] == [(12, 0), (0, 8)]
    place.write(level0(5, 13))
    place.acks.learn(5)
    place.acks.follow([5])
    assert place.read() == [(5, 13)]  # each is taken in once


def test_where_there_is_one_cell_all_are_read_from_the_start() -> None:
    place = Place(cells=1)
    place.write(level0(4, 14))
    place.acks.learn(4)
    place.acks.follow([4])
    place.write(level0(5, 15))
    assert place.read() == [(4, 14), (5, 15)]


def test_what_spark_acknowledges_is_passed_over() -> None:
    acks = Place().acks
    assert acks.news(level0(4, 14, node="spark")) is None
    assert acks.news(Ack(version=VERSION)) is None
    assert acks.of_slot(4) == []


def test_a_cell_that_does_not_answer_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place()
    place.write(level0(4, 14))

    def refused(_topic: str, _partition: int) -> tuple[int, int]:
        raise LogError("no broker")

    with monkeypatch.context() as patched:
        patched.setattr(place.past, "range", refused)
        place.acks.learn(4)
        place.acks.follow([4])
    assert place.acks.of_slot(4) == []
    place.acks.follow([4])
    assert place.heard == [(4, 14)]
