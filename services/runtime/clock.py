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
