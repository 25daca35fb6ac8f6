"""Feeds: what the pages show, made anew at most some times a second and only while somebody looks."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NamedTuple

ALIVE_S = 10.0
"""After so many seconds without news a comment is sent, so that a browser that is gone is noticed."""
TURN_S = 0.1
"""Time between two looks for news, in seconds."""
RETRY_MS = 300
"""A browser whose console is gone tries to reach it again so often, in milliseconds."""


class FeedText(NamedTuple):
    """A feed as it was last made: its version, and its text in JSON."""

    version: int
    text: str


class Feed:
    """One kind of news. All viewers get the same text, which is made once.

    Args:
        make: returns what the feed says now, in values that JSON has.
        every_s: shortest time between two makings, seconds.
    """

    def __init__(self, make: Callable[[], Any], every_s: float) -> None:
        self._make = make
        self._every_s = every_s
        self._made_at = float("-inf")
        self._text = FeedText(0, "null")

    def now(self) -> FeedText:
        """Return the feed, made anew if it is time to."""
        now = time.monotonic()
        if now - self._made_at >= self._every_s:
            self._made_at = now
            text = as_json(self._make())
            if text != self._text.text:
                self._text = FeedText(self._text.version + 1, text)
        return self._text


def as_json(value: Any) -> str:  # noqa: ANN401 - whatever JSON has
    """Return a value as JSON; NaN and infinity are refused, since browsers cannot read them."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


async def events(feeds: Mapping[str, Feed], stopping: Callable[[], bool]) -> AsyncIterator[str]:
    """Yield server-sent events: each feed at once, and again whenever it has news."""
    sent = dict.fromkeys(feeds, 0)
    quiet_since = time.monotonic()
    yield f"retry: {RETRY_MS}\n\n"
    while not stopping():
        for name, feed in feeds.items():
            found = feed.now()
            if found.version != sent[name]:
                sent[name] = found.version
                quiet_since = time.monotonic()
                yield f"event: {name}\ndata: {found.text}\n\n"
        if time.monotonic() - quiet_since > ALIVE_S:
            quiet_since = time.monotonic()
            yield ": \n\n"
        await asyncio.sleep(TURN_S)
