"""Types of command-line options that refuse what would only show later."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

SEED = click.IntRange(0, 2**63 - 1)
ROUNDS = click.IntRange(1, 1_000_000)


class Number(click.FloatRange):
    """A number between two ends; neither infinite nor NaN, which a plain range lets pass."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number.", param, ctx)
        return number


DURATION = Number(0, 1e9)
"""Seconds: what the system's timers take."""


class Output(click.Path):
    """A file that is to be written: that it can be is tried before the work, and leaves what is there as it is."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:  # noqa: ANN401
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
