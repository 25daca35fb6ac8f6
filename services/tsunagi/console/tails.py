"""The newest rows of queries, which are followed only while somebody looks at them."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from structlog.stdlib import BoundLogger

from tsunagi.console.following import Following
from tsunagi.query.outputs import QueryOutputs
from tsunagi.query.results import QueryResults, as_json
from tsunagi.runtime.log import Log
from tsunagi.runtime.settings import Settings

KEPT = 100
"""Rows of a query that are shown, the newest."""
READ_S = 0.2
"""Longest wait of a read, in seconds."""
UNUSED_S = 30.0
"""A query at which nobody has looked for so long is followed no longer, in seconds."""
MOST = 16
"""Most queries that are followed at a time."""


class _Tail:
    """A follower (`tsunagi.console.following`) of one query, from the present end on."""

    def __init__(self, log: Log, settings: Settings, name: str, rows: deque[dict[str, Any]]) -> None:
        kind = QueryOutputs if settings.query.mode == "tuples" else QueryResults
        self._results = kind(log, settings, (name,), from_now=True)
        self._rows = rows

    def turn(self) -> None:
        for block in self._results.poll(READ_S):
            for row in block.rows:
                self._rows.append({"time": row.time.isoformat(), "quality": row.quality} | as_json(row))

    def close(self) -> None:
        self._results.close()


class Tails:
    """Follows the queries that are asked for. Only one thread may call it."""

    def __init__(self, log: Log, settings: Settings, logger: BoundLogger) -> None:
        self._log = log
        self._settings = settings
        self._logger = logger
        self._found: dict[str, tuple[Following, deque[dict[str, Any]]]] = {}
        self._used_at: dict[str, float] = {}

    def rows(self, name: str) -> dict[str, Any]:
        """Return the newest rows of a query, the newest first; it is followed from the first call on."""
        now = time.monotonic()
        for other, used_at in list(self._used_at.items()):
            if now - used_at > UNUSED_S:
                self._end(other)
        if name not in self._found:
            if len(self._found) >= MOST:
                return {"query": name, "rows": [], "fault": f"{MOST} other queries are looked at; close one of them"}
            rows: deque[dict[str, Any]] = deque(maxlen=KEPT)
            following = Following(f"query {name}", lambda: _Tail(self._log, self._settings, name, rows), self._logger)
            following.start()
            self._found[name] = following, rows
        self._used_at[name] = now
        following, rows = self._found[name]
        return {"query": name, "rows": list(reversed(rows)), "fault": following.fault}

    def close(self) -> None:
        """Follow nothing any more."""
        for name in list(self._found):
            self._end(name)

    def _end(self, name: str) -> None:
        self._found.pop(name)[0].stop()
        del self._used_at[name]
