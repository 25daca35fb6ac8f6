"""Rows as JSON objects, for messages to people and programs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from tsunagi.sink.rows import Schema


def plain(value: object) -> object:
    """Return a value as JSON has it: times as ISO 8601, and null for what is not a finite number."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def as_message(schema: Schema, row: Sequence[Any]) -> bytes:
    """Return the message of a row: its columns, the query, and the name by which a repeat is known."""
    columns = {name: plain(value) for name, value in schema.as_mapping(row).items()}
    head = {"query": schema.query, "name": schema.name_of(row)}
    return json.dumps(head | {"row": columns}, ensure_ascii=False).encode()
