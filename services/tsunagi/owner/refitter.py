"""The owner's refits: a model that follows the slot's data, which comes into force through the log like any other.

Like calibration it runs beside the filter and changes nothing itself: a model that is due goes into the store, a
`ModelChange` record names it, and from where that stands in the log every replica goes on with it, without a break.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import linalg

from tsunagi.recovery.averaging import ModelAverage
from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.filter import Recovery, StepEstimate
from tsunagi.recovery.forms import choose_form
from tsunagi.recovery.model import Model
from tsunagi.runtime.columns import Floats

SHARE = 0.02
"""A refit is due when this share of the steps that the model was fitted to has passed, and the least time."""


class Refitter:
    """Follows the data of one filter, while this node owns its slot.

    Args:
        recovery: the filter; what it goes on with is what was put in force last.
        edges: each of its sensors' edge.
        least_steps: between two refits.

    Attributes:
        fault: why none can be made; "" = they can.
    """

    def __init__(self, recovery: Recovery, edges: Sequence[str], *, least_steps: int) -> None:
        self.recovery = recovery
        self.fault = ""
        self._steps = 0
        self._every = max(1, least_steps, round(SHARE * float(recovery.model.about.get("steps", 0))))
        self._average: ModelAverage | None = None
        try:
            self._average = ModelAverage(recovery.model, recovery, edges)
        except (ModelError, linalg.LinAlgError, KeyError, ValueError, TypeError) as error:
            self.fault = f"the model does not say how it was made: {error}"

    def observe(self, step: int, values: Floats, estimate: StepEstimate) -> None:
        """Take in a step that the filter has taken."""
        del estimate
        if self._average is not None:
            self._average.observe(np.where(self.recovery.distrusted, np.nan, values), step)
            self._steps += 1

    @property
    def operations(self) -> float:
        """Multiplications that a step may need: now and then some rows are folded into the moments."""
        return 0.0 if self._average is None else self._average.operations

    @property
    def is_due(self) -> bool:
        """Whether a model is due; to make it takes a few inverses of a matrix of the filter's sensors."""
        return self._average is not None and self._steps >= self._every

    def due(self) -> Model | None:
        """Return a model if one is due and can be used."""
        if self._average is None or not self.is_due:
            return None
        self._steps = 0
        try:
            model = self._average.best()
            choose_form(model)
        except (ModelError, linalg.LinAlgError) as error:
            self.fault = f"a refit could not be used: {error}"
            return None
        self.fault = ""
        return model
