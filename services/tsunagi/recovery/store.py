"""Model files and the directory all workers take them from (docs/recovery-model.md).

A file is a short magic, a JSON header with its checksum, and little-endian float64 arrays with theirs: nothing in it is
executed when it is read. The SHA-256 of the whole file is the model's identity; in the store it is the file's name.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from pathlib import Path

from tsunagi.recovery import refits
from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.model import Model
from tsunagi.recovery.model_format import read_bytes, write_atomically
from tsunagi.runtime.ranges import is_sha256

REFITS = "refits"
"""Where the store keeps what owners have made; there are many, and old ones go."""


class PendingError(ModelError):
    """The model is being read, beside whoever asks for it; ask again once `ready` is set."""

    def __init__(self, sha256: str, ready: threading.Event) -> None:
        super().__init__(f"model {sha256}: is being read")
        self.ready = ready


def store_path(store: Path, sha256: str) -> Path:
    """Return where the store keeps a model.

    Raises:
        ModelError: `sha256` is not 64 hexadecimal digits (it would name some other file).
    """
    if not is_sha256(sha256):
        raise ModelError(f"model {sha256!r}: expected a SHA-256 of 64 lower-case hexadecimal digits")
    return store / f"{sha256}.model"


def publish(model_file: Path, store: Path) -> tuple[str, Model]:
    """Check a model file and copy it into the store under its SHA-256; return that and the model.

    Raises:
        ModelError: the file is no good model; nothing is stored then.
    """
    data = read_bytes(model_file)
    model = Model.from_bytes(data, str(model_file))
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
    data = model.to_bytes()
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
    data = read_bytes(path)
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise ModelError(f"{path}: damaged: found SHA-256 {found}, expected that of its name")
    return Model.from_bytes(data, str(path))
