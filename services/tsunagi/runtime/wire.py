"""What stands before a field in protobuf's encoding, for those who write columns without filling messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
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


def rows_of_bytes(parts: Sequence[bytes | npt.NDArray[np.uint8]], count: int) -> list[bytes]:
    """Return so many rows, each of which has the bytes of all parts one after the other.

    Args:
        parts: what is the same in all rows, or uint8[count, width], a row each.
    """
    wide = [
        np.broadcast_to(np.frombuffer(part, dtype=np.uint8), (count, len(part))) if isinstance(part, bytes) else part
        for part in parts
    ]
    matrix = np.concatenate(wide, axis=1)
    data, width = matrix.tobytes(), matrix.shape[1]
    return [data[place * width : (place + 1) * width] for place in range(count)]


def whole_numbers(message: type[Message], columns: Mapping[str, npt.NDArray[np.int64]]) -> list[bytes]:
    """Return for each row the bytes of fields that hold whole numbers; protobuf leaves a 0 out.

    Args:
        columns: int64[n] by the name of the field, in the order of the fields.
    """
    count = len(next(iter(columns.values())))
    lengths = {name: _lengths(values) for name, values in columns.items()}
    found = [b""] * count
    kind = np.zeros(count, dtype=np.int64)
    for length_of in lengths.values():
        kind = kind * 11 + length_of
    for number in np.unique(kind).tolist():
        which = np.flatnonzero(kind == number)
        shape = [int(length_of[which[0]]) for length_of in lengths.values()]
        parts: list[bytes | npt.NDArray[np.uint8]] = [b""]
        for (name, values), length in zip(columns.items(), shape, strict=True):
            if not length:
                continue
            shifts = np.arange(0, 7 * length, 7, dtype=np.uint64)
            digits = (values[which].astype(np.uint64)[:, None] >> shifts & np.uint64(0x7F)).astype(np.uint8)
            digits[:, :-1] |= 0x80
            parts += [_varint(message.DESCRIPTOR.fields_by_name[name].number << 3), digits]
        for row, data in zip(which.tolist(), rows_of_bytes(parts, len(which)), strict=True):
            found[row] = data
    return found


def _lengths(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return how many bytes protobuf takes for each number; 0 for a 0, 10 for a negative one."""
    found = np.zeros(len(values), dtype=np.int64)
    rest = values.astype(np.uint64)  # a negative number stands for one above 2**63
    while rest.any():
        found += rest > 0
        rest = rest >> np.uint64(7)
    return found
