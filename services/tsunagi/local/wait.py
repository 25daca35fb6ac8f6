"""`tsunagi wait`: waits until a new ordered result comes out, for scripts and for `make up`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tsunagi.query.outputs import QueryOutputs
from tsunagi.query.results import QueryBlock, QueryResults
from tsunagi.runtime.log import RECOVERED, RESULTS, Log, LogError
from tsunagi.runtime.outputs import open_results
from tsunagi.runtime.results import Block
from tsunagi.runtime.settings import Settings
from tsunagi.system.fleet_table import sensors_in_force
from tsunagi.system.topics import tool_log

AGAIN_S = 1.0
"""Pause before a log that did not answer is asked again, in seconds."""
_POLL_S = 0.1
"""Longest wait for readings, and for rows of queries, in turn, in seconds."""


class NoResultError(RuntimeError):
    """No ordered result came in time."""


def wait_for_result(settings: Settings, timeout_s: float, say: Callable[[str], None]) -> None:
    """Return once a block of results that has rows has been appended after this call.

    A block without rows says only that nobody had a value for its step, as when sources have not begun to deliver.

    A broker that is starting on a busy machine may fail to answer some of the questions; those are asked again.

    Raises:
        NoResultError: no block with rows was appended within `timeout_s` seconds.
        LogError: the log never answers, or has no topic of results.
    """
    source = tool_log(settings, "wait")
    topic = RESULTS if settings.query.mode == "steps" else RECOVERED
    over = threading.Event()
    started_s = time.monotonic()
    timer = threading.Timer(timeout_s, over.set)
    timer.daemon = True
    timer.start()
    try:
        while True:
            try:
                found = _next_rows(source, settings, over)
            except LogError as error:
                if source.partitions(topic) == 0 or over.wait(AGAIN_S):
                    raise
                say(f"asking again: {error}")
                continue
            if found is None:
                raise NoResultError(f"no ordered result within {timeout_s:g} s; `tsunagi status` shows who does what")
            block, rows = found
            waited_s = time.monotonic() - started_s
            kind = "ordered results" if settings.query.mode == "steps" else "results"
            what = block.group or f"query {block.query}"
            say(f"{kind}: step {block.step} of {what}, {rows} rows, after {waited_s:.1f} s")
            return
    finally:
        timer.cancel()


def _next_rows(source: Log, settings: Settings, over: threading.Event) -> tuple[Block | QueryBlock, int] | None:
    """Return the next block that has rows, of readings or of a query, and how many; None = the time is over.

    There may be nothing but rows of queries: without steps, and with `[results] readings = false`.
    """
    table = sensors_in_force(source, settings)
    kind = QueryOutputs if settings.query.mode == "tuples" else QueryResults
    with (
        open_results(source, settings, table, from_now=True) as results,
        kind(source, settings, from_now=True) as answers,
    ):
        while not over.is_set():
            for block in results.poll(_POLL_S):
                if rows := sum(1 for _ in block.rows(table)):
                    return block, rows
            for answer in answers.poll(_POLL_S):
                if answer.rows:
                    return answer, len(answer.rows)
    return None
