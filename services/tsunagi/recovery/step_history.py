"""A history that is in steps already: what edges have sent, as the log holds it, or the readings of a long table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.windows import Cut
from tsunagi.runtime.columns import Floats, Sensors


@dataclass(frozen=True, slots=True)
class StepHistory:
    """Values of sensors at steps that have the numbers of the running system.

    Attributes:
        source: where it comes from, for messages.
        names: names of the sensors.
        first: number of the first step.
        values: float64[steps, n]; NaN means no reading.
        cut: how they were cut from readings; None = they are of the running system.
        outside: how many readings were left out, since they were outside their sensors' plausible ranges.
    """

    source: str
    names: tuple[str, ...]
    first: int
    values: Floats
    cut: Cut | None = None
    outside: int = 0


class StepCollector:
    """Collects the values of steps, in any order. Of two values of a sensor at a step the later one counts.

    Args:
        source: where they come from, for messages.
        names: the sensors, by number.
        most_bytes: how large the history may be as float64: older steps are left out.

    Attributes:
        readings: int64[n], how many values each sensor had in all steps, those left out as well.
        newest: the newest step; None = nothing was collected.
        left_out: how many steps were left out, since there was no room.
    """

    def __init__(self, source: str, names: Sequence[str], most_bytes: int) -> None:
        self._source, self._most_bytes = source, most_bytes
        self._names: tuple[str, ...] = ()
        self._rows: dict[int, Floats] = {}
        self.newest: int | None = None
        self.readings = np.zeros(0, dtype=np.int64)
        self.left_out = 0
        self.grow(names)

    def __len__(self) -> int:
        """Return how many steps are there."""
        return len(self._rows)

    def grow(self, names: Sequence[str]) -> None:
        """Know more sensors from now on, which come behind those that are there."""
        more = len(names) - len(self._names)
        self._names = tuple(names)
        self._most_steps = max(1, self._most_bytes // (8 * max(1, len(names))))
        self._rows = {step: np.append(row, np.full(more, np.nan)) for step, row in self._rows.items()}
        self.readings = np.append(self.readings, np.zeros(more, dtype=np.int64))

    def add(self, step: int, sensor: Sensors, value: Floats) -> None:
        """Take values of a step; those of sensors that are not known are passed over."""
        known = sensor < len(self._names)
        if not known.any() or (self.newest is not None and step <= self.newest - self._most_steps):
            return
        row = self._rows.get(step)
        if row is None:
            row = self._rows[step] = np.full(len(self._names), np.nan)
        sensor, value = sensor[known], value[known]
        np.add.at(self.readings, sensor, np.isfinite(value) & ~np.isfinite(row[sensor]))
        row[sensor] = value
        self.newest = step if self.newest is None else max(self.newest, step)
        if len(self._rows) > 2 * self._most_steps:
            self._forget()

    def _forget(self) -> None:
        oldest = (self.newest or 0) - self._most_steps
        gone = [step for step in self._rows if step <= oldest]
        self.left_out += len(gone)
        for step in gone:
            del self._rows[step]

    def history(self) -> StepHistory:
        """Return what was collected.

        Raises:
            ModelError: nothing was.
        """
        self._forget()
        if not self._rows:
            raise ModelError(f"{self._source}: found no readings")
        first = min(self._rows)
        values = np.full((max(self._rows) - first + 1, len(self._names)), np.nan)
        for step, row in self._rows.items():
            values[step - first] = row
        return StepHistory(self._source, self._names, first, values)
