"""Cells: groups of slots, whose heartbeats and acknowledgements have partitions of their own (architecture, "Cells").

A worker reads those cells only of which it has slots, so what it reads does not grow with the fleet.
Partition 0 of `heartbeats` is the *summary*: all nodes send a heartbeat about everything there, but only once a second.
A small fleet has one cell, and that is the summary, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tsunagi.runtime.log import ACKS, HEARTBEATS, Log

SLOTS_PER_CELL = 32
"""Slots of a cell, unless the settings say how many cells there are. Fewer leave an owner's slots too few workers that
share them when it dies; with more a worker reads more heartbeats of slots that are not its own."""
SUMMARY = 0
"""The partition of `heartbeats` where all nodes are heard."""
SUMMARY_S = 1.0
"""Seconds between two heartbeats of a node in the summary, where there are several cells."""


@dataclass(frozen=True)
class Cells:
    """How the slots of a system are divided into cells.

    A slot's cell depends on nothing but their number. So it stays when the system gets more slots.

    Attributes:
        count: the number of cells, at least 1.
    """

    count: int

    def of(self, slot: int) -> int:
        """Return the cell of a slot. Cells are equally large within one slot."""
        return slot % self.count

    def in_turn(self, slots: int) -> list[int]:
        """Return the slots below `slots`, one cell behind the other."""
        return [slot for cell in range(self.count) for slot in range(cell, slots, self.count)]

    def partition(self, cell: int) -> int:
        """Return the partition of `heartbeats` in which a cell's heartbeats stand."""
        return SUMMARY if self.count == 1 else cell + 1

    def cell_of(self, partition: int) -> int:
        """Return the cell whose heartbeats stand in a partition other than the summary."""
        return 0 if self.count == 1 else partition - 1

    def partitions(self, slots: Iterable[int]) -> set[int]:
        """Return the partitions of the cells of some slots."""
        return {self.partition(self.of(slot)) for slot in slots}


ONE = Cells(1)
"""One cell, for a fleet of any size."""


def cells_for(slots: int, asked: int = 0) -> int:
    """Return how many cells a new system gets.

    Args:
        slots: the number of slots.
        asked: how many the settings ask for; 0 = they leave it open.
    """
    return min(asked or max(1, slots // SLOTS_PER_CELL), slots)


def partitions_for(cells: int) -> int:
    """Return how many partitions `heartbeats` has for so many cells."""
    return 1 if cells == 1 else cells + 1


def cells_made(partitions: int) -> int:
    """Return for how many cells `heartbeats` was made, by the number of its partitions."""
    return max(1, partitions - 1)


def read_cells(log: Log) -> Cells:
    """Return how the slots of a running system are divided: the topic was made for a number of cells.

    Raises:
        LogError: the broker does not answer.
    """
    return Cells(cells_made(log.partitions(HEARTBEATS)))


def read_ack_cells(log: Log) -> Cells:
    """Return how `acks` is divided: it has a partition for each cell, and no summary.

    Raises:
        LogError: the broker does not answer.
    """
    return Cells(log.partitions(ACKS))
