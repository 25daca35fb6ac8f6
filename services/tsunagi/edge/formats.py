"""Makes the format that `[source] format` names.

A new one is a `tsunagi.edge.payload_format.PayloadFormat` and a case here. A module of a format is imported only where
its format is used: its library costs memory and time.
"""

from __future__ import annotations

from tsunagi.edge.json_format import JsonFormat
from tsunagi.edge.payload_format import PayloadFormat
from tsunagi.edge.source import SourceError
from tsunagi.runtime.settings import SourceSettings

BINARY = frozenset({"sparkplug", "avro"})
"""Formats whose messages are no texts."""


def make_format(source: SourceSettings) -> PayloadFormat:
    """Return the format that the settings name.

    Raises:
        SourceError: its library is not installed, or does not take the settings.
    """
    match source.format:
        case "json":
            return JsonFormat()
        case "line-protocol":
            from tsunagi.edge.line_protocol import LineProtocol

            return LineProtocol()
        case "sparkplug":
            from tsunagi.edge.sparkplug import Sparkplug

            return Sparkplug()
        case "avro":
            try:
                from tsunagi.edge.avro import Avro
            except ImportError as error:
                raise SourceError(
                    f"[source] format = 'avro': found no module {error.name!r}, expected the extra avro: "
                    "pip install 'tsunagi-stream[avro]'"
                ) from None
            return Avro(source.kafka)
