"""Tells how long the loop's thread has waited for a core, by the kernel's count.

A loop that is ready to run, and gets no core since others have them all, is not stalled: whoever took its slots over
would get as little. So that time does not count when heartbeats say for how long the loop has been on a record.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from itertools import takewhile
from pathlib import Path

from tsunagi.runtime.messages import SlotBeat

LOOKS = 600
"""Number of looks that are remembered: a minute, with a heartbeat each 0.1 s. Of work that takes longer, what was
waited before the oldest of these looks is not taken off."""


def kernels_count(thread: int) -> Callable[[], float]:
    """Return what reads for how long a thread of this process has waited for a core so far, seconds; 0 if unknown.

    Args:
        thread: its native id.
    """
    place = Path(f"/proc/self/task/{thread}/schedstat")

    def read() -> float:
        try:
            return int(place.read_bytes().split()[1]) / 1e9
        except (OSError, ValueError, IndexError):  # another system than Linux, or a kernel that does not count
            return 0.0

    return read


class CpuWait:
    """Remembers at some moments how long a thread had waited for a core.

    Args:
        read: returns for how long it has waited so far, in seconds; None = this thread's, by the kernel's count.
    """

    def __init__(self, read: Callable[[], float] | None = None) -> None:
        self._read = kernels_count(threading.get_native_id()) if read is None else read
        self._looks: deque[tuple[float, float]] = deque(maxlen=LOOKS)

    def take_off(self, parts: Iterable[SlotBeat], now: float) -> None:
        """Take off what the thread has waited for a core from what a heartbeat says of how long it has been busy.

        Called for each heartbeat, also when the thread is not busy: what was waited is known between two calls alone.

        Args:
            parts: the parts of the heartbeat in which it is busy.
            now: the time, in seconds of a clock that never jumps.
        """
        self._looks.append((now, self._read()))
        for part in parts:
            part.busy_us = max(0, part.busy_us - round(self.since(now - part.busy_us / 1e6) * 1e6))

    def since(self, moment: float) -> float:
        """Return for how long it has waited between the first look behind a moment and the last look, in seconds.

        What it waited before that first look does not count, so that no more is returned than it has waited.
        """
        looks = [waited for _, waited in takewhile(lambda look: look[0] >= moment, reversed(self._looks))]
        return looks[0] - looks[-1] if looks else 0.0
