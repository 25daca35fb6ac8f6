"""Reports why a live source brings nothing: in the log every few seconds, and to whoever asks for the edge's state."""

from __future__ import annotations

import time

import structlog

LINE_S = 5.0
"""Shortest time between two lines in the log about the same source, in seconds."""


class Trouble:
    """What keeps a source from bringing readings.

    Attributes:
        text: the reason, for people; empty while nothing does.
    """

    def __init__(self, logger: structlog.stdlib.BoundLogger, what: str) -> None:
        self.text = f"{what}: not connected yet"
        self._logger = logger
        self._what = what
        self._said_s: float | None = None

    def note(self, detail: str) -> None:
        """Keep the reason; write it to the log, at most once in `LINE_S`."""
        self.text = f"{self._what}: {detail}"
        now_s = time.monotonic()
        if self._said_s is None or now_s - self._said_s >= LINE_S:
            self._said_s = now_s
            self._logger.warning("waiting for the source", source=self._what, detail=detail)

    def clear(self) -> None:
        """Take note that the source brings readings again."""
        if self.text:
            self._logger.info("source connected", source=self._what)
        self.text = ""
        self._said_s = None
