"""Recognises the format of messages, and proposes `[source] fields` for those that are no JSON."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from tsunagi.edge.decode import ReadingFault
from tsunagi.edge.inbox import Message
from tsunagi.edge.line_protocol import LineProtocol
from tsunagi.edge.sparkplug import NAMESPACE
from tsunagi.project.shapes import IDS, Sample, propose, recent_unit, written

Format = Literal["json", "line-protocol", "sparkplug"]
_SIGNS = frozenset("{}:!")
"""Signs that mean something in `sensor`: a tag whose name has one cannot stand there."""


def format_of(messages: Iterable[Message]) -> Format:
    """Return the format that most messages have."""
    formats: Counter[Format] = Counter(_format(message) for message in messages)
    return formats.most_common(1)[0][0] if formats else "json"


def _format(message: Message) -> Format:
    if message.topic.split("/")[0] == NAMESPACE:
        return "sparkplug"
    if message.payload.lstrip()[:1] in (b"{", b"["):
        return "json"
    unreadable = any(isinstance(body, ReadingFault) for body in LineProtocol().bodies(message))
    return "json" if unreadable else "line-protocol"


def propose_lines(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Return a table for each measurement of messages in line protocol, whose numbers are all values."""
    measurements: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        if any(not isinstance(value, str) for value in sample.body["fields"].values()):
            measurements[sample.body["measurement"]].append(sample)
    return [_lines_entry(name, some, several=len(measurements) > 1) for name, some in sorted(measurements.items())]


def _lines_entry(measurement: str, samples: Sequence[Sample], *, several: bool) -> dict[str, Any]:
    """Return the table of a measurement. Its sensors are called by it, by the tags that tell them apart, and by field.

    Args:
        several: whether there are other measurements.
    """
    tags = [sample.body["tags"] for sample in samples]
    always = [tag for tag in tags[0] if all(tag in mine for mine in tags) and not _SIGNS & set(tag)]
    telling = sorted(tag for tag in always if tag.lower() in IDS or len({mine[tag] for mine in tags}) > 1)
    paths = ["measurement", *(written(("tags", tag)) for tag in telling)]
    quoted = measurement.replace("\\", "\\\\").replace("'", "\\'")
    entry: dict[str, Any] = {"each": f"[@][?measurement=='{quoted}']"} if several else {}
    entry |= {"values": ["fields.*"], "sensor": ".".join(f"{{{path}}}" for path in paths) + ".{field}"}
    unit = recent_unit([(sample.body.get("time"), sample.arrived_us) for sample in samples])
    return entry | ({"time": "time", "time_unit": unit} if unit else {"time": ""})


def propose_metrics(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Return the table of messages of Sparkplug B, if they have any metrics."""
    devices: dict[str, set[tuple[str, str]]] = defaultdict(set)
    nodes: dict[str, set[str]] = defaultdict(set)
    for sample in samples:
        body = sample.body
        if body["metrics"]:
            devices[body["device"]].add((body["group"], body["node"]))
            nodes[body["node"]].add(body["group"])
    if not devices:
        return []
    sensor = "{device}.{name}"
    if any(len(places) > 1 for places in devices.values()):
        sensor = "{node}." + sensor
        if any(len(groups) > 1 for groups in nodes.values()):
            sensor = "{group}." + sensor
    return [{"each": "metrics", "values": ["value"], "sensor": sensor, "time": "timestamp", "time_unit": "ms"}]


PROPOSALS: Mapping[Format, Callable[[Sequence[Sample]], list[dict[str, Any]]]] = {
    "json": propose,
    "line-protocol": propose_lines,
    "sparkplug": propose_metrics,
}
"""What proposes the tables of messages of each format."""
