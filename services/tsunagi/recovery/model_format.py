"""The bytes of a model file (docs/reference/model-file.md).

A file is a short magic text, a JSON header with its checksum, and little-endian float64 arrays with theirs. Nothing in
it is executed when it is read.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tsunagi.recovery.errors import ModelError
from tsunagi.runtime.columns import F64, Floats

MAGIC = b"TSUNAGI-MODEL\r\n\x1a"
"""First bytes of a model file. A transfer as text would change the line end in it, and the file is then refused."""
VERSION = 1
"""Version of the format of a model with neither profile nor moments."""
PROFILE_VERSION = 2
"""Version of the format of a model with a profile, which a reader of version 1 would leave out."""
MOMENTS_VERSION = 3
"""Version of the format of a model that keeps moments, with or without a profile."""
LOADINGS_VERSION = 4
"""Version of the format of a model of low rank, with or without a profile."""
PROFILE = "profile"
"""Name of the array of the profile, which not every model has."""
MOMENTS = "moments-"
"""Beginning of the names of arrays of moments, which not every model has; the lag follows."""
LOADINGS = "-loadings"
"""End of the names of arrays of loadings, which only a model of low rank has."""
_PREFIX = struct.Struct("<16sII32s")  # magic, version, header bytes, SHA-256 of the header


def pack(words: Mapping[str, Any], arrays: Mapping[str, Floats]) -> bytes:
    """Return the bytes of a model file; the same words and arrays give the same bytes.

    Args:
        words: JSON values for the header.
        arrays: arrays by name, in the order in which they are written.
    """
    version = PROFILE_VERSION if PROFILE in arrays else VERSION
    if any(name.startswith(MOMENTS) for name in arrays):
        version = MOMENTS_VERSION
    if any(name.endswith(LOADINGS) for name in arrays):
        version = LOADINGS_VERSION
    payload = b"".join(np.ascontiguousarray(array, dtype=F64).tobytes() for array in arrays.values())
    header = dict(words) | {
        "arrays": [{"name": name, "shape": list(array.shape)} for name, array in arrays.items()],
        "payload_sha256": hashlib.sha256(payload).hexdigest(),
    }
    text = json.dumps(header, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    return _PREFIX.pack(MAGIC, version, len(text), hashlib.sha256(text).digest()) + text + payload


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, Floats]]:
    """Return the words and the arrays in the bytes of a model file.

    Raises:
        ModelError: the file is damaged or of another version; the message says what was found and expected.
        ValueError, KeyError, TypeError, AttributeError: the header is not a model's.
    """
    if len(data) < _PREFIX.size:
        raise ModelError(f"found {len(data)} bytes, expected a model file (it is empty or was cut off)")
    magic, version, header_bytes, header_sha256 = _PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise ModelError(f"not a model file: starts with {magic!r}, expected {MAGIC!r}")
    if not VERSION <= version <= LOADINGS_VERSION:
        raise ModelError(f"model file version {version}, expected {VERSION} to {LOADINGS_VERSION}")
    text = data[_PREFIX.size : _PREFIX.size + header_bytes]
    if len(text) < header_bytes:
        raise ModelError(f"cut off in its header: found {len(text)} bytes of it, expected {header_bytes}")
    if hashlib.sha256(text).digest() != header_sha256:
        raise ModelError("damaged: the header does not match its checksum")
    header, payload = json.loads(text), data[_PREFIX.size + header_bytes :]
    shapes = {str(item["name"]): tuple(int(size) for size in item["shape"]) for item in header["arrays"]}
    expected = sum(F64.itemsize * int(np.prod(shape)) for shape in shapes.values())
    if len(payload) != expected:
        raise ModelError(f"found {len(payload)} bytes of arrays, expected {expected} (cut off, or appended to)")
    if hashlib.sha256(payload).hexdigest() != header["payload_sha256"]:
        raise ModelError("damaged: the arrays do not match their checksum")
    return header, _split(payload, shapes)


def _split(payload: bytes, shapes: dict[str, tuple[int, ...]]) -> dict[str, Floats]:
    arrays: dict[str, Floats] = {}
    offset = 0
    for name, shape in shapes.items():
        count = int(np.prod(shape))
        arrays[name] = np.frombuffer(payload, dtype=F64, count=count, offset=offset).reshape(shape)
        offset += count * F64.itemsize
    return arrays


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a file.

    Raises:
        ModelError: the file cannot be read; the message names it.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ModelError(f"{path}: no such model file") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from None


def write_atomically(path: Path, data: bytes) -> str:
    """Write a file completely or not at all; return the SHA-256 of its bytes, hexadecimal."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # otherwise a power cut may undo the rename
    finally:
        os.close(directory)
    return hashlib.sha256(data).hexdigest()
