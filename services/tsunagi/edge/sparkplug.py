"""Reads Sparkplug B: payloads in protobuf, whose metrics get their names from birth certificates.

Source: https://sparkplug.eclipse.org/specification/version/3.0/documents/sparkplug-specification-3.0.0.pdf
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from tsunagi.edge.decode import MISSING, NO_BIRTH, NO_READING, UNREADABLE, ReadingFault
from tsunagi.edge.inbox import Message
from tsunagi.edge.payload_format import PayloadFormat
from tsunagi.runtime.messages import sparkplug_b_pb2 as pb

NAMESPACE = "spBv1.0"
"""The first level of all topics of Sparkplug B."""
_BIRTHS = frozenset({"NBIRTH", "DBIRTH"})
"""Types of messages that say which metrics a node or a device has, with their values."""
_DATA = frozenset({"NDATA", "DDATA"})
"""Types of messages that have values."""
_OTHERS = frozenset({"NDEATH", "DDEATH", "NCMD", "DCMD", "STATE"})
"""Types of messages that have no values of sensors."""
_OF_PROTOCOL = ("bdSeq", "Node Control/", "Device Control/")
"""Beginnings of the names of metrics that serve the protocol itself."""
_SIGNED: dict[int, int] = {pb.Int8: 8, pb.Int16: 16, pb.Int32: 32, pb.Int64: 64}
"""How many bits the signed integers have, by datatype: the wire has them in two's complement without a sign."""
_WHOLE = ("int_value", "long_value")
"""Fields whose meaning depends on the datatype."""
_PLAIN = frozenset({*_WHOLE, "float_value", "double_value", "boolean_value", "string_value"})
"""Fields that have a number, a boolean or a text."""

_UNIT = "engUnit"
"""The property of a metric that is its unit."""

_ASK_AGAIN_US = 60_000_000
"""A node is asked for its births at most so often, microseconds: many edges may ask, and a node may be slow."""
_REBIRTH = "Node Control/Rebirth"
"""The metric of a command with which a node is asked for its births, and those of its devices."""

_Device = tuple[str, str, str]
"""(group, edge node, device); the device is "" for metrics of the node itself."""


class _Metric(NamedTuple):
    """What a birth certificate says of a metric."""

    name: str
    datatype: int


class Sparkplug(PayloadFormat):
    """Reads messages with the topic spBv1.0/GROUP/TYPE/NODE or .../NODE/DEVICE.

    A message becomes an object with group, node, device, timestamp and metrics. Each metric has a name, a value and,
    if it has them, a timestamp of its own and a unit; times are milliseconds since the epoch. The device of a node's
    own metrics is the node.
    """

    def __init__(self) -> None:
        self._aliases: dict[_Device, dict[int, _Metric]] = {}
        self._datatypes: dict[_Device, dict[str, int]] = {}
        self._sessions: dict[tuple[str, str], int] = {}  # bdSeq of the last birth of each (group, node)
        self._asked_us: dict[tuple[str, str], int] = {}  # when each (group, node) was asked for its births last

    def bodies(self, message: Message) -> Iterator[object]:
        levels = message.topic.split("/")
        if levels[0] == NAMESPACE and levels[1:2] == ["STATE"]:
            yield ReadingFault(NO_READING, "", "STATE")
            return
        if levels[0] != NAMESPACE or len(levels) not in (4, 5) or levels[2] not in _BIRTHS | _DATA | _OTHERS:
            found = f"found the topic {message.topic[:200]!r}"
            yield ReadingFault(UNREADABLE, "", f"{found}, expected {NAMESPACE}/GROUP/TYPE/NODE/DEVICE of Sparkplug")
            return
        _, group, kind, node, *rest = levels
        device: _Device = group, node, rest[0] if rest else ""
        try:
            payload = pb.Payload.FromString(message.payload)
        except DecodeError:
            found = f"found {len(message.payload)} bytes that begin with {message.payload[:16].hex(' ')!r}"
            yield ReadingFault(UNREADABLE, "", f"{found}, expected a payload of Sparkplug B")
            return
        if kind in _OTHERS:
            if kind.endswith("DEATH"):
                self._end(device, payload)
            yield ReadingFault(NO_READING, "", kind)
            return
        if kind in _BIRTHS:
            self._begin(device, payload)
        for body in self._read(device, payload):
            if isinstance(body, ReadingFault) and body.reason == NO_BIRTH:
                self._ask(group, node, message.arrived_us)
            yield body

    def _ask(self, group: str, node: str, now_us: int) -> None:
        """Ask a node for its births, unless it was asked just now. Others than the primary host may do so, too."""
        asked_us = self._asked_us.get((group, node))
        if self.ask is None or (asked_us is not None and 0 <= now_us - asked_us < _ASK_AGAIN_US):
            return
        self._asked_us[group, node] = now_us
        command = pb.Payload(timestamp=now_us // 1000)
        command.metrics.add(name=_REBIRTH, timestamp=now_us // 1000, datatype=pb.Boolean, boolean_value=True)
        self.ask(f"{NAMESPACE}/{group}/NCMD/{node}", command.SerializeToString())

    def _begin(self, device: _Device, payload: pb.Payload) -> None:
        """Learn the metrics of a birth certificate. That of a node begins a session, in which all devices are born."""
        group, node, name = device
        if not name:
            self._forget_node(group, node)
            self._sessions[group, node] = _session(payload)
        self._aliases[device] = {
            metric.alias: _Metric(metric.name, metric.datatype)
            for metric in payload.metrics
            if metric.HasField("alias") and metric.name
        }
        self._datatypes[device] = {metric.name: metric.datatype for metric in payload.metrics}

    def _end(self, device: _Device, payload: pb.Payload) -> None:
        """Forget the metrics of what has died. A node's death may come after the birth of its next session."""
        group, node, name = device
        if name:
            self._aliases.pop(device, None)
            self._datatypes.pop(device, None)
        elif self._sessions.get((group, node)) in (None, _session(payload)):
            self._forget_node(group, node)

    def _forget_node(self, group: str, node: str) -> None:
        for known in [known for known in self._datatypes if known[:2] == (group, node)]:
            self._aliases.pop(known, None)
            del self._datatypes[known]

    def _read(self, device: _Device, payload: pb.Payload) -> Iterator[object]:
        """Yield the object that a message with values becomes, after what cannot be used of it."""
        group, node, name = device
        metrics: list[dict[str, Any]] = []
        faults = 0
        for metric in payload.metrics:
            found = self._metric(device, metric)
            if isinstance(found, ReadingFault):
                faults += 1
                yield found
            else:
                metrics.append(found)
        if metrics or not faults:
            body: dict[str, Any] = {"group": group, "node": node, "device": name or node}
            yield (
                body
                | ({"timestamp": payload.timestamp} if payload.HasField("timestamp") else {})
                | {"metrics": metrics}
            )

    def _metric(self, device: _Device, metric: pb.Payload.Metric) -> dict[str, Any] | ReadingFault:
        """Return a metric with its name, value and time, or why it cannot be used."""
        name, datatype = metric.name, metric.datatype
        where = "/".join(filter(None, device))
        if not name:
            known = self._aliases.get(device, {}).get(metric.alias) if metric.HasField("alias") else None
            if known is None:
                told = f"the alias {metric.alias}" if metric.HasField("alias") else "neither a name nor an alias"
                detail = f"{where}: found {told}, expected one of a birth certificate that the edge has received"
                return ReadingFault(NO_BIRTH, "", detail)
            name, datatype = known.name, datatype or known.datatype
        if name.startswith(_OF_PROTOCOL):
            return ReadingFault(NO_READING, "", f"{where}: {name}")
        kind = metric.WhichOneof("value")
        if metric.is_null or kind is None:
            return ReadingFault(MISSING, "", f"{where}: {name}: null")
        value: object = getattr(metric, kind)
        if kind in _WHOLE:
            datatype = datatype or self._datatypes.get(device, {}).get(name, 0)
            if not datatype:
                detail = f"{where}: {name}: found an integer without a datatype, expected one, or a birth certificate"
                return ReadingFault(NO_BIRTH, "", detail)
            value = _signed(int(getattr(metric, kind)), _SIGNED.get(datatype, 0))
        elif kind not in _PLAIN:
            value = {"datatype": pb.DataType.Name(datatype) if datatype in pb.DataType.values() else datatype}
        time = {"timestamp": metric.timestamp} if metric.HasField("timestamp") else {}
        unit = {"unit": text} if metric.HasField("properties") and (text := _unit(metric)) else {}
        return {"name": name, "value": value} | time | unit


def _unit(metric: pb.Payload.Metric) -> str:
    """Return the unit that the properties of a metric tell; "" if they tell none."""
    pairs = zip(metric.properties.keys, metric.properties.values, strict=False)
    return next((value.string_value for key, value in pairs if key == _UNIT), "")


def _session(payload: pb.Payload) -> int:
    """Return the number of the session (bdSeq) that a birth or a death of a node is of; -1 if it says none."""
    return next((metric.long_value or metric.int_value for metric in payload.metrics if metric.name == "bdSeq"), -1)


def _signed(number: int, bits: int) -> int:
    """Return an integer that the wire has in two's complement.

    Args:
        bits: of its datatype; 0 = it has no sign. Some senders write more bits than that: copies of the sign.
    """
    if not bits:
        return number
    number &= (1 << bits) - 1
    return number - (1 << bits) if number >> (bits - 1) else number
