"""Decodes a live message: a reading (sensor, time, value), a tuple or an event; or why it cannot be used."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeGuard

from tsunagi.edge.inbox import Message
from tsunagi.edge.own_sensors import edges_by_name, places_by_name, removed_names
from tsunagi.edge.source import UNKNOWN_SENSOR
from tsunagi.edge.tuple_form import CellError, read_json
from tsunagi.edge.window import NOT_A_NUMBER
from tsunagi.query.form import Cells, TupleForm, first_number
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import SourceSettings
from tsunagi.runtime.time_form import BadTimeError, TimeForm

NO_TIME = "no-time"
"""Reason of a dead letter: the message has no time, and a time of arrival must not stand for it."""
BAD_TIME = "bad-time"
"""Reason of a dead letter: the time is neither ISO 8601 with a zone nor a number in range."""
NO_SENSOR = "no-sensor"
"""Reason of a dead letter: neither the message nor its topic or key names a sensor."""
FOREIGN_SENSOR = "foreign-sensor"
"""Reason of a dead letter: the sensor belongs to another edge."""
REMOVED_SENSOR = "removed-sensor"
"""Reason of a count: the sensor has been removed from the table, and its device still sends."""
UNREADABLE = "unreadable"
"""Reason of a dead letter: the message is neither a JSON object nor a number."""
BAD_COLUMN = "bad-column"
"""Reason of a dead letter: a column of a tuple is not of its type."""
UNKNOWN_STREAM = "unknown-stream"
"""Reason of a dead letter: no statement creates the stream that an event names."""
FOREIGN_STREAM = "foreign-stream"
"""Reason of a dead letter: the events of a stream without KEY are those of another edge."""
NO_BIRTH = "no-birth"
"""Reason of a dead letter: a metric of Sparkplug B has an alias or a type that no birth certificate has said."""
NO_READING = "no-reading"
"""Reason of a count: the message or the metric serves the protocol of Sparkplug B, and has no value of a sensor."""
MISSING = "missing"
"""Reason of a count: the device says that there is no value (null, or `missing` of `[source] fields`)."""
TOO_LONG = "too-long"
"""Reason of a dead letter: the message is longer than `[source] max_bytes`. All of these reasons are also labels of the
metric `tsunagi_edge_unusable_readings_total`."""
FOREIGN = frozenset({FOREIGN_SENSOR, FOREIGN_STREAM})
"""Reasons that get a dead letter only if `[source] foreign` says so: another edge has the reading."""
ONLY_COUNTED = frozenset({MISSING, NO_READING, REMOVED_SENSOR})
"""Reasons that get no dead letter: nothing that a sensor of the fleet has measured is lost."""

_MISSING = object()
"""Stands for a key that a JSON object does not have: None would be JSON's null, which it may have."""


class Reading(NamedTuple):
    """A reading that may go into windows, a tuple, or an event.

    Attributes:
        place: the sensor's place among the edge's sensors; 0 for an event of a stream without KEY.
        arrival: whether `time_us` is the time of arrival, because the message names none.
        cells: the columns of a tuple or an event (CREATE STREAM); None = the message is a reading.
        stream: the stream of an event; "" = it is none.
    """

    place: int
    time_us: int
    value: float
    arrival: bool
    cells: Cells | None = None
    stream: str = ""


class ReadingFault(NamedTuple):
    """Why a reading cannot be used: a reason for counting, the sensor as far as it is known, a text for people."""

    reason: str
    sensor: str
    detail: str


class Decoder:
    """Decodes the messages of one source.

    Args:
        own: the sensors of this edge.
        key_first: whether the sensor that the message's topic names (a level of an MQTT topic) counts more than the one
            in the payload. If not, a record's key (Kafka) counts only where the payload names no sensor.
        form: the columns of tuples (CREATE STREAM), whose key names the sensor in place of `[source] sensor_key`; None
            = messages are readings.
        streams: the columns of events, by stream, with lock-step. A JSON object with `[source] stream_key` is an event.

    Attributes:
        edge: this edge; "" if it has no sensors.
    """

    def __init__(
        self,
        table: SensorTable,
        own: tuple[Sensor, ...],
        source: SourceSettings,
        *,
        key_first: bool,
        form: TupleForm | None = None,
        streams: Mapping[str, TupleForm] = MappingProxyType({}),
    ) -> None:
        self._form = form
        self._streams = streams
        self._keyless = table.edges[0] if table.edges else ""
        self.edge = own[0].edge if own else ""
        self._sensor_key = source.sensor_key if form is None else form.key
        self._places = places_by_name(own)
        self._edges = edges_by_name(table)
        self._removed = removed_names(table)
        self._source = source
        self._times = TimeForm(source.time_unit)
        self._key_first = key_first

    def readings(self, message: Message) -> Sequence[Reading | ReadingFault]:
        """Return the one reading of a message, or why it cannot be used."""
        return (self.decode(message),)

    def is_event(self, body: object) -> TypeGuard[dict[str, Any]]:
        """Return whether a JSON value is an event."""
        return bool(self._streams) and isinstance(body, dict) and self._source.stream_key in body

    def place(self, name: str) -> int | ReadingFault:
        """Return the place of a sensor among those of this edge, or why it has none."""
        place = self._places.get(name)
        if place is not None:
            return place
        if name in self._removed:
            return ReadingFault(REMOVED_SENSOR, name, "found a sensor that has been removed from the table")
        edge = self._edges.get(name)
        if edge is None:
            return ReadingFault(UNKNOWN_SENSOR, name, f"found sensor {name[:200]!r}, expected one of the sensors table")
        return ReadingFault(FOREIGN_SENSOR, name, f"found a sensor of edge {edge!r}, expected one of this edge")

    def decode(self, message: Message) -> Reading | ReadingFault:
        """Return the reading, or why it cannot be used."""
        if message.fault is not None:
            return ReadingFault(message.fault[0], message.sensor or "", message.fault[1])
        body = _parse(message.payload)
        if isinstance(body, dict) and self.is_event(body):
            return self.event(body)
        if isinstance(body, dict):
            own = body.get(self._sensor_key, _MISSING)
        elif isinstance(body, float) and self._form is None:
            own = _MISSING
        else:
            expected = "a JSON object or a number" if self._form is None else "a JSON object"
            found = body if isinstance(body, str) else f"found {body}"
            return ReadingFault(UNREADABLE, message.sensor or "", f"{found}, expected {expected}")
        name = self._sensor(own, message.sensor)
        if isinstance(name, ReadingFault):
            return name
        if isinstance(body, float):
            given: object = body
            time_us = self._plain_time(message, name)
        else:
            given = body.get(self._source.value_key, _MISSING)
            time_us = self._time(body, name)
        place = self.place(name)
        if isinstance(place, ReadingFault):
            return place
        if isinstance(time_us, ReadingFault):
            return time_us
        if self._form is not None and isinstance(body, dict):
            return self._tuple(body, self._form, place, name, time_us)
        value = _number(given)
        if not math.isfinite(value):
            return ReadingFault(
                NOT_A_NUMBER, name, f"{self._source.value_key}: found {_short(given)}, expected a finite number"
            )
        return Reading(place, time_us, value, isinstance(body, float))

    def event(self, body: dict[str, Any]) -> Reading | ReadingFault:
        """Return the event that a JSON object is, or why it cannot be used."""
        stream = body[self._source.stream_key]
        form = self._streams.get(stream) if isinstance(stream, str) else None
        if form is None:
            known = ", ".join(self._streams)
            detail = f"{self._source.stream_key}: found {_short(stream)}, expected a stream that is created: {known}"
            return ReadingFault(UNKNOWN_STREAM, "", detail)
        place: int | ReadingFault = 0
        if form.key:
            name = body.get(form.key)
            if not isinstance(name, str):
                return ReadingFault(NO_SENSOR, "", f"{form.key}: found {_short(name)}, expected a sensor's name")
            place = self.place(name)
        elif self.edge != self._keyless:
            detail = f"{stream} has no KEY, so its events are those of the table's first edge, {self._keyless!r}"
            return ReadingFault(FOREIGN_STREAM, "", detail)
        if isinstance(place, ReadingFault):
            return place
        time_us = self._time(body, stream)
        if isinstance(time_us, ReadingFault):
            return time_us
        found = self._tuple(body, form, place, stream, time_us)
        return found if isinstance(found, ReadingFault) else found._replace(stream=stream)

    def _tuple(
        self, body: dict[str, Any], form: TupleForm, place: int, name: str, time_us: int
    ) -> Reading | ReadingFault:
        cells = {}
        for column, kind in form.kinds.items():
            try:
                cells[column] = read_json(body.get(column), kind)
            except CellError as error:
                return ReadingFault(BAD_COLUMN, name, f"{column}: {error}")
        return Reading(place, time_us, first_number(cells, form), arrival=False, cells=cells)

    def _sensor(self, own: object, key: str | None) -> str | ReadingFault:
        """Return the name of the sensor, or why there is none."""
        if own is not _MISSING and not isinstance(own, str):
            return ReadingFault(
                NO_SENSOR, key or "", f"{self._sensor_key}: found {_short(own)}, expected a sensor's name"
            )
        named = own if isinstance(own, str) else ""
        name = (key or named) if self._key_first else (named or key or "")
        if not name:
            return ReadingFault(
                NO_SENSOR, "", f"no key {self._sensor_key!r}, and no topic or record key that names one"
            )
        return name

    def _plain_time(self, message: Message, name: str) -> int | ReadingFault:
        if self._source.plain_time == "refuse":
            return ReadingFault(NO_TIME, name, 'a plain number, and [source] plain_time = "refuse"')
        if message.stored:
            return ReadingFault(
                NO_TIME, name, "a plain number that was retained by the broker: nobody knows since when"
            )
        return message.arrived_us

    def _time(self, body: dict[str, Any], name: str) -> int | ReadingFault:
        found = body.get(self._source.time_key, _MISSING)
        if found is _MISSING or found is None:
            return ReadingFault(NO_TIME, name, f"no key {self._source.time_key!r}")
        try:
            return self._times.read(found)
        except BadTimeError as error:
            return ReadingFault(BAD_TIME, name, f"{self._source.time_key}: {error}")


def _parse(payload: bytes) -> dict[str, Any] | float | str:
    """Return the JSON object or the plain number; or, as a text, what was found instead."""
    try:
        text = payload.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        return f"found byte 0x{payload[error.start]:02x} at {error.start + 1}, which is not UTF-8"
    if not text.startswith("{"):
        try:
            if "_" in text:  # float() accepts "_" between digits; JSON does not
                raise ValueError  # noqa: TRY301 - the same message
            return float(text)
        except ValueError:
            return f"found {_short(text)}"
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"found {_short(text)}, which is not JSON ({type(error).__name__}: {str(error)[:100]})"
    return found if isinstance(found, dict) else f"found {_short(text)}"


def _number(found: object) -> float:
    """Return a JSON number as a float; anything else becomes NaN."""
    if isinstance(found, bool) or not isinstance(found, int | float):
        return math.nan
    try:
        return float(found)
    except OverflowError:  # an integer of hundreds of digits
        return math.inf


def _short(found: object) -> str:
    return "nothing" if found is _MISSING else repr(found)[:80]
