"""What a batch size B costs (A-SAS, definitions 3 and 4), measured over a sliding period.

    BW*     = B_send x (sum of the sizes of a batch's tuples)     bandwidth, bytes/s
    R_time* = T_0 + (B + h) x (S_time + R_ptime)                  recovery time, s

The paper has neither T_0 nor h. T_0 is what a takeover costs that has nothing to process: the claim goes through the
log and is read back, and the last output is looked up. h are the tuples of one heartbeat's interval: a secondary hears
by heartbeats how far the log goes and what its primary has survived, so a batch is up to h tuples larger than B.

All is measured at the secondary, who would have to do the work; the paper measures S_time and R_ptime at the primary
(`symmetric`), and leaves unequal machines as an open problem. What a B would cost that is not in force is measured as
well, not extrapolated: for each of `GRID`, a shadow follows the same rule on the same log (read when the log holds B
tuples, skip what a Level-1-Ack trimmed before), and only counts what it would have read.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

import numpy as np

from tsunagi.runtime.columns import Floats

GRID: Floats = np.unique(np.round(np.geomspace(1.0, 1e6, 96)))
"""The batch sizes that `model` chooses from, tuples: a factor of 1.16 apart where B is not small."""

KEPT = 4
"""So many measurements are kept however old they are: a large B measures seldom."""

TAKEOVER_ASKS = 6.0
"""T_0 has so many questions: the log's end, the claim's append, the log's end twice until the claim is there, the end
of the outputs, an announcement."""
TAKEOVER_READS = 2.0
"""T_0 has so many reads: the claim, and the last output. What is left of a batch is read in S_time."""

OWNER_KEPT = 5
"""Of what the primary says that its records cost the median of so many counts: one turn in which it was held up is
several times that."""

FAR = 1.5
"""So many times what a takeover at B would process at most: less is how looks and heartbeats fall together."""

LITTLE_BYTES = 4096.0
"""So little read says nothing of what a byte costs on the network."""

WIRE_KEPT = 0.95
"""Of what went over the network, from one second to the next: pulls come in bursts, and a ratio of few of them is too
large in the mean."""

RIDGE = 0.05
"""Pulls whose sizes differ by less than this part of their mean say nothing of what one more tuple costs."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The cost models at one batch size.

    Attributes:
        batch_tuples: B.
        sends_per_s: B_send.
        tuple_bytes: mean size of a tuple, with its part of the record around it.
        send_s: S_time, seconds a tuple: reading a batch, divided by its tuples.
        process_s: R_ptime, seconds a tuple.
        bandwidth: BW*, bytes/s.
        takeover_s: T_0, seconds.
        recovery_s: R_time*, seconds.
    """

    batch_tuples: float
    sends_per_s: float
    tuple_bytes: float
    send_s: float
    process_s: float
    bandwidth: float
    takeover_s: float
    recovery_s: float


@dataclass(frozen=True, slots=True)
class LogExtent:
    """Where a slot's log ends, and from where it is needed.

    Attributes:
        resume: the resume point of the newest Level-1-Ack, 0 = none; context_bytes: what it costs to begin there.
        record_tuples: mean number of tuples in a record; record_bytes: its mean size.
        behind: tuples that a takeover would have to process now, read or not.
    """

    end: int
    resume: int
    context_bytes: int
    record_tuples: float
    record_bytes: float
    behind: float = 0.0


@dataclass(slots=True)
class _Pull:
    at: float
    seconds: float
    tuples: float
    size: int


@dataclass(slots=True)
class _Work:
    at: float
    seconds: float
    tuples: float
    owner_s: float  # what a tuple cost the owner at that time


@dataclass(slots=True)
class _Look:
    at: float
    held: float  # tuples that the log held for us
    grown: float  # tuples that it had not at the look before


class Wire:
    """What of the network's bytes comes on each that was read: framing, requests for little, what came in vain.

    All slots of a node are read by the same clients, so they share it.
    """

    def __init__(self) -> None:
        self.factor = 1.0
        self._received: float | None = None
        self._sums = (0.0, 0.0)

    def update(self, received: float, read: float) -> float:
        """Return the factor.

        Args:
            received: bytes at the socket since the clients' start.
            read: what should have come since the last call.
        """
        before, self._received = self._received, received
        if before is None:  # until now the clients have got ready, and read nothing for anybody
            return self.factor
        came = max(0.0, received - before)  # a client made anew counts from 0
        self._sums = WIRE_KEPT * self._sums[0] + came, WIRE_KEPT * self._sums[1] + read
        if self._sums[1] >= LITTLE_BYTES:
            self.factor = min(max(self._sums[0] / self._sums[1], 0.2), 5.0)
        return self.factor


class Shadows:
    """What a secondary with each B of `GRID` would have read of the log that it was shown."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._next: Floats | None = None
        self._bytes = np.zeros(len(GRID))
        self._history: deque[tuple[float, Floats]] = deque()

    def on_extent(self, now: float, extent: LogExtent) -> None:
        """Let every shadow look at the log once."""
        if self._next is None:
            self._next = np.full(len(GRID), float(extent.end))
        skipped = np.maximum(min(extent.resume, extent.end) - self._next, 0.0)
        jumps = skipped * extent.record_bytes > extent.context_bytes
        start = self._next + jumps * skipped
        pulls = (extent.end > start) & ((extent.end - start) * extent.record_tuples >= GRID)
        read = (extent.end - start) * extent.record_bytes + jumps * extent.context_bytes
        self._bytes = self._bytes + pulls * read
        self._next = np.where(pulls, float(extent.end), self._next)
        self._history.append((now, self._bytes))
        while len(self._history) > 2 and self._history[1][0] <= now - self._period_s:
            self._history.popleft()

    def bandwidth(self) -> Floats:
        """Return bytes/s for every B of `GRID`."""
        if len(self._history) < 2:
            return np.zeros(len(GRID))
        (first, before), (last, after) = self._history[0], self._history[-1]
        # A history shorter than the period would take the first batch for a steady flow.
        rate: Floats = (after - before) / max(last - first, self._period_s)
        return rate


class StandbyCosts:
    """The measurements of one slot's secondary. Times are monotonic seconds of the caller's clock.

    Args:
        period_s: length of the sliding period.
        symmetric: take S_time and R_ptime from the primary, as the paper does, instead of measuring them here.

    Attributes:
        behind: tuples that a takeover would have to process now; more than B where the node has had no time for them.
    """

    def __init__(self, period_s: float, *, symmetric: bool = False) -> None:
        self.behind = 0.0
        self._period_s = period_s
        self._symmetric = symmetric
        self._shadows = Shadows(period_s)
        self._pulls: deque[_Pull] = deque()
        self._work: deque[_Work] = deque()
        self._looks: deque[_Look] = deque()
        self._asked: deque[float] = deque(maxlen=KEPT * 4)
        self._end: int | None = None
        self._owner_records: deque[float] = deque(maxlen=OWNER_KEPT)
        self._owner_record_s = self._owner_send_s = 0.0
        self._record_tuples = 1.0
        self._record_bytes = 0.0

    # ---- measurements

    def on_extent(self, now: float, extent: LogExtent) -> None:
        """Take in where the log ends and from where it is needed."""
        self._record_tuples, self._record_bytes = max(extent.record_tuples, 1e-9), extent.record_bytes
        self.behind = extent.behind
        self._shadows.on_extent(now, extent)
        held = max(0, extent.end - extent.resume) * extent.record_tuples if extent.resume else math.inf
        grown = 0 if self._end is None else max(0, extent.end - self._end)
        self._looks.append(_Look(now, held, grown * extent.record_tuples))
        self._end = extent.end
        self._forget(now)

    def on_asked(self, seconds: float) -> None:
        """Take in how long the log took to say where it ends."""
        self._asked.append(seconds)

    def on_pull(self, now: float, seconds: float, records: int) -> None:
        """Take in that a batch has been read."""
        if records > 0:
            size = round(records * self._record_bytes)
            self._pulls.append(_Pull(now, seconds, records * self._record_tuples, size))
            self._forget(now)

    def on_processed(self, now: float, seconds: float, records: int) -> None:
        """Take in that records have been processed silently."""
        if records > 0:
            self._work.append(_Work(now, seconds, records * self._record_tuples, self._owner_s()))
            self._forget(now)

    def on_owner(self, record_s: float, send_s: float = 0.0) -> None:
        """Take in, once a heartbeat, what a record costs the primary and a tuple's way to it takes; 0 = not said."""
        if record_s > 0:
            self._owner_records.append(record_s)
            self._owner_record_s = median(self._owner_records)
        if send_s > 0:
            self._owner_send_s = send_s

    # ---- the models

    def process_s(self) -> float:
        """Return R_ptime, seconds a tuple; 0 = nothing has been measured yet.

        What was measured here is scaled by what has become of the primary's cost since: a secondary with a large B
        works seldom, and a change must not be noticed only then.
        """
        owner_s = self._owner_s()
        tuples = sum(work.tuples for work in self._work)
        if self._symmetric or not tuples:
            return owner_s
        own_s = sum(work.seconds for work in self._work) / tuples
        then_s = sum(work.owner_s * work.tuples for work in self._work) / tuples
        return own_s * owner_s / then_s if owner_s > 0 and then_s > 0 else own_s

    def send_s(self, batches: Floats) -> Floats:
        """Return the seconds that reading batches of these sizes takes (B x S_time).

        A request costs something whatever it brings: pulls of several sizes tell that part from the tuples' own.
        """
        if self._symmetric and self._owner_send_s > 0:
            return batches * self._owner_send_s
        if not self._pulls:
            return np.zeros(len(batches))
        x = np.array([pull.tuples for pull in self._pulls])
        y = np.array([pull.seconds for pull in self._pulls])
        spread = ((x - x.mean()) ** 2).sum() + len(x) * (RIDGE * x.mean()) ** 2
        slope = float(np.clip(((x - x.mean()) * (y - y.mean())).sum() / spread, 0.0, y.mean() / x.mean()))
        found: Floats = y.mean() + slope * (batches - x.mean())
        return found

    def takeover_s(self) -> float:
        """Return T_0, seconds; 0 = nothing has been measured yet."""
        if not self._asked:
            return 0.0
        ask_s = median(self._asked)
        # A read that brings next to nothing takes as long as the quickest pull at most.
        read_s = min((pull.seconds for pull in self._pulls), default=ask_s)
        return TAKEOVER_ASKS * ask_s + TAKEOVER_READS * read_s

    def recovery(self, batches: Floats) -> Floats:
        """Return R_time* for these batch sizes, seconds.

        No more is read again than the log holds since the resume point, however large B is.
        """
        return self._recovery_of(self._read_again(batches))

    def bandwidth(self) -> Floats:
        """Return BW* for every B of `GRID`, bytes/s."""
        return self._shadows.bandwidth()

    def most_held(self) -> float:
        """Return the most tuples that the log held for us within the period: what B = infinity would read again."""
        return max((look.held for look in self._looks), default=math.inf)

    def estimate(self, batch_tuples: float) -> Estimate:
        """Return both models at the B in force: bandwidth as measured, R_time* of `behind` where that is far more."""
        newest = self._looks[-1].at if self._looks else 0.0
        recent = [pull for pull in self._pulls if pull.at > newest - self._period_s]
        sends_per_s = len(recent) / self._period_s
        batch_bytes = sum(pull.size for pull in recent) / len(recent) if recent else 0.0
        size = self._read_again(np.array([batch_tuples]))
        if self.behind > FAR * size[0]:
            size = np.array([self.behind])
        recovery_s = float(self._recovery_of(size)[0]) if math.isfinite(size[0]) else math.inf
        return Estimate(
            batch_tuples=batch_tuples,
            sends_per_s=sends_per_s,
            tuple_bytes=self._record_bytes / self._record_tuples,
            send_s=float(self.send_s(size)[0] / size[0]) if 0 < size[0] < math.inf else 0.0,
            process_s=self.process_s(),
            bandwidth=sends_per_s * batch_bytes,
            takeover_s=self.takeover_s(),
            recovery_s=recovery_s,
        )

    def _recovery_of(self, read: Floats) -> Floats:
        found: Floats = self.takeover_s() + self.send_s(read) + read * self.process_s()
        return found

    def _read_again(self, batches: Floats) -> Floats:
        """Return how many tuples a takeover at these batch sizes has to read and process, at most."""
        told = max((look.grown for look in self._looks), default=0.0)
        found: Floats = np.minimum(batches + max(0.0, told - 1.0), self.most_held())
        return found

    def _owner_s(self) -> float:
        return self._owner_record_s / self._record_tuples

    def _forget(self, now: float) -> None:
        limit = now - self._period_s
        while len(self._pulls) > KEPT and self._pulls[0].at < limit:
            self._pulls.popleft()
        while len(self._work) > KEPT and self._work[0].at < limit:
            self._work.popleft()
        while len(self._looks) > 1 and self._looks[0].at < limit:
            self._looks.popleft()
