"""Follows the alerts that fire, as a Prometheus knows them: what each says, and what to look at."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from typing import Any

from tsunagi.runtime.log import LogError

LOOK_S = 5.0
"""Time between two looks at the alerts, in seconds."""
_ASK_S = 2.0
"""Longest wait for Prometheus, in seconds."""
_MOST_BYTES = 4_000_000
"""A longer answer is not read."""


class Alerts:
    """The alerts that fire or are about to; may be used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: list[dict[str, Any]] = []

    def take(self, answer: str) -> None:
        """Take in the answer of Prometheus' `/api/v1/alerts`.

        Raises:
            ValueError: it is no such answer.
        """
        try:
            given = json.loads(answer)["data"]["alerts"]
            found = [
                {
                    "alert": str(item["labels"]["alertname"]),
                    "severity": str(item["labels"].get("severity", "")),
                    "state": str(item["state"]),
                    "since": str(item["activeAt"]),
                    "summary": str(item["annotations"].get("summary", "")),
                    "description": str(item["annotations"].get("description", "")),
                }
                for item in given
            ]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no list of alerts: {error}") from None
        with self._lock:
            self._found = sorted(found, key=lambda item: (item["state"] != "firing", item["severity"], item["since"]))

    def view(self) -> list[dict[str, Any]]:
        """Return the alerts, those that fire first."""
        with self._lock:
            return list(self._found)


class AlertsFollower:
    """A follower (`tsunagi.console.following`) of a Prometheus' alerts.

    Args:
        address: of the Prometheus, such as http://127.0.0.1:9090.
    """

    def __init__(self, address: str, alerts: Alerts) -> None:
        self._address = address.rstrip("/")
        self._alerts = alerts
        self._next = time.monotonic()

    def turn(self) -> None:
        time.sleep(0.1)
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LOOK_S
        try:
            with urllib.request.urlopen(f"{self._address}/api/v1/alerts", timeout=_ASK_S) as answer:  # noqa: S310
                self._alerts.take(answer.read(_MOST_BYTES).decode("utf-8", "replace"))
        except (OSError, ValueError) as error:
            raise LogError(f"{self._address} ([console] prometheus) does not answer: {error}") from None

    def close(self) -> None:
        """Nothing is kept open."""
