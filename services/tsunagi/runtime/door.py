"""The door: the one place where a record's bytes become a message.

Others wrote them, perhaps another release, perhaps a stranger. Who goes on with the message may compute with it.
"""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from tsunagi.runtime.messages import VERSION, Ack, LogRecord, Plan
from tsunagi.runtime.ranges_check import BODY, fault

_M = TypeVar("_M", bound=Message)


_ONE_OF_MANY = frozenset({LogRecord, Ack, Plan})
"""Messages whose body alone has ranges (a test holds it). The body alone is looked at: every tuple comes by here, and
the envelope would cost as much again."""


class UnusableError(ValueError):
    """A record cannot be used.

    Attributes:
        reason: the word that stands in the dead letter: unreadable | version | damaged, or a reader's own.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def decode(kind: type[_M], value: bytes | None) -> _M:
    """Read a record's value.

    Raises:
        UnusableError: it is no such message (`unreadable`), of a later release (`version`), or a field of it is not
            within its range (`damaged`, tsunagi.runtime.ranges).
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
