"""Reads and writes CSV: all tables, and all files of readings.

docs/howto/sources.md says what is tolerated and what is refused. Quoting follows Python's standard library.
`read_table` reads small tables as a whole. Files of readings may be large, and reading may begin in their middle. So
they are read by lines (`read_header`, `split_line`), and below their header each row is one line.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TextIO

from tsunagi.runtime.naming import is_time, text_fault
from tsunagi.runtime.times import NoZoneError, TimeRangeError, read_time_us

_MARK = b"\xef\xbb\xbf"
"""The byte order mark of UTF-8, which some programs put in front of a file. It is skipped."""
_WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff")
"""The byte order marks of UTF-16. Such files are refused."""
_HEADER_LINES = 16
"""Most further lines that are read for a header with line breaks in its names. Such a name is refused, and the message
can name it."""
_SEPARATORS = {";": "';'", "\t": "tabs", "|": "'|'"}
"""Characters that people use instead of commas, and their names in the message that refuses them."""


class CsvError(ValueError):
    """A CSV cannot be used; the message names file, line, what was found and what was expected."""


class Line(NamedTuple):
    """A row of a table, and the number of its first line in the file, from 1."""

    number: int
    cells: list[str]


class Header(NamedTuple):
    """The header of a file of readings.

    Attributes:
        names: the names of all columns, without spaces around them. No name is there twice.
        timed: whether the first column has times.
        text: the header as it is in the file.
        line, offset: where the line after the header begins: its number, and its bytes from the beginning of the file.
    """

    names: tuple[str, ...]
    timed: bool
    text: str
    line: int
    offset: int

    @property
    def sensors(self) -> tuple[str, ...]:
        """The names of all columns except that of times."""
        return self.names[1:] if self.timed else self.names


def passed_over(line: bytes) -> bool:
    """Return whether a line is blank or a comment, so that readers skip it."""
    return line.startswith(b"#") or not line.strip()


def read_table(path: Path) -> Iterator[Line]:
    """Yield the rows of a table, its header first. Cells may have line breaks within quotes.

    Raises:
        CsvError: the file cannot be read, or is no CSV.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise CsvError(f"{path}: no such file") from None
    except OSError as error:
        raise CsvError(f"{path}: cannot be read: {error.strerror}") from None
    between = True
    number = begin = 0

    def lines() -> Iterator[str]:
        nonlocal between, number, begin
        for raw in io.BytesIO(_unmarked(text, path)):
            number += 1
            if between and passed_over(raw):
                continue
            begin = number if between else begin
            between = False
            yield _decoded(raw, f"{path}, line {number}")

    rows = csv.reader(lines(), strict=True, skipinitialspace=True)
    while True:
        between = True
        try:
            cells = next(rows, None)
        except csv.Error as error:
            raise CsvError(f"{path}, line {begin}: {_bad(error)}, expected quotes that are closed") from None
        if cells is None:
            return
        yield Line(begin, cells)


def read_header(file: BinaryIO, path: Path) -> Header:
    """Read the header of a file of readings that was just opened.

    Raises:
        CsvError: the file has no header, or one that cannot be used.
    """
    line, raw = 0, b""
    while raw := file.readline():
        line += 1
        raw = _unmarked(raw, path) if line == 1 else raw
        if not passed_over(raw):
            break
    if not raw:
        raise CsvError(f"{path}: empty; expected a header of sensor names")
    where = f"{path}, line {line}"
    last = line + _HEADER_LINES
    while raw.count(b'"') % 2 and line < last and (more := file.readline()):
        raw, line = raw + more, line + 1
    cells = split_line(raw, where)
    if len(cells) == 1 and b'"' not in raw:
        for separator, called in _SEPARATORS.items():
            if separator in cells[0]:
                raise CsvError(f"{where}: found columns separated by {called}, expected commas (and decimal points)")
    names = tuple(name.strip() for name in cells)
    timed = is_time(names[0])
    _check_names(names, timed=timed, where=where)
    return Header(names, timed, raw.decode("utf-8").rstrip("\r\n"), line + 1, file.tell())


def _check_names(names: tuple[str, ...], *, timed: bool, where: str) -> None:
    seen: dict[str, int] = {}
    for number, name in enumerate(names, start=1):
        if not name:
            raise CsvError(f"{where}, column {number}: found no name, expected a sensor's")
        if fault := text_fault(name):
            raise CsvError(f"{where}, column {number}: {fault}")
        if number > 1 and is_time(name):
            raise CsvError(f"{where}, column {number}: found {name!r}, expected the column of times to be the first")
        if name in seen:
            raise CsvError(f"{where}: sensor {name!r} stands in columns {seen[name]} and {number}")
        seen[name] = number
    if timed and len(names) == 1:
        raise CsvError(f"{where}: found only a column of times, expected a header of sensor names")


def split_line(raw: bytes, where: str) -> list[str]:
    """Return the cells of a row.

    Raises:
        CsvError: the line is no row; the message begins with `where`.
    """
    text = _decoded(raw, where).rstrip("\r\n")
    if '"' not in text:
        return text.split(",")
    try:
        return next(csv.reader([text], strict=True, skipinitialspace=True))
    except csv.Error as error:
        raise CsvError(f"{where}: {_bad(error)}, expected quotes that are closed in the same line") from None


def read_number(cell: str, where: str, name: str) -> float:
    """Return the number in a cell.

    Raises:
        CsvError: the cell has no number; the message begins with `where` and names the column.
    """
    try:
        if "_" in cell:  # float() accepts underscores between digits
            raise ValueError  # noqa: TRY301 - the same message
        return float(cell)
    except ValueError:
        raise CsvError(f"{where}, column {name!r}: found {cell.strip()!r}, expected a number or nothing") from None


def read_time(cell: str, where: str) -> int:
    """Return the time in a cell, in microseconds since 1970. It is ISO 8601 with a zone, or seconds since 1970.

    Raises:
        CsvError: the cell is neither; the message begins with `where`.
    """
    text = cell.strip()
    expected = "expected ISO 8601 with a zone, or seconds since the epoch"
    try:
        if "_" in text:
            raise ValueError  # noqa: TRY301 - the same message
        return read_time_us(text)
    except NoZoneError:
        raise CsvError(f"{where}, column 'time': found {text!r}, a time without a zone; {expected}") from None
    except TimeRangeError as error:
        raise CsvError(f"{where}, column 'time': found {text!r}: {error}") from None
    except ValueError:
        raise CsvError(f"{where}, column 'time': found {text!r}, {expected}") from None


def row_writer(file: TextIO) -> Callable[[Iterable[Any]], Any]:
    """Return a function that writes a row so that `read_table` reads the same row.

    Args:
        file: a file that was opened with ``newline=""``.
    """
    plain, quoted = (csv.writer(file, quoting=way, lineterminator="\n") for way in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL))

    def write(row: Iterable[Any]) -> None:
        cells = list(row)
        # Without quotes a row that begins with "#" is a comment, one of spaces is blank, a space at the beginning of a
        # cell is lost, and a carriage return ends the row.
        odd = any(isinstance(cell, str) and (cell[:1].isspace() or cell[:1] == "#" or "\r" in cell) for cell in cells)
        (quoted if odd else plain).writerow(cells)

    return write


def _bad(error: csv.Error) -> str:
    """Return what the library complains about, without its advice to programmers."""
    return f"found no CSV ({str(error).partition(' - ')[0]})"


def _unmarked(raw: bytes, path: Path) -> bytes:
    if raw.startswith(_WIDE_MARKS):
        raise CsvError(f"{path}: found UTF-16, expected UTF-8")
    return raw.removeprefix(_MARK)


def _decoded(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        found = raw[error.start]
        raise CsvError(f"{where}: found byte 0x{found:02x} at {error.start + 1}, expected UTF-8") from None
