"""Runs a long computation beside the loop, which takes the result when it is there.

The computation must not touch what the loop changes. It gets what it needs, and returns its result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Task(Generic[T]):
    """A computation that has begun.

    Args:
        work: the computation. While it calls LAPACK or uses files, the loop can go on (`tsunagi.recovery.lapack`).
        name: the name of the thread.
        at_once: whether to compute here, without a thread, which is not worth it for some milliseconds.

    Attributes:
        done: set when the computation has ended, with a result or an error.
    """

    def __init__(self, work: Callable[[], T], name: str, *, at_once: bool = False) -> None:
        self._work = work
        self._found: list[T] = []
        self._error: BaseException | None = None
        self.done = threading.Event()
        if at_once:
            self._run()
        else:
            # The thread is a daemon, so that a worker that is told to end does not wait for it.
            threading.Thread(target=self._run, name=name, daemon=True).start()

    def result(self) -> T:
        """Return the result, or raise the error of the computation. Call this only when it is done."""
        if self._error is not None:
            raise self._error
        return self._found[0]

    def _run(self) -> None:
        try:
            self._found.append(self._work())
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            self._error = error
        finally:
            self.done.set()
