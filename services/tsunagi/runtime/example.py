"""Makes the documented example of the configuration file from the settings themselves (``make docs``)."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from pydantic import BaseModel, SecretStr

from tsunagi.runtime.settings import Settings

_WIDTH = 120
"""Longest line that has both a key and its meaning, in characters. Otherwise the meaning gets a line of its own."""
_HEAD = """\
# Everything that Tsunagi can be told, with its default. Copy this file to tsunagi.toml (or name another one in
# $TSUNAGI_CONFIG) and change what you need: what is left out has the value shown here. An unknown key is an error.
#
# Every value can also be given by an environment variable, which then wins: TSUNAGI_STATE, TSUNAGI_SENSORS, and
# TSUNAGI_<SECTION>__<KEY> with two underscores for the rest, as in TSUNAGI_KAFKA__SERVERS=broker-1:9092. Lists and
# tables are written as JSON there. Paths are relative to the directory in which the services start.
#
# Made by `make docs` from services/tsunagi/runtime/settings/.
"""
"""The comment at the beginning of the file."""


_BARE = re.compile(r"[A-Za-z0-9_-]+")
"""Matches keys that need no quotes."""


def document() -> str:
    """Return the text of ``tsunagi.toml.example``: every key with its default and its meaning."""
    lines = _keys(Settings, Settings.model_construct())
    lines += _sections(Settings, "")
    return _HEAD + "\n" + "\n".join(lines) + "\n"


def _sections(model: type[BaseModel], above: str) -> list[str]:
    lines = []
    for name, field in model.model_fields.items():
        if is_section(field.annotation):
            section = field.get_default()
            summary = (type(section).__doc__ or "").partition("\n")[0]
            lines += ["", f"# {summary}", f"[{above}{name}]", *_keys(type(section), section)]
            lines += _sections(type(section), f"{above}{name}.")
    return lines


def _keys(model: type[BaseModel], values: BaseModel) -> list[str]:
    lines = []
    for name, field in model.model_fields.items():
        if is_section(field.annotation):
            continue
        key = f"{name} = {toml_text(getattr(values, name))}"
        meaning = f"# {field.description}"
        together = f"{key}  {meaning}"
        lines += [together] if len(together) <= _WIDTH else [meaning, key]
    return lines


def is_section(annotation: object) -> bool:
    """Return whether a field is a section of its own and not a key."""
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _key(key: object) -> str:
    return str(key) if _BARE.fullmatch(str(key)) else json.dumps(str(key))


def toml_text(value: object) -> str:
    """Return a default as it is written in TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, SecretStr):
        return json.dumps(value.get_secret_value())
    if isinstance(value, str | Path):
        return json.dumps(str(value))
    if isinstance(value, tuple | list):
        return "[" + ", ".join(toml_text(item) for item in value) + "]"
    if isinstance(value, BaseModel):
        return toml_text(value.model_dump())
    if isinstance(value, dict):
        pairs = ", ".join(f"{_key(key)} = {toml_text(item)}" for key, item in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    return repr(value)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(document(), encoding="utf-8")
