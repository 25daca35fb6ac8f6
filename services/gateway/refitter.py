"""The owner's refits: a model that follows the slot's data, which comes into force through the log like any other.

Like calibration it runs beside the filter and changes nothing itself: a model that is due goes into the store, a
`ModelChange` record names it, and from where that stands in the log every replica goes on with it, without a break.
"""

from __future__ import annotations

import numpy as np
from scipy import linalg

from services.recovery.filter import Recovery, StepEstimate
from services.recovery.forms import choose_form
from services.recovery.model import Model, ModelError
from services.recovery.refit import Refit
from services.runtime.columns import Floats

SHARE = 0.02
"""A refit is due when this share of the steps that the model was fitted to has passed."""
LEAST_STEPS = 50
"""Between two refits."""


class Refitter:
    """Follows the data of one filter, while this node owns its slot.

    Args:
        recovery: the filter; what it goes on with is what was put in force last.

    Attributes:
        made: refits made.
        fault: why none can be made; "" = they can.
    """

    def __init__(self, recovery: Recovery) -> None:
        self.recovery = recovery
        self.made = 0
        self.fault = ""
        self._steps = 0
        self._every = max(LEAST_STEPS, round(SHARE * float(recovery.model.about.get("steps", 0))))
        self._refit: Refit | None = None
        try:
            self._refit = Refit(recovery.model)
        except (ModelError, KeyError, ValueError, TypeError) as error:
            self.fault = f"the model does not say how it was made: {error}"

    def observe(self, step: int, values: Floats, estimate: StepEstimate) -> None:
        """Take in a step that the filter has taken."""
        del estimate
        if self._refit is not None:
            self._refit.observe(np.where(self.recovery.distrusted, np.nan, values), step)
            self._steps += 1

    def due(self) -> Model | None:
        """Return a model if one is due and can be used."""
        if self._refit is None or self._steps < self._every:
            return None
        self._steps = 0
        try:
            model = self._refit.model()
            choose_form(model)
        except (ModelError, linalg.LinAlgError) as error:
            self.fault = f"a refit could not be used: {error}"
            return None
        self.made += 1
        self.fault = ""
        return model
