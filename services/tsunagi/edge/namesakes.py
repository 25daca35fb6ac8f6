"""Finds out from `heartbeats` whether another machine runs a newer process of this edge: then this one ends.

An edge listens to its cell for `LISTEN_S` at a time, and less often the more nodes send heartbeats there. With
authentication an edge cannot tell who sent a heartbeat and may not read them (docs/howto/security.md); there the slots
refuse the older process's batches instead.
"""

from __future__ import annotations

from tsunagi.runtime.beat_routes import EdgeRoutes
from tsunagi.runtime.clock import Clock
from tsunagi.runtime.door import UnusableError, decode
from tsunagi.runtime.heartbeat import Namesake, ReplacedError
from tsunagi.runtime.log import HEARTBEATS, Log, LogError, OffsetLostError, Position
from tsunagi.runtime.messages import Heartbeat
from tsunagi.runtime.settings import SecuritySettings

LISTEN_S = 3.0
"""Time for which an edge listens to the heartbeats at once, in seconds: long enough for several of one node."""
PAUSE_S = 12.0
"""Shortest rest between two times of listening, in seconds. The heartbeats of a whole fleet are many, and a second
process of one name is rare."""
BEATS_PER_S = 200.0
"""Most heartbeats a second that an edge reads, on average. Where more nodes send them, it rests longer."""
_ONE_TURN = 500
"""Most heartbeats that are read in one turn of the edge's loop."""


class Namesakes:
    """Listens for a newer process of an edge.

    Args:
        routes: say in which partition a process of this name sends every heartbeat.
        security: with authentication heartbeats cannot be believed, and none is read.
    """

    def __init__(
        self,
        log: Log,
        edge: str,
        incarnation: int,
        clock: Clock,
        routes: EdgeRoutes,
        security: SecuritySettings,
    ) -> None:
        self._routes = routes
        self._reader = log.reader() if security.auth == "none" else None
        self._edge = edge
        self._namesake = Namesake(edge, "edge", incarnation, live=True)
        self._clock = clock
        self._until_s: float | None = None  # monotonic end of listening; None while it rests
        self._next_s = clock.monotonic() + PAUSE_S
        self._heard = 0

    def poll(self) -> None:
        """Listen, if it is time to.

        Raises:
            ReplacedError: a newer process of this edge sends heartbeats.
        """
        now_s = self._clock.monotonic()
        if self._reader is None or now_s < self._next_s:
            return
        try:
            if self._until_s is None:
                self._reader.assign([Position(HEARTBEATS, self._routes.partition, -1)])
                self._until_s, self._heard = now_s + LISTEN_S, 0
            records = self._reader.read(_ONE_TURN, 0.0)
        except OffsetLostError:  # this process stood still for longer than heartbeats are kept
            records, self._until_s = [], now_s
        except LogError:
            self._until_s, self._next_s = None, now_s + PAUSE_S
            return
        self._heard += len(records)
        for record in records:
            if record.key == self._edge.encode() and record.value is not None:
                self._hear(record.value)
        if now_s >= self._until_s:
            self._reader.assign([])
            self._until_s, self._next_s = None, now_s + max(PAUSE_S, self._heard / BEATS_PER_S)

    def close(self) -> None:
        """Release the reader."""
        if self._reader is not None:
            self._reader.close()

    def _hear(self, value: bytes) -> None:
        try:
            beat = decode(Heartbeat, value)
        except UnusableError:
            return
        if newer := self._namesake.hear(beat):
            raise ReplacedError(
                f"edge {self._edge!r}: a newer process of it has taken over, and this one ends: {newer}"
            )
