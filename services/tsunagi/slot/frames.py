"""What operators take and return: the rows of one step, or without steps the rows of several records in a row."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tsunagi.query.values import Column
from tsunagi.runtime.columns import Bytes, Floats, Sensors
from tsunagi.runtime.messages import EXACT
from tsunagi.runtime.times import in_range

Integers = npt.NDArray[np.int64]


class OperatorError(ValueError):
    """An operator cannot be made from its options, or is given a state that is not its own."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The rows of one step inside a chain, one for each sensor.

    Attributes:
        step: the step's number.
        event_time_us: the end of the step, microseconds since 1970.
        sensor: uint32[n], sensor ids, ascending.
        mean: float64[n], the values; NaN = no value.
        sd: float64[n], the values' standard deviations; 0 = measured.
        quality: uint8[n], `Quality`.
        bound: float64[n], half the width of the interval that holds the truth with probability delta.
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
        """Return a frame of these rows only; `rows` is a mask or an array of places."""
        return replace(
            self,
            sensor=self.sensor[rows],
            mean=self.mean[rows],
            sd=self.sd[rows],
            quality=self.quality[rows],
            bound=self.bound[rows],
        )

    def without(self, sensors: AbstractSet[int]) -> Frame:
        """Return a frame without the rows of these sensors; the frame itself if there are none to leave out."""
        return self.keep(~np.isin(self.sensor, list(sensors))) if sensors else self


@dataclass(frozen=True, slots=True)
class Run(Frame):
    """The tuples of several records in a row, in a slot without lock-step. Each tuple is a row, in the log's order.

    Where one run ends and the next begins depends on how the records arrived. So an operator must give the same rows
    for two runs as for one run of both. `sensor` is not sorted, and a sensor may have several rows.

    Attributes:
        step, event_time_us: those of the last record.
        time_us: int64[n], the rows' event times, microseconds since 1970.
        origin: int64[n], ascending: the place of each row's record in the run.
        columns: the columns of a stream (CREATE STREAM) by name, [n] each, without the key, which is the sensor, and
            the time. `mean` is then the first column of numbers. Otherwise there are none.
    """

    time_us: Integers
    origin: Integers
    columns: Mapping[str, Column] = field(default_factory=lambda: MappingProxyType({}))

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
            {name: column.take(rows) for name, column in self.columns.items()},
        )


class OperatorFailedError(RuntimeError):
    """A user's operator, or a function that a query calls, failed on a frame; its exception is the cause.

    Attributes:
        operator: the operator's name in [query], or `query NAME`.
        frame: the frame that it was given.
        detail: the exception's type and message, and where it was raised.
        unforeseen: the error is logged with its traceback, and a worker that dies of it repeatedly stops trying.
    """

    unforeseen = True

    def __init__(self, operator: str, frame: Frame, detail: str, row: str = "") -> None:
        time_us = frame.event_time_us
        time = datetime.fromtimestamp(time_us / 1e6, UTC).isoformat() if in_range(time_us) else f"{time_us} us"
        place = f"step {frame.step}, event time {time}" + (f", {row}" if row else "")
        super().__init__(f"operator {operator}: {place}: {detail}")
        self.operator, self.frame, self.detail = operator, frame, detail

    def at(self, row: str) -> OperatorFailedError:
        """Return the error with words that say which row is to blame."""
        return OperatorFailedError(self.operator, self.frame, self.detail, row)


def place_of(error: BaseException) -> str:
    """Return words with the file and line in which an operator failed; "" = not known."""
    trace = error.__traceback__
    last = traceback.extract_tb(trace)[-1:] if trace is not None else []
    return "".join(f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in last)


def measured_run(
    step: int,
    event_time_us: int,
    ids: Sensors,
    values: Floats,
    times: Integers,
    origin: Integers,
    columns: Mapping[str, Column] = MappingProxyType({}),
) -> Run:
    """Return a run of measured values, whose quality is `exact` and whose standard deviations and bounds are 0."""
    zeros = np.zeros(len(ids))
    exact = np.full(len(ids), EXACT, dtype=np.uint8)
    return Run(step, event_time_us, ids, values, zeros, exact, zeros, times, origin, columns)
