"""Follows the alerts that fire, as a Prometheus knows them: what each says, and what to look at."""

from __future__ import annotations

import json
import threading
from typing import Any

from tsunagi.console.asking import Looker, read_text
from tsunagi.runtime.log import LogError

_ASK_S = 2.0
"""Longest wait for Prometheus, in seconds."""


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


class AlertsFollower(Looker):
    """A follower (`tsunagi.console.following`) of a Prometheus' alerts.

    Args:
        address: of the Prometheus, such as http://127.0.0.1:9090.
    """

    def __init__(self, address: str, alerts: Alerts) -> None:
        super().__init__()
        self._address = address.rstrip("/")
        self._alerts = alerts

    def look(self) -> None:
        try:
            self._alerts.take(read_text(f"{self._address}/api/v1/alerts", _ASK_S))
        except (OSError, ValueError) as error:
            raise LogError(f"{self._address} ([console] prometheus) does not answer: {error}") from None
