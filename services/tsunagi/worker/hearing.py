"""What a worker hears of the others: it reads the heartbeats of its slots' cells (architecture, "Cells").

Each cell has a detector of its own, since a partition may stall alone: what a worker makes of silence in a cell rests
on its own heartbeats that come back there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection

from tsunagi.runtime.cells import ONE, Cells
from tsunagi.runtime.log import HEARTBEATS, Log, LogError, Position, Record
from tsunagi.runtime.messages import Heartbeat
from tsunagi.standby.detector import Detector

BEATS_S, BEATS_BYTES = 0.02, 65_536
"""The broker collects heartbeats for this time, seconds, or until they are so many bytes. They are read by a reader of
their own. In a large fleet they come every few milliseconds, and each answer would wake the worker: detection is later
by a hundredth of a second, and a worker that waits takes a fraction of the time."""
BEATS_BACK = 2000
"""Number of old heartbeats that a starting worker reads where there is one cell: two seconds of a hundred nodes."""
CELL_BACK = 200
"""The same of each of several cells, which has a few workers and some dozens of edges."""

Range = Callable[[str, int], tuple[int, int]]
"""Returns the first offset and the end of a partition, or raises a LogError."""


class Hearing:
    """Reads the cells of a worker's slots.

    Args:
        node, incarnation: the worker's.
        interval_s: the interval of its heartbeats, seconds.
    """

    def __init__(self, log: Log, node: str, incarnation: int, interval_s: float) -> None:
        self._cells = ONE
        self._reader = log.reader(wait_s=BEATS_S, least_bytes=BEATS_BYTES)
        self._name = node, incarnation, interval_s
        self._detectors: dict[int, Detector] = {}  # by cell
        self._read: set[int] = set()  # cells that are read

    def open(self, cells: Cells, range_of: Range) -> None:
        """Begin to read where there is one cell. Of several those are read of which there are slots (`follow`).

        Args:
            cells: how the slots are divided.

        Raises:
            LogError: the broker does not answer.
        """
        self._cells = cells
        if cells.count == 1:
            self._begin(0, range_of)

    def detector(self, slot: int) -> Detector:
        """Return what judges who lives, for a slot."""
        return self._detector(self._cells.of(slot))

    def _detector(self, cell: int) -> Detector:
        if cell not in self._detectors:
            self._detectors[cell] = Detector(*self._name)
        return self._detectors[cell]

    def follow(self, slots: Collection[int], range_of: Range) -> None:
        """Read the cells of these slots and no others. A cell whose partition does not answer is tried again."""
        if self._cells.count == 1:
            return
        wanted = {self._cells.of(slot) for slot in slots}
        if wanted == self._read:
            return
        for cell in self._read - wanted:
            self._reader.remove(HEARTBEATS, self._cells.partition(cell))
            self._read.discard(cell)
            self._detectors.pop(cell, None)
        for cell in sorted(wanted - self._read):
            with contextlib.suppress(LogError):
                self._begin(cell, range_of)

    def _begin(self, cell: int, range_of: Range) -> None:
        """Begin a little back: the last heartbeat of a dead node says which record it was on."""
        partition = self._cells.partition(cell)
        first, end = range_of(HEARTBEATS, partition)
        back = BEATS_BACK if self._cells.count == 1 else CELL_BACK
        self._reader.add(Position(HEARTBEATS, partition, max(first, end - back)))
        self._read.add(cell)
        self._detector(cell)

    def read(self, max_records: int) -> list[Record]:
        """Return heartbeats that have come."""
        return self._reader.read(max_records, 0.0)

    def on_heartbeat(self, beat: Heartbeat, partition: int, now: float) -> bool:
        """Take in a heartbeat in the order of its partition; return False if it is no sign of life."""
        detector = self._detectors.get(self._cells.cell_of(partition))
        return detector is not None and detector.on_heartbeat(beat, now)

    def hint(self, node: str, incarnation: int, now: float) -> None:
        """Take in that a connection to a process has ended, as it does when the process dies."""
        for detector in self._detectors.values():
            detector.hint(node, incarnation, now)

    def beat(self, node: str) -> Heartbeat | None:
        """Return a last heartbeat of another node, of its newest process that was heard; None = it was never heard."""
        found = [beat for detector in self._detectors.values() if (beat := detector.beat(node)) is not None]
        return max(found, key=lambda beat: (beat.incarnation, beat.sequence), default=None)

    def close(self) -> None:
        """Release the reader."""
        self._reader.close()
