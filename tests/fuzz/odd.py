"""Odd things that people type, and every place of the command line and the configuration to type them in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

import click
from pydantic import BaseModel

from tsunagi.cli import cli
from tsunagi.runtime.settings import Settings

VALUES = (
    "",
    " ",
    "0",
    "-1",
    "1",
    "nan",
    "inf",
    "1e-9",
    "1e300",
    "9" * 5000,
    "²",
    "ä",
    "a" * 5000,
    "a\nb",
    "\x1b[31m",
    "{",
    "[]",
    '{"a": 1}',
    "null",
    "true",
    "~nobody/x",
    "/",
    "/dev/null",
    "/nonexistent/x",
    ".",
    "../..",
    "--",
    "no.module:Class",
    "\udcff",
)


class Place(NamedTuple):
    """A command, and an option or argument of it; `flag` takes no value."""

    path: tuple[str, ...]
    option: str
    flag: bool


def commands(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command with the words that name it."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def places() -> Iterator[Place]:
    """Yield every option and argument of every command."""
    for path, command in commands():
        for param in command.params:
            if isinstance(param, click.Option):
                yield Place(path, param.opts[0], param.is_flag)
            else:
                yield Place(path, "", flag=False)


def variables(model: type[BaseModel] = Settings, above: str = "TSUNAGI_") -> Iterator[str]:
    """Yield the environment variable of every setting and of every table of settings."""
    for name, field in model.model_fields.items():
        variable = f"{above}{name.upper()}"
        yield variable
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from variables(kind, f"{variable}__")


def needed(path: tuple[str, ...], but: str, given: dict[str, str]) -> list[str]:
    """Return the words for what a command must have, but for one option."""
    command: Any = dict(commands())[path]
    words = []
    for param in command.params:
        if not param.required or param.opts[0] == but:
            continue
        value = given.get(param.opts[0], "x")
        words += [param.opts[0], value] if isinstance(param, click.Option) else [value]
    return words
