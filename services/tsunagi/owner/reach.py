"""How well a fleet's values can be known at best: the inverse of its covariance, made beside the steps."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from tsunagi.recovery.forms import inverse
from tsunagi.recovery.model import Model
from tsunagi.runtime.columns import Floats

AT_ONCE = 1000
"""Sensors up to which it is made where it is asked for: it takes a tenth of a second."""
KEPT = 2
"""Models that it is kept of, 8 n^2 bytes each: the one in force, and the one that comes next."""


@dataclass(slots=True)
class Known:
    """What is known of one model.

    Attributes:
        precision: prior^-1, float64[n, n]; None = it is being made, or the prior is nearly singular.
    """

    precision: Floats | None = None


class Reach:
    """What is known of the models in use, for all slots of a process."""

    def __init__(self) -> None:
        # By id, which no other model has while this one is kept here.
        self._known: OrderedDict[int, tuple[Model, Known]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, model: Model) -> Known:
        """Return what is known of a model; of a large one that is nothing yet, if nobody has asked before."""
        with self._lock:
            found = self._known.get(id(model))
            if found is None:
                found = self._known[id(model)] = model, Known()
                if len(model) > AT_ONCE:
                    # A daemon, so that a worker that is told to end need not wait for it.
                    threading.Thread(target=_make, args=found, name="reach", daemon=True).start()
                else:
                    _make(*found)
            self._known.move_to_end(id(model))
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
        return found[1]


REACH = Reach()
"""What this process knows of its models: all slots of a worker go by the same ones."""


def _make(model: Model, known: Known) -> None:
    with contextlib.suppress(np.linalg.LinAlgError):
        known.precision = inverse(model.prior)
