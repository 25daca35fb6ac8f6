"""The owner's refits: new models made from the slot's newer data.

The refitter runs beside the filter and does not change it. A refit goes into the store, and a `ModelChange` record
names it. From that record's place in the log on all replicas use the refit, and keep the filter's state.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import linalg

from tsunagi.recovery.averaging import ModelAverage
from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.filter import Recovery, StepEstimate
from tsunagi.recovery.forms import choose_form
from tsunagi.recovery.model import DENSE_AT_MOST, LowRankModel, Model
from tsunagi.runtime.columns import Floats

SHARE = 0.02
"""A refit is due after this share of the number of steps that the model was fitted to, but not before `least_steps`."""


class Refitter:
    """Makes refits for one filter, while this node owns its slot.

    Args:
        recovery: the filter, with the model that is in force.
        edges: the edge of each of the filter's sensors.
        least_steps: the least number of steps between two refits.

    Attributes:
        fault: why no refit can be made; "" = it can.
    """

    def __init__(self, recovery: Recovery, edges: Sequence[str], *, least_steps: int) -> None:
        self.recovery = recovery
        self.fault = ""
        self._steps = 0
        self._every = max(1, least_steps, round(SHARE * float(recovery.model.about.get("steps", 0))))
        self._average: ModelAverage | None = None
        if isinstance(recovery.model, LowRankModel):
            found = f"found {len(recovery.model)} sensors in the slot, expected at most {DENSE_AT_MOST}"
            self.fault = f"a refit takes whole matrices: {found}"
            return
        try:
            self._average = ModelAverage(recovery.model, recovery, edges)
        except (ModelError, linalg.LinAlgError, KeyError, ValueError, TypeError) as error:
            self.fault = f"the model does not say how it was made: {error}"

    def observe(self, step: int, values: Floats, estimate: StepEstimate) -> None:
        """Take in a step after the filter has processed it; `values` is float64[n], NaN = missing."""
        del estimate
        if self._average is not None:
            self._average.observe(np.where(self.recovery.distrusted, np.nan, values), step)
            self._steps += 1

    @property
    def operations(self) -> float:
        """The most multiplications that a step takes: now and then several rows are added to the moments at once."""
        return 0.0 if self._average is None else self._average.operations

    @property
    def is_due(self) -> bool:
        """Whether a refit is due. To make one takes a few inverses of a matrix of the filter's sensors."""
        return self._average is not None and self._steps >= self._every

    def due(self) -> Model | None:
        """Return a refit if one is due and can be used, else None."""
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
