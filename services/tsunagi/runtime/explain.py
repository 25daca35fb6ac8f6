"""Turns an error that nobody has caught into one line for the user and an exit code."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import NamedTuple

from tsunagi.installation import missing

DEBUG_VARIABLE = "TSUNAGI_DEBUG"
"""Environment variable. Any value except "" shows the traceback of every error."""

FAILED, REFUSED = 1, 2
"""Exit codes: the command or service failed, or its configuration or input cannot be used."""
_OURS = frozenset({"tsunagi", "tsunagi_spark", "deploy"})
"""The packages whose errors have messages for users."""
# The cause of these errors is what somebody typed, or where the command was started. Another try would fail too.
_TYPED = frozenset(
    {
        errno.ENOENT,
        errno.EACCES,
        errno.EPERM,
        errno.EISDIR,
        errno.ENOTDIR,
        errno.EROFS,
        errno.ENAMETOOLONG,
        errno.ELOOP,
        errno.EEXIST,
        errno.EADDRINUSE,
        errno.EADDRNOTAVAIL,
    }
)
_ADVICE: Mapping[int, str] = {
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "this machine has too many open files (fs.file-max)",
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "this user's share of the disk is full",
    errno.EADDRINUSE: "another process listens on this port",
    errno.EAGAIN: "raise the limit of processes and threads (ulimit -u)",
    errno.ENOMEM: "this machine has too little free memory",
}
"""What the user can do about errors of the operating system, by their number."""


class Ending(NamedTuple):
    """How a command ends with an error.

    Attributes:
        text: the line for the user.
        code: the exit code.
        known: whether the kind of error is foreseen, so that a traceback would say nothing more.
    """

    text: str
    code: int
    known: bool


def debugging() -> bool:
    """Return whether the user wants every traceback."""
    return bool(os.environ.get(DEBUG_VARIABLE))


def explain(error: BaseException) -> Ending:
    """Return the line and the exit code for an error that ends a command."""
    kind = type(error)
    if kind.__module__.partition(".")[0] in _OURS:  # its message was written for users
        known = not getattr(error, "unforeseen", False)
        return Ending(str(error), REFUSED if isinstance(error, ValueError) else FAILED, known=known)
    if isinstance(error, OSError):
        return _of_system(error)
    if isinstance(error, UnicodeEncodeError):
        found = error.object[error.start : error.end]
        told = f"found {found!a}, which cannot be written as {error.encoding}; expected names in UTF-8 (LC_ALL)"
        return Ending(told, REFUSED, known=True)
    if isinstance(error, ModuleNotFoundError):
        advice = missing("spark,report")
        told = f"Python's module {error.name} is not installed here; {advice}, which installs all that is needed"
        return Ending(told, FAILED, known=True)
    if isinstance(error, MemoryError):
        return Ending("this machine has too little free memory", FAILED, known=True)
    if kind.__module__.partition(".")[0] == "cimpl":  # an error of confluent_kafka, which not every command imports
        from tsunagi.runtime.kafka_errors import said  # noqa: PLC0415

        return Ending(f"Kafka: {said(error)}", FAILED, known=True)  # type: ignore[arg-type]
    lines = str(error).splitlines()
    if kind.__module__.partition(".")[0] in {"py4j", "pyspark"} and lines:
        # The second line of an error in Java names it, and the other lines say where it was raised.
        java = [line.removeprefix(": ") for line in lines[1:2] if line.startswith(": ")]
        return Ending(f"Spark: {(java or lines)[0]}; look at [spark] master and options", FAILED, known=True)
    told = f"{kind.__name__}: {lines[0]}" if lines else kind.__name__
    return Ending(f"{told} (a fault of Tsunagi; {DEBUG_VARIABLE}=1 shows where)", FAILED, known=False)


def _of_system(error: OSError) -> Ending:
    where = "" if error.filename is None else f"{error.filename}: "
    what = error.strerror or str(error) or "no answer in time"
    advice = _ADVICE.get(error.errno or 0, "")
    code = REFUSED if error.errno in _TYPED else FAILED
    return Ending(f"{where}{what}" + (f"; {advice}" if advice else ""), code, known=True)
