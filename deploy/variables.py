"""Reads variables of `.env` and what the user names on the command line, with Python's standard library alone."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable
from pathlib import Path


class ComposeError(RuntimeError):
    """The project cannot be started or stopped; the message says why and what to do."""


def say(text: str) -> None:
    """Print a line without buffering it."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def directory_of(variable: str, given: str | None, file: str = "") -> Path | None:
    """Return a directory that the user names.

    Args:
        file: a file that it must have.

    Raises:
        ComposeError: it is not there, or cannot be mounted.
    """
    if given is None:
        return None
    path = Path(given).expanduser().resolve()
    if not path.is_dir():
        raise ComposeError(f"{variable}: found {given!r}, expected a directory")
    if ":" in str(path):
        raise ComposeError(f"{variable}: found {str(path)!r}, expected a path without ':', which separates paths here")
    if file and not (path / file).is_file():
        raise ComposeError(f"{variable}: {path / file}: no such file; `tsunagi init {given}` writes it")
    return path


def refuse_unknown(where: str, names: Iterable[str], known: set[str]) -> None:
    """Refuse variables that nobody reads.

    Raises:
        ComposeError: one is not known; the message names the nearest that is.
    """
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ComposeError(f"{where}: no such variable: {name}{hint} (.env.example names them all)")


def read_env(path: Path) -> dict[str, str]:
    """Return the variables of a file such as `.env`; in `.env.example`, also those that are commented out."""
    if not path.exists():
        return {}
    found = {}
    for number, raw in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        line = raw.strip()
        if path.name == ".env.example":
            line = line.removeprefix("#")
        if not line or line.startswith(("#", " ")):
            continue
        name, equals, value = line.partition("=")
        if not equals:
            raise ComposeError(f"{path.name}, line {number}: found {line!r}, expected NAME=value")
        found[name.strip()] = value.strip()
    return found


def default_of(root: Path, variable: str) -> str:
    """Return the default of a variable, from `.env.example`."""
    return read_env(root / ".env.example")[variable]
