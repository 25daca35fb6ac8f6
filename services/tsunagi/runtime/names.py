"""Names of outputs: an output is named by the input that caused it (architecture, "Names of outputs").

The name is the key of the record in ``recovered``. Generation and slot say which log it is, and (offset, index) which
output. The numbers have a fixed width and are big-endian. So the order of bytes is the order of names, and a reader
compares keys without decoding values.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_KEY = struct.Struct(">QIqI")
"""The form of a key: generation, slot, offset, index."""


class Name(NamedTuple):
    """The name of an output within one generation of one slot. Names can be compared.

    Attributes:
        offset: the offset of the input that caused the output.
        index: which of the outputs of that input it is, from 0.
    """

    offset: int
    index: int  # type: ignore[assignment]  # it hides tuple.index, which nobody needs here


NO_NAME = Name(-1, 0)
"""Stands for the last name before there is any output. It is less than all names."""


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
