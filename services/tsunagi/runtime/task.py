"""One long computation beside the loop, whose result the loop takes when it is there.

It must not touch what the loop changes: it is given what it needs, and returns what it found.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Task(Generic[T]):
    """A computation that has begun.

    Args:
        work: what to do. LAPACK and files let the loop go on meanwhile (`tsunagi.recovery.lapack`).
        at_once: do it here, before this returns: what takes some milliseconds is not worth a thread.

    Attributes:
        done: set when it has ended, in whichever way.
    """

    def __init__(self, work: Callable[[], T], name: str, *, at_once: bool = False) -> None:
        self._work = work
        self._found: list[T] = []
        self._error: BaseException | None = None
        self.done = threading.Event()
        if at_once:
            self._run()
        else:
            # A daemon, so that a worker that is told to end need not wait for it.
            threading.Thread(target=self._run, name=name, daemon=True).start()

    def result(self) -> T:
        """Return what it found; to be called once it is done. Raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._found[0]

    def _run(self) -> None:
        try:
            self._found.append(self._work())
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            self._error = error
        finally:
            self.done.set()
