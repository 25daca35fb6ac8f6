"""`tsunagi wait`: until a new ordered result has come out; for scripts, and for `make up`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from services.local.topics import tool_log
from services.runtime.outputs import open_results
from services.runtime.sensors import read_sensors
from services.runtime.settings import Settings


class NoResultError(RuntimeError):
    """No ordered result came in time."""


def wait_for_result(settings: Settings, timeout_s: float, say: Callable[[str], None]) -> None:
    """Return once a block of results was appended after this call.

    Raises:
        NoResultError: none was.
        LogError: the log does not answer or has no results topic.
    """
    table = read_sensors(settings.sensors)
    source = tool_log(settings, "wait")
    over = threading.Event()
    started_s = time.monotonic()
    timer = threading.Timer(timeout_s, over.set)
    timer.daemon = True
    timer.start()
    try:
        with open_results(source, settings, table, from_now=True) as results:
            for block in results.blocks(follow=True, stopping=over.is_set):
                rows = sum(1 for _ in block.rows(table))
                waited_s = time.monotonic() - started_s
                kind = "ordered results" if settings.query.mode == "steps" else "results"
                say(f"{kind}: step {block.step} of {block.group}, {rows} rows, after {waited_s:.1f} s")
                return
    finally:
        timer.cancel()
    raise NoResultError(f"no ordered result within {timeout_s:g} s; `tsunagi status` shows who does what")
