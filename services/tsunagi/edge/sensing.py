"""Everything of an edge that depends on the sensors table, and how it changes when another table comes into force."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import structlog

from tsunagi.edge.events import EventSteps
from tsunagi.edge.own_sensors import kept_places
from tsunagi.edge.passing import Passing
from tsunagi.edge.source import Opener
from tsunagi.edge.sources import make_opener
from tsunagi.edge.tuple_form import form_of, streams_of
from tsunagi.edge.window import SlidingWindows
from tsunagi.query.form import TupleForm
from tsunagi.runtime.clock import Clock
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import Settings

if TYPE_CHECKING:
    from tsunagi.edge.needed import Needed
    from tsunagi.edge.needed_events import NeededEvents
    from tsunagi.edge.publish import EdgePlacementReader

_VALUE_BYTES = 32
"""Bytes that a sensor takes in a record at most: as one of the slot, and as a helper of another one."""


class Sensing:
    """The sensors of an edge, its source and its windows.

    Args:
        table: the sensors table of the file.
        opener: opens the source; None means the source that the settings name.

    Attributes:
        table: the table by which the edge goes.
        own: the edge's sensors in it.
        form: the columns of tuples (CREATE STREAM); None = the source has readings.
        needed: chooses the tuples to send; None = all are sent.
        needed_events: chooses the events to send; None = all are sent.
        opener: opens the source.
        windows, events: the open steps.
        passing: is used instead of windows where the query takes each tuple as it comes; else None.

    Raises:
        SourceError: the source cannot be used.
    """

    def __init__(
        self,
        settings: Settings,
        edge: str,
        table: SensorTable,
        logger: structlog.stdlib.BoundLogger,
        clock: Clock,
        opener: Opener | None,
    ) -> None:
        self._settings, self._edge, self._logger, self._clock = settings, edge, logger, clock
        self._file_table, self._given_opener = table, opener
        self.table = table
        self._serial = 0
        self.own = table.of_edge(edge)
        self.form = form_of(settings)
        self._streams = streams_of(settings)
        self.needed = _make_needed(settings, self.form, self.own)
        self.needed_events = _make_needed_events(settings, self._streams, table)
        self.opener = self._make_opener()
        self.windows = SlidingWindows(self.own, settings.steps)
        self.events = self._no_events()
        self.passing: Passing | None = None

    def serial_in(self, plan: EdgePlacementReader) -> int:
        """Return the serial number of the table by which the edge goes; 0 = it is that of the file."""
        if plan.table is self.table:
            self._serial = plan.table_serial
        return self._serial

    def begin_anew(self) -> None:
        """Forget what has been read, as at a start."""
        self.opener = self._make_opener()
        self.windows = SlidingWindows(self.own, self._settings.steps)
        self.events = self._no_events()

    def change(self, table: SensorTable, now_us: int, offset_us: int) -> tuple[Sensor, ...] | None:
        """Go by another table from here on. What belongs to sensors that stay is carried over.

        Args:
            now_us: what the edge's clock says, in microseconds.
            offset_us: microseconds that are added to the times of readings.

        Returns:
            The earlier sensors of this edge; None if the tables are equal.
        """
        same = table == self.table
        self.table = table
        if same:
            return None
        before, self.own = self.own, table.of_edge(self._edge)
        since_us = self.opener.change(table, self.own, now_us) + offset_us
        self.windows.change(self.own, kept_places(before, self.own), since_us)
        if self.passing is not None:
            self.passing.change(self.own)
        if self.needed is not None:
            self.needed.names = [sensor.name for sensor in self.own]
        if self.needed_events is not None:
            self.needed_events.change(table)
        self.events.most_bytes = self._room()
        return before

    def _make_opener(self) -> Opener:
        if self._given_opener is not None:
            return self._given_opener
        table = self._file_table
        own = table.of_edge(self._edge)
        opener = make_opener(
            self._settings, self._edge, table, own, self._logger, self._clock, self.form, self._streams
        )
        if self.table is not table:
            opener.change(self.table, self.own, self._clock.now_us())
        return opener

    def _no_events(self) -> EventSteps:
        return EventSteps(self._streams, self._settings.slide_us, self._room(), self.needed_events)

    def _room(self) -> int:
        """Return how many bytes of events a step's record has room for, beside the values of all sensors."""
        return max(0, self._settings.kafka.max_message_bytes * 9 // 10 - _VALUE_BYTES * len(self.own))


def _make_needed(settings: Settings, form: TupleForm | None, own: tuple[Sensor, ...]) -> Needed | None:
    """Return what chooses the tuples to send; None = all are sent."""
    if form is None or not settings.query.at_edge:
        return None
    from tsunagi.edge.needed import Needed  # CQL's parser: most edges do not need it

    return Needed(settings, form, [sensor.name for sensor in own])


def _make_needed_events(
    settings: Settings, streams: Mapping[str, TupleForm], table: SensorTable
) -> NeededEvents | None:
    """Return what chooses the events to send; None = all are sent."""
    if not streams or not settings.query.at_edge:
        return None
    from tsunagi.edge.needed_events import NeededEvents  # CQL's parser: most edges do not need it

    return NeededEvents(settings, streams, table)
