"""Passes readings on as they come, for queries without lock-step ([query] mode = "tuples"); no clock and no I/O."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tsunagi.edge.source import SourceRow
from tsunagi.edge.window import ClosedWindow, Limits, Rejected
from tsunagi.query.form import Cells
from tsunagi.runtime.columns import Sensors
from tsunagi.runtime.sensors import Sensor


class Passed(NamedTuple):
    """The readings of one row, or its tuple. `rows.step` is its number, which counts up over all incarnations."""

    rows: ClosedWindow
    event_time_us: int
    cells: Cells | None = None


class Passing:
    """Gives a number to each row that an edge reads.

    The number is the row's event time if that is greater than the number before, and else the number before + 1. A
    source may hand out readings of one time one by one, or slightly out of order, and a slot drops a batch whose number
    does not count up, as a repetition.

    Args:
        sensors: the edge's sensors; a row names each by its place in this sequence.
        last: the last number that an earlier incarnation gave; None if there was none.
    """

    def __init__(self, sensors: tuple[Sensor, ...], last: int | None = None) -> None:
        self.last = last
        self.change(sensors)

    def change(self, sensors: tuple[Sensor, ...]) -> None:
        """Go on with other sensors; numbers go on counting."""
        self._ids: Sensors = np.array([sensor.id for sensor in sensors], dtype=np.uint32)
        self._limits = Limits(sensors)

    def take(self, row: SourceRow, offset_us: int) -> tuple[Passed | None, list[Rejected]]:
        """Return the readings of a row that may be used, or None if there are none; and those that may not.

        Args:
            offset_us: microseconds that are added to the row's time.
        """
        time_us = row.time_us + offset_us
        places, values = row.places, row.values
        rejected: list[Rejected] = []
        if row.cells is None:  # the limits of the sensors table are those of readings
            places, values, rejected = self._limits.judge(time_us, places, values)
        if not len(places):
            return None, rejected
        order = np.argsort(places)
        places, values = places[order], values[order]
        self.last = time_us if self.last is None else max(time_us, self.last + 1)
        counts = np.ones(len(places), dtype=np.uint32)
        return Passed(ClosedWindow(self.last, self._ids[places], places, values, counts), time_us, row.cells), rejected
