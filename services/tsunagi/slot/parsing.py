"""Parses and checks a record of `tuples` before a slot processes it."""

from __future__ import annotations

from tsunagi.runtime.auth import forgery
from tsunagi.runtime.door import UnusableError, decode
from tsunagi.runtime.log import Record
from tsunagi.runtime.messages import LogRecord
from tsunagi.slot.config import SlotConfig

Parsed = tuple[LogRecord | None, str, str]
"""(message, "", name of its body's field), or for an unusable record (None, reason, detail)."""


def parse(record: Record) -> Parsed:
    """Parse a record of `tuples`, and check its signature and settings."""
    try:
        message = decode(LogRecord, record.value)
    except UnusableError as error:
        return None, error.reason, str(error)
    kind = message.WhichOneof("body") or ""
    if record.signer is not None and (detail := forgery(record, message)):
        return None, "forged", detail
    if kind == "settings":
        try:
            SlotConfig.parse(message.settings.text)
        except ValueError as error:
            return None, "damaged", str(error)
    return message, "", kind
