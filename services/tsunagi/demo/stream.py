"""Streams the demo's readings, and kills an edge and two owners of a slot meanwhile. The edge comes back."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from tsunagi.audit.evidence import Kill, Outage, Read
from tsunagi.demo import faults
from tsunagi.demo.live import LiveReader
from tsunagi.local.fleet import Fleet
from tsunagi.local.up import System
from tsunagi.runtime.log import Log
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import Settings
from tsunagi.system import processes
from tsunagi.system.topics import tool_log

SLOT = 0
"""The slot whose owners are killed."""
TAKEOVER_S = 60.0
"""A takeover counts as failed when no worker of the slot has moved for this long, in seconds. The whole takeover may
take longer, as for a slot of thousands of sensors."""
LAST_RESULTS_S = 30.0
"""The wait for the last results ends when no result has come for this long, in seconds. On few cores they come late."""


@dataclass(slots=True)
class Noted:
    """What the run notes for the checker: kills, outages of edges, and when results were read."""

    kills: list[Kill] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StreamClock:
    """Tells the time since the first row.

    Attributes:
        origin_us: the event time of the first row, in microseconds since 1970.
        stream_s: how long the stream lasts, in seconds.
        shown: called with the time again and again during each wait.
    """

    origin_us: int
    stream_s: float
    shown: Callable[[float], None]

    def since_s(self) -> float:
        """Return the time since the first row, in seconds; it is negative before that row."""
        return time.time() - self.origin_us / 1e6


class Schedule:
    """Decides when the faults come. The seed varies each time a little.

    Args:
        quiet_share: the share of the stream, from its beginning, that has no faults.
        seed: the seed of the variation.
    """

    def __init__(self, quiet_share: float, seed: int) -> None:
        self._chance = random.Random(seed)
        self._quiet_share = quiet_share

    def first_s(self, stream_s: float) -> float:
        """Return when the edge is killed, in seconds of the stream."""
        return stream_s * (self._quiet_share + self._chance.uniform(0.02, 0.04))

    def pause_s(self, stream_s: float) -> float:
        """Return how long to wait before the next fault, in seconds: about 4 s in a stream of 50 s."""
        return stream_s * self._chance.uniform(0.07, 0.09)


def stream(
    settings: Settings,
    system: System,
    table: SensorTable,
    clock: StreamClock,
    schedule: Schedule,
    last_step: int,
    say: Callable[[str], None],
) -> Noted:
    """Set the faults while the edges stream, wait for the results of `last_step`, and return what was noted.

    Raises:
        FaultError: a fault could not be set as planned.
        LogError: the log does not answer.
    """
    source = tool_log(settings, "demo")
    run = _Stream(settings, source, clock)
    try:
        run.faults(table, system, schedule, say)
        say("streaming the rest")
        run.wait_until(clock.stream_s)
        say("waiting for the last results")
        with suppress(faults.FaultError):  # the checker says what is missing
            run.wait(lambda: run.live.newest() >= last_step, "the last results", LAST_RESULTS_S, run.live.newest)
    finally:
        run.close()
    run.noted.reads = run.live.reads
    return run.noted


class _Stream:
    def __init__(self, settings: Settings, source: Log, clock: StreamClock) -> None:
        self.noted = Noted()
        self.live = LiveReader(source)
        self._state = settings.state
        self._clock = clock
        self._fleet = Fleet(source)
        self._watch = faults.SlotWatch(source, SLOT)

    def wait(
        self,
        until: Callable[[], bool],
        what: str,
        at_most_s: float,
        moving: Callable[[], object] = lambda: None,
    ) -> None:
        """Wait for something to become true.

        Args:
            until: tells whether it is true.
            what: names it, for the error.
            at_most_s: the wait is given up when the value of `moving` has not changed for this many seconds.
            moving: returns a value that changes as long as there is progress. By default the value never changes, so
                the whole wait is limited.

        Raises:
            FaultError: it did not become true.
        """
        begun_s = moved_s = time.monotonic()
        last = moving()
        while not until():
            now_s, before = time.monotonic(), last
            last = moving()
            if last != before:
                moved_s = now_s
            if now_s - moved_s > at_most_s:
                raise faults.FaultError(f"waited {now_s - begun_s:.0f} s for {what}, in vain")
            if self.live.error is not None:
                raise self.live.error
            self._fleet.update(0.05)
            self._watch.update()
            self._clock.shown(self._clock.since_s())

    def wait_until(self, since_s: float) -> None:
        """Wait until a time of the stream, in seconds since the first row."""
        self.wait(lambda: self._clock.since_s() >= since_s, "the clock", since_s - self._clock.since_s() + 60)

    def faults(self, table: SensorTable, system: System, schedule: Schedule, say: Callable[[str], None]) -> None:
        """Kill an edge, then the owner of a slot, bring the edge back, and kill the owner that was promoted."""
        stream_s = self._clock.stream_s
        edge = table.edges[0]
        self.wait_until(schedule.first_s(stream_s))
        self.noted.kills.append(faults.kill_edge(self._state, edge))
        say(f"SIGKILL {edge}")
        down_us = self.noted.kills[-1].at_us
        processes.forget(self._state, edge)
        self.wait_until(self._clock.since_s() + schedule.pause_s(stream_s))
        self._kill_owner("the owner", say)
        self.wait_until(self._clock.since_s() + schedule.pause_s(stream_s))
        self.noted.outages.append(Outage(edge, down_us, time.time_ns() // 1000))
        say(f"{edge} comes back")
        system.start_edges([edge])
        watch, fleet = self._watch, self._fleet
        ready = f"a new secondary of slot {SLOT}"
        self.wait(lambda: bool(fleet.standby_ready(SLOT, watch.owner)), ready, TAKEOVER_S, self._work)
        self.wait_until(self._clock.since_s() + schedule.pause_s(stream_s))
        self._kill_owner("the promoted owner", say)

    def _kill_owner(self, who: str, say: Callable[[str], None]) -> None:
        kill = faults.kill_owner(self._state, self._watch, self._fleet, SLOT)
        self.noted.kills.append(kill)
        say(f"SIGKILL {kill.node}, {who} of slot {SLOT}")
        self.wait(lambda: self._watch.epoch > kill.epoch, f"a new owner of slot {SLOT}", TAKEOVER_S, self._work)

    def _work(self) -> object:
        """Return each worker's role in the slot, and the places in the log that it has come to and works on."""
        beats = self._fleet.beats.values()
        parts = [(beat.message.node, part) for beat in beats for part in beat.message.slots if part.slot == SLOT]
        return [(node, part.role, part.position, part.busy_offset) for node, part in parts]

    def close(self) -> None:
        """Close the readers."""
        self.live.close()
        self._fleet.close()
        self._watch.close()
