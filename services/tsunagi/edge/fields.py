"""Finds the readings in the messages of devices: several values each, in any place ([[source.fields]])."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from string import Formatter
from typing import Any, NamedTuple

import jmespath
from jmespath.exceptions import JMESPathError

from tsunagi.edge.decode import BAD_TIME, MISSING, NO_SENSOR, NO_TIME, Decoder, Reading, ReadingFault
from tsunagi.edge.formats import make_format
from tsunagi.edge.inbox import Message
from tsunagi.edge.payload_format import PayloadFormat
from tsunagi.edge.topic_pattern import TopicLevels
from tsunagi.edge.window import NOT_A_NUMBER
from tsunagi.runtime.settings import SourceSettings
from tsunagi.runtime.settings.fields import BELOW, EVERY, FieldSettings
from tsunagi.runtime.time_form import BadTimeError, TimeForm

NO_FIELD = "no-field"
"""Reason of a dead letter: no entry of `[source] fields` finds a value in the message."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Matches paths that are a plain key."""
_DEEPEST = 32
"""Objects within objects in which numbers are looked for at most."""


class _Place(NamedTuple):
    """Where in a message a value is looked for.

    Attributes:
        record: the message, or the part of it that an entry's `each` has found.
        message: the whole message, where times and names may stand that all its parts share.
        names: the levels of the topic that have names, the key, and the edge.
    """

    record: Any
    message: Any
    names: Mapping[str, str]

    def find(self, path: Callable[[Any], Any]) -> Any:  # noqa: ANN401 - a JSON value
        found = path(self.record)
        return path(self.message) if found is None and self.message is not self.record else found


class FieldsDecoder:
    """Decodes the messages of one source by `[source] fields`.

    Args:
        decoder: knows the sensors, and decodes events.
        payloads: the format of the messages; None = a new one, as the settings say.
    """

    def __init__(self, decoder: Decoder, source: SourceSettings, payloads: PayloadFormat | None = None) -> None:
        self._decoder = decoder
        self._format = payloads or make_format(source)
        self._entries = Entries(source.fields, decoder.edge)

    def readings(self, message: Message) -> Sequence[Reading | ReadingFault]:
        """Return the readings of a message, and why others cannot be used."""
        if message.fault is not None:
            return [ReadingFault(message.fault[0], "", message.fault[1])]
        found: list[Reading | ReadingFault] = []
        for body in self._format.bodies(message):
            if isinstance(body, ReadingFault):
                found.append(body)
            elif self._decoder.is_event(body):
                found.append(self._decoder.event(body))
            else:
                found += self._entries.readings(body, message, self._decoder.place) or [self._nothing(message)]
        return found

    def _nothing(self, message: Message) -> ReadingFault:
        """Return why a message has no reading that any entry finds."""
        detail = "no entry of [source] fields finds a value in it"
        if not self._entries.know(message.topic):
            detail = f"no entry of [source] fields is for the topic {message.topic[:200]!r}"
        return ReadingFault(NO_FIELD, message.sensor or "", detail)


def with_fields(
    decoder: Decoder, source: SourceSettings, payloads: PayloadFormat | None = None
) -> Decoder | FieldsDecoder:
    """Return a decoder that finds readings as `[source] fields` says, if it says anything."""
    return FieldsDecoder(decoder, source, payloads) if source.fields else decoder


class Entries:
    """All tables of `[source] fields`.

    Args:
        edge: the name that stands for `{edge}`.
    """

    def __init__(self, fields: Iterable[FieldSettings], edge: str) -> None:
        self._entries = [_Entry(item, edge) for item in fields]
        self._edge = edge

    def know(self, topic: str) -> bool:
        """Return whether one of them is for a topic."""
        return any(entry.levels(topic) is not None for entry in self._entries)

    def readings(
        self, body: object, message: Message, place_of: Callable[[str], int | ReadingFault]
    ) -> list[Reading | ReadingFault]:
        """Return the readings of a message, and why others cannot be used; nothing if no table finds a value.

        Args:
            body: what a `tsunagi.edge.payload_format.PayloadFormat` has made of the message.
            place_of: returns the place of a sensor, or why it has none.
        """
        found: list[Reading | ReadingFault] = []
        for entry in self._entries:
            levels = entry.levels(message.topic)
            if levels is not None:
                names = {"key": message.sensor or "", "edge": self._edge, **levels}
                found += entry.readings(body, names, message, place_of)
        return found


class _Entry:
    """One table of `[source] fields`."""

    def __init__(self, item: FieldSettings, edge: str) -> None:
        self._item = item
        self._levels = TopicLevels(item.topic, edge, "[source] fields: topic") if item.topic else None
        self._each = _path(item.each) if item.each else None
        named = item.values if isinstance(item.values, dict) else {path: path for path in item.values}
        self._every = {
            path.removesuffix(EVERY): _path(path.removesuffix(BELOW) if path != EVERY else "@")
            for path in named.values()
            if path == EVERY or path.endswith(BELOW)
        }
        self._values = {name: _path(path) for name, path in named.items() if path != EVERY and not path.endswith(BELOW)}
        self._sensor = [(text, name) for text, name, _, _ in Formatter().parse(item.sensor)]
        self._names = {name: _path(name) for _, name in self._sensor if name}
        self._time = _path(item.time) if item.time else None
        self._times = TimeForm(item.time_unit, item.time_format, item.time_zone, number_texts=True)
        self._missing = set(item.missing)

    def levels(self, topic: str) -> dict[str, str] | None:
        """Return the levels of a topic that have names; None = the entry is not for the topic."""
        return {} if self._levels is None else self._levels.match(topic)

    def readings(
        self,
        body: object,
        names: Mapping[str, str],
        message: Message,
        place_of: Callable[[str], int | ReadingFault],
    ) -> Iterator[Reading | ReadingFault]:
        """Yield the readings that the entry finds.

        Args:
            names: the levels of the topic that have names, the key, and the edge.
            place_of: returns the place of a sensor, or why it has none.
        """
        parts = [body] if self._each is None else self._each(body)
        if isinstance(parts, dict):
            parts = list(parts.values())
        for record in parts if isinstance(parts, list) else ():
            where = _Place(record, body, names)
            time_us: int | ReadingFault | None = None
            for field, given in self._found(record):
                sensor = self._name(field, where)
                if isinstance(sensor, ReadingFault):
                    yield sensor
                    continue
                place = place_of(sensor)
                if isinstance(place, ReadingFault):
                    yield place
                    continue
                if self._is_missing(given):
                    yield ReadingFault(MISSING, sensor, f"{field}: found {_short(given)}")
                    continue
                time_us = self._time_us(where, message) if time_us is None else time_us
                if isinstance(time_us, ReadingFault):
                    yield time_us._replace(sensor=sensor)
                    continue
                value = self._value(given)
                if math.isfinite(value):
                    yield Reading(place, time_us, value, self._time is None)
                    continue
                expected = "a finite number" + f", or one of {', '.join(self._item.words)}" * bool(self._item.words)
                yield ReadingFault(NOT_A_NUMBER, sensor, f"{field}: found {_short(given)}, expected {expected}")

    def _found(self, record: object) -> Iterator[tuple[str, Any]]:
        """Yield (name or path of a value, the value) for the values that are there."""
        for name, path in self._values.items():
            found = path(record)
            if isinstance(found, list):
                yield from ((f"{name}[{number}]", item) for number, item in enumerate(found))
            elif found is not None:
                yield name, found
        for above, path in self._every.items():
            for name, given in _leaves(path(record), "", 0):
                if (
                    above + name != self._item.time
                    and above + name not in self._values
                    and (not isinstance(given, str) or given in self._item.words)
                ):
                    yield name or "@", given

    def _name(self, field: str, place: _Place) -> str | ReadingFault:
        parts = []
        for text, name in self._sensor:
            parts.append(text)
            if name is None:
                continue
            given = field if name == "field" else place.names.get(name) or place.find(self._names[name])
            if isinstance(given, bool) or not isinstance(given, str | int) or given == "":
                detail = f"{{{name}}} of sensor = {self._item.sensor!r}: found {_short(given)}, expected a name"
                return ReadingFault(NO_SENSOR, "", detail)
            parts.append(str(given))
        return "".join(parts)

    def _is_missing(self, given: object) -> bool:
        if isinstance(given, bool) or not isinstance(given, str | int | float) or not self._missing:
            return False
        return given in self._missing or (isinstance(given, str) and self._number(given) in self._missing)

    def _value(self, given: object) -> float:
        """Return a value as a number; NaN = it is none."""
        words = self._item.words
        if isinstance(given, bool):
            return words.get(str(given).lower(), float(given))
        if isinstance(given, str) and given in words:
            return words[given]
        return self._number(given) * self._item.scale + self._item.offset

    def _number(self, given: object) -> float:
        """Return what a device has sent as a number, before `scale` and `offset`; NaN = it is none."""
        if isinstance(given, str):
            given = given.strip()
            if self._item.decimal == ",":
                given = given.replace(".", "_").replace(",", ".")  # "1.234,5" is not understood: it may be two things
            if "_" in given:
                return math.nan
        elif not isinstance(given, int | float):
            return math.nan
        try:
            return float(given)
        except ValueError:
            return math.nan
        except OverflowError:  # an integer of hundreds of digits
            return math.inf

    def _time_us(self, place: _Place, message: Message) -> int | ReadingFault:
        if self._time is None:
            if message.stored:
                return ReadingFault(NO_TIME, "", "it was retained by the broker: nobody knows since when")
            return message.arrived_us
        found = place.find(self._time)
        if found is None:
            return ReadingFault(NO_TIME, "", f"nothing at {self._item.time!r} ([source] fields: time)")
        try:
            return self._times.read(found)
        except BadTimeError as error:
            return ReadingFault(BAD_TIME, "", f"{self._item.time}: {error}")


def _path(path: str) -> Callable[[Any], Any]:
    """Return a function that finds what stands at a path; None = nothing does."""
    if _NAME.fullmatch(path):  # as most are
        return lambda tree: tree.get(path) if isinstance(tree, dict) else None
    compiled = jmespath.compile(path)

    def find(tree: Any) -> Any:  # noqa: ANN401 - a JSON value
        try:
            return compiled.search(tree)
        except JMESPathError:  # a function of numbers was given a text
            return None

    return find


def _leaves(tree: object, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of each number, boolean and text."""
    if isinstance(tree, dict) and depth < _DEEPEST:
        for key, item in tree.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key), depth + 1)
    elif isinstance(tree, list) and depth < _DEEPEST:
        for number, item in enumerate(tree):
            yield from _leaves(item, f"{path}[{number}]", depth + 1)
    elif isinstance(tree, bool | int | float | str):
        yield path, tree


def _short(found: object) -> str:
    return repr(found)[:80]
