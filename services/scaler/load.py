"""What each slot has to do and how far behind it is, from heartbeats alone: no request of the scaler's own.

A heartbeat says how far a worker has come in a slot's log (`position`) and how many records are left (`lag`), so where
the log ends; both count records, and `record_tuples` says what a record holds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from services.runtime.messages import Heartbeat, SlotBeat

LOOK_S = 0.1
WINDOW_S = 10.0
KEEP_S = 900.0
BUSY_S = 0.5
"""A slot that is further behind keeps its worker busy without a pause."""
SETTLE_S = 2.0
"""For so long after its slots have changed a worker catches up with what a takeover or a handover has left it."""


@dataclass(frozen=True, slots=True)
class SlotView:
    """A slot at a moment.

    Attributes:
        rate: tuples/s that have arrived over the last `WINDOW_S`.
        backlog: tuples in the log that its owner has not processed.
        delay_s: age of the oldest of them in the log.
        arrived, served: tuples since the start.
    """

    rate: float = 0.0
    backlog: float = 0.0
    delay_s: float = 0.0
    arrived: float = 0.0
    served: float = 0.0


class SlotLoad:
    """One slot. Times are monotonic seconds of the caller's clock."""

    def __init__(self) -> None:
        self._ends: deque[tuple[float, int, float]] = deque()  # (when, end of the log, tuples arrived until then)
        self._end = -1
        self._position = -1
        self._record_tuples = 0.0
        self._arrived = 0.0
        self._served = 0.0

    def on_beat(self, part: SlotBeat, now: float) -> None:
        """Take in what a worker says of the slot: its owner, or one that stands by and may know the end better."""
        self._record_tuples = part.record_tuples or self._record_tuples
        if part.role == "primary":
            if self._position >= 0:
                self._served += max(0, part.position - self._position) * self._record_tuples
            self._position = max(part.position, self._position)
        if part.role not in ("primary", "standby"):
            return
        end = part.position + part.lag
        if self._end < 0:
            self._end = end  # what stood in the log before we came has not arrived just now
        elif end > self._end:
            self._arrived += (end - self._end) * self._record_tuples
            self._end = end
        if not self._ends or now - self._ends[-1][0] >= LOOK_S:
            self._ends.append((now, self._end, self._arrived))
            while now - self._ends[0][0] > KEEP_S:
                self._ends.popleft()

    def view(self, now: float) -> SlotView:
        """Return how the slot stands."""
        if not self._ends:
            return SlotView()
        left = max(0, self._end - self._position) if self._position >= 0 else 0
        return SlotView(
            rate=self._rate(now),
            backlog=left * self._record_tuples,
            delay_s=self._delay(now) if left else 0.0,
            arrived=self._arrived,
            served=self._served,
        )

    def _rate(self, now: float) -> float:
        place = bisect_right(self._ends, now - WINDOW_S, key=lambda item: item[0])
        at, _, arrived = self._ends[max(0, place - 1)]
        return (self._arrived - arrived) / (now - at) if now - at >= 1.0 else 0.0

    def _delay(self, now: float) -> float:
        """Return since when the log has held a record that the owner has not processed."""
        place = bisect_right(self._ends, self._position, key=lambda item: item[1])
        return now - self._ends[min(place, len(self._ends) - 1)][0]


@dataclass(slots=True)
class _Run:
    """A worker that has been busy without a pause, with the same slots."""

    slots: frozenset[int]
    since: float
    served: float


class Saturation:
    """What workers process while their queues are never empty: their real capacity (the paper's feedback).

    A worker counts from when it has been behind for `SETTLE_S` with the same slots: what a takeover or a handover has
    left it to catch up with is no measure of its usual work, but what it does after that is.
    """

    LEAST_S = 5.0

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}
        self._found: dict[str, float] = {}

    def update(self, alive: Mapping[str, Heartbeat], slots: Mapping[int, SlotView], now: float) -> None:
        """Take in how workers and slots stand."""
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
        """Return worker -> tuples/s, of those that were saturated since the last call."""
        found, self._found = self._found, {}
        return found


@dataclass(slots=True)
class _Delayed:
    """A worker with the same slots: since when, and what it had served of them when it was last looked at.

    Attributes:
        served, late_s: tuples since then, and the sum of their delays.
    """

    slots: frozenset[int]
    since: float
    seen: float
    served: float = 0.0
    late_s: float = 0.0


class Delays:
    """How long tuples wait for a worker, by type (the paper's latency by instance type, section 5).

    While slots are being moved nothing is counted: that is the rescaling's doing and not the type's.
    """

    def __init__(self) -> None:
        self._workers: dict[str, _Delayed] = {}

    def update(self, alive: Mapping[str, Heartbeat], slots: Mapping[int, SlotView], now: float) -> None:
        """Take in how workers and slots stand."""
        for name, beat in alive.items():
            owned = _owned(beat)
            views = [slots[slot] for slot in owned if slot in slots]
            served = sum(view.served for view in views)
            known = self._workers.get(name)
            if known is None or known.slots != owned:
                self._workers[name] = _Delayed(owned, now, served)
                continue
            came, known.seen = served - known.seen, served
            if now - known.since > SETTLE_S and came > 0:
                rate = sum(view.rate for view in views)
                delay_s = sum(view.rate * view.delay_s for view in views) / rate if rate > 0 else 0.0
                known.served += came
                known.late_s += came * delay_s
        self._workers = {name: worker for name, worker in self._workers.items() if name in alive}

    def by_kind(self, kind_of: Callable[[str], str]) -> dict[str, float]:
        """Return type -> mean delay of the tuples that its workers have processed since the last call, seconds.

        A type whose workers have processed none, or are all being given slots, is missing.
        """
        served: dict[str, float] = {}
        late_s: dict[str, float] = {}
        for name, worker in self._workers.items():
            kind = kind_of(name)
            served[kind] = served.get(kind, 0.0) + worker.served
            late_s[kind] = late_s.get(kind, 0.0) + worker.late_s
            worker.served = worker.late_s = 0.0
        return {kind: late_s[kind] / count for kind, count in served.items() if count > 0}


def _owned(beat: Heartbeat) -> frozenset[int]:
    return frozenset(part.slot for part in beat.slots if part.role == "primary")
