"""Reads records of `heartbeats`, `acks`, `plan` and `contexts`. Unusable ones are counted, and their reader goes on."""

from __future__ import annotations

import time
from typing import TypeVar

from structlog.stdlib import BoundLogger

from tsunagi.runtime import metrics
from tsunagi.runtime.auth import forgery
from tsunagi.runtime.door import UnusableError, decode
from tsunagi.runtime.log import Record
from tsunagi.runtime.messages import Ack, Context, Heartbeat, Plan

FORGED = "forged"
"""The reason, in metrics and logs, for a record whose signer may not write it."""
LINE_S = 5.0
"""Shortest time between two log lines about forged records of a topic, in seconds. Their author may send them as fast
as the broker takes them."""

_M = TypeVar("_M", Heartbeat, Ack, Plan, Context)
_said_at: dict[str, float] = {}


def read_message(kind: type[_M], record: Record, logger: BoundLogger) -> _M | None:
    """Return the message of a record; None if it cannot be used.

    It can be used if it passes the door (tsunagi.runtime.door), and if its signer may write it (otherwise it is
    `forged`).
    """
    try:
        message = decode(kind, record.value)
    except UnusableError as error:
        reason, detail = error.reason, str(error)
    else:
        detail = forgery(record, message)
        if not detail:
            return message
        reason = FORGED
    metrics.DEAD_LETTERS.labels(topic=record.topic, reason=reason).inc()
    if reason == FORGED:
        now = time.monotonic()
        if now - _said_at.get(record.topic, -LINE_S) < LINE_S:
            return None
        _said_at[record.topic] = now
    logger.warning(
        "unusable record" if reason == FORGED else "unreadable record",
        topic=record.topic,
        offset=record.offset,
        reason=reason,
        detail=detail,
    )
    return None
