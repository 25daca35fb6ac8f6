"""How long a worker's loop may take for the piece of work that it is on.

One record in twenty closes a step and costs most of the arithmetic. One in a million puts a model in force. The mean
cost of a record says nothing about these. So code that begins a long piece of work announces how many operations it
takes, and heartbeats tell other nodes how long that may last. Work that was not announced is short.

The loop writes and the heartbeats' thread reads. Each reads or replaces one value at a time, so there is no lock.
"""

from __future__ import annotations

from typing import NamedTuple

from tsunagi.standby.detector import MIN_STALL_S

SLOWEST = 5e8
"""Multiplications a second of a core that twenty processes share. A core of its own does 20 times as many."""

TURN_OPERATIONS = 1e9
"""Number of announced operations after which the loop looks at the clock, its readers and its other slots."""


class WorkPiece(NamedTuple):
    """One piece of work, or the pause between two turns of the loop.

    Attributes:
        turn: `number` of the piece that began the loop's present turn; 0 = a pause.
        number: the number of this piece, counted up.
        limit_s: how long it may last, seconds.
    """

    turn: int
    number: int
    limit_s: float


class OnRecords(NamedTuple):
    """The records that the loop processes, or is about to process.

    Attributes:
        first: offset of the first of them.
        until: records from `first` to below this offset were announced in a heartbeat; equal to `first` = none was.
        since: when they were begun, or announced, monotonic seconds.
    """

    first: int
    until: int
    since: float


class WorkloadSnapshot(NamedTuple):
    """What a heartbeat says of the loop. Times are monotonic seconds.

    Attributes:
        since: when the loop began what it is on; None = it pauses.
        due: the time after which the present piece is overdue.
        records: the records that the loop is on; None = it is on none.
    """

    since: float | None
    due: float
    records: OnRecords | None = None


class Workload:
    """What the loop of one replica is on.

    Attributes:
        operations: how many operations were announced since `begin`.
        on_records: the records that the loop processes, or is about to process; None = none.
    """

    def __init__(self) -> None:
        self.operations = 0.0
        self.on_records: OnRecords | None = None
        self._count = 0
        self._piece = WorkPiece(0, 0, MIN_STALL_S)
        self._turn_seen = self._piece_seen = -1  # what the last heartbeat saw
        self._turn_at = self._piece_at = 0.0

    @property
    def heavy(self) -> bool:
        """Whether more than `TURN_OPERATIONS` were announced since `begin`, so that the loop should end its turn."""
        return self.operations > TURN_OPERATIONS

    @property
    def on(self) -> bool:
        """Whether a turn has begun and not ended."""
        return self._piece.turn != 0

    def begin(self, usual_s: float) -> None:
        """Begin a turn. Work that is not announced may last `usual_s` seconds, but at least `MIN_STALL_S`."""
        self._count += 1
        self.operations = 0.0
        self._piece = WorkPiece(self._count, self._count, max(MIN_STALL_S, usual_s))

    def announce(self, operations: float) -> None:
        """Begin a piece of work of so many multiplications."""
        self.operations += operations
        self._count += 1
        self._piece = WorkPiece(
            self._piece.turn, self._count, max(self._piece.limit_s, MIN_STALL_S + operations / SLOWEST)
        )

    def take_up(self, first: int, until: int, now: float) -> None:
        """Begin with the records from the offset `first` on. Those below `until` are announced before."""
        self.on_records = OnRecords(first, until, now)

    def calm(self) -> None:
        """Take in that the loop is on no records now."""
        self.on_records = None

    def end(self) -> None:
        """End the turn: a pause follows."""
        self._count += 1
        self._piece = WorkPiece(0, self._count, MIN_STALL_S)

    def snapshot(self, now: float) -> WorkloadSnapshot:
        """Return what the loop is on.

        Only the heartbeats' thread may call it, once for each heartbeat. A piece counts from the first heartbeat that
        saw it, so the times are right to one heartbeat interval.
        """
        piece = self._piece
        if piece.turn != self._turn_seen:
            self._turn_seen, self._turn_at = piece.turn, now
        if piece.number != self._piece_seen:
            self._piece_seen, self._piece_at = piece.number, now
        since, due = self._turn_at if piece.turn else None, self._piece_at + piece.limit_s
        records = self.on_records
        if records is not None:
            if since is None:  # announced, but not begun: the pause may have been long
                due = max(due, records.since + MIN_STALL_S)
            since = records.since
        return WorkloadSnapshot(since, due, records)
