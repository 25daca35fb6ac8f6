"""What each field of each record may hold: the one table of it, and whether a message keeps to it.

Whoever can append a record chooses every bit of it. What has passed here can be computed with: no sum of a time and a
window and no name of an output leaves the range of its type, and columns fit each other. What a
value means (is the sensor this edge's, is the step open) is for those who process it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from tsunagi.runtime.messages import tsunagi_pb2

INT64_MAX = (1 << 63) - 1
MAX_TIME_US = 9_214_646_400_000_000
"""2262-01-01: what is after it has no nanoseconds in an int64. A step is no shorter than a microsecond, so it is the
greatest step as well."""

NOT_YET = -(1 << 62)
"""Stands for a step where there has been none yet (tsunagi.slot.steps)."""

MAX_FLOAT = 1e100
"""Bound of the floats that a slot computes with as they are: the sum of their squares over all sensors is finite."""

MAX_NAME = 1024
MAX_WORD = 64
MAX_DETAIL = 65_536
MAX_TEXT = MAX_BYTES = 64 << 20
"""What is as long as its topic lets a record be."""


class Whole(NamedTuple):
    """A whole number, or each of several."""

    low: int
    high: int
    other: int = 0
    """One more value that it may have."""


class Real(NamedTuple):
    """A float within [low, high]; NaN is none of them."""

    low: float
    high: float


class Text(NamedTuple):
    """At most so many characters; the same for `bytes` and for the keys of a map."""

    most: int


class Digest(NamedTuple):
    """A SHA-256 in hexadecimal digits, or nothing: it becomes a file's name, and no other name is waited for."""


class Column(NamedTuple):
    """A column: a whole number of elements, each within [-most, most] or NaN; None = whatever its type holds."""

    kind: np.dtype[np.generic]
    most: float | None = None


class Part(NamedTuple):
    """A message, by its own row of the table; of anything else, whatever its type holds."""


Rule = Whole | Real | Text | Digest | Column | Part

ANY = Part()
VERSION = NUMBER = SERIAL = MAC = FLAG = PART = ANY
COUNT = Whole(0, INT64_MAX)
OFFSET = Whole(-1, INT64_MAX - (1 << 32))
STEP = Whole(0, MAX_TIME_US)
TIME = Whole(0, MAX_TIME_US)
LENGTH = Whole(0, MAX_TIME_US)
NAME, WORD, DETAIL, TEXT, BYTES = Text(MAX_NAME), Text(MAX_WORD), Text(MAX_DETAIL), Text(MAX_TEXT), Text(MAX_BYTES)
SHA256 = Digest()
F64, U32, U8 = np.dtype("<f8"), np.dtype("<u4"), np.dtype("u1")
SENSORS, COUNTS, QUALITIES = Column(U32), Column(U32), Column(U8)
READINGS = Column(
    F64
)  # one odd reading must not take with it those of all its edge's sensors: who computes looks at it
FACTORS = Column(F64, MAX_FLOAT)
AMOUNT = Real(0.0, 1e15)

RANGES: Mapping[str, Mapping[str, Rule]] = {
    "LogRecord": {
        "version": VERSION,
        "batch": PART,
        "ownership": PART,
        "edge_out": PART,
        "model": PART,
        "settings": PART,
        "quarantine": PART,
        "punctuation": PART,
        "calibrated": PART,
        "sensor_out": PART,
        "helpers": PART,
        "serial": SERIAL,
        "mac": MAC,
    },
    "TupleBatch": {
        "edge": NAME,
        "incarnation": COUNT,
        "step": STEP,
        "event_time_us": TIME,
        "sensor": SENSORS,
        "value": READINGS,
        "count": COUNTS,
        "offset": OFFSET,
        "helper": SENSORS,
        "helper_value": READINGS,
    },
    "Ownership": {
        "epoch": COUNT,
        "node": NAME,
        "generation": ANY,
        "first_step": STEP,
        "settings_hash": SHA256,
        "founding": PART,
    },
    "Founding": {"begin": OFFSET, "blank": FLAG, "lost_from": OFFSET, "lost_to": OFFSET, "reason": DETAIL},
    "EdgeOut": {"epoch": COUNT, "edge": NAME, "from_step": Whole(0, MAX_TIME_US, INT64_MAX)},
    "ModelChange": {"epoch": COUNT, "sha256": SHA256, "refit_of": SHA256},
    "SlotSettings": {"epoch": COUNT, "hash": SHA256, "text": TEXT},
    "Quarantine": {"epoch": COUNT, "offset": OFFSET},
    "Punctuation": {"epoch": COUNT, "step": STEP},
    "Calibrated": {
        "epoch": COUNT,
        "model": SHA256,
        "factor": FACTORS,
        "group": SENSORS,
        "slope": FACTORS,
        "centre": FACTORS,
        "tried": READINGS,
    },
    "SensorOut": {"epoch": COUNT, "model": SHA256, "sensor": NUMBER, "out": FLAG, "reason": DETAIL},
    "Helpers": {"epoch": COUNT, "model": SHA256, "sensor": SENSORS, "name": NAME, "edge": NAME},
    "Recovered": {
        "version": VERSION,
        "slot": NUMBER,
        "generation": ANY,
        "offset": OFFSET,
        "index": NUMBER,
        "epoch": COUNT,
        "step": STEP,
        "event_time_us": TIME,
        "appended_us": TIME,
        "sensor": SENSORS,
        "mean": READINGS,
        "sd": READINGS,
        "quality": QUALITIES,
        "bound": READINGS,
    },
    "ResultBlock": {
        "version": VERSION,
        "query": NAME,
        "group": NAME,
        "step": STEP,
        "event_time_us": TIME,
        "appended_us": TIME,
        "sensor": SENSORS,
        "mean": READINGS,
        "sd": READINGS,
        "quality": QUALITIES,
        "bound": READINGS,
        "q1": COUNTS,
        "q2": COUNTS,
        "q3": READINGS,
        "part": NUMBER,
        "parts": NUMBER,
        "window": PART,
    },
    "Window": {
        "length_us": LENGTH,
        "sum": READINGS,
        "minimum": READINGS,
        "maximum": READINGS,
        "sum_sd": READINGS,
        "extreme_sd": READINGS,
    },
    "Ack": {"version": VERSION, "level0": PART, "level1": PART, "mac": MAC},
    "Level0Ack": {
        "slot": NUMBER,
        "node": NAME,
        "epoch": COUNT,
        "generation": ANY,
        "offset": OFFSET,
        "last_offset": OFFSET,
        "last_index": NUMBER,
        "topic_id": WORD,
        "digest": NUMBER,
        "recovered_end": OFFSET,
    },
    "Level1Ack": {
        "slot": NUMBER,
        "node": NAME,
        "epoch": COUNT,
        "generation": ANY,
        "offset": OFFSET,
        "context_offset": OFFSET,
        "last_offset": OFFSET,
        "last_index": NUMBER,
        "context_bytes": NUMBER,
        "appended_us": TIME,
    },
    "Context": {
        "version": VERSION,
        "slot": NUMBER,
        "generation": ANY,
        "epoch": COUNT,
        "owner": NAME,
        "offset": OFFSET,
        "last_offset": OFFSET,
        "last_index": NUMBER,
        "settings": PART,
        "model_sha256": SHA256,
        "cursor": Whole(0, MAX_TIME_US + 1, NOT_YET),
        "punctuated": Whole(0, MAX_TIME_US, NOT_YET),
        "edges": PART,
        "open": PART,
        "operators": BYTES,
        "quarantined": OFFSET,
        "serial": SERIAL,
        "helpers": PART,
        "refit_of": SHA256,
        "topic_id": WORD,
        "digest": NUMBER,
        "founding": PART,
        "part": NUMBER,
        "parts": NUMBER,
        "piece": BYTES,
        "mac": MAC,
    },
    "EdgeState": {
        "edge": NAME,
        "incarnation": COUNT,
        "last_step": Whole(0, MAX_TIME_US, NOT_YET),
        "out_from": Whole(0, MAX_TIME_US + 1, INT64_MAX),
        "out_us": TIME,
    },
    "Arrays": {"array": PART},
    "Array": {"dtype": WORD, "shape": NUMBER, "data": BYTES},
    "Heartbeat": {
        "version": VERSION,
        "node": NAME,
        "role": WORD,
        "incarnation": COUNT,
        "sequence": COUNT,
        "sent_us": TIME,
        "leaving": FLAG,
        "metrics_port": Whole(0, 65_535),
        "pid": NUMBER,
        "slots": PART,
        "step": Whole(NOT_YET, MAX_TIME_US),
        "metrics_host": NAME,
        "spark": PART,
        "mac": MAC,
    },
    "SparkBeat": {
        "batch": Whole(-1, INT64_MAX),
        "batch_us": LENGTH,
        "latency_us": Whole(-MAX_TIME_US, MAX_TIME_US),
        "frontier": Whole(NOT_YET, MAX_TIME_US),
        "newest": Whole(NOT_YET, MAX_TIME_US),
        "held_by": NUMBER,
        "left_behind": NUMBER,
        "carried": COUNT,
        "order": WORD,
        "cut": NUMBER,
        "fault": DETAIL,
    },
    "SlotBeat": {
        "slot": NUMBER,
        "role": WORD,
        "epoch": COUNT,
        "position": OFFSET,
        "busy_offset": OFFSET,
        "busy_until": OFFSET,
        "busy_us": Whole(-MAX_TIME_US, MAX_TIME_US),
        "ready": FLAG,
        "reason": DETAIL,
        "step": Whole(NOT_YET - 1, MAX_TIME_US),
        "record_us": AMOUNT,
        "batch_size": COUNT,
        "lag": OFFSET,
        "record_tuples": AMOUNT,
        "taking_up": FLAG,
        "send_us": AMOUNT,
        "wait_us": Whole(-MAX_TIME_US, MAX_TIME_US),
        "busy_limit_us": Whole(0, INT64_MAX),
        "declared": DETAIL,
    },
    "Plan": {
        "version": VERSION,
        "assignment": PART,
        "placement": PART,
        "helpers": PART,
        "target": PART,
        "recovery": PART,
        "workers": PART,
        "system": PART,
        "serial": SERIAL,
        "mac": MAC,
    },
    "System": {"id": WORD, "prefix": NAME, "made_us": TIME, "by": DETAIL},
    "Assignment": {"slot": NUMBER, "owner": NAME, "secondary": NAME, "serial": COUNT, "reason": DETAIL},
    "Workers": {"as_configured": FLAG, "count": Whole(0, 100_000), "by": WORD},
    "StandbyTarget": {
        "slot": NUMBER,
        "as_configured": FLAG,
        "batch_size": COUNT,
        "policy": WORD,
        "max_bandwidth": Real(0.0, np.inf),
        "max_recovery_s": Real(0.0, np.inf),
        "priority": WORD,
    },
    "Placement": {"serial": COUNT, "slots": NUMBER, "slot": SENSORS, "table_sha256": SHA256},
    "HelperRequest": {"slot": NUMBER, "epoch": COUNT, "sensor": SENSORS, "from_step": Whole(NOT_YET, MAX_TIME_US)},
    "RecoveryTarget": {
        "as_configured": FLAG,
        "eps": Real(0.0, MAX_FLOAT),
        "delta": Real(0.0, 1.0),
        "helpers": NUMBER,
        "unbounded": WORD,
    },
    "Late": {
        "version": VERSION,
        "slot": NUMBER,
        "offset": OFFSET,
        "reason": WORD,
        "batch": PART,
        "cursor": Whole(0, MAX_TIME_US + 1, NOT_YET),
        "recovered": PART,
    },
    "DeadLetter": {
        "version": VERSION,
        "topic": NAME,
        "partition": NUMBER,
        "offset": OFFSET,
        "reason": DETAIL,
        "detail": TEXT,
        "key": BYTES,
        "value": BYTES,
    },
}
"""Message -> field -> what it may hold."""

ALIKE: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "TupleBatch": (("sensor", "value"), ("helper", "helper_value")),
    "Helpers": (("sensor", "name", "edge"),),
    "Recovered": (("quality", "sensor", "mean", "sd", "bound"),),
    "ResultBlock": (("quality", "sensor", "mean", "sd", "bound", "q1", "q2", "q3"),),
    "Window": (("sum", "minimum", "maximum", "sum_sd", "extreme_sd"),),
}
"""Fields of a message that have equally many elements."""

_FLOATS = [struct.Struct(f"<{number}d") for number in range(257)]
"""A column of so few is looked through without numpy, which takes longer to begin than to do it."""

BODY = "body"
"""The oneof of a record that may be one of several messages."""


class Condition(NamedTuple):
    """What must hold of a message `m`, as an expression in it and its fields' names."""

    field: str
    holds: str
    expected: str


def fault(message: Message) -> str:
    """Return "" if every field is within its range, else the first that is not: field, found, expected."""
    check = _CHECKS[type(message)]
    return "" if check.holds(message, *check.fields(message)) else check.wrong(message)


class _Check:
    """A message's conditions, compiled: all of them cost what two or three would cost by calls.

    Every tuple of every edge comes by here.
    """

    def __init__(self, kind: Descriptor) -> None:
        self.conditions = _conditions(kind)
        names = [name for name, rule in RANGES[kind.name].items() if not isinstance(rule, Part)]
        self.fields: Callable[[Message], Sequence[Any]] = attrgetter(*names) if len(names) > 1 else _none
        self._arguments = ", ".join(("m", *(names if len(names) > 1 else ())))
        self.holds = self._compiled(" and ".join(condition.holds for condition in self.conditions) or "True")
        self._tests: list[Callable[..., bool]] = []  # one a condition, made for the first message that is refused

    def _compiled(self, holds: str) -> Callable[..., bool]:
        test: Callable[..., bool] = eval(f"lambda {self._arguments}: {holds}", _ENVIRONMENT)  # noqa: S307 - of the table
        return test

    def wrong(self, message: Message) -> str:
        """Return what the first condition that does not hold is about: field, found, expected."""
        values = self.fields(message)
        self._tests = self._tests or [self._compiled(item.holds) for item in self.conditions]
        first = next(
            item for item, test in zip(self.conditions, self._tests, strict=True) if not test(message, *values)
        )
        name = message.WhichOneof(BODY) if first.field == BODY else first.field
        found = getattr(message, name)
        parts = found.values() if isinstance(found, Mapping) else found if isinstance(found, Sequence) else (found,)
        within = next((wrong for part in parts if isinstance(part, Message) and (wrong := fault(part))), "")
        if within:
            return f"{name}.{within}"
        shown = f"a length of {len(found)}" if isinstance(found, str | bytes) else str(found)[:MAX_WORD]
        return f"{name}: found {shown}, expected {first.expected}"


def _none(_message: Message) -> tuple[Any, ...]:
    return ()


def _body_fault(message: Message) -> str:
    kind = message.WhichOneof(BODY)
    return "" if kind is None else fault(getattr(message, kind))


def _sound(column: bytes, most: float) -> bool:
    """Return whether all of a float64 column's elements are within [-most, most] or NaN."""
    number = len(column) >> 3
    # (the length of a vector is no less than any of its elements; of one with a NaN it is NaN, and says nothing)
    if number < len(_FLOATS) and math.hypot(*_FLOATS[number].unpack(column)) <= most:
        return True
    values = np.frombuffer(column, dtype=F64)
    with np.errstate(over="ignore", invalid="ignore"):  # a signalling NaN is invalid, and a NaN all the same
        if values.dot(values) <= most:
            return True
    return not (np.abs(values) > most).any()


def is_sha256(text: str) -> bool:
    """Return whether a text is a SHA-256 in 64 lower-case hexadecimal digits."""
    return len(text) == 64 and not set(text) - set("0123456789abcdef")


def _number(value: str, rule: Whole | Real) -> str:
    other = f" or {value} == {rule.other}" if isinstance(rule, Whole) and rule.other else ""
    return f"({rule.low!r} <= {value} <= {rule.high!r}{other})"


def _condition(field: FieldDescriptor, rule: Rule) -> Condition:
    """Write down what a row of the table says of a field."""
    name = value = field.name
    entry = field.message_type
    of_map = entry is not None and entry.GetOptions().map_entry
    if entry is not None and of_map:
        field = entry.fields_by_name["value"]
        value = f"m.{name}.values()"
    several = of_map or field.is_repeated
    each = "x" if several else name
    match rule:
        case Whole() | Real():
            holds, expected = _number(each, rule), f"{rule.low} to {rule.high}"
        case Text(most):
            holds, expected = f"len({each}) <= {most}", f"at most {most}"
        case Digest():
            holds = f"(not {each} or is_sha256({each}))"
            expected = "64 lower-case hexadecimal digits, or none"
        case Column(kind, None):
            holds, expected = f"not len({each}) % {kind.itemsize}", f"a whole number of {kind}"
        case Column(kind, most):
            holds = f"(not {each} or not len({each}) % {kind.itemsize} and sound({each}, {most!r}))"
            expected = f"{kind}, each from -{most:g} to {most:g} or NaN"
        case Part():
            value = value if of_map else f"m.{name}"
            holds, expected = "not fault(x)" if several else f"not (m.HasField({name!r}) and fault({value}))", ""
    if several:
        holds = f"all({holds} for x in {value})"
    if of_map:
        holds += f" and all(len(key) <= {MAX_NAME} for key in m.{name})"
    return Condition(name, holds, expected)


def _conditions(kind: Descriptor) -> list[Condition]:
    rows = RANGES[kind.name]
    bodies = {field.name for oneof in kind.oneofs if oneof.name == BODY for field in oneof.fields}
    found = [
        _condition(kind.fields_by_name[name], rule)
        for name, rule in rows.items()
        if name not in bodies and not (isinstance(rule, Part) and kind.fields_by_name[name].message_type is None)
    ]
    if bodies:
        # One of many: only the one that is there is looked at.
        found.append(Condition(BODY, "not body_fault(m)", "within its ranges"))
    for names in ALIKE.get(kind.name, ()):
        widths = {name: rule.kind.itemsize if isinstance(rule := rows[name], Column) else 1 for name in names}
        first, *others = (f"len({name}) // {width}" for name, width in widths.items())
        holds = " and ".join(f"{first} == {other}" for other in others)
        found.append(Condition(names[0], holds, f"as many elements as {', '.join(names[1:])}"))
    return found


_ENVIRONMENT: dict[str, Any] = {
    "fault": fault,
    "body_fault": _body_fault,
    "sound": _sound,
    "is_sha256": is_sha256,
    "inf": np.inf,
}
_CHECKS = {
    getattr(tsunagi_pb2, name): _Check(descriptor)
    for name, descriptor in tsunagi_pb2.DESCRIPTOR.message_types_by_name.items()
}
