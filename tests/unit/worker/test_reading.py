"""How a host reads a range of its slot's log."""

from __future__ import annotations

from typing import Any

from tsunagi.runtime.log import TUPLES, Position, Record
from tsunagi.worker.slot_reader import SlotReader

SLOT = 0


class Gapped:
    """A reader of a log that lacks offsets, as one has that transactions were written to."""

    def __init__(self, *offsets: int) -> None:
        self._records = [Record(TUPLES, SLOT, offset, 0, b"", b"") for offset in offsets]
        self._left: list[Record] = []

    def assign(self, positions: list[Position]) -> None:
        self._left = [record for record in self._records if positions and record.offset >= positions[0].offset]

    def read(self, max_records: int, timeout_s: float, *, gather_s: float | None = None) -> list[Record]:
        del timeout_s, gather_s
        got, self._left = self._left[:max_records], self._left[max_records:]
        return got


def read(upto: int, *, beyond: bool) -> list[int]:
    reader: Any = SlotReader.__new__(SlotReader)
    reader._pull = Gapped(10, 13, 14, 15)
    return [record.offset for record in reader.records(Position(TUPLES, SLOT, 10), upto, beyond=beyond)]


def test_no_more_than_the_range_is_read() -> None:
    assert read(14, beyond=False) == [10, 13]
    assert read(12, beyond=False) == [10]


def test_of_what_comes_beyond_the_range_nothing_is_missing() -> None:
    assert read(14, beyond=True) == [10, 13, 14, 15]
    assert read(12, beyond=True) == [10, 13, 14, 15]
