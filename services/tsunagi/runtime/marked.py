"""Directories that Tsunagi may empty: those that it found new or empty, and marked then.

In a marked directory only what Tsunagi writes is removed, by name. Whatever else lies there stays, and is told.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePath

MARKER = ".tsunagi"
"""The file that marks a directory."""

_TEXT = "Tsunagi made this directory, and removes what it writes here when it is told to (tsunagi down --wipe).\n"

STATE: tuple[str, ...] = (
    "origin",
    "origin.*",
    "system",
    "system.new",
    "chaos-*.json",
    "chaos-*.tmp",
    "deaths/*.json",
    "pids/*.json",
    "pids/*.tmp",
    "logs/*.log",
    "edges/*/position.json*",
    "edges/*/spool*",
    "edges/*/owner.*",
    "pipeline/rows.csv",
    "pipeline/sensors.csv",
    "pipeline/tsunagi.toml",
    "broker/data",
    "broker/data.new",
    "broker/broker.*",
    "broker/cluster-id",
    "broker/console*.log",
    "broker/format.*",
    "broker/log4j2.properties",
    "broker/server.properties",
)
"""What services and tools write below `state`."""

CHECKPOINT: tuple[str, ...] = (
    "metadata",
    ".metadata.crc",
    "commits",
    "offsets",
    "sources",
    "state",
    "tsunagi",
    "aside",
    "fit-*",
    "spark-*",
    "blockmgr-*",
)
"""What Spark and its job write below `[spark] checkpoint`."""

DEMO: tuple[str, ...] = (
    *("tsunagi.toml", "fit.toml", "data.csv", "sensors.csv", "model.bin", "report.json", "report.html"),
    *("run", "checkpoint", "models"),
)
"""What `tsunagi demo` writes below its directory."""


def mark(directory: Path) -> bool:
    """Make a directory and mark it, if it is not there or is empty; return whether it is marked now.

    Raises:
        OSError: it cannot be made, or not be written to.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if not any(directory.iterdir()):
        (directory / MARKER).write_text(_TEXT, encoding="utf-8")
    return marked(directory)


def marked(directory: Path) -> bool:
    """Return whether Tsunagi made the directory."""
    return (directory / MARKER).is_file()


def empty(directory: Path, names: Iterable[str]) -> list[Path]:
    """Remove what has one of these names in a marked directory, and the directory itself if nothing is left in it.

    Args:
        names: patterns of paths below the directory.

    Returns:
        What stays. All of it, if the directory is not marked.

    Raises:
        OSError: something cannot be removed.
    """
    if not marked(directory):
        return sorted(directory.iterdir()) if directory.is_dir() else []
    names = tuple(names)
    for path in _matching(directory, names):
        if path == directory / MARKER:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    parents = {str(parent) for name in names for parent in PurePath(name).parents} - {"."}
    folders = {path for path in _matching(directory, parents) if path.is_dir() and not path.is_symlink()}
    for folder in sorted(folders, reverse=True):  # the inner before the outer
        with contextlib.suppress(OSError):
            folder.rmdir()
    left = _left(directory, folders)
    if not left:
        (directory / MARKER).unlink()
        with contextlib.suppress(OSError):  # a mount, or a link to a directory elsewhere
            directory.rmdir()
    return left


def _matching(directory: Path, names: Iterable[str]) -> list[Path]:
    """Return what has one of the names; nothing that a link below the directory leads to."""
    root = directory.resolve()
    found = {path for name in names for path in directory.glob(name)}
    return [path for path in sorted(found) if path.parent.resolve() == root / path.parent.relative_to(directory)]


def _left(directory: Path, folders: set[Path]) -> list[Path]:
    """Return the files and foreign folders below, of ours only what is in them."""
    found: list[Path] = []
    for path in sorted(directory.iterdir()):
        if path in folders:
            found += _left(path, folders)
        elif path.name != MARKER:
            found.append(path)
    return found
