"""``docs/reference/settings.md``: every setting with its default and meaning, a table a section (``make docs``)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args, get_origin

from pydantic import BaseModel

from tsunagi.runtime.example import is_section, toml_text
from tsunagi.runtime.settings import Settings

_HEAD = """\
# Settings

Settings stand in `tsunagi.toml`, a table a section. An environment variable wins over the file: `[kafka] servers` is
`TSUNAGI_KAFKA__SERVERS`. What is left out has the default shown here. An unknown key is an error. There may be several
tables of a heading in double brackets, and the sections below it belong to each.
`tsunagi.toml.example` is the same as a file to copy. Made by `make docs` from `services/tsunagi/runtime/settings/`."""
"""How the page begins."""


def document() -> str:
    """Return ``docs/reference/settings.md``."""
    values = Settings.model_construct()
    lines = [_HEAD, "", "## Before any section", "", *_table(Settings, values), *_sections(Settings, "")]
    return "\n".join(lines) + "\n"


def _sections(model: type[BaseModel], above: str) -> list[str]:
    lines = []
    for name, field in model.model_fields.items():
        section: BaseModel
        if is_section(field.annotation):
            section, heading = field.get_default(), f"[{above}{name}]"
        elif (item := _listed(field.annotation)) is not None:
            section, heading = item.model_construct(), f"[[{above}{name}]]"
        else:
            continue
        summary = (type(section).__doc__ or "").partition("\n")[0]
        lines += ["", f"## {heading}", "", _cell(summary), "", *_table(type(section), section)]
        lines += _sections(type(section), f"{above}{name}.")
    return lines


def _listed(annotation: object) -> type[BaseModel] | None:
    """Return the section of which a field is a list; None = it is none."""
    found = get_args(annotation)[:1] if get_origin(annotation) in (list, tuple) else ()
    return found[0] if found and is_section(found[0]) else None


def _table(model: type[BaseModel], values: BaseModel) -> list[str]:
    rows = [
        f"| `{name}` | {_default(values, name)} | {_cell(field.description or '')} |"
        for name, field in model.model_fields.items()
        if not is_section(field.annotation)
    ]
    return ["| key | default | meaning |", "|---|---|---|", *rows] if rows else []


def _default(values: BaseModel, name: str) -> str:
    if not hasattr(values, name):
        return "none: it is needed"
    value = getattr(values, name)
    return "none" if value is None else f"`{_cell(toml_text(value))}`"


def _cell(text: str) -> str:
    """Return a text that cannot end its cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(document(), encoding="utf-8")
