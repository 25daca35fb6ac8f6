"""Reads and writes numeric columns of messages: little-endian arrays in ``bytes`` fields, read without a copy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tsunagi.runtime.door import UnusableError, decode
from tsunagi.runtime.messages import Array, Arrays

Floats = npt.NDArray[np.float64]
Sensors = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]

F64 = np.dtype("<f8")
"""The type of values: float64, little-endian."""
U32 = np.dtype("<u4")
"""The type of sensor ids and counts: uint32, little-endian."""
U8 = np.dtype("u1")
"""The type of qualities: uint8."""


def floats(data: bytes) -> Floats:
    """Read a float64 column (read-only view)."""
    return np.frombuffer(data, dtype=F64)


def sensors(data: bytes) -> Sensors:
    """Read a uint32 column (read-only view)."""
    return np.frombuffer(data, dtype=U32)


def octets(data: bytes) -> Bytes:
    """Read a uint8 column (read-only view)."""
    return np.frombuffer(data, dtype=U8)


def pack_floats(values: npt.ArrayLike) -> bytes:
    """Write a float64 column."""
    return np.ascontiguousarray(values, dtype=F64).tobytes()


def pack_sensors(values: npt.ArrayLike) -> bytes:
    """Write a uint32 column."""
    return np.ascontiguousarray(values, dtype=U32).tobytes()


def pack_octets(values: npt.ArrayLike) -> bytes:
    """Write a uint8 column."""
    return np.ascontiguousarray(values, dtype=U8).tobytes()


def pack_arrays(arrays: Mapping[str, npt.NDArray[np.generic]]) -> bytes:
    """Write named arrays, for an operator's context."""
    message = Arrays()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        message.array[name].CopyFrom(Array(dtype=array.dtype.str, shape=array.shape, data=array.tobytes()))
    return message.SerializeToString(deterministic=True)


def unpack_arrays(data: bytes) -> dict[str, npt.NDArray[np.generic]]:
    """Read named arrays. Each is a copy that may be written to.

    Raises:
        UnusableError: the bytes are not those of named arrays.
    """
    message = decode(Arrays, data)
    try:
        return {
            name: np.frombuffer(array.data, dtype=np.dtype(array.dtype)).reshape(tuple(array.shape)).copy()
            for name, array in message.array.items()
        }
    except (TypeError, ValueError) as error:  # numpy has no such type, or the array has another number of elements
        raise UnusableError("damaged", str(error)) from None
