"""What goes from operator to operator: the rows of one step, or of a run of records where there are no steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tsunagi.runtime.columns import Bytes, Floats, Sensors
from tsunagi.runtime.messages import EXACT

Integers = npt.NDArray[np.int64]


class OperatorError(ValueError):
    """An operator cannot be made from its options."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One step inside a chain.

    Attributes:
        sensor: uint32[n], ascending.
        mean: float64[n], NaN = no value.
        sd: float64[n], 0 = measured.
        quality: uint8[n], `Quality`.
        bound: float64[n], half width of the interval that holds the truth with probability delta.
    """

    step: int
    event_time_us: int
    sensor: Sensors
    mean: Floats
    sd: Floats
    quality: Bytes
    bound: Floats

    def replace(self, **columns: Any) -> Self:  # noqa: ANN401 - arrays of the columns' types
        """Return the frame with other values in these columns, each as long as the frame: ``replace(mean=...)``."""
        return replace(self, **columns)

    def keep(self, rows: npt.NDArray[Any]) -> Frame:
        """Return the frame with these rows only (mask or places)."""
        return replace(
            self,
            sensor=self.sensor[rows],
            mean=self.mean[rows],
            sd=self.sd[rows],
            quality=self.quality[rows],
            bound=self.bound[rows],
        )


@dataclass(frozen=True, slots=True)
class Run(Frame):
    """The tuples of some records in a row, of a slot without lock-step; a row a tuple, in the order of the log.

    Where a run is cut depends on how the records came and means nothing: an operator must give the same rows for two
    runs as for the one that they would be together. `sensor` is in no order, and a sensor may stand in it repeatedly.

    Attributes:
        step, event_time_us: of the last record.
        time_us: int64[n], event time.
        origin: int64[n], ascending: the place of the row's record among the run's.
    """

    time_us: Integers
    origin: Integers

    def keep(self, rows: npt.NDArray[Any]) -> Run:
        return Run(
            self.step,
            self.event_time_us,
            self.sensor[rows],
            self.mean[rows],
            self.sd[rows],
            self.quality[rows],
            self.bound[rows],
            self.time_us[rows],
            self.origin[rows],
        )


def measured_run(step: int, event_time_us: int, ids: Sensors, values: Floats, times: Integers, origin: Integers) -> Run:
    """Return a run of measured values: exact, and with no deviation."""
    zeros = np.zeros(len(ids))
    exact = np.full(len(ids), EXACT, dtype=np.uint8)
    return Run(step, event_time_us, ids, values, zeros, exact, zeros, times, origin)
