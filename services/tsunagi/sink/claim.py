"""Who may write the rows of a partition into a folder: the process that has claimed it last, and no other.

Kafka tells one process that it has a partition now, but not another, stopped one that it has lost it. So the last claim
stands in a file, and whoever writes holds a lock on that file meanwhile and looks whether the claim is still its own.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tsunagi.sink.base import FencedError, SinkAwayError


class Claim:
    """A claim to what a file stands for. It needs a file system whose locks (flock) hold for all who write there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._token = uuid.uuid4().bytes

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Claim it, and hold the lock.

        Raises:
            SinkAwayError: another process holds the lock, or the file cannot be written.
        """
        with self._locked() as file:
            os.ftruncate(file, 0)
            os.pwrite(file, self._token, 0)
            os.fsync(file)
            yield

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock.

        Raises:
            FencedError: somebody has claimed it since.
            SinkAwayError: as for `taken`.
        """
        with self._locked() as file:
            if os.pread(file, len(self._token), 0) != self._token:
                raise FencedError(f"{self._path}: another instance has claimed it")
            yield

    @contextmanager
    def _locked(self) -> Iterator[int]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise SinkAwayError(f"{self._path}: {error.strerror}") from None
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise SinkAwayError(f"{self._path}: another instance is writing ({error.strerror})") from None
            yield file
        finally:
            os.close(file)
