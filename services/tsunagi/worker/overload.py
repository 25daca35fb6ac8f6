"""What a worker does while its own slots have more records than it can process (docs/explanation/lateness.md).

Overload is a state like others. Nothing is lost and nobody changes place because of it: the log keeps what waits. The
worker says that it is overloaded, takes the oldest records of all its slots first, keeps a bounded part of the log in
memory, and spends little time on standing by for others.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable

from structlog.stdlib import BoundLogger

from tsunagi.runtime.log import TUPLES, LogError, Position, Reader
from tsunagi.standby.replica import Replica
from tsunagi.standby.stages.base import ReplicaStage
from tsunagi.worker.slot_reader import MAX_RECORDS, SlotReader

SAID_S = 5.0
"""A worker says that it is overloaded once it has been behind for this time without a pause, seconds. Catching up after
a takeover rarely takes so long."""
STANDBY_SHARE = 0.1
"""Share of a worker's time for standing by while its own slots are behind. Otherwise two workers that are each other's
standby would have twice the work while they are behind, and would never catch up."""
EVEN_US = 250_000
"""Slots of an overloaded worker whose oldest records are so much younger than the oldest of all wait for that one,
microseconds."""
SILENT_S = 5.0
"""A slot waits for older records of others for so long at most, seconds. Whoever puts results in order would leave it
behind as one that has died ([spark] wait_s), although its worker lives."""
ASK_S = 1.0
"""While a slot's log is not read, the worker asks for the log's end at this interval, seconds: it tells the backlog."""


class Overload:
    """Follows whether a worker keeps up with its own slots. Times are monotonic seconds.

    Args:
        main: reads the logs of the worker's own slots.
        ends: tells where the logs end.

    Attributes:
        behind: whether the worker's own slots had more to do at the last turn of the loop than that turn did.
        seconds: for how long that has been so without a pause, if for longer than `SAID_S`; else 0.
    """

    def __init__(self, main: Reader, ends: SlotReader, logger: BoundLogger) -> None:
        self.behind = False
        self.seconds = 0.0
        self._main = main
        self._ends = ends
        self._logger = logger
        self._full = self._busy = False  # the last read was full; records wait in memory
        self._since: float | None = None
        self._standby_at = 0.0  # while it is behind, standing by waits until then
        self._oldest_us = math.inf  # the append time of the oldest record that waits
        self._held: dict[int, float] = {}  # slots whose logs are not read: when their ends are asked for next
        self._turned: dict[int, float] = {}  # when slots had time for their records

    def begin(self, replicas: Iterable[Replica]) -> bool:
        """Begin a turn of the loop; return whether the next read should not wait."""
        waiting = [_waits_since(replica) for replica in replicas if replica.behind]
        self._busy, self._oldest_us = bool(waiting), min(waiting, default=math.inf)
        return self._busy or self._full

    def on_read(self, count: int, now: float) -> None:
        """Take in how many records came.

        A full read that did not wait, since the one before was full, shows that records were left. One that waited may
        be full by a high rate alone.
        """
        full = count == MAX_RECORDS
        self.behind = self._busy or (self._full and full)
        self._full = full
        if not self.behind:
            if self.seconds:
                self._logger.info("no longer overloaded", seconds=round(self.seconds, 1))
            self._since, self.seconds = None, 0.0
            return
        self._since = now if self._since is None else self._since
        if now - self._since < SAID_S:
            return
        if not self.seconds:
            self._logger.warning("overloaded: its slots have more records than it can process, results come later")
        self.seconds = now - self._since

    def order(self, replicas: Iterable[Replica]) -> list[Replica]:
        """Return replicas in the order of their turns: slots of its own before others, and the oldest records first."""

        def rank(replica: Replica) -> tuple[bool, float]:
            return replica.stage is not ReplicaStage.OWN, _waits_since(replica)

        return sorted(replicas, key=rank)

    def has_time(self, replica: Replica, now: float) -> bool:
        """Return whether the replica may process records in this turn; if so, its slot has had its turn."""
        if not self.behind:
            return True
        if replica.stage is not ReplicaStage.OWN:
            return now >= self._standby_at
        # Where one slot has something to make up for, as after a takeover, the others need not wait for it.
        slot, oldest = replica.slot_id, _waits_since(replica) <= self._oldest_us + EVEN_US
        has_time = not self.seconds or oldest or now - self._turned.get(slot, -math.inf) >= SILENT_S
        if has_time:
            self._turned[slot] = now
        return has_time

    def on_stood_by(self, began: float, ended: float) -> None:
        """Take in when the worker has processed records of a slot that it stands by for."""
        self._standby_at = ended + (ended - began) * (1.0 / STANDBY_SHARE - 1.0)

    # ---- memory ------------------------------------------------------------------------------------------------

    def hold(self, replica: Replica, now: float) -> None:
        """Stop reading a slot's log while too much of it waits in memory, and go on when half of that is processed.

        If others name a newer owner, its claim stands in the part that is not read. So the worker reads on at once.
        """
        slot, intake = replica.slot_id, replica.intake
        if replica.stage is not ReplicaStage.OWN:
            return
        if slot not in self._held:
            if intake.full and not replica.outdated:
                self._main.remove(TUPLES, slot)
                self._held[slot] = now
        elif intake.half_empty or replica.outdated:
            self.follow(slot, intake.next)
        elif now >= self._held[slot]:
            self._held[slot] = now + ASK_S
            with contextlib.suppress(LogError):  # the log is away: its end is not known
                intake.end = self._ends.range(TUPLES, slot)[1]

    def follow(self, slot: int, offset: int) -> None:
        """Read a slot's log from this offset on."""
        self._held.pop(slot, None)
        self._main.add(Position(TUPLES, slot, offset))

    def unfollow(self, slot: int) -> None:
        """Read a slot's log no longer."""
        self._held.pop(slot, None)
        self._turned.pop(slot, None)
        self._main.remove(TUPLES, slot)


def _waits_since(replica: Replica) -> float:
    """Return when the log appended the oldest record that the replica has not processed, us; infinity = none waits."""
    backlog = replica.intake.backlog
    return backlog[0][0].appended_us if backlog else math.inf
