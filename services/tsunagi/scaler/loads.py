"""How many slots each living worker has, and who should get one more: the least loaded, of those in the slot's cell.

Where there are several cells, a slot goes to a worker that has slots of its cell already, while that one has room. So a
worker has slots of few cells, and reads the heartbeats of few others (architecture, "Cells").
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable

from tsunagi.runtime.cells import Cells


class Loads:
    """The slots that each worker has or will have, as owner or as secondary.

    Args:
        names: the living workers.

    Attributes:
        count: how many slots each of them has; others have none.
    """

    def __init__(self, names: Iterable[str], cells: Cells) -> None:
        self.count: Counter[str] = Counter(dict.fromkeys(names, 0))
        self._cells = cells
        self._in_cell: dict[int, Counter[str]] = {}
        self._heap: list[tuple[int, str]] | None = None

    def copy(self) -> Loads:
        """Return the same for one cell, to be counted on by itself."""
        made = Loads((), self._cells)
        made.count = self.count.copy()
        return made

    def add(self, slot: int, names: Iterable[str], by: int = 1) -> None:
        """Count a slot for these workers, or no longer with `by` = -1. Workers that do not live are left out."""
        mates = self._in_cell.setdefault(self._cells.of(slot), Counter())
        for name in names:
            if name in self.count:
                self.count[name] += by
                mates[name] += by
                if self._heap is not None:
                    heapq.heappush(self._heap, (self.count[name], name))

    def least(self, slot: int, allowed: Callable[[str], bool], limit: float, more: Counter[str] | None = None) -> str:
        """Return who should get a slot; "" if no worker is allowed. Of equal ones the first by name is taken.

        Args:
            limit: with several cells, a worker in the slot's cell gets it while it has fewer slots than this.
            more: with one cell, slots that workers will have besides.
        """
        if self._cells.count == 1:
            more = more or Counter()
            names = [name for name in self.count if allowed(name)]
            return min(names, key=lambda name: (self.count[name] + more[name], name), default="")
        mates = [name for name, slots in self._in_cell.get(self._cells.of(slot), Counter()).items() if slots > 0]
        mates = [name for name in mates if self.count[name] < limit and allowed(name)]
        return min(mates, key=lambda name: (self.count[name], name), default="") or self._least_of_all(allowed)

    def _least_of_all(self, allowed: Callable[[str], bool]) -> str:
        if self._heap is None:
            self._heap = [(count, name) for name, count in self.count.items()]
            heapq.heapify(self._heap)
        heap, aside, found = self._heap, [], ""
        while heap and not found:
            count, name = heap[0]
            if count != self.count[name]:
                heapq.heappop(heap)  # it has been counted again since
            elif allowed(name):
                found = name
            else:
                aside.append(heapq.heappop(heap))
        for entry in aside:
            heapq.heappush(heap, entry)
        return found
