"""Says how each topic is made, and compares the topics of a broker with that, key by key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from tsunagi.runtime.cells import cells_for, partitions_for
from tsunagi.runtime.log import ACKS, CONTEXTS, DEAD_LETTERS, HEARTBEATS, LATE, PLAN, RECOVERED, RESULTS, TUPLES
from tsunagi.runtime.settings import Settings

PARTITIONS = "partitions"
"""The word for the number of partitions, in messages and in docs/reference/topics.md."""
REPLICATION = "replication.factor"
"""The word for the number of replicas."""

_LEAST = frozenset({REPLICATION, "retention.ms", "retention.bytes", "max.message.bytes"})
"""Keys whose value may be greater than expected."""
_MOST = frozenset({"segment.ms"})
"""Keys whose value may be less than expected. The value of any other key must be as expected."""
_NO_LIMIT = "-1"
"""The value by which Kafka means that there is no limit."""


class Found(NamedTuple):
    """A topic as the broker has it.

    Attributes:
        partitions: the number of its partitions.
        replication: the least number of replicas of a partition.
        config: its configuration by key; None if this user may not see it.
    """

    partitions: int
    replication: int
    config: Mapping[str, str] | None


def differences(topic: str, found: Found, partitions: int, replication: int, config: Mapping[str, str]) -> list[str]:
    """Return each key of a topic that is not as it must be, with the found and the expected value."""
    wanted = {PARTITIONS: str(partitions), REPLICATION: str(replication), **config}
    there = {PARTITIONS: str(found.partitions), REPLICATION: str(found.replication), **(found.config or {})}
    return [
        f"{key}: found {there.get(key, 'nothing')}, expected {expected}{bound(topic, key, expected)}"
        for key, expected in wanted.items()
        if (key in there or found.config is not None) and not _fits(topic, key, there.get(key, ""), expected)
    ]


def _fits(topic: str, key: str, found: str, expected: str) -> bool:
    if _least(topic, key):
        return _number(found) >= _number(expected)
    return _number(found) <= _number(expected) if key in _MOST else found == expected


def _least(topic: str, key: str) -> bool:
    """Return whether a value may be greater than expected. Only the size of records in `tuples` limits the edges."""
    return key in _LEAST and (topic, key) != (TUPLES, "max.message.bytes")


def _number(text: str) -> float:
    try:
        return math.inf if text == _NO_LIMIT else float(text)
    except ValueError:
        return math.nan  # fits nothing


def bound(topic: str, key: str, expected: str) -> str:
    """Return the words that say in which direction a value may differ; "" if it may not differ."""
    if expected == _NO_LIMIT:
        return " (no limit)"
    return " or more" if _least(topic, key) else " or less" if key in _MOST else ""


def topic_layout(settings: Settings) -> dict[str, tuple[int, dict[str, str]]]:
    """Return (number of partitions, configuration) for each topic (architecture, "Topics")."""
    slots = settings.slots.count
    cells = cells_for(slots, settings.standby.cells)
    # Only closed segments are deleted. Without segment.ms, a slow log would keep records for days after their time.
    retention_ms = round(settings.kafka.retention_s * 1000)
    segment_ms = min(max(retention_ms // 5, 60_000), 86_400_000)
    flushed = {"flush.messages": str(settings.kafka.flush_messages)} if settings.kafka.flush_messages else {}
    stamped = {"message.timestamp.type": "LogAppendTime"}
    deleted = stamped | {"cleanup.policy": "delete", "retention.bytes": "-1"}
    kept = deleted | flushed | {"retention.ms": str(retention_ms), "segment.ms": str(segment_ms)}
    compacted = stamped | flushed | {"cleanup.policy": "compact", "segment.ms": "600000"}
    forever = deleted | flushed | {"retention.ms": "-1"}
    short = deleted | {"retention.ms": "600000", "segment.ms": "300000"}
    large = {"max.message.bytes": str(8 << 20)}  # it is more than message.max.bytes of producers
    # Contexts are found by offset, so they are deleted by time and not compacted. The newest one is never older than
    # the slot's last progress. A slot whose context is gone replays from the beginning of `tuples`.
    return {
        TUPLES: (slots, kept | {"max.message.bytes": str(settings.kafka.max_message_bytes)}),
        RECOVERED: (slots, kept | large),
        RESULTS: (settings.spark.cores, kept | large),
        ACKS: (cells, compacted),
        CONTEXTS: (slots, kept | large),
        HEARTBEATS: (partitions_for(cells), short),
        PLAN: (1, forever),
        LATE: (1, kept),
        DEAD_LETTERS: (1, kept),
    }
