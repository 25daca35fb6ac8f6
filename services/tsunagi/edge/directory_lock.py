"""Which process of an edge goes on when two of them run on one machine, or on a shared state directory.

The directory of an edge belongs to the process that wrote its file `owner.json`. A process that starts puts its own
file in that place. The process before sees this, writes what it holds to disk, and ends; its file stays locked as long
as it lives, so the new process can wait for its end. A process that does not end, because it is frozen, is waited for
no longer than `WAIT_S`. From then on it may not write any more, and it ends when it runs again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import structlog

from tsunagi.runtime.heartbeat import ReplacedError

WAIT_S = 10.0
"""Longest time, in seconds, for which a new process waits for the end of the one before. That one may need some seconds
to write its spool and to close its client library."""
_LOOK_S = 0.05
"""Time between two looks whether the other process has ended, in seconds."""
_ALONE = "alone"
"""Key in `owner.json` that says: the owner goes on without waiting for the process before, which may not write any
more."""


class DirectoryLock:
    """This process's hold on the directory of an edge.

    Where the directory cannot be written, no other process is kept from it: the edge goes on, and `fault` says why.

    Attributes:
        fault: why the directory is not held; "" while it is.
    """

    def __init__(self, folder: Path, logger: structlog.stdlib.BoundLogger, wait_s: float = WAIT_S) -> None:
        self.path = folder / "owner.json"
        self.fault = ""
        self._logger = logger
        self._about: dict[str, Any] = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "start": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        self._file: BinaryIO | None = None
        try:
            self._take(wait_s)
        except OSError as error:
            self.close()
            self.fault = f"{self.path}: {error.strerror or error}"
            logger.warning("the edge's directory cannot be held: a second process would not be seen", detail=self.fault)

    def check(self) -> None:
        """Return if this process is the newest one of its edge.

        Raises:
            ReplacedError: a newer process has taken the directory over.
        """
        if self._replaced():
            raise ReplacedError(
                f"{self.path.parent}: a newer process of this edge has taken over: {_named(_about(self.path))}; "
                f"this one ({_named(self._about)}) ends"
            )

    def may_write(self) -> bool:
        """Return whether this process may still write: a newer process may be waiting for its last words on disk."""
        return not self._replaced() or not _about(self.path).get(_ALONE)

    def close(self) -> None:
        """Release the directory."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _replaced(self) -> bool:
        if self._file is None:
            return False
        try:
            found, own = self.path.stat(), os.fstat(self._file.fileno())
        except OSError:  # a file that is gone or cannot be read claims nothing
            return False
        return (found.st_dev, found.st_ino) != (own.st_dev, own.st_ino)

    def _take(self, wait_s: float) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + wait_s
        draft = self.path.with_name(f"{self.path.name}.{secrets.token_hex(4)}")
        try:
            self._file = draft.open("x+b", buffering=0)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(OSError):  # a full disk has no room for the text; the lock counts all the same
                self._write()
            with _taking_over(self.path.with_name("owner.lock"), deadline):
                before = self.path.open("rb") if self.path.exists() else None
                draft.replace(self.path)
        finally:
            draft.unlink(missing_ok=True)
        if before is not None:
            with before:
                self._wait_for(before, deadline)

    def _wait_for(self, before: BinaryIO, deadline: float) -> None:
        """Wait until the process that wrote this file has ended, or until `deadline`."""
        other = _named(_parsed(before.read()))
        if _locked(before):
            return
        self._logger.warning("another process of this edge runs: it is to end, this one goes on", other=other)
        while time.monotonic() < deadline:
            time.sleep(_LOOK_S)
            if _locked(before):
                self._logger.info("the other process of this edge has ended", other=other)
                return
        self._about[_ALONE] = True
        self._write()
        self._logger.error("the other process of this edge does not end; this one goes on without it", other=other)

    def _write(self) -> None:
        if self._file is not None:
            self._file.seek(0)
            self._file.write(json.dumps(self._about).encode())


@contextlib.contextmanager
def _taking_over(path: Path, deadline: float) -> Iterator[None]:
    """Let one process at a time replace the file, so that each knows which process it replaced."""
    with path.open("ab") as file:
        while not _locked(file):
            if time.monotonic() > deadline:
                raise BlockingIOError(None, "another process has been taking it over for too long")
            time.sleep(_LOOK_S)
        yield


def _locked(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _about(path: Path) -> dict[str, Any]:
    try:
        return _parsed(path.read_bytes())
    except OSError:
        return {}


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _named(about: dict[str, Any]) -> str:
    return f"host {about.get('host', '?')}, pid {about.get('pid', '?')}, started {about.get('start', '?')}"
