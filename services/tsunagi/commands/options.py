"""Options that several commands share, and types of options that refuse at once what would fail later."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
"""Type of an option that names an existing file."""
SEED = click.IntRange(0, 2**63 - 1)
"""Type of an option that takes the seed of a random generator: a number that an int64 holds."""
ROUNDS = click.IntRange(1, 1_000_000)
"""Type of an option that says how often something is done. More than a million is a mistyped number."""


class Number(click.FloatRange):
    """A number between two ends. It must be finite: a plain `FloatRange` accepts NaN, and infinity if it has no end."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number.", param, ctx)
        return number


DURATION = Number(0, 1e9)
"""Type of an option that takes a duration, in seconds. The timers of the system take no more than this."""

SLOTS = click.option("--slot", "slots", type=int, multiple=True, help="Only this slot; may be given more than once.")
"""The option that restricts a command to some slots."""

TABLE = click.option(
    "--table",
    "keys",
    metavar="KEY=VALUE",
    multiple=True,
    help="How files are read, as [source.table] says it; may be given more than once.",
)
"""The option that says how a file of readings is read."""


def seconds(option: str, default: float, text: str) -> Callable[[F], F]:
    """Return an option that takes a duration in seconds: `--patience` becomes the argument `patience_s`."""
    name = f"{option.removeprefix('--')}_s"
    return click.option(option, name, default=default, type=DURATION, metavar="SECONDS", help=text)


def serve(name: str, module: str, *arguments: object, **options: object) -> None:
    """Run `module.run(settings, *arguments, **options)` as the service `name`, and end with its exit code.

    The module is imported after the settings have been read, so that an error in them shows at once.
    """
    from tsunagi.runtime import loop

    loop.serve(name, lambda settings: importlib.import_module(module).run(settings, *arguments, **options))


def config_file() -> Path | None:
    """Return the configuration file for the processes that a command starts; None lets them find it by themselves."""
    from tsunagi.runtime.settings import CONFIG_VARIABLE

    named = os.environ.get(CONFIG_VARIABLE)
    return Path(named) if named else None


class OutputFile(click.Path):
    """A file to write. Whether it can be written is tried before the work begins; its content stays until the end."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(str(super().convert(value, param, ctx)))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            there = path.exists()
            if there and not path.is_file():
                self.fail(f"{path}: found no regular file, expected one that can be written anew.", param, ctx)
            with path.open("ab"):
                pass
            if not there:
                path.unlink()
        except OSError as error:
            self.fail(f"{path}: cannot be written: {error.strerror}.", param, ctx)
        return path
