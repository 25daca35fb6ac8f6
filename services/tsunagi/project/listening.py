"""Listens to what sensors send, without leaving anything behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from tsunagi.edge.inbox import Inbox, Message
from tsunagi.edge.kafka_topic import KafkaFeed
from tsunagi.edge.live import LiveFeed
from tsunagi.edge.mqtt import MqttFeed
from tsunagi.edge.source import SourceError
from tsunagi.runtime.settings import make

_MOST_MESSAGES = 200_000
"""Most messages that are listened to."""
_TELL_S = 5.0
"""Seconds between two lines of progress."""


def listen(source: Mapping[str, Any], seconds: float, tell: Callable[[str], object]) -> list[Message]:
    """Return the messages that come in so many seconds from MQTT or Kafka.

    Raises:
        SourceError: the source cannot be used, or nothing came.
    """
    settings = make({"source": source}, "init")
    logger = structlog.wrap_logger(structlog.ReturnLogger())  # what it would log is told as progress
    feed: LiveFeed
    if settings.source.kind == "mqtt":
        feed = MqttFeed(settings.source, "init", logger, keeps_session=False)
    else:
        feed = KafkaFeed(settings, "init", logger)
    inbox = Inbox(settings.source.queue)
    feed.start(inbox, None)
    messages: list[Message] = []
    began_s = told_s = time.monotonic()
    try:
        while (now_s := time.monotonic()) < began_s + seconds and len(messages) < _MOST_MESSAGES:
            items, _ = inbox.take(1000)
            messages += [item for item in items if isinstance(item, Message)]
            if now_s - told_s > _TELL_S:
                told_s = now_s
                trouble = f"; {feed.trouble}" if feed.trouble else ""
                tell(f"listening: {now_s - began_s:.0f} of {seconds:.0f} s, {len(messages):,} messages{trouble}")
            if not items:
                time.sleep(0.05)
    finally:
        trouble = feed.trouble
        inbox.close()
        feed.close()
    if not messages:
        raise SourceError(
            f"found no message in {seconds:.0f} s, expected some"
            + (f": {trouble}" if trouble else "; is the topic right?")
        )
    return messages
