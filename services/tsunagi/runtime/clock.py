"""Clocks. Code that needs the time gets a clock as an argument, so tests and the simulator can replace it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The interface of a clock."""

    def monotonic(self) -> float:
        """Return a time in seconds that never jumps, for intervals."""

    def now_us(self) -> int:
        """Return the microseconds since 1970, for event time. They may jump."""

    def sleep(self, seconds: float) -> None:
        """Wait for this many seconds."""


class SystemClock:
    """The clocks of the machine."""

    def monotonic(self) -> float:
        return time.monotonic()

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


JUMP_US = 500_000
"""A wall clock that moves by more than this against the monotonic clock has jumped, in microseconds. A smaller move is
drift, or a clock that is being corrected slowly."""
_LOOK_S = 0.01
"""A look at both clocks that takes longer than this is ignored, in seconds: the process was held up between the two."""


class SteadyClock:
    """A clock that goes on with the monotonic clock, so that its time neither stands still nor runs ahead.

    It follows the drift of the wall clock. When the wall clock jumps, the time of the log decides, which `hear`
    reports: if it is nearer to the wall clock, this clock jumps too, otherwise it goes on as before. While nothing has
    been heard of the log, the clock follows jumps forward and ignores jumps back. It follows only when `look` is
    called.

    Attributes:
        jumps: the number of jumps of the wall clock.
        apart_us: how far the wall clock is ahead of this clock, in microseconds; 0 if no jump is ignored at present.
    """

    def __init__(self, clock: Clock) -> None:
        self.jumps = 0
        self._clock = clock
        self._wall_us = self._offset_us = clock.now_us() - _microseconds(clock.monotonic())
        self._log_us: int | None = None  # the log's time, less that of the monotonic clock

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
        """Note the time of the log.

        Args:
            appended_us: when the log appended a record, by its own clock, in microseconds since 1970.
            at_s: when this process learnt of it, by the monotonic clock, in seconds.
        """
        self._log_us = appended_us - _microseconds(at_s)

    def look(self, *, may_go_back: bool = True) -> int:
        """Compare the clocks, and follow the wall clock if it is right to. Call this once a turn.

        Args:
            may_go_back: whether this clock may jump back.

        Returns:
            By how much this clock has jumped, in microseconds; 0 if it has not.
        """
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
    """A clock that moves only by `advance` and `sleep`.

    Attributes:
        skew_us: how far `now_us` is ahead, in microseconds; tests change it to let the wall clock jump.
    """

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
