"""Clocks, passed in wherever time is read, so that tests and the simulator own it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the services may know of time."""

    def monotonic(self) -> float:
        """Seconds that never jump, for intervals."""

    def now_us(self) -> int:
        """Microseconds since the Unix epoch, for event time; may jump."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The machine's own clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


JUMP_US = 500_000
"""A wall clock that moves by more, in microseconds, against the monotonic one has jumped; less is drift, or slewing."""
_LOOK_S = 0.01
"""A look at both clocks that takes longer than this, in seconds, was held up between the two and says nothing."""


class SteadyClock:
    """Time that goes on with the monotonic clock, so that whoever waits on it neither stands still nor runs ahead.

    Drift of the wall clock is followed. Of a jump the log is asked, whose time `hear` brings: the clock goes where the
    log's time is nearer, on as before or to the wall clock. While nothing has been heard of the log a jump forward is
    followed, and one back is not. Who never looks follows nothing.

    Attributes:
        jumps: jumps of the wall clock.
        apart_us: how far the wall clock is from this one, microseconds; 0 = no jump is left out at present.
    """

    def __init__(self, clock: Clock) -> None:
        self.jumps = 0
        self._clock = clock
        self._wall_us = self._offset_us = clock.now_us() - _microseconds(clock.monotonic())
        self._log_us: int | None = None  # the log's time, less the monotonic one

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def now_us(self) -> int:
        return self._offset_us + _microseconds(self._clock.monotonic())

    def sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds)

    @property
    def apart_us(self) -> int:
        apart_us = self._wall_us - self._offset_us
        return apart_us if abs(apart_us) > JUMP_US else 0

    def hear(self, appended_us: int, at_s: float) -> None:
        """The log appended something at `appended_us` by its clock, and said so at `at_s` of the monotonic one."""
        self._log_us = appended_us - _microseconds(at_s)

    def look(self, *, may_go_back: bool = True) -> int:
        """Compare the clocks, once a turn; return by how much this one jumps, microseconds, 0 = not at all."""
        began_s, wall_us, ended_s = self._clock.monotonic(), self._clock.now_us(), self._clock.monotonic()
        if ended_s - began_s > _LOOK_S:
            return 0
        wall_us -= _microseconds(ended_s)
        self.jumps += abs(wall_us - self._wall_us) > JUMP_US
        self._wall_us = wall_us
        apart_us = self.apart_us
        if apart_us < 0 and not (may_go_back and self._log_is_nearer()):
            return 0
        if apart_us > 0 and self._log_us is not None and not self._log_is_nearer():
            return 0
        self._offset_us = wall_us
        return apart_us

    def _log_is_nearer(self) -> bool:
        """Return whether the log's time is known and nearer to the wall clock than to this one."""
        log_us = self._log_us
        return log_us is not None and abs(log_us - self._wall_us) < abs(log_us - self._offset_us)


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)


class ManualClock:
    """A clock that stands still until told otherwise; both readings move together unless `skew_us` is set."""

    def __init__(self, start_us: int = 1_700_000_000_000_000) -> None:
        self._start_us = start_us
        self._elapsed_s = 0.0
        self.skew_us = 0

    def monotonic(self) -> float:
        return self._elapsed_s

    def now_us(self) -> int:
        return self._start_us + self.skew_us + round(self._elapsed_s * 1e6)

    def sleep(self, seconds: float) -> None:
        self._elapsed_s += seconds

    advance = sleep
