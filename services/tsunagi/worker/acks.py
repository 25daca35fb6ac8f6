"""The acknowledgements that a worker hears of: those of its slots' cells (architecture, "Cells").

A slot's replica begins with the newest ones, since they say from where a takeover has to go on. It would find that
out without them as well, but would read more of the log for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection

from tsunagi.runtime.cells import ONE, Cells, read_ack_cells
from tsunagi.runtime.log import ACKS, Log, LogError, Position, Reader, Record
from tsunagi.runtime.messages import Ack
from tsunagi.worker.slot_reader import SlotReader


class SlotAcks:
    """Follows the acknowledgements of a worker's slots, and keeps the newest of each slot and level.

    Where there is one cell, all are read from the start, with `plan`. Of several cells those are read of which the
    worker has slots.

    Args:
        several: whether the slots are divided into several cells.
        main: follows what is appended to the cells.
        past: reads what a cell holds already.
        take_in: is called with each record that a cell holds already.
    """

    def __init__(
        self, log: Log, *, several: bool, main: Reader, past: SlotReader, take_in: Callable[[Record], None]
    ) -> None:
        self.cells: Cells = read_ack_cells(log) if several else ONE
        self._main, self._past = main, past
        self._take_in = take_in
        self._read: set[int] = set()  # cells that are read
        self._newest: dict[int, dict[str, Ack]] = {}  # by slot and level

    def first(self) -> list[Position]:
        """Return where to begin in the one cell that is read from the start, if there is one."""
        if self.cells.count > 1:
            return []
        self._read.add(0)
        return [Position(ACKS, 0, self._past.range(ACKS, 0)[0])]

    def follow(self, slots: Collection[int]) -> None:
        """Read the cells of these slots and no others. A cell that does not answer is tried again the next time."""
        if self.cells.count == 1:
            return
        wanted = {self.cells.of(slot) for slot in slots}
        if wanted == self._read:
            return
        for cell in self._read - wanted:
            self._main.remove(ACKS, cell)
            self._read.discard(cell)
            self._newest = {slot: acks for slot, acks in self._newest.items() if self.cells.of(slot) != cell}
        for cell in sorted(wanted - self._read):
            self._begin(cell)

    def learn(self, slot: int) -> None:
        """Read the cell of a slot that is about to be taken up, unless it is read already."""
        cell = self.cells.of(slot)
        if cell not in self._read:
            self._begin(cell)

    def _begin(self, cell: int) -> None:
        """Take in what a cell holds, and follow it from there, unless the log does not answer."""
        with contextlib.suppress(LogError):
            first, end = self._past.range(ACKS, cell)
            for record in self._past.records(Position(ACKS, cell, first), end) if first < end else ():
                self._take_in(record)
            self._main.add(Position(ACKS, cell, end))
            self._read.add(cell)

    def news(self, ack: Ack) -> int | None:
        """Take in an acknowledgement; return its slot if none of its slot and level is known that is newer, else None.

        What Spark acknowledges concerns no replica.
        """
        level = ack.WhichOneof("body")
        if level is None:
            return None
        body = ack.level0 if level == "level0" else ack.level1
        if body.node == "spark":
            return None
        known = self._newest.setdefault(body.slot, {})
        if level in known:
            old = known[level].level0 if level == "level0" else known[level].level1
            if (old.epoch, old.offset) > (body.epoch, body.offset):
                return None
        known[level] = ack
        return body.slot

    def of_slot(self, slot: int) -> list[Ack]:
        """Return the newest acknowledgements of a slot, in the order in which their levels were first heard of."""
        return list(self._newest.get(slot, {}).values())
