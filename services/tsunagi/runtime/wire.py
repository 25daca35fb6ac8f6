"""What stands before a field in protobuf's encoding, for those who write columns without filling messages."""

from __future__ import annotations

from functools import lru_cache

from google.protobuf.message import Message


@lru_cache(maxsize=10_000)
def tag(message: type[Message], field: str, length: int) -> bytes:
    """Return what stands before a field of bytes: its number with wire type 2, and its length."""
    return _varint(message.DESCRIPTOR.fields_by_name[field].number << 3 | 2) + _varint(length)


def _varint(number: int) -> bytes:
    """Return protobuf's encoding of a number that is not negative: seven bits a byte, the lowest first."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
