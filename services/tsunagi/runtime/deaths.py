"""A process that dies of the same cause again and again, each time soon after its start, stops trying and says so.

Whoever starts it again (Docker, systemd) would go on for ever, and each start of a worker costs its slots a takeover.
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
"""After so many deaths in a row of one cause it is not tried again."""

SOON_S = 60.0
"""A process that has lived for longer, in seconds, has got past what the one before died of."""


@contextlib.contextmanager
def no_vain_starts(state: Path, name: str, clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Run a service's life; keep what it dies of, where that is a fault of its own code, in `state`.

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
    """Return the kind of an error, and where it arose; its message may differ each time."""
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
    with contextlib.suppress(OSError):  # the error itself is what must be said
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"cause": cause, "count": count}), encoding="utf-8")
