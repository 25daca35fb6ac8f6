"""Stops a service from being started in vain: when it has died of one cause again and again, it refuses to start.

Docker or systemd would start it again for ever, and each death of a worker costs its slots a takeover. Only deaths soon
after a start count.
"""

from __future__ import annotations

import contextlib
import json
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from tsunagi.runtime.explain import explain
from tsunagi.runtime.settings import ConfigError

MOST = 5
"""After this many deaths of one cause in a row, the service refuses to start."""

SOON_S = 60.0
"""A death counts if the process lived for less than this, in seconds. A process that lived longer has got past the
cause of the death before."""


@contextlib.contextmanager
def no_vain_starts(state: Path, name: str, clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Run a service in the block. If it dies of a fault in its own code, note the cause below the directory `state`.

    Args:
        state: the state directory.
        name: the name of the process.
        clock: returns seconds that never jump.

    Raises:
        ConfigError: the last `MOST` processes of this name died of one cause; the message names it.
    """
    file = state / "deaths" / f"{name}.json"
    cause, count = _read(file)
    if count >= MOST:
        raise ConfigError(
            f"{name}: the last {count} processes of this name died of the same cause, each within {SOON_S:g} s of its "
            f"start: {cause}. It is not tried again; when the cause is removed, delete {file}"
        )
    began = clock()
    try:
        yield
    except Exception as error:
        if not explain(error).known:
            found = _cause(error)
            _write(file, found, count + 1 if found == cause and clock() - began < SOON_S else 1)
        raise
    with contextlib.suppress(OSError):
        file.unlink(missing_ok=True)


def _cause(error: Exception) -> str:
    """Return the kind of an error, and where it was raised. Its message is left out, as it may differ each time."""
    root = error.__cause__ if getattr(error, "unforeseen", False) and error.__cause__ is not None else error
    frames = traceback.extract_tb(root.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(root).__name__}{where}"


def _read(file: Path) -> tuple[str, int]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return str(found["cause"]), int(found["count"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", 0


def _write(file: Path, cause: str, count: int) -> None:
    with contextlib.suppress(OSError):  # the error of the service is more important than a file that cannot be written
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"cause": cause, "count": count}), encoding="utf-8")
