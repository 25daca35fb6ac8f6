"""The models that a worker uses, read and made ready beside its loop.

A model of five thousand sensors is a file of 200 MB, and the filter of half of them takes two inverses of matrices of
that size: seconds, in which a loop that waited would serve none of its slots. So a thread reads the file, selects the
slot's part and makes its filter's form; whoever asks meanwhile is told to ask again (`store.PendingError`). The record
that puts a model in force is processed once the model is here, never without it, so what a slot computes hangs on its
log alone.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.forms import keep_form
from tsunagi.recovery.model import Model
from tsunagi.recovery.store import PendingError
from tsunagi.runtime.task import Task

KEPT = 8
"""Models that are kept, those used last."""
AGAIN_S = 0.5
"""A model that could not be read is read again so much later: it may have been put into the store meanwhile."""

Names = tuple[str, ...]


class Shelf:
    """The models of one process, for its loop alone.

    Args:
        read: SHA-256 -> model, from the store; raises ModelError.
        clock: monotonic seconds.
        at_once: read models where they are asked for, and let the loop wait.
    """

    def __init__(
        self, read: Callable[[str], Model], *, clock: Callable[[], float] = time.monotonic, at_once: bool = False
    ) -> None:
        self._read, self._clock, self._at_once = read, clock, at_once
        self._models: OrderedDict[str, Model] = OrderedDict()
        self._parts: dict[str, set[Names]] = {}  # the parts of each that have been made ready, or cannot be
        self._tasks: dict[str, Task[Model]] = {}
        self._failed: dict[str, tuple[float, ModelError]] = {}

    def get(self, sha256: str, names: Names) -> Model:
        """Return a model whose part of these sensors, as far as it knows them, is ready.

        Raises:
            PendingError: it is not there yet.
            ModelError: it cannot be read.
        """
        self._begin(sha256, names)
        task = self._tasks.get(sha256)
        if task is not None:
            raise PendingError(sha256, task.done)
        failed = self._failed.get(sha256)
        if failed is not None:
            raise failed[1]
        self._models.move_to_end(sha256)
        return self._models[sha256]

    def put(self, sha256: str, model: Model) -> None:
        """Put a model on it that has been read anyhow."""
        self._models[sha256] = model

    def prepare(self, sha256: str, names: Names) -> threading.Event | None:
        """Begin to make a model ready, unless it is; return what is set then, None = it is ready, or cannot be read."""
        self._begin(sha256, names)
        task = self._tasks.get(sha256)
        return None if task is None else task.done

    def _begin(self, sha256: str, names: Names) -> None:
        self._take(sha256)
        failed = self._failed.get(sha256)
        if sha256 in self._tasks or (failed is not None and self._clock() < failed[0]):
            return
        self._failed.pop(sha256, None)
        if names not in self._parts.get(sha256, ()):
            self._parts.setdefault(sha256, set()).add(names)
            work = partial(_ready, self._models.get(sha256), partial(self._read, sha256), names)
            self._tasks[sha256] = Task(work, "model", at_once=self._at_once)
            if self._at_once:
                self._take(sha256)

    def _take(self, sha256: str) -> None:
        """Take what a thread has made."""
        task = self._tasks.get(sha256)
        if task is None or not task.done.is_set():
            return
        del self._tasks[sha256]
        try:
            self._models[sha256] = task.result()
        except ModelError as error:
            self._failed[sha256] = self._clock() + AGAIN_S, error
            self._parts.pop(sha256, None)
            return
        while len(self._models) > KEPT:
            self._parts.pop(self._models.popitem(last=False)[0], None)


def _ready(known: Model | None, read: Callable[[], Model], names: Names) -> Model:
    """Return a model whose part of these sensors is ready to be filtered with."""
    model = known if known is not None else read()
    of = set(model.names)
    mine = [name for name in names if name in of]
    if mine:
        part = model.select(mine)
        try:
            keep_form(part)
        except ModelError:
            return model  # whoever uses it finds that out in his turn
        model.keep_part(part)
    return model
