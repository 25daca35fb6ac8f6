"""Model files and the directory all workers take them from (docs/recovery-model.md).

A file is a short magic, a JSON header with its checksum, and little-endian float64 arrays with theirs: nothing in it is
executed when it is read. The SHA-256 of the whole file is the model's identity; in the store it is the file's name.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tsunagi.recovery import refits
from tsunagi.recovery.model import Model, ModelError, mirror
from tsunagi.runtime.columns import F64, Floats

MAGIC = b"TSUNAGI-MODEL\r\n\x1a"
"""A text-mode transfer changes the line end, and the file is then refused for what it is."""
VERSION = 1
PROFILE_VERSION = 2
"""Of a model with a profile, which a reader of version 1 would leave out."""
REFITS = "refits"
"""Where the store keeps what owners have made; there are many, and old ones go."""
MOMENTS_VERSION = 3
"""Of a model that keeps moments; with or without a profile."""
_MOMENTS = "moments-"
"""Name of an array of moments, before its lag."""
_PREFIX = struct.Struct("<16sII32s")  # magic, version, header bytes, SHA-256 of the header


class PendingError(ModelError):
    """The model is being read, beside whoever asks for it; ask again once `ready` is set."""

    def __init__(self, sha256: str, ready: threading.Event) -> None:
        super().__init__(f"model {sha256}: is being read")
        self.ready = ready


def encode(model: Model) -> bytes:
    """Return the file's bytes; the same model gives the same bytes."""
    arrays = {
        "mean": model.mean,
        "scale": model.scale,
        "drift": model.drift,
        "transition": model.transition,
        "noise": _lower(model.Q),
        "prior": _lower(model.prior),
    }
    version = VERSION
    if model.profile is not None:
        arrays["profile"] = model.profile
        version = PROFILE_VERSION
    for lag, moments in model.moments.items():
        arrays[f"{_MOMENTS}{lag}"] = _lower(moments)
        version = MOMENTS_VERSION
    payload = b"".join(np.ascontiguousarray(array, dtype=F64).tobytes() for array in arrays.values())
    header = {
        "names": list(model.names),
        "calibration": [list(pair) for pair in model.calibration],
        "about": dict(model.about),
        "arrays": [{"name": name, "shape": list(array.shape)} for name, array in arrays.items()],
        "payload_sha256": hashlib.sha256(payload).hexdigest(),
    }
    text = json.dumps(header, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    return _PREFIX.pack(MAGIC, version, len(text), hashlib.sha256(text).digest()) + text + payload


def decode(data: bytes, source: str) -> Model:
    """Read a file's bytes; `source` is what errors call it.

    Raises:
        ModelError: naming the source, what was found and what was expected.
    """
    if len(data) < _PREFIX.size:
        raise ModelError(f"{source}: found {len(data)} bytes, expected a model file (it is empty or was cut off)")
    magic, version, header_bytes, header_sha256 = _PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise ModelError(f"{source}: not a model file: starts with {magic!r}, expected {MAGIC!r}")
    if version not in (VERSION, PROFILE_VERSION, MOMENTS_VERSION):
        raise ModelError(f"{source}: model file version {version}, expected {VERSION} to {MOMENTS_VERSION}")
    text = data[_PREFIX.size : _PREFIX.size + header_bytes]
    if len(text) < header_bytes:
        raise ModelError(f"{source}: cut off in its header: found {len(text)} bytes of it, expected {header_bytes}")
    if hashlib.sha256(text).digest() != header_sha256:
        raise ModelError(f"{source}: damaged: the header does not match its checksum")
    try:
        return _model(json.loads(text), data[_PREFIX.size + header_bytes :])
    except ModelError as error:
        raise ModelError(f"{source}: {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{source}: the header is not a model's: {type(error).__name__}: {error}") from None


def _model(header: dict[str, Any], payload: bytes) -> Model:
    shapes = {str(item["name"]): tuple(int(size) for size in item["shape"]) for item in header["arrays"]}
    expected = sum(F64.itemsize * int(np.prod(shape)) for shape in shapes.values())
    if len(payload) != expected:
        raise ModelError(f"found {len(payload)} bytes of arrays, expected {expected} (cut off, or appended to)")
    if hashlib.sha256(payload).hexdigest() != header["payload_sha256"]:
        raise ModelError("damaged: the arrays do not match their checksum")
    arrays = _split(payload, shapes)
    names = tuple(str(name) for name in header["names"])
    return Model(
        names=names,
        mean=arrays["mean"],
        scale=arrays["scale"],
        transition=arrays["transition"],
        Q=_square(arrays["noise"], len(names)),
        prior=_square(arrays["prior"], len(names)),
        drift=arrays["drift"],
        profile=arrays.get("profile"),
        calibration=tuple((float(delta), float(factor)) for delta, factor in header["calibration"]),
        about=dict(header["about"]),
        moments={
            lag: _square(array, (2 if lag else 1) * len(names))
            for lag, array in (
                (int(name.removeprefix(_MOMENTS)), array) for name, array in arrays.items() if name.startswith(_MOMENTS)
            )
        },
    )


def read_model(path: Path) -> Model:
    """Read a model file; errors as `decode`, and for a file that cannot be read."""
    return decode(_read(path), str(path))


def write_atomically(path: Path, data: bytes) -> str:
    """Write a file whole or not at all; return the SHA-256 of its bytes, hexadecimal."""
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
        os.fsync(directory)  # else the rename itself may be lost with the power
    finally:
        os.close(directory)
    return hashlib.sha256(data).hexdigest()


def store_path(store: Path, sha256: str) -> Path:
    """Return where the store keeps a model.

    Raises:
        ModelError: `sha256` is not 64 hexadecimal digits (it would name some other file).
    """
    if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
        raise ModelError(f"model {sha256!r}: expected a SHA-256 of 64 lower-case hexadecimal digits")
    return store / f"{sha256}.model"


def publish(model_file: Path, store: Path) -> tuple[str, Model]:
    """Check a model file and copy it into the store under its SHA-256; return that and the model.

    Raises:
        ModelError: the file is no good model; nothing is stored then.
    """
    data = _read(model_file)
    model = decode(data, str(model_file))
    sha256 = hashlib.sha256(data).hexdigest()
    target = store_path(store, sha256)
    if not target.exists() or target.read_bytes() != data:  # a damaged copy is replaced
        write_atomically(target, data)
    return sha256, model


def publish_refit(model: Model, store: Path, kept_s: float) -> str:
    """Put a model that a slot's owner has made into the store; return its SHA-256.

    Args:
        kept_s: refits that nobody has made, loaded or had in force for so long are removed: no log names them any more.

    Raises:
        OSError: it cannot be written.
    """
    data = encode(model)
    sha256 = hashlib.sha256(data).hexdigest()
    write_atomically(store_path(store / REFITS, sha256), data)
    refits.tidy(store / REFITS, sha256, kept_s)
    return sha256


def renew_refits(store: Path, in_force: Iterable[str]) -> None:
    """Say that models are in force: those of them that are refits are kept."""
    if (store / REFITS).is_dir():
        refits.renew(store / REFITS, in_force)


def load_from_store(store: Path, sha256: str) -> Model:
    """Read a model by its SHA-256, a fitted one or a refit.

    Raises:
        ModelError: it is not there, or what is there is not it.
    """
    path = store_path(store, sha256)
    refit = store_path(store / REFITS, sha256)
    if refit.exists() and not path.exists():
        path = refit
        renew_refits(store, [sha256])
    data = _read(path)
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise ModelError(f"{path}: damaged: found SHA-256 {found}, expected that of its name")
    return decode(data, str(path))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ModelError(f"{path}: no such model file") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from None


def _lower(matrix: Floats) -> Floats:
    """Lower triangle of a symmetric matrix, row by row."""
    n = len(matrix)
    lower = np.empty(n * (n + 1) // 2)
    for row, values in enumerate(matrix):  # indices of all elements would take four times as much as they
        begin = row * (row + 1) // 2
        lower[begin : begin + row + 1] = values[: row + 1]
    return lower


def _square(lower: Floats, n: int) -> Floats:
    if lower.shape != (n * (n + 1) // 2,):
        raise ModelError(f"found a triangle of {lower.size} numbers, expected {n * (n + 1) // 2} for {n} sensors")
    matrix = np.empty((n, n))
    for row in range(n):
        begin = row * (row + 1) // 2
        matrix[row, : row + 1] = lower[begin : begin + row + 1]
    mirror(matrix)
    return matrix


def _split(payload: bytes, shapes: dict[str, tuple[int, ...]]) -> dict[str, Floats]:
    arrays: dict[str, Floats] = {}
    offset = 0
    for name, shape in shapes.items():
        count = int(np.prod(shape))
        arrays[name] = np.frombuffer(payload, dtype=F64, count=count, offset=offset).reshape(shape)
        offset += count * F64.itemsize
    return arrays
