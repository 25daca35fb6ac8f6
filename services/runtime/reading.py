"""Reading `heartbeats`, `acks` and `plan`: what cannot be read is counted and passed over, and its reader lives on."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError
from structlog.stdlib import BoundLogger

from services.runtime import metrics
from services.runtime.log import Record
from services.runtime.messages import VERSION, Ack, Heartbeat, Plan

_M = TypeVar("_M", Heartbeat, Ack, Plan)


def read_message(kind: type[_M], record: Record, logger: BoundLogger) -> _M | None:
    """Return the record's message; None = it is not of this kind (`unreadable`) or of a later release (`version`)."""
    reason, detail = "", ""
    message = kind()
    try:
        message.ParseFromString(record.value or b"")
    except DecodeError as error:
        reason, detail = "unreadable", str(error)
    else:
        if message.version > VERSION:
            reason, detail = "version", f"found version {message.version}, expected at most {VERSION}"
    if not reason:
        return message
    metrics.DEAD_LETTERS.labels(topic=record.topic, reason=reason).inc()
    logger.warning("unreadable record", topic=record.topic, offset=record.offset, reason=reason, detail=detail)
    return None
