"""Reads messages in JSON, and plain numbers and words ([source] format = "json")."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tsunagi.edge.decode import UNREADABLE, ReadingFault
from tsunagi.edge.inbox import Message
from tsunagi.edge.payload_format import PayloadFormat


class JsonFormat(PayloadFormat):
    """Reads JSON; a text that is no JSON stands for itself."""

    def bodies(self, message: Message) -> Iterator[object]:
        try:
            yield parse_json(message.payload)
        except ValueError as error:
            yield ReadingFault(UNREADABLE, message.sensor or "", str(error))


def parse_json(payload: bytes) -> object:
    """Return a JSON value; a text that is no JSON stands for itself.

    Raises:
        ValueError: it is not UTF-8, or is an object or a list with an error in it.
    """
    text = text_of(payload).strip()
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        if text[:1] not in ("{", "[", ""):
            return text
        found = f"found {text[:80]!r}, which is not JSON ({type(error).__name__}: {str(error)[:100]})"
        raise ValueError(found if text else "found nothing, expected JSON or a number") from None


def text_of(payload: bytes) -> str:
    """Return a text, without a byte order mark.

    Raises:
        ValueError: it is not UTF-8.
    """
    try:
        return payload.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"found byte 0x{payload[error.start]:02x} at {error.start + 1}, expected UTF-8") from None
