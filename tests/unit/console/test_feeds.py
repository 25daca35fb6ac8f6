"""Feeds are made once for all viewers, at most so often, and are sent when they have news."""

from __future__ import annotations

import asyncio
import math

import pytest

from tsunagi.console.feeds import Feed, as_json, events


def test_a_feed_is_made_once_for_all_who_look_and_has_a_new_version_only_with_news() -> None:
    made: list[int] = []

    def make() -> dict[str, int]:
        made.append(1)
        return {"count": len(made) // 3}

    feed = Feed(make, every_s=3600.0)
    assert [feed.now() for _ in range(5)] == [feed.now()] * 5
    assert len(made) == 1
    eager = Feed(make, every_s=0.0)
    assert [eager.now().version for _ in range(4)] == [1, 2, 2, 2]


def test_a_stream_begins_with_all_feeds_and_goes_on_with_news() -> None:
    count = [0]
    feeds = {"still": Feed(lambda: "a", 0.0), "moving": Feed(lambda: count[0], 0.0)}

    async def read() -> list[str]:
        found = []
        async for text in events(feeds, lambda: count[0] == 3):
            found.append(text)
            count[0] += text.startswith("event: moving")
        return found

    assert asyncio.run(read()) == [
        "retry: 300\n\n",
        'event: still\ndata: "a"\n\n',
        *(f"event: moving\ndata: {n}\n\n" for n in range(3)),
    ]


def test_what_browsers_cannot_read_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        as_json({"value": math.nan})
    assert "\n" not in as_json({"text": "a\nb"})
