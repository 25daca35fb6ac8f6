"""How well the values of a fleet can be known at best. It takes the inverse of the fleet's covariance matrix.

For a large model another thread computes the inverse, so that the loop does not wait.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from tsunagi.recovery.forms import inverse
from tsunagi.recovery.low_rank import LowRank, LowRankInverse
from tsunagi.recovery.model import LowRankModel, Model
from tsunagi.runtime.columns import Floats

AT_ONCE = 1000
"""For up to this many sensors the inverse is computed where it is asked for, in a tenth of a second."""
KEPT = 2
"""Number of models whose inverses are kept, 8 n^2 bytes each: the one in force, and the one that comes next."""


@dataclass(slots=True)
class Known:
    """What is known of one model.

    Attributes:
        precision: the inverse of the prior covariance; None = it is being computed, or is not possible.
    """

    precision: Floats | LowRankInverse | None = None


class Reach:
    """Keeps the inverses of the models in use, for all slots of a process."""

    def __init__(self) -> None:
        # By the model's `id()`. No other object has it while the model is kept here.
        self._known: OrderedDict[int, tuple[Model, Known]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, model: Model) -> Known:
        """Return what is known of a model.

        For a large model with whole matrices the first call only begins to compute it.
        """
        with self._lock:
            found = self._known.get(id(model))
            if found is None:
                found = self._known[id(model)] = model, Known()
                if len(model) > AT_ONCE and not isinstance(model, LowRankModel):
                    # A daemon thread, so that a worker that ends does not wait for it.
                    threading.Thread(target=_make, args=found, name="reach", daemon=True).start()
                else:
                    _make(*found)
            self._known.move_to_end(id(model))
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
        return found[1]


REACH = Reach()
"""The one object of this process, since all slots of a worker use the same models."""


def _make(model: Model, known: Known) -> None:
    with contextlib.suppress(np.linalg.LinAlgError):
        prior = model.kept()[1]
        known.precision = prior.inverse() if isinstance(prior, LowRank) else inverse(prior)
