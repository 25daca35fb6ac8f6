"""Asks other processes by HTTP, now and then: the scaler and workers for their metrics, Prometheus for alerts."""

from __future__ import annotations

import time
import urllib.request
from abc import ABC, abstractmethod

LOOK_S = 5.0
"""Time between two looks, in seconds."""
_MOST_BYTES = 8_000_000
"""A longer answer is not read to its end."""
_TURN_S = 0.1
"""Length of a turn without a look, in seconds."""


def read_text(address: str, timeout_s: float) -> str:
    """Return what stands at an http address.

    Raises:
        OSError: nobody answers in time, or the answer is an error.
    """
    with urllib.request.urlopen(address, timeout=timeout_s) as answer:  # noqa: S310 - from the settings, or a heartbeat
        found: bytes = answer.read(_MOST_BYTES)
    return found.decode("utf-8", "replace")


class Looker(ABC):
    """A follower (`tsunagi.console.following`) of something that is looked at each `LOOK_S` seconds."""

    def __init__(self) -> None:
        self._next = time.monotonic()

    def turn(self) -> None:
        time.sleep(_TURN_S)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LOOK_S
            self.look()

    @abstractmethod
    def look(self) -> None:
        """Look once.

        Raises:
            LogError: there is no answer.
        """

    def close(self) -> None:  # noqa: B027 - a follower has one, and this one has nothing to do
        """Nothing is kept open."""
