"""The formats of live messages ([source] format): each makes the objects in which `[[source.fields]]` find readings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from tsunagi.edge.inbox import Message
from tsunagi.edge.json_format import JsonFormat
from tsunagi.runtime.settings import SourceSettings


class PayloadFormat(Protocol):
    """Reads the payloads of one source, whose messages it is given in the order in which they came."""

    def bodies(self, message: Message) -> Iterator[object]:
        """Yield what a message has as JSON values, and a `ReadingFault` for each part that cannot be read."""


def make_format(source: SourceSettings) -> PayloadFormat:
    """Return the format that the settings name. The libraries of the others are not imported."""
    match source.format:
        case "json":
            return JsonFormat()
        case "line-protocol":
            from tsunagi.edge.line_protocol import LineProtocol

            return LineProtocol()
