"""`tsunagi results`: writes ordered results to standard output, as a table, JSON lines or CSV."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

from tsunagi.runtime.csv_text import row_writer
from tsunagi.runtime.loop import StopFlag
from tsunagi.runtime.outputs import open_results
from tsunagi.runtime.results import Block, ResultsReader, Row
from tsunagi.runtime.sensors import read_sensors
from tsunagi.runtime.settings import Settings
from tsunagi.system.topics import tool_log

Write = Callable[[Row], None]


def print_results(
    settings: Settings,
    *,
    follow: bool,
    form: str,
    groups: Sequence[str],
    from_now: bool,
    merged: bool = False,
    output: TextIO = sys.stdout,
) -> None:
    """Print results up to their present end, or until interrupted if `follow`.

    Args:
        form: table | json | csv.
        groups: print only these groups; empty means all.
        merged: whether all groups are printed as one stream in time order.

    Raises:
        LogError: the log does not answer, or has no topic of results.
    """
    write = _writer(form, output)
    table = read_sensors(settings.sensors)
    source = tool_log(settings, "results")
    with StopFlag() as stop, open_results(source, settings, table, from_now=from_now) as results:
        try:
            for block in blocks_of(results, follow=follow, merged=merged, groups=groups, stopping=stop.is_set):
                for row in block.rows(table):
                    write(row)
                if follow:
                    output.flush()
            output.flush()
        except BrokenPipeError:  # as in `tsunagi results | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if results.unreadable_count:
            sys.stderr.write(f"tsunagi: {results.unreadable_count} records of `{results.topic}` could not be read\n")


def blocks_of(
    results: ResultsReader, *, follow: bool, merged: bool, groups: Sequence[str], stopping: Callable[[], bool]
) -> Iterator[Block]:
    """Yield the blocks of some groups, or of all if none is named; see `ResultsReader`."""
    read = results.merged if merged else results.blocks
    return (block for block in read(follow=follow, stopping=stopping) if not groups or block.group in groups)


def _writer(form: str, output: TextIO) -> Write:
    if form == "json":
        return lambda row: _write_json(row, output)
    if form == "csv":
        write = row_writer(output)
        write(Row._fields)
        return lambda row: write([row.time.isoformat() if name == "time" else value for name, value in _items(row)])
    widths = "{:<12} {:<12} {:<16} {:>12} {:<8} {:<11} {:>10} {:>5} {:>5} {:>6}\n"
    output.write(widths.format("time", "group", "sensor", "value", "unit", "quality", "+/-", "q1", "q2", "q3"))
    return lambda row: _write_line(row, widths, output)


def _items(row: Row) -> list[tuple[str, Any]]:
    return list(row._asdict().items())


def _write_json(row: Row, output: TextIO) -> None:
    fields = row._asdict() | {"time": row.time.isoformat()}
    plain = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in fields.items()
    }
    output.write(json.dumps(plain) + "\n")


def _write_line(row: Row, widths: str, output: TextIO) -> None:
    bound = "" if row.bound == 0 else f"{row.bound:.4g}"
    moment = row.time.strftime("%H:%M:%S.%f")[:-3]
    numbers = (f"{row.value:.5g}", row.unit, row.quality, bound, row.q1, row.q2, f"{row.q3:.3f}")
    output.write(widths.format(moment, row.group, row.sensor, *numbers))
