"""A secondary's reading, played through against a log that grows at a rate and is trimmed from time to time."""

from __future__ import annotations

import math

from tsunagi.runtime.settings import StandbySettings
from tsunagi.standby.batching import Batching
from tsunagi.standby.costs import LogExtent, StandbyCosts

POLL_S = 0.05
TURNS = 10
"""Of a worker's loop between two looks at the log."""

RECORD_BYTES = 114.0
"""A tuple of 44 bytes and what a record has around it."""


class StandIn:
    """One tuple a record. Takes the place of a replica around `Batching`.

    Args:
        acks_s: interval of Level-1-Acks, each for what stood in the log 50 ms before; infinite = none ever.
        request_s, send_s: reading a batch takes request_s + tuples x send_s.
    """

    def __init__(
        self,
        *,
        rate: float,
        batch: float = 0.0,
        standby: StandbySettings | None = None,
        acks_s: float = 0.25,
        process_s: float = 0.00005,
        owner_s: float = 0.0,
        request_s: float = 0.002,
        send_s: float = 0.000002,
        stepwise: bool = False,
    ) -> None:
        self.rate, self.process_s, self.owner_s = rate, process_s, owner_s
        self._acks_s, self._request_s, self._send_s = acks_s, request_s, send_s
        self._fixed = batch
        self.batching = Batching(standby or StandbySettings(), 0, stepwise=stepwise)
        self.costs = self.batching.costs if standby else StandbyCosts(2.0)
        self.now = 0.0
        self.batch = batch
        self._end = 0.0
        self._next = self._resume = 0
        self._ack_at = 0.0
        self.reads: list[tuple[float, int]] = []
        self.history: list[tuple[float, float, float]] = []

    def run(self, seconds: float) -> StandIn:
        for _ in range(round(seconds / POLL_S)):
            self.poll()
        return self

    def poll(self) -> None:
        self.now = round(self.now + POLL_S, 6)
        before, self._end = self._end, self._end + self.rate * POLL_S
        if self.now >= self._ack_at and math.isfinite(self._acks_s):
            self._resume, self._ack_at = int(before), self.now + self._acks_s
        end = int(self._end)
        self.costs.on_owner(self.owner_s)
        self.costs.on_extent(self.now, LogExtent(end, self._resume, 20, 1.0, RECORD_BYTES))
        for part in range(TURNS):
            self.batch = self._fixed or self.batching.decide(self.now + part * POLL_S / TURNS)
        start = max(self._next, self._resume)
        if end - start >= self.batch and end > start:
            count = end - start
            self.reads.append((self.now, count))
            self.costs.on_pull(self.now, self._request_s + count * self._send_s, count)
            self.costs.on_processed(self.now, count * self.process_s, count)
            self._next = end
        self.history.append((self.now, self.batch, self.recovery_s()))

    def bandwidth(self, seconds: float) -> float:
        """Return what was really read in the last seconds, bytes/s."""
        return sum(count for at, count in self.reads if at > self.now - seconds) * RECORD_BYTES / seconds

    def recovery_s(self) -> float:
        """Return what a takeover now would take beyond detection, in the worst case: just before the next look."""
        held = min(self.batch - 1 + self.rate * POLL_S, self.rate * (self._acks_s + POLL_S))
        return self._request_s + held * (self._send_s + self.process_s)
