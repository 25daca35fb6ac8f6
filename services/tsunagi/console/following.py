"""A thread that follows the log; while the log does not answer it tries again, and says so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from structlog.stdlib import BoundLogger

from tsunagi.runtime.log import LogError
from tsunagi.runtime.sensors import SensorsError

AGAIN_S = 1.0
"""Pause between two tries, in seconds."""


class Follower(Protocol):
    """Something that reads the log bit by bit."""

    def turn(self) -> None:
        """Read what has come; wait a little for it.

        Raises:
            LogError: the log does not answer.
        """

    def close(self) -> None:
        """Release the readers."""


class Following:
    """Runs a follower in a thread of its own until it is closed, and opens it anew after each error of the log.

    Args:
        name: what is followed, for people.
        make: opens the follower from the present end, or from where it wants to begin.

    Attributes:
        fault: why nothing is read at present; "" = all is well.
        since_s: since when that is so, by the wall clock, seconds since 1970.
    """

    def __init__(self, name: str, make: Callable[[], Follower], logger: BoundLogger) -> None:
        self.fault = "is being opened"
        self.since_s = time.time()
        self._name = name
        self._make = make
        self._logger = logger
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"console-{name}", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end; it releases its readers by itself."""
        self._stop.set()

    def close(self) -> None:
        """Stop, and wait until the thread has released its readers."""
        self._stop.set()
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                follower = self._make()
                try:
                    while not self._stop.is_set():
                        follower.turn()
                        self._note("")
                finally:
                    follower.close()
            except (LogError, SensorsError) as error:
                self._note(str(error))
                self._stop.wait(AGAIN_S)

    def _note(self, fault: str) -> None:
        if fault == self.fault:
            return
        if fault:
            self._logger.warning("cannot follow", what=self._name, error=fault)
        self.fault, self.since_s = fault, time.time()
