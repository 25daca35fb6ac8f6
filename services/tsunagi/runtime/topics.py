"""A topic as it is found, compared key by key with `tsunagi.runtime.kafka.topic_layout`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from tsunagi.runtime.log import TUPLES

PARTITIONS = "partitions"
REPLICATION = "replication.factor"

_LEAST = frozenset({REPLICATION, "retention.ms", "retention.bytes", "max.message.bytes"})
_MOST = frozenset({"segment.ms"})
_NO_LIMIT = "-1"


class Found(NamedTuple):
    """A topic as the broker has it.

    Attributes:
        config: by key; None = this user may not see it.
    """

    partitions: int
    replication: int
    config: Mapping[str, str] | None


def differences(topic: str, found: Found, partitions: int, replication: int, config: Mapping[str, str]) -> list[str]:
    """Return each key of a topic that is not as it must be, with what was found and what was expected."""
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
    """Edges are held to the size of a record of `tuples`; elsewhere larger ones do no harm."""
    return key in _LEAST and (topic, key) != (TUPLES, "max.message.bytes")


def _number(text: str) -> float:
    try:
        return math.inf if text == _NO_LIMIT else float(text)
    except ValueError:
        return math.nan  # fits nothing


def bound(topic: str, key: str, expected: str) -> str:
    """Return the words that say in which direction a value may differ; "" = in none."""
    if expected == _NO_LIMIT:
        return " (no limit)"
    return " or more" if _least(topic, key) else " or less" if key in _MOST else ""
