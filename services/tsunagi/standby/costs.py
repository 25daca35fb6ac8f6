"""What a batch size B costs (A-SAS, definitions 3 and 4), measured over a sliding period.

B is how many tuples the slot's log holds before the secondary reads them. B_send is how many batches it reads a second,
S_time the seconds that reading takes a tuple, R_ptime the seconds that processing takes a tuple.

    BW*     = B_send x (sum of the sizes of a batch's tuples)     bandwidth, bytes/s
    R_time* = T_0 + (B + h) x (S_time + R_ptime)                  recovery time, s

The paper has neither T_0 nor h. T_0 is the time of a takeover that has nothing to process: the claim goes through the
log and is read back, and the last output is looked up. h is the number of tuples in one heartbeat interval. A secondary
hears from heartbeats where the log ends and what the primary has survived, so a batch is up to h tuples larger than B.

All is measured at the secondary, since that would do the work. The paper measures S_time and R_ptime at the primary,
and leaves unequal machines as an open problem. The bandwidth of each other B is measured as well, not extrapolated: for
each B of `GRID` a shadow follows the same rule on the same log and only counts what it would have read.
The rule: read when the log holds B tuples, and skip what stands before the resume point. That is the context (the
slot's whole state at one offset) that the newest Level-1-Ack names: nobody needs the log before it.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

import numpy as np

from tsunagi.runtime.columns import Floats

GRID: Floats = np.unique(np.round(np.geomspace(1.0, 1e6, 96)))
"""The batch sizes that `model` chooses from, tuples. Neighbours differ by a factor of 1.16, small ones by one tuple."""

KEPT = 4
"""Number of measurements that are kept even if they are older than the period: with a large B they are rare."""

TAKEOVER_ASKS = 6.0
"""Number of requests in T_0 that bring no records: for the log's end, to append the claim, twice for the log's end
until the claim is there, for the end of the outputs, and an announcement."""
TAKEOVER_READS = 2.0
"""Number of reads in T_0: of the claim, and of the last output. The time to read the rest of a batch is in S_time."""

OWNER_KEPT = 5
"""The primary's cost of a record is the median of this many heartbeats: if the primary was held up, a heartbeat names a
cost several times too large."""

FAR = 1.5
"""R_time* is computed for the tuples actually left to process if they are this many times more than B allows. Smaller
excesses come from the moments at which the log is looked at and heartbeats arrive."""

LITTLE_BYTES = 4096.0
"""The factor of `Wire` is computed once about this many bytes were read: fewer do not tell what a byte costs."""

WIRE_KEPT = 0.95
"""Weight of the sums of `Wire` at each update, from one second to the next. Pulls come in bursts, and a ratio of few
pulls is too large on average."""

RIDGE = 0.05
"""Ridge of the regression of a pull's time on its size, as a share of the mean size. If the sizes of pulls differ by
less, they do not tell what one more tuple costs."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The cost models at one batch size.

    Attributes:
        batch_tuples: B.
        sends_per_s: B_send.
        tuple_bytes: mean size of a tuple on the network, bytes, with its share of the record's overhead.
        send_s: S_time, seconds a tuple: the time to read a batch, divided by its tuples.
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
    """Where a slot's log ends, and from where on it is needed.

    Attributes:
        end: the log's end, an offset.
        resume: the resume point of the newest Level-1-Ack, an offset; 0 = none.
        context_bytes: size of the context at the resume point, which must be read to begin there.
        record_tuples: mean number of tuples in a record.
        record_bytes: mean size of a record on the network, bytes.
        behind: tuples that a takeover would have to process now, whether they have been read or not.
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
    owner_s: float  # what a tuple cost the primary at that time


@dataclass(slots=True)
class _Look:
    at: float
    held: float  # tuples in the log from the resume point on; infinite = there is no resume point
    grown: float  # tuples by which the log has grown since the look before


class Wire:
    """Measures how many bytes come over the network for each byte that is read.

    The rest is framing, answers to requests that bring little, and data that is thrown away. All slots of a node are
    read by the same clients, so they share this object.

    Attributes:
        factor: bytes over the network for each byte that should have come, between 0.2 and 5.
    """

    def __init__(self) -> None:
        self.factor = 1.0
        self._received: float | None = None
        self._sums = (0.0, 0.0)

    def update(self, received: float, read: float) -> float:
        """Return the factor, measured anew.

        Args:
            received: bytes that the clients' sockets have received since the clients' start.
            read: bytes that should have come since the last call.
        """
        before, self._received = self._received, received
        if before is None:  # what came until now was for setting the clients up
            return self.factor
        came = max(0.0, received - before)  # a new client counts from 0 again
        self._sums = WIRE_KEPT * self._sums[0] + came, WIRE_KEPT * self._sums[1] + read
        if self._sums[1] >= LITTLE_BYTES:
            self.factor = min(max(self._sums[0] / self._sums[1], 0.2), 5.0)
        return self.factor


class Shadows:
    """Counts, for each B of `GRID`, what a secondary with this B would have read of the log."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._next: Floats | None = None
        self._bytes = np.zeros(len(GRID))
        self._history: deque[tuple[float, Floats]] = deque()
        self._looked_at: LogExtent | None = None

    def on_extent(self, now: float, extent: LogExtent) -> None:
        """Let each shadow look at the log once, and read if the log holds its B."""
        if extent != self._looked_at:  # else nobody would read: most looks find a log that is as it was
            self._looked_at = extent
            self._look(extent)
        self._history.append((now, self._bytes))
        while len(self._history) > 2 and self._history[1][0] <= now - self._period_s:
            self._history.popleft()

    def _look(self, extent: LogExtent) -> None:
        if self._next is None:
            self._next = np.full(len(GRID), float(extent.end))
        skipped = np.maximum(min(extent.resume, extent.end) - self._next, 0.0)
        jumps = skipped * extent.record_bytes > extent.context_bytes
        start = self._next + jumps * skipped
        pulls = (extent.end > start) & ((extent.end - start) * extent.record_tuples >= GRID)
        read = (extent.end - start) * extent.record_bytes + jumps * extent.context_bytes
        self._bytes = self._bytes + pulls * read
        self._next = np.where(pulls, float(extent.end), self._next)

    def bandwidth(self) -> Floats:
        """Return float64[len(GRID)]: bytes/s for each B of `GRID`."""
        if len(self._history) < 2:
            return np.zeros(len(GRID))
        (first, before), (last, after) = self._history[0], self._history[-1]
        # Divide by the whole period even if the history is shorter: else the first batch would look like a steady flow.
        rate: Floats = (after - before) / max(last - first, self._period_s)
        return rate


class StandbyCosts:
    """The measurements of one slot's secondary. Times are monotonic seconds of the caller's clock.

    Args:
        period_s: length of the sliding period, seconds.

    Attributes:
        behind: tuples that a takeover would have to process now. It is more than B if the node had no time for them.
    """

    def __init__(self, period_s: float) -> None:
        self.behind = 0.0
        self._period_s = period_s
        self._shadows = Shadows(period_s)
        self._pulls: deque[_Pull] = deque()
        self._work: deque[_Work] = deque()
        self._looks: deque[_Look] = deque()
        self._asked: deque[float] = deque(maxlen=KEPT * 4)
        self._end: int | None = None
        self._owner_records: deque[float] = deque(maxlen=OWNER_KEPT)
        self._owner_record_s = 0.0
        self._record_tuples = 1.0
        self._record_bytes = 0.0

    # ---- measurements

    def on_extent(self, now: float, extent: LogExtent) -> None:
        """Take in where the log ends and from where on it is needed."""
        self._record_tuples, self._record_bytes = max(extent.record_tuples, 1e-9), extent.record_bytes
        self.behind = extent.behind
        self._shadows.on_extent(now, extent)
        held = max(0, extent.end - extent.resume) * extent.record_tuples if extent.resume else math.inf
        grown = 0 if self._end is None else max(0, extent.end - self._end)
        self._looks.append(_Look(now, held, grown * extent.record_tuples))
        self._end = extent.end
        self._forget(now)

    def on_asked(self, seconds: float) -> None:
        """Take in how many seconds the broker took to tell the log's end."""
        self._asked.append(seconds)

    def on_pull(self, now: float, seconds: float, records: int) -> None:
        """Take in that a batch of so many records was read in so many seconds."""
        if records > 0:
            size = round(records * self._record_bytes)
            self._pulls.append(_Pull(now, seconds, records * self._record_tuples, size))
            self._forget(now)

    def on_processed(self, now: float, seconds: float, records: int) -> None:
        """Take in that so many records were processed without writing, in so many seconds."""
        if records > 0:
            self._work.append(_Work(now, seconds, records * self._record_tuples, self._owner_s()))
            self._forget(now)

    def on_owner(self, record_s: float) -> None:
        """Take in how many seconds a record costs the primary, once for each of its heartbeats; 0 = not known."""
        if record_s > 0:
            self._owner_records.append(record_s)
            self._owner_record_s = median(self._owner_records)

    # ---- the models

    def process_s(self) -> float:
        """Return R_ptime, seconds a tuple; 0 = nothing has been measured yet.

        The secondary's own measurement is scaled by how the primary's cost has changed since then. A secondary with a
        large B works seldom, so its own measurement shows a change late.
        """
        owner_s = self._owner_s()
        tuples = sum(work.tuples for work in self._work)
        if not tuples:
            return owner_s
        own_s = sum(work.seconds for work in self._work) / tuples
        then_s = sum(work.owner_s * work.tuples for work in self._work) / tuples
        return own_s * owner_s / then_s if owner_s > 0 and then_s > 0 else own_s

    def send_s(self, batches: Floats) -> Floats:
        """Return float64 of the shape of `batches`: the seconds to read batches of these sizes in tuples (B x S_time).

        A request has a cost of its own, whatever it brings. A regression over pulls of several sizes tells it from the
        cost of a tuple.
        """
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
        # A read that brings few records takes at most as long as the quickest pull.
        read_s = min((pull.seconds for pull in self._pulls), default=ask_s)
        return TAKEOVER_ASKS * ask_s + TAKEOVER_READS * read_s

    def recovery(self, batches: Floats) -> Floats:
        """Return R_time* for these batch sizes in tuples, float64 of the same shape, seconds.

        A takeover reads no more than the log holds from the resume point on, however large B is.
        """
        return self._recovery_of(self._read_again(batches))

    def bandwidth(self) -> Floats:
        """Return BW* for each B of `GRID`: float64[len(GRID)], bytes/s."""
        return self._shadows.bandwidth()

    def most_held(self) -> float:
        """Return the most tuples that the log held from the resume point on within the period; infinite = not known.

        With B = infinity a takeover would read all of them.
        """
        return max((look.held for look in self._looks), default=math.inf)

    def estimate(self, batch_tuples: float) -> Estimate:
        """Return both models at the present B.

        The bandwidth is that of the pulls. R_time* counts `behind` instead of B + h tuples if that is far more (`FAR`).
        """
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
        """Return how many tuples a takeover at these batch sizes has to read and process at most: B + h, capped."""
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
