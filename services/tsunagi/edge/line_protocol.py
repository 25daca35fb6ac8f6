"""Reads InfluxDB's line protocol, as Telegraf's outputs send it.

Source: https://docs.influxdata.com/influxdb/v2/reference/syntax/line-protocol/
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from line_protocol_parser import LineFormatError, parse_line

from tsunagi.edge.decode import UNREADABLE, ReadingFault
from tsunagi.edge.inbox import Message
from tsunagi.edge.json_format import text_of
from tsunagi.edge.payload_format import PayloadFormat

_LINES = re.compile(r'[ \t\r]*(?:#[^\n]*|(?:\\[^\n]|[^ \n])*(?:"(?:\\.|[^"\\])*"|[^\n])*)', re.DOTALL)
"""Matches a line: a comment; or measurement and tags up to the first space, and then fields. Among fields a line break
may stand between quotes."""


class LineProtocol(PayloadFormat):
    """Makes of each line an object with measurement, tags, fields and time.

    `time` is the number that the line has, in whatever unit; a line without one has no key `time`.
    """

    def bodies(self, message: Message) -> Iterator[object]:
        try:
            text = text_of(message.payload)
        except ValueError as error:
            yield ReadingFault(UNREADABLE, message.sensor or "", str(error))
            return
        number, at, empty = 1, 0, True
        for match in _LINES.finditer(text):
            number, at = number + text.count("\n", at, match.start()), match.start()
            line = match.group().strip()
            if line and not line.startswith("#"):
                empty = False
                yield _body(line, number)
        if empty:
            yield ReadingFault(UNREADABLE, message.sensor or "", "found no line, expected line protocol")


def _body(line: str, number: int) -> object:
    """Return what a line says, or why it cannot be read.

    Args:
        number: the line's number in its message, from 1.
    """
    try:
        body = parse_line(line)
    except (LineFormatError, ValueError) as error:  # ValueError: a character that C's texts cannot have
        detail = f"line {number}: found {line[:80]!r}, expected line protocol ({str(error).rstrip('.')})"
        return ReadingFault(UNREADABLE, "", detail)
    return {key: item for key, item in body.items() if item is not None}
