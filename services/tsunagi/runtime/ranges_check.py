"""Checks messages by the table of `tsunagi.runtime.ranges`, whose rows are compiled to one test for each message."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from tsunagi.runtime.messages import tsunagi_pb2
from tsunagi.runtime.ranges import (
    ALIKE,
    F64,
    MAX_NAME,
    MAX_WORD,
    RANGES,
    AnyValue,
    Digest,
    Elements,
    Real,
    Rule,
    Text,
    Whole,
    is_sha256,
)

_FLOATS = [struct.Struct(f"<{number}d") for number in range(257)]
"""Forms of columns of up to 256 floats, by their number. Such a column is checked without numpy, since its calls take
longer than the check."""

BODY = "body"
"""The name of the oneof in records that have one of several messages."""


class Condition(NamedTuple):
    """A condition on a message.

    Attributes:
        field: the field that it is about.
        holds: a Python expression in `m`, the message.
        expected: what was expected, for the error.
    """

    field: str
    holds: str
    expected: str


def fault(message: Message) -> str:
    """Return "" if every field is within its range. Otherwise name the first one that is not: found and expected."""
    check = _CHECKS[type(message)]
    return "" if check.holds(message) else check.wrong(message)


class _Check:
    """The conditions of a message, compiled to one function.

    All of them together take as long as two or three calls would. This matters, because every batch of every edge and
    every heartbeat are checked.

    Attributes:
        conditions: one for each field, and one for columns of equal length.
        holds: returns whether a message satisfies all of them.
    """

    def __init__(self, kind: Descriptor) -> None:
        self.conditions = _conditions(kind)
        alike = {name for names in ALIKE.get(kind.name, ()) for name in names}
        self._columns = [
            name for name, rule in RANGES[kind.name].items() if isinstance(rule, Elements | Digest) or name in alike
        ]
        self.holds = self._compiled(" and ".join(condition.holds for condition in self.conditions) or "True")
        self._tests: list[Callable[[Message], bool]] = []  # one for each condition, made when one is refused

    def _compiled(self, holds: str) -> Callable[[Message], bool]:
        """Compile an expression in `m`, the message. A column is read once, since each look at it makes a copy."""
        columns = [name for name in self._columns if f"m.{name}" in holds]
        for name in columns:
            holds = re.sub(rf"\bm\.{name}\b", name, holds)
        made: dict[str, Callable[[Message], bool]] = {}
        lines = ["def holds(m):", *(f" {name} = m.{name}" for name in columns), f" return {holds}"]
        exec("\n".join(lines), _ENVIRONMENT, made)  # noqa: S102 - of the table
        return made["holds"]

    def wrong(self, message: Message) -> str:
        """Return the first condition that does not hold, in words: field, found, expected."""
        self._tests = self._tests or [self._compiled(item.holds) for item in self.conditions]
        first = next(item for item, test in zip(self.conditions, self._tests, strict=True) if not test(message))
        name = message.WhichOneof(BODY) if first.field == BODY else first.field
        found = getattr(message, name)
        parts = found.values() if isinstance(found, Mapping) else found if isinstance(found, Sequence) else (found,)
        within = next((wrong for part in parts if isinstance(part, Message) and (wrong := fault(part))), "")
        if within:
            return f"{name}.{within}"
        shown = f"a length of {len(found)}" if isinstance(found, str | bytes) else str(found)[:MAX_WORD]
        return f"{name}: found {shown}, expected {first.expected}"


def _body_fault(message: Message) -> str:
    kind = message.WhichOneof(BODY)
    return "" if kind is None else fault(getattr(message, kind))


def _sound(column: bytes, most: float) -> bool:
    """Return whether all of a float64 column's elements are within [-most, most] or NaN."""
    number = len(column) >> 3
    # The length of a vector is no less than any of its elements. If there is a NaN, the length is NaN, and the test
    # below decides.
    if number < len(_FLOATS) and math.hypot(*_FLOATS[number].unpack(column)) <= most:
        return True
    values = np.frombuffer(column, dtype=F64)
    with np.errstate(over="ignore", invalid="ignore"):  # a signalling NaN would raise a warning
        if values.dot(values) <= most:
            return True
    return not (np.abs(values) > most).any()


def _number(value: str, rule: Whole | Real) -> str:
    other = f" or {value} == {rule.other}" if isinstance(rule, Whole) and rule.other else ""
    return f"({rule.low!r} <= {value} <= {rule.high!r}{other})"


def _condition(field: FieldDescriptor, rule: Rule) -> Condition:
    """Return the condition that a row of the table sets for a field."""
    name = field.name
    value = f"m.{name}"
    entry = field.message_type
    of_map = entry is not None and entry.GetOptions().map_entry
    if entry is not None and of_map:
        field = entry.fields_by_name["value"]
        value = f"m.{name}.values()"
    several = of_map or field.is_repeated
    each = "x" if several else value
    fits = "" if field.message_type is None else f"_fits_{field.message_type.name}"
    match rule:
        case Whole() | Real():
            holds, expected = _number(each, rule), f"{rule.low} to {rule.high}"
        case Text(most):
            holds, expected = f"len({each}) <= {most}", f"at most {most}"
        case Digest():
            holds = f"(not {each} or _is_sha256({each}))"
            expected = "64 lower-case hexadecimal digits, or none"
        case Elements(kind, None):
            holds, expected = f"not len({each}) % {kind.itemsize}", f"a whole number of {kind}"
        case Elements(kind, most):
            holds = f"(not {each} or not len({each}) % {kind.itemsize} and _sound({each}, {most!r}))"
            expected = f"{kind}, each from -{most:g} to {most:g} or NaN"
        case AnyValue():
            holds, expected = f"(not m.HasField({name!r}) or {fits}({each}))", ""
    if several:
        every = f"map({fits}, {value})" if isinstance(rule, AnyValue) else f"({holds} for x in {value})"
        holds = f"(not m.{name} or all({every}))"  # an iterator over nothing costs more than five numbers
    if of_map:
        holds += f" and all(len(key) <= {MAX_NAME} for key in m.{name})"
    return Condition(name, holds, expected)


def _conditions(kind: Descriptor) -> list[Condition]:
    rows = RANGES[kind.name]
    bodies = {field.name for oneof in kind.oneofs if oneof.name == BODY for field in oneof.fields}
    found = [
        _condition(kind.fields_by_name[name], rule)
        for name, rule in rows.items()
        if name not in bodies and not (isinstance(rule, AnyValue) and kind.fields_by_name[name].message_type is None)
    ]
    if bodies:
        # Only the message that is present in the oneof is checked.
        found.append(Condition(BODY, "not _body_fault(m)", "within its ranges"))
    for names in ALIKE.get(kind.name, ()):
        widths = {name: rule.kind.itemsize if isinstance(rule := rows[name], Elements) else 1 for name in names}
        first, *others = (f"len(m.{name}) // {width}" for name, width in widths.items())
        holds = " and ".join(f"{first} == {other}" for other in others)
        found.append(Condition(names[0], holds, f"as many elements as {', '.join(names[1:])}"))
    return found


_ENVIRONMENT: dict[str, Any] = {
    "_body_fault": _body_fault,
    "_sound": _sound,
    "_is_sha256": is_sha256,
    "inf": np.inf,
}
"""The names that the compiled conditions use. They begin with a line, as no field does."""
_CHECKS = {
    getattr(tsunagi_pb2, name): _Check(descriptor)
    for name, descriptor in tsunagi_pb2.DESCRIPTOR.message_types_by_name.items()
}
"""The compiled check of each message."""
_ENVIRONMENT |= {f"_fits_{kind.DESCRIPTOR.name}": check.holds for kind, check in _CHECKS.items()}
