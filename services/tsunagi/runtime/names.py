"""Names of outputs: an output is named by the input that caused it (architecture, "Names of outputs").

The name is the key of the record in ``recovered``: generation and slot say which log, (offset, index) which output.
Fixed width and big-endian, so that byte order is name order and a reader compares keys without decoding values.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_KEY = struct.Struct(">QIqI")


class Name(NamedTuple):
    """(offset, index) of an output within one generation of one slot; comparable."""

    offset: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks of a name


NO_NAME = Name(-1, 0)
"""Before the first output."""


def pack_key(generation: int, slot: int, name: Name) -> bytes:
    """Return the Kafka key of an output, 24 bytes."""
    return _KEY.pack(generation, slot, name.offset, name.index)


def unpack_key(key: bytes | None) -> tuple[int, int, Name]:
    """Return (generation, slot, name).

    Raises:
        ValueError: the key is not 24 bytes long.
    """
    if key is None or len(key) != _KEY.size:
        found = "no key" if key is None else f"a key of {len(key)} bytes"
        raise ValueError(f"output name: found {found}, expected {_KEY.size} bytes")
    generation, slot, offset, index = _KEY.unpack(key)
    return generation, slot, Name(offset, index)
