"""Viewers of the console: each follows some pages' news, as a browser does that has them open."""

from __future__ import annotations

import threading
import time
import urllib.request
from typing import Any

FEEDS = ("fleet", "slots", "troubles")
"""The feeds that viewers follow; each follows one of them."""


class Viewer(threading.Thread):
    """One viewer; reads until `ended` is set.

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
        with urllib.request.urlopen(self._address, timeout=60) as answer:
            for line in answer:
                self.bytes += len(line)
                if line.startswith(b"event:"):
                    now = time.monotonic()
                    self.longest_s, before = max(self.longest_s, now - before), now
                    self.events += 1
                if self._ended.is_set():
                    return


class Viewers:
    """Some viewers of a console, until they are closed."""

    def __init__(self, address: str, count: int) -> None:
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._viewers = [Viewer(address, FEEDS[number % len(FEEDS)], self._ended) for number in range(count)]
        for viewer in self._viewers:
            viewer.start()

    def close(self) -> dict[str, Any]:
        """Let them end; return what came, of all together a second, and the longest time that one waited for news."""
        seconds = time.monotonic() - self._began
        self._ended.set()
        return {
            "count": len(self._viewers),
            "reading": sum(viewer.is_alive() for viewer in self._viewers),
            "events_s": round(sum(viewer.events for viewer in self._viewers) / seconds, 1),
            "bytes_s": round(sum(viewer.bytes for viewer in self._viewers) / seconds),
            "longest_s": round(max(viewer.longest_s for viewer in self._viewers), 2),
        }
