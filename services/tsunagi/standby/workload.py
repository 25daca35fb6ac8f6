"""How long a worker's loop may be on what it does, told by the kind of work.

One record in twenty closes a step and costs all the arithmetic; one in a million puts a model in force. What a record
costs on average says nothing of these. So whoever begins a piece of work that is known to be long announces how many
operations it takes, and the heartbeats tell the others how long that may last. Work that was not announced is short.

The loop writes, the heartbeats' thread reads; each reads or replaces one value at a time.
"""

from __future__ import annotations

from typing import NamedTuple

from tsunagi.standby.detector import MIN_STALL_S

SLOWEST = 5e8
"""Multiplications a second of a core that shares its machine with twenty processes; alone it does 20 times as many."""

TURN_OPERATIONS = 1e9
"""Announced operations after which the loop looks at the clock, its readers and its other slots again."""


class WorkPiece(NamedTuple):
    """One piece of work, or the pause between two turns of the loop.

    Attributes:
        turn: number of the piece that the loop's turn began with; 0 = a pause.
        number: counts up over all pieces.
        limit_s: how long it may last.
    """

    turn: int
    number: int
    limit_s: float


class OnRecords(NamedTuple):
    """Records that the loop is on.

    Attributes:
        first: offset of the first of them.
        until: all below this offset were announced; the same as `first` = nothing was.
        since: when they were begun, or announced, monotonic seconds.
    """

    first: int
    until: int
    since: float


class WorkloadSnapshot(NamedTuple):
    """What the heartbeats see. Times are monotonic seconds.

    Attributes:
        since: since when the turn lasts; None = there is a pause.
        due: when the present piece is overdue.
        records: the records that the loop is on; None = on none.
    """

    since: float | None
    due: float
    records: OnRecords | None = None


class Workload:
    """What the loop of one replica is on.

    Attributes:
        operations: announced since `begin`.
        on_records: the records that it processes, or is about to; None = none.
    """

    def __init__(self) -> None:
        self.operations = 0.0
        self.on_records: OnRecords | None = None
        self._count = 0
        self._piece = WorkPiece(0, 0, MIN_STALL_S)
        self._turn_seen = self._piece_seen = -1  # what the heartbeats saw last, and since when
        self._turn_at = self._piece_at = 0.0

    @property
    def heavy(self) -> bool:
        """Whether so much has been announced since `begin` that the loop should look around."""
        return self.operations > TURN_OPERATIONS

    @property
    def on(self) -> bool:
        """Whether a turn has begun and not ended."""
        return self._piece.turn != 0

    def begin(self, usual_s: float) -> None:
        """Begin a turn; what is not announced may last this long, seconds, or `MIN_STALL_S`."""
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
        """Begin on records from the offset `first` on; below `until` they are announced before they are processed."""
        self.on_records = OnRecords(first, until, now)

    def calm(self) -> None:
        """The loop is on no records."""
        self.on_records = None

    def end(self) -> None:
        """End the turn: a pause follows."""
        self._count += 1
        self._piece = WorkPiece(0, self._count, MIN_STALL_S)

    def snapshot(self, now: float) -> WorkloadSnapshot:
        """Return what the loop is on.

        To be called by the heartbeats alone, once each. A piece counts from when they saw it first, so the times are
        right to one heartbeat.
        """
        piece = self._piece
        if piece.turn != self._turn_seen:
            self._turn_seen, self._turn_at = piece.turn, now
        if piece.number != self._piece_seen:
            self._piece_seen, self._piece_at = piece.number, now
        since, due = self._turn_at if piece.turn else None, self._piece_at + piece.limit_s
        records = self.on_records
        if records is not None:
            if since is None:  # before its first turn on what it has announced: the pause may have lasted for long
                due = max(due, records.since + MIN_STALL_S)
            since = records.since
        return WorkloadSnapshot(since, due, records)
