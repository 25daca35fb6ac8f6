"""Reads batches of edges from a log into a history, by the rules by which slots take them."""

from __future__ import annotations

import numpy as np

from tsunagi.recovery.step_history import StepCollector
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

    Args:
        source: where the records come from, for messages.
        most_bytes: how large the history may be; see `StepCollector`.

    Attributes:
        collector: has the steps.
        newest: the newest step of each edge.
    """

    def __init__(self, settings: Settings, table: SensorTable, source: str, most_bytes: int) -> None:
        self.collector = StepCollector(source, [sensor.name for sensor in table.sensors], most_bytes)
        self.newest: dict[str, int] = {}
        self._slide_us = settings.slide_us
        self._ahead_us = round(settings.steps.max_ahead_s * 1e6)
        self._number = {edge: number for number, edge in enumerate(table.edges)}
        self._owner = np.array([self._number[sensor.edge] for sensor in table.sensors], dtype=np.intp)

    def take(self, record: Record) -> None:
        """Take in a record, if it is a batch that counts."""
        batch = _batch_of(record)
        edge = -1 if batch is None else self._number.get(batch.edge, -1)
        if batch is None or edge < 0 or len(batch.value) != 2 * len(batch.sensor):
            return
        if max(batch.step * self._slide_us, batch.event_time_us) > record.appended_us + self._ahead_us:
            return
        self.newest[batch.edge] = max(batch.step, self.newest.get(batch.edge, batch.step))
        sensor, value = sensors(batch.sensor), floats(batch.value)
        own = sensor < len(self._owner)
        own[own] = self._owner[sensor[own]] == edge
        if own.any():
            self.collector.add(batch.step, sensor[own], value[own])


def _batch_of(record: Record) -> TupleBatch | None:
    try:
        message = decode(LogRecord, record.value)
    except UnusableError:
        return None
    return message.batch if message.HasField("batch") and not forgery(record, message) else None
