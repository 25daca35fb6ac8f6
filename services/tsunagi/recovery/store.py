"""Model files, and the directory from which all workers take them (docs/reference/model-file.md).

A file is a short magic text, a JSON header with its checksum, and little-endian float64 arrays with theirs. Nothing in
it is executed when it is read. The SHA-256 of the whole file identifies the model; in the store it is the file's name.
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
"""Folder of the store for models that owners and the learner have made. There are many, and old ones are removed."""


class PendingError(ModelError):
    """The model is being read in another thread; ask again once `ready` is set."""

    def __init__(self, sha256: str, ready: threading.Event) -> None:
        super().__init__(f"model {sha256}: is being read")
        self.ready = ready


def store_path(store: Path, sha256: str) -> Path:
    """Return the path of a model in the store.

    Raises:
        ModelError: `sha256` is not 64 hexadecimal digits, and might name another file.
    """
    if not is_sha256(sha256):
        raise ModelError(f"model {sha256!r}: expected a SHA-256 of 64 lower-case hexadecimal digits")
    return store / f"{sha256}.model"


def publish(model_file: Path, store: Path) -> tuple[str, Model]:
    """Check a model file and copy it into the store under its SHA-256; return the SHA-256 and the model.

    Raises:
        ModelError: the file is not a good model; nothing is stored then.
    """
    data = read_bytes(model_file)
    model = Model.from_bytes(data, str(model_file))
    sha256 = hashlib.sha256(data).hexdigest()
    target = store_path(store, sha256)
    if not target.exists() or target.read_bytes() != data:  # a damaged copy is replaced
        write_atomically(target, data)
    return sha256, model


def publish_refit(model: Model, store: Path, kept_s: float) -> str:
    """Put a model that a slot's owner or the learner has made into the store; return its SHA-256.

    Args:
        kept_s: refits that nobody has made, loaded or had in force for this many seconds are removed: no log names
            them.

    Raises:
        OSError: the file cannot be written.
    """
    data = model.to_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    write_atomically(store_path(store / REFITS, sha256), data)
    refits.tidy(store / REFITS, sha256, kept_s)
    return sha256


def renew_refits(store: Path, in_force: Iterable[str]) -> None:
    """Note that models are in force; those of them that are refits are kept."""
    if (store / REFITS).is_dir():
        refits.renew(store / REFITS, in_force)


def has_model(store: Path, sha256: str) -> bool:
    """Return whether the store has a model: a fitted one or a refit."""
    return any(store_path(folder, sha256).exists() for folder in (store, store / REFITS))


def load_from_store(store: Path, sha256: str) -> Model:
    """Read a model by its SHA-256: a fitted one or a refit.

    Raises:
        ModelError: the store does not have it, or its file is damaged.
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
