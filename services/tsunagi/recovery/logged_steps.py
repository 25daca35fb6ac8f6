"""Reads batches of edges from a log into a history, by the rules by which slots take them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tsunagi.recovery.step_history import StepCollector, StepHistory
from tsunagi.runtime.auth import forgery
from tsunagi.runtime.columns import floats, sensors
from tsunagi.runtime.door import UnusableError, decode
from tsunagi.runtime.log import Record
from tsunagi.runtime.messages import LogRecord, TupleBatch
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import Settings


class LoggedSteps:
    """Takes in records of `tuples`.

    What a slot would refuse is passed over: what cannot be read, a forged record, sensors of other edges, and a batch
    whose time is far ahead of the log's. One such batch would make all others so old that there is no room for them.

    Sensors that were removed are left out of the history.

    Args:
        table: the table in force; a sensor's id is its row.
        source: where the records come from, for messages.
        most_bytes: how large the history may be; see `StepCollector`.

    Attributes:
        collector: has the steps.
        newest: the newest step of each edge that has sensors.
    """

    def __init__(self, settings: Settings, table: SensorTable, source: str, most_bytes: int) -> None:
        self.collector = StepCollector(source, (), most_bytes)
        self.newest: dict[str, int] = {}
        self._slide_us = settings.slide_us
        self._ahead_us = round(settings.steps.max_ahead_s * 1e6)
        self.use(table)

    def use(self, table: SensorTable) -> None:
        """Go by a newer table of the same fleet."""
        self._table = table
        self.collector.grow([sensor.key for sensor in table.sensors])
        self._edges = frozenset(table.edges)
        self.newest = {edge: step for edge, step in self.newest.items() if edge in self._edges}
        # What a sensor's edge sent before the sensor was moved or removed counts as well.
        names = sorted({edge for sensor in table.sensors for edge in (sensor.edge, sensor.before)})
        self._number = {edge: number for number, edge in enumerate(names)}
        self._owner, self._before = (
            np.array([self._number[edge] for edge in column], dtype=np.intp)
            for column in zip(*((sensor.edge, sensor.before) for sensor in table.sensors), strict=True)
        )

    def history(self) -> StepHistory:
        """Return what was collected of the sensors that are there.

        Raises:
            ModelError: nothing was.
        """
        found, present = self.collector.history(), [sensor.id for sensor in self._table.present]
        return replace(found, names=tuple(found.names[sensor] for sensor in present), values=found.values[:, present])

    def take(self, record: Record) -> None:
        """Take in a record, if it is a batch that counts."""
        batch = _batch_of(record)
        if batch is None or batch.edge not in self._number or len(batch.value) != 2 * len(batch.sensor):
            return
        if max(batch.step * self._slide_us, batch.event_time_us) > record.appended_us + self._ahead_us:
            return
        edge = self._number[batch.edge]
        if batch.edge in self._edges:
            self.newest[batch.edge] = max(batch.step, self.newest.get(batch.edge, batch.step))
        sensor, value = sensors(batch.sensor), floats(batch.value)
        own = sensor < len(self._owner)
        own[own] = (self._owner[sensor[own]] == edge) | (self._before[sensor[own]] == edge)
        if own.any():
            self.collector.add(batch.step, sensor[own], value[own])


def _batch_of(record: Record) -> TupleBatch | None:
    try:
        message = decode(LogRecord, record.value)
    except UnusableError:
        return None
    return message.batch if message.HasField("batch") and not forgery(record, message) else None
