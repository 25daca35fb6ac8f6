"""How a record of `tuples` is read before a slot takes it in."""

from __future__ import annotations

from tsunagi.runtime.auth import forgery
from tsunagi.runtime.door import UnusableError, decode
from tsunagi.runtime.log import Record
from tsunagi.runtime.messages import LogRecord
from tsunagi.slot.config import SlotConfig

Parsed = tuple[LogRecord | None, str, str]
"""(message, "", the field of its body) or (None, reason, detail); a field's name is asked for once a record."""


def parse(record: Record) -> Parsed:
    """Read a record of `tuples`."""
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
