"""`tsunagi results` and `tsunagi query`: write results to standard output, as a table, JSON lines or CSV."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, TextIO, TypeVar

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tsunagi.query.outputs import open_query
from tsunagi.query.results import AggregateResults, QueryBlock, QueryResults, QueryRow, as_json
from tsunagi.runtime.csv_text import row_writer
from tsunagi.runtime.loop import StopFlag
from tsunagi.runtime.outputs import open_results
from tsunagi.runtime.results import Block, ResultsReader, Row
from tsunagi.runtime.settings import Settings
from tsunagi.system.fleet_table import TableFollower
from tsunagi.system.topics import tool_log

Write = Callable[[Row], None]
R = TypeVar("R")
B = TypeVar("B", Block, QueryBlock)


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
    """Print the readings among the results up to their present end, or until interrupted if `follow`.

    Args:
        form: table | json | csv.
        groups: print only these groups; empty means all.
        merged: whether all groups are printed as one stream in time order.

    Raises:
        LogError: the log does not answer, or has no topic of results.
    """
    write = _writer(form, output)
    source = tool_log(settings, "results")
    with (
        StopFlag() as stop,
        TableFollower(source, settings) as followed,
        open_results(source, settings, followed.table, from_now=from_now) as results,
    ):
        blocks = blocks_of(results, follow=follow, merged=merged, groups=groups, stopping=stop.is_set)
        readings = _with_tables((block for block in blocks if block.window is None), results, followed)
        _write_all((block.rows(followed.table) for block in readings), write, output, follow=follow)
        _tell_unreadable(results)


def _with_tables(
    blocks: Iterable[B], results: ResultsReader | QueryResults | AggregateResults, followed: TableFollower
) -> Iterator[B]:
    """Yield blocks; before each of them the reader of results gets the table in force."""
    for block in blocks:
        results.table = followed.poll()
        yield block


def _write_all(blocks: Iterable[Iterable[R]], write: Callable[[R], None], output: TextIO, *, follow: bool) -> None:
    """Write the rows of blocks; whoever follows sees each block at once."""
    try:
        for rows in blocks:
            for row in rows:
                write(row)
            if follow:
                output.flush()
        output.flush()
    except BrokenPipeError:  # as in `tsunagi results | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tell_unreadable(results: ResultsReader | QueryResults | AggregateResults) -> None:
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


# ---- queries in CQL --------------------------------------------------------------------------------------------------


def print_query(
    settings: Settings,
    names: Sequence[str],
    *,
    follow: bool,
    form: str,
    from_now: bool,
    output: TextIO = sys.stdout,
) -> None:
    """Print the rows of queries up to their present end, or until interrupted if `follow`.

    Args:
        names: queries in CQL, or one window aggregate. In the forms `table` and `csv` there is one query, whose columns
            are the heading.
        form: table | json | csv.

    Raises:
        OutputError: several queries are asked for in one table.
        LogError: the log does not answer, or has no topic of results.
    """
    if form != "json" and len(names) > 1:
        raise OutputError(f"found {len(names)} queries, expected one, or --format json: they have different columns")
    write = _QueryWriter(form, output).write
    source = tool_log(settings, "results")
    with (
        StopFlag() as stop,
        TableFollower(source, settings) as followed,
        open_query(source, settings, followed.table, names, from_now=from_now) as found,
    ):
        blocks = _with_tables(found.blocks(follow=follow, stopping=stop.is_set), found, followed)
        _write_all((block.rows for block in blocks), write, output, follow=follow)
        _tell_unreadable(found)


class OutputError(ValueError):
    """What is to be printed does not fit the form."""


class _QueryWriter:
    """Writes rows of queries. A heading comes first, and again where the columns change."""

    def __init__(self, form: str, output: TextIO) -> None:
        self._form = form
        self._output = output
        self._csv = row_writer(output) if form == "csv" else None
        self._columns: tuple[str, ...] = ()

    def write(self, row: QueryRow) -> None:
        if self._form == "json":
            head = {"query": row.query, "time": row.time.isoformat(), "step": row.step}
            self._output.write(json.dumps(head | as_json(row)) + "\n")
            return
        columns = tuple(row)
        if columns != self._columns:
            self._columns = columns
            self._line(("time", *columns, "quality"))
        moment = row.time.isoformat() if self._csv is not None else row.time.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        self._line((moment, *(self._cell(row, name) for name in columns), row.quality))

    def _cell(self, row: QueryRow, name: str) -> Any:  # noqa: ANN401 - a value of a query
        value = row[name]
        if value is None:
            return ""
        if self._csv is not None:
            return value.isoformat() if isinstance(value, datetime) else value
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
        if name in row.ends:
            low, high = row.ends[name]
            text += f" [{low:.4g}, {high:.4g}]"
        return text

    def _line(self, cells: Sequence[Any]) -> None:
        if self._csv is not None:
            self._csv(cells)
            return
        first, *others = (str(cell) for cell in cells)
        self._output.write(f"{first:<24}" + " ".join(f"{cell:<16}" for cell in others).rstrip() + "\n")


def print_queries(queries: Sequence[dict[str, Any]], console: Console) -> None:
    """Print what is known of queries, of which nothing is cut, however narrow the console is."""
    if not queries:
        console.print("no queries; `tsunagi query add` adds one")
        return
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("query", "source", "", "since", "rows", "late", "state"):
        table.add_column(heading, overflow="fold", justify="right" if heading in ("rows", "late", "state") else "left")
    for item in queries:
        since = "" if item["since_us"] is None else _moment(item["since_us"])
        numbers: tuple[str, ...] = ("", "", "")
        if item["rows"] is not None:
            numbers = (str(item["rows"]), str(item["late"]), f"{item['state_bytes'] / 1e3:,.0f} kB")
        state = item["state"] + (f", up to {_moment(item['filled_to_us'])}" if item["filled_to_us"] else "")
        table.add_row(item["query"], item["source"], state, since, *numbers)
    console.print(table)
    for item in queries:
        if item["fault"]:
            console.print(Text.assemble((f"query {item['query']}", "red"), f": {item['fault']}"))


def _moment(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).strftime("%m-%d %H:%M:%S")
