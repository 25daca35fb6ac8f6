"""Marks the directories that Tsunagi may empty: those that were new or empty when it first used them.

In a marked directory only what Tsunagi writes is removed, by name. Everything else stays, and is reported.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePath

MARKER = ".tsunagi"
"""The file that marks a directory."""

_TEXT = "Tsunagi made this directory, and removes what it writes here when it is told to (tsunagi down --wipe).\n"
"""The content of that file, for people who find it."""

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
"""Patterns of the paths that services and tools write below `state`."""

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
"""Patterns of the paths that Spark and its job write below `[spark] checkpoint`."""

DEMO: tuple[str, ...] = (
    *("tsunagi.toml", "fit.toml", "data.csv", "sensors.csv", "model.bin", "report.json", "report.html"),
    *("run", "checkpoint", "models"),
)
"""Names of the files and directories that `tsunagi demo` writes into its directory."""


def mark(directory: Path) -> bool:
    """Make a directory if it does not exist, and mark it if it is empty; return whether it is marked now.

    Raises:
        OSError: the directory cannot be made or written to.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if not any(directory.iterdir()):
        (directory / MARKER).write_text(_TEXT, encoding="utf-8")
    return marked(directory)


def marked(directory: Path) -> bool:
    """Return whether the directory is marked, so that Tsunagi may empty it."""
    return (directory / MARKER).is_file()


def empty(directory: Path, names: Iterable[str]) -> list[Path]:
    """Remove the paths of these names from a marked directory, and the directory itself if nothing is left in it.

    Args:
        directory: the directory.
        names: patterns of paths below the directory.

    Returns:
        The paths that stay. If the directory is not marked, all of them stay.

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
    for folder in sorted(folders, reverse=True):  # inner folders before outer ones
        with contextlib.suppress(OSError):
            folder.rmdir()
    left = _left(directory, folders)
    if not left:
        (directory / MARKER).unlink()
        with contextlib.suppress(OSError):  # it may be a mount, or a link to another directory
            directory.rmdir()
    return left


def _matching(directory: Path, names: Iterable[str]) -> list[Path]:
    """Return the paths that match one of the names, but none to which a link below the directory leads."""
    root = directory.resolve()
    found = {path for name in names for path in directory.glob(name)}
    return [path for path in sorted(found) if path.parent.resolve() == root / path.parent.relative_to(directory)]


def _left(directory: Path, folders: set[Path]) -> list[Path]:
    """Return the files and folders that are left. Of Tsunagi's own folders only their content is listed."""
    found: list[Path] = []
    for path in sorted(directory.iterdir()):
        if path in folders:
            found += _left(path, folders)
        elif path.name != MARKER:
            found.append(path)
    return found
