"""Rows as JSON objects."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime

import pytest

from tsunagi.query.values import Kind
from tsunagi.sink.messages import as_message, plain
from tsunagi.sink.rows import Schema, SinkColumn

NOON = datetime(2024, 5, 6, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (NOON, "2024-05-06T12:00:00.000000+00:00"),
        (math.nan, None),
        (-math.inf, None),
        (0.1, 0.1),
        (True, True),
        (-(2**63), -(2**63)),
        (None, None),
    ],
)
def test_values_as_json_has_them(value: object, expected: object) -> None:
    assert plain(value) == expected


def test_a_message_has_the_query_the_name_and_the_row() -> None:
    columns = (SinkColumn("time", Kind.TIMESTAMP), SinkColumn("what", Kind.TEXT), SinkColumn("mean", Kind.DOUBLE))
    message = as_message(Schema("alarms", columns, ("time", "what")), (NOON, 'ü"\n', math.nan))
    assert "ü".encode() in message
    assert json.loads(message) == {
        "query": "alarms",
        "name": 'alarms/2024-05-06T12:00:00+00:00/ü"\n',
        "row": {"time": "2024-05-06T12:00:00.000000+00:00", "what": 'ü"\n', "mean": None},
    }
