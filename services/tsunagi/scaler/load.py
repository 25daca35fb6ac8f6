"""How much work each slot has and how far behind it is, from heartbeats alone: the scaler sends no requests for it.

A heartbeat says how far a worker has come in a slot's log (`position`) and how many records are left (`lag`), and so
where the log ends. Both are counted in records; `record_tuples` says how many tuples a record holds.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tsunagi.runtime.messages import Heartbeat, SlotBeat
from tsunagi.scaler.thinning import MOST, thin

LOOK_S = 0.1
"""Shortest time between two kept ends of a slot's log, in seconds: it bounds the memory that they take."""
WINDOW_S = 10.0
"""Time over which the rate of a slot is measured, in seconds."""
BUSY_S = 0.5
"""A worker is busy without a pause while one of its slots is behind by more than this, in seconds."""
CLOCKS_S = 60.0
"""The difference between two clocks is taken from the shortest wait in this many seconds. Some record is read within
milliseconds in that time, or the worker is never idle, and then its throughput is known anyway."""
SETTLE_S = 2.0
"""After its slots have changed, a worker catches up for this many seconds with what a takeover or a move has left;
nothing is measured meanwhile."""


@dataclass(frozen=True, slots=True)
class SlotView:
    """The state of a slot at one moment.

    Attributes:
        rate: tuples/s that have arrived in the last `WINDOW_S`.
        backlog: number of tuples in the log that the owner has not processed.
        delay_s: how long the oldest of them has been in the log.
        wait_s: longest wait of a record that was heard of since the view before, from its append to its reading by the
            owner. An owner that stalled does not report that it was behind, and is behind no longer when it reports
            again.
        arrived, served: number of tuples that have arrived and that were processed since the start.
        over_s: time since the view before, in seconds.
    """

    rate: float = 0.0
    backlog: float = 0.0
    delay_s: float = 0.0
    wait_s: float = 0.0
    arrived: float = 0.0
    served: float = 0.0
    over_s: float = 1.0

    def late_share(self, slo_s: float) -> float:
        """Return the share of the tuples of the last `over_s` that were processed later than `slo_s`.

        While the owner is behind by more than that, it is all of them; after a stall, those that came at its beginning.
        """
        return 1.0 if self.delay_s > slo_s else min(1.0, max(0.0, self.wait_s - slo_s) / self.over_s)


class SlotLoad:
    """The load of one slot. Times are monotonic seconds of the caller's clock."""

    def __init__(self) -> None:
        # (time, end of the log, tuples arrived until then): those of the window, and those that the owner is behind
        self._ends: deque[tuple[float, int, float]] = deque()
        self._look_s = LOOK_S
        # (time, wait in microseconds by the owner's clock): the waits that no later one was as short as
        self._short: deque[tuple[float, int]] = deque()
        self._longest: int | None = None  # wait since the view before
        self._viewed_at: float | None = None
        self._epoch = 0
        self._end = -1
        self._position = -1
        self._record_tuples = 0.0
        self._arrived = 0.0
        self._served = 0.0

    def on_beat(self, part: SlotBeat, now: float) -> None:
        """Take note of what a worker says about the slot: its owner, or a standby, which may know the end better."""
        role, position = part.role, part.position
        self._record_tuples = part.record_tuples or self._record_tuples
        if role == "primary":
            if self._position >= 0:
                self._served += max(0, position - self._position) * self._record_tuples
            self._position = max(position, self._position)
            self._on_wait(part.wait_us, part.epoch, now)
        elif role != "standby":
            return
        end = position + part.lag
        if self._end < 0:
            self._end = end  # records from before the scaler's start have not just arrived
        elif end > self._end:
            self._arrived += (end - self._end) * self._record_tuples
            self._end = end
        if not self._ends or now - self._ends[-1][0] >= self._look_s:
            self._keep(now)

    def _keep(self, now: float) -> None:
        """Keep the end of the log, and drop ends that neither the rate nor the delay is taken from any more."""
        ends, end = self._ends, self._end
        if len(ends) > 1 and ends[-1][1] == ends[-2][1] == end:
            ends.pop()  # of a time without records its beginning and its end say everything
        ends.append((now, end, self._arrived))
        while len(ends) > 1 and ends[1][0] <= now - WINDOW_S and ends[1][1] <= self._position:
            ends.popleft()
        if thin(ends):
            self._look_s *= 2
        elif len(ends) < MOST // 4:
            self._look_s = LOOK_S

    def _on_wait(self, wait_us: int, epoch: int, now: float) -> None:
        if epoch > self._epoch:
            self._epoch, self._longest = epoch, None
            self._short.clear()  # another owner has another clock
        if not wait_us or epoch != self._epoch:
            return
        self._longest = wait_us if self._longest is None else max(self._longest, wait_us)
        short = self._short
        while short and short[-1][1] >= wait_us:
            short.pop()
        short.append((now, wait_us))
        while now - short[0][0] > CLOCKS_S:
            short.popleft()

    def view(self, now: float) -> SlotView:
        """Return the state of the slot. The next view tells what has happened since this one."""
        over_s = 1.0 if self._viewed_at is None or now <= self._viewed_at else now - self._viewed_at
        longest, self._longest, self._viewed_at = self._longest, None, now
        if not self._ends:
            return SlotView(over_s=over_s)
        left = max(0, self._end - self._position) if self._position >= 0 else 0
        return SlotView(
            rate=self._rate(now),
            backlog=left * self._record_tuples,
            delay_s=self._delay(now) if left else 0.0,
            wait_s=0.0 if longest is None else (longest - self._short[0][1]) / 1e6,
            arrived=self._arrived,
            served=self._served,
            over_s=over_s,
        )

    def _rate(self, now: float) -> float:
        begin = now - WINDOW_S
        place = max(0, bisect_right(self._ends, begin, key=lambda item: item[0]) - 1)
        at, _, arrived = self._ends[place]
        if place + 1 < len(self._ends) and self._ends[place + 1][2] == arrived:
            at = max(at, begin)  # nothing came between the two
        return (self._arrived - arrived) / (now - at) if now - at >= 1.0 else 0.0

    def _delay(self, now: float) -> float:
        """Return how long the log has held a record that the owner has not processed, in seconds."""
        place = bisect_right(self._ends, self._position, key=lambda item: item[1])
        return now - self._ends[min(place, len(self._ends) - 1)][0]


@dataclass(slots=True)
class _Run:
    """A worker that has been busy without a pause with the same slots."""

    slots: frozenset[int]
    since: float
    served: float


class Saturation:
    """Measures what workers process while their queues are never empty: their real capacity (the paper's feedback).

    A worker counts once it has been behind for `SETTLE_S` with the same slots. To catch up after a takeover or a move
    is not its usual work; what it does afterwards is.
    """

    LEAST_S = 5.0
    """A worker must have been saturated for this many seconds before its throughput is taken."""

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}
        self._found: dict[str, float] = {}

    def update(self, alive: Mapping[str, Heartbeat], slots: Mapping[int, SlotView], now: float) -> None:
        """Take note of the state of workers and slots."""
        for name, beat in alive.items():
            owned = _owned(beat)
            busy = any(slots[slot].delay_s > BUSY_S for slot in owned if slot in slots)
            served = sum(slots[slot].served for slot in owned if slot in slots)
            run = self._runs.get(name)
            if not busy or run is None or run.slots != owned:
                self._runs[name] = _Run(owned, now + SETTLE_S if busy else float("inf"), served)
            elif run.since == float("inf"):
                run.since, run.served = now + SETTLE_S, served
            elif now < run.since:
                run.served = served
            elif now - run.since >= self.LEAST_S:
                self._found[name] = (served - run.served) / (now - run.since)
        self._runs = {name: run for name, run in self._runs.items() if name in alive}

    def take(self) -> dict[str, float]:
        """Return worker -> tuples/s, for the workers that were saturated since the last call."""
        found, self._found = self._found, {}
        return found


@dataclass(frozen=True, slots=True)
class WorkerLatency:
    """How long tuples have waited for the workers of a type (the paper's latency by instance type, section 5).

    Attributes:
        delay_s: mean delay of all tuples.
        late_share: share of tuples that were processed later than promised, among workers that had no more load than
            they are believed to process; NaN if there was no such worker.
        load: load of such a worker, as a share of the tuples/s that it processes when it is never idle; NaN as above.
    """

    delay_s: float
    late_share: float
    load: float


@dataclass(slots=True)
class _Sums:
    """Sums over the tuples that a type's workers have processed; the last three leave overloaded workers out."""

    served: float = 0.0
    delay_s: float = 0.0
    judged: float = 0.0
    late: float = 0.0
    load: float = 0.0

    def add(self, views: Sequence[SlotView], came: float, full: float, slo_s: float, *, owes: bool) -> None:
        """Add the tuples that a worker has processed.

        Args:
            full: tuples/s that the worker processes when it is never idle.
        """
        rate = sum(view.rate for view in views)
        self.served += came
        if rate <= 0:
            return
        self.delay_s += came * sum(view.rate * view.delay_s for view in views) / rate
        if not owes:
            self.judged += came
            self.late += came * sum(view.rate * view.late_share(slo_s) for view in views) / rate
            self.load += came * rate / full

    def latency(self) -> WorkerLatency:
        if not self.judged:
            return WorkerLatency(self.delay_s / self.served, math.nan, math.nan)
        return WorkerLatency(self.delay_s / self.served, self.late / self.judged, self.load / self.judged)


@dataclass(slots=True)
class _Delayed:
    """A worker and its slots since they last changed.

    Attributes:
        since: time when it was given them.
        served: number of their tuples that were processed when it was last looked at.
        idle_at, idle_arrived: when its queue was last empty, and how many tuples had arrived by then.
        owes: whether it has since had more work than it is believed to process, or began with a backlog.
    """

    slots: frozenset[int]
    since: float
    served: float
    idle_at: float
    idle_arrived: float
    owes: bool = True


class Delays:
    """Measures the latency of each type.

    Nothing is counted while slots are moved: that delay comes from rescaling and not from the type. Workers that have
    had too much work do not count either: their tuples are late because there are too few workers.

    Args:
        slo_s: longest delay that is promised.
    """

    def __init__(self, slo_s: float) -> None:
        self._slo_s = slo_s
        self._workers: dict[str, _Delayed] = {}
        self._sums: dict[str, _Sums] = {}

    def update(
        self,
        alive: Mapping[str, Heartbeat],
        slots: Mapping[int, SlotView],
        now: float,
        kind_of: Callable[[str], str],
        rate_of: Callable[[str], float],
    ) -> None:
        """Take note of the state of workers and slots.

        Args:
            kind_of: returns the type of a worker.
            rate_of: returns the tuples/s that a worker of a type processes when it is never idle.
        """
        for name, beat in alive.items():
            owned = _owned(beat)
            views = [slots[slot] for slot in owned if slot in slots]
            served, arrived = sum(view.served for view in views), sum(view.arrived for view in views)
            known = self._workers.get(name)
            if known is None or known.slots != owned:
                self._workers[name] = _Delayed(owned, now, served, now, arrived)
                continue
            came, known.served = served - known.served, served
            kind = kind_of(name)
            full = rate_of(kind)
            if all(view.delay_s <= BUSY_S for view in views):
                known.idle_at, known.idle_arrived, known.owes = now, arrived, False
            elif arrived - known.idle_arrived > full * (now - known.idle_at):
                known.owes = True
            if now - known.since > SETTLE_S and came > 0:
                self._sums.setdefault(kind, _Sums()).add(views, came, full, self._slo_s, owes=known.owes)
        self._workers = {name: worker for name, worker in self._workers.items() if name in alive}

    def take(self) -> dict[str, WorkerLatency]:
        """Return the latency of each type since the last call.

        A type is missing if its workers have processed nothing, or if all of them are being given slots.
        """
        found, self._sums = self._sums, {}
        return {kind: sums.latency() for kind, sums in found.items()}


def _owned(beat: Heartbeat) -> frozenset[int]:
    return frozenset(part.slot for part in beat.slots if part.role == "primary")
