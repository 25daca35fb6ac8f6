"""Archives of classes (Java's class data sharing): a JVM that has one starts in about half the CPU time.

An archive keeps the classes that a training run has loaded and checked (JDK 13 and later). Without one, or with one of
another Java or of other jars, everything works too, only slower: Java ignores it then.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tsunagi.jars.java import find_java

_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
"""Options: do not report classes that the archive does not have."""
_CHECK_S = 60.0
"""Longest wait for Java's check of an archive, in seconds."""


def reading(path: Path) -> tuple[str, ...]:
    """Return the options by which a JVM takes its classes from an archive, if there is one."""
    return (f"-XX:SharedArchiveFile={path}", *_QUIET) if path.exists() else ()


def writing(path: Path) -> tuple[str, ...]:
    """Return the options by which a JVM writes its classes when it ends. The archive counts after `keep`."""
    _fresh(path).unlink(missing_ok=True)
    return (f"-XX:ArchiveClassesAtExit={_fresh(path)}", *_QUIET)


def keep(path: Path) -> None:
    """Put the archive that was written in place, if Java can read it.

    Raises:
        RuntimeError: Java wrote no archive that it can read.
    """
    fresh = _fresh(path)
    check = [find_java(), f"-XX:SharedArchiveFile={fresh}", "-version"]
    if not fresh.exists() or subprocess.run(check, capture_output=True, timeout=_CHECK_S, check=False).returncode:
        fresh.unlink(missing_ok=True)  # an archive cut short by a full disk would end every JVM that opens it
        raise RuntimeError(f"{path}: Java wrote no archive that it can read")
    fresh.replace(path)


def _fresh(path: Path) -> Path:
    return path.with_suffix(".new")
