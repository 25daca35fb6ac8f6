"""The models that a worker uses. Threads read them and make them ready, so that the loop does not wait.

The model of five thousand sensors is a file of 200 MB, and a filter of half of them takes two inverses of matrices of
that size. This takes seconds, in which a waiting loop would serve none of its slots. So a thread reads the file,
selects the slot's sensors and prepares the filter. Until then `store.PendingError` tells callers to ask again. A record
that puts a model in force is processed only when the model is ready, so a slot's outputs depend on its log alone.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.forms import keep_form
from tsunagi.recovery.model import Model
from tsunagi.recovery.store import PendingError, renew_refits
from tsunagi.runtime.task import Task
from tsunagi.slot.slot import Slot

KEPT = 8
"""Number of models that are kept, those used last."""
AGAIN_S = 0.5
"""A model that could not be read is read again after this time, seconds: it may be in the store by then."""

RENEW_S = 60.0
"""Seconds between two notes to the store which models are in force here."""

Names = tuple[str, ...]


class Shelf:
    """The models of one process. Only the loop may call its methods.

    Args:
        read: returns the model with a SHA-256 from the store; raises ModelError.
        clock: returns monotonic seconds.
        at_once: read models without a thread, and let the loop wait.
    """

    def __init__(
        self, read: Callable[[str], Model], *, clock: Callable[[], float] = time.monotonic, at_once: bool = False
    ) -> None:
        self._read, self._clock, self._at_once = read, clock, at_once
        self._models: OrderedDict[str, Model] = OrderedDict()
        self._parts: dict[str, set[Names]] = {}  # by model: the parts that a thread has prepared, or prepares
        self._tasks: dict[str, Task[Model]] = {}
        self._failed: dict[str, tuple[float, ModelError]] = {}

    def get(self, sha256: str, names: Names) -> Model:
        """Return a model, with its part for those of these sensors that it knows ready for a filter.

        Raises:
            PendingError: the model is not ready yet.
            ModelError: the model cannot be read.
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
        """Add a model that has been read elsewhere."""
        self._models[sha256] = model

    def prepare(self, sha256: str, names: Names) -> threading.Event | None:
        """Begin to make a model ready; return the event that is set then, None = it is ready or cannot be read."""
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
        """Take over the model that a thread has made ready, if any."""
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


class Renewal:
    """Notes in the store which models are in force in this process's slots, so that the store keeps them."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._due = 0.0

    def step(self, slots: Iterable[Slot], now: float) -> None:
        """Write the note if it is due."""
        if now < self._due:
            return
        self._due = now + RENEW_S
        models = (sha256 for slot in slots for sha256 in (slot.model_sha256, slot.base_sha256))
        renew_refits(self._store, {sha256 for sha256 in models if sha256})


def _ready(known: Model | None, read: Callable[[], Model], names: Names) -> Model:
    """Return a model with its part for these sensors ready for a filter."""
    model = known if known is not None else read()
    of = set(model.names)
    mine = [name for name in names if name in of]
    if mine:
        part = model.select(mine)
        try:
            keep_form(part)
        except ModelError:
            return model  # the part cannot be used; the code that uses it finds that out
        model.keep_part(part)
    return model
