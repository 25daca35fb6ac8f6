"""Viewers of the console: each follows some pages' news, as a browser does that has them open; one is a browser."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

from tests.bench.tab import Tab
from tsunagi.audit.evidence import Kill
from tsunagi.local.up import System

FEEDS = ("fleet", "slots", "troubles")
"""The feeds that viewers follow; each follows one of them."""


class Viewer(threading.Thread):
    """One viewer; reads until `ended` is set, or the console ends.

    Attributes:
        events, bytes: what has come.
        longest_s: longest time without an event, in seconds.
    """

    def __init__(self, address: str, feed: str, ended: threading.Event) -> None:
        super().__init__(daemon=True)
        self.events = 0
        self.bytes = 0
        self.longest_s = 0.0
        self._address = f"{address}/api/events?feeds={feed}"
        self._ended = ended

    def run(self) -> None:
        before = time.monotonic()
        with suppress(OSError, HTTPException), urllib.request.urlopen(self._address, timeout=60) as answer:
            for line in answer:
                self.bytes += len(line)
                if line.startswith(b"event:"):
                    now = time.monotonic()
                    self.longest_s, before = max(self.longest_s, now - before), now
                    self.events += 1
                if self._ended.is_set():
                    return


class Viewers:
    """Some viewers of a console, one of them a real browser, until they are closed.

    Args:
        work: folder of the browser's profile.
        count: all together.
    """

    def __init__(self, work: Path, system: System, count: int) -> None:
        self._system = system
        address = system.start_console()
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._viewers = [Viewer(address, FEEDS[number % len(FEEDS)], self._ended) for number in range(count - 1)]
        for viewer in self._viewers:
            viewer.start()
        self._tab = Tab(work, address)

    def measured(self, kills: Sequence[Kill], sensor: str) -> dict[str, Any]:
        """Return what came, of all together a second, the longest time without news, and what the browser has seen.

        The console is killed in the end, and started again.
        """
        seconds = time.monotonic() - self._began
        return {
            "count": len(self._viewers) + 1,
            "reading": sum(viewer.is_alive() for viewer in self._viewers) + 1,
            "events_s": round(sum(viewer.events for viewer in self._viewers) / seconds, 1),
            "bytes_s": round(sum(viewer.bytes for viewer in self._viewers) / seconds),
            "longest_s": round(max((viewer.longest_s for viewer in self._viewers), default=0.0), 2),
            "tab": self._tab.measured(kills, sensor),
            "back_s": self._tab.back_s(self._system),
        }

    def close(self) -> None:
        """Let them end."""
        self._ended.set()
        self._tab.close()
