"""The door: the only place where the bytes of a record become a message.

Another release or a stranger may have written the bytes. Every field of a message that passes can be computed with.
"""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from tsunagi.runtime.messages import VERSION, Ack, LogRecord, Plan
from tsunagi.runtime.ranges_check import BODY, fault

_M = TypeVar("_M", bound=Message)


_ONE_OF_MANY = frozenset({LogRecord, Ack, Plan})
"""Messages of which only the body has ranges, as a test checks. So only their body is checked: all tuples pass here,
and a check of the envelope would cost as much again."""


class UnusableError(ValueError):
    """A record cannot be used.

    Attributes:
        reason: the word for the dead letter: unreadable | version | damaged, or another one that a reader gives.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def decode(kind: type[_M], value: bytes | None) -> _M:
    """Read the value of a record.

    Raises:
        UnusableError: the value is no such message (`unreadable`), or it is of a later release (`version`), or one of
            its fields is not within its range (`damaged`, tsunagi.runtime.ranges).
    """
    try:
        message = kind.FromString(value or b"")
    except DecodeError as error:
        raise UnusableError("unreadable", f"not a {kind.DESCRIPTOR.name}: {error}") from None
    version = getattr(message, "version", VERSION)
    if version > VERSION:
        raise UnusableError("version", f"found version {version}, expected at most {VERSION}")
    if kind not in _ONE_OF_MANY:
        wrong = fault(message)
    else:
        body = message.WhichOneof(BODY)
        if body is None:
            raise UnusableError("unreadable", "a record without a body")
        wrong = fault(getattr(message, body)) and fault(message)
    if wrong:
        raise UnusableError("damaged", wrong)
    return message
