"""How well a fleet's values can be known at best: the inverse of its covariance, made beside the steps."""

from __future__ import annotations

import threading
from collections import OrderedDict

import numpy as np

from services.recovery.model import Model
from services.runtime.columns import Floats

AT_ONCE = 1000
"""Sensors up to which it is made where it is asked for: it takes a tenth of a second."""
KEPT = 2
"""Models that it is kept of, 8 n^2 bytes each: the one in force, and the one that comes next."""


class Reach:
    """The precision matrices of the models in use, for all slots of a process."""

    def __init__(self) -> None:
        # By id, which no other model has while this one is kept here.
        self._made: OrderedDict[int, tuple[Model, list[Floats | None]]] = OrderedDict()
        self._lock = threading.Lock()

    def precision(self, model: Model) -> Floats | None:
        """Return prior^-1, float64[n, n]; None = it is being made, or the prior is nearly singular."""
        with self._lock:
            known = self._made.get(id(model))
            if known is None:
                known = self._made[id(model)] = model, []
                if len(model) > AT_ONCE:
                    # A daemon, so that a worker that is told to end need not wait for it.
                    threading.Thread(target=_make, args=known, name="reach", daemon=True).start()
                else:
                    _make(*known)
            self._made.move_to_end(id(model))
            while len(self._made) > KEPT:
                self._made.popitem(last=False)
        made = known[1]
        return made[0] if made else None


REACH = Reach()


def _make(model: Model, made: list[Floats | None]) -> None:
    # By numpy, which lets other threads run meanwhile: scipy does not, and a worker that stands still is replaced.
    try:
        np.linalg.cholesky(model.prior)
        inverted = np.linalg.inv(model.prior)
    except np.linalg.LinAlgError:
        made.append(None)
    else:
        made.append((inverted + inverted.T) / 2)
