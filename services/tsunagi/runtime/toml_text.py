"""Writes configurations as TOML. Python's standard library reads TOML, but does not write it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import Any

BARE = re.compile("[A-Za-z0-9_-]+")
"""A key of these characters needs no quotes in TOML."""


def to_toml(tables: Mapping[str, Any]) -> str:
    """Return a configuration as TOML. Each table becomes a section, and a table in a section an inline table.

    A setting whose value is None is left out.
    """
    plain = {key: value for key, value in tables.items() if not isinstance(value, Mapping)}
    lines = _pairs(plain)
    for name, table in tables.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{_key(name)}]", *_pairs(table)]
    return "\n".join(lines) + "\n"


def _pairs(table: Mapping[str, Any]) -> list[str]:
    return [f"{_key(key)} = {_value(value)}" for key, value in table.items() if value is not None]


def _value(value: Any) -> str:  # noqa: ANN401 - whatever a setting may be
    match value:
        case Mapping():
            return "{ " + ", ".join(_pairs(value)) + " }"
        case bool():
            return str(value).lower()
        case str() | PathLike():
            # TOML has the escapes of JSON, but demands one for DEL as well.
            return json.dumps(fspath(value), ensure_ascii=False).replace("\x7f", "\\u007f")
        case Sequence():
            return "[" + ", ".join(map(_value, value)) + "]"
    return repr(value)


def _key(key: object) -> str:
    text = str(key)
    return text if BARE.fullmatch(text) else json.dumps(text, ensure_ascii=False)
