"""Reads and writes CSV: all tables, and all files of readings.

docs/howto/sources.md says what is tolerated and what is refused. Quoting follows Python's standard library.
`read_table` reads small tables as a whole. Files of readings may be large, and reading may begin in their middle. So
they are read by lines (`read_header`, `split_line`), and below their header each row is one line.
"""

from __future__ import annotations

import csv
import io
import re
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
_SEPARATORS = {",": "','", ";": "';'", "\t": "tabs", "|": "'|'"}
"""Characters that people put between columns, the likeliest first, and their names in messages."""
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
"""Matches a text in quotes."""
_DECIMAL_COMMA = re.compile(r"\s*[-+]?\d*,\d+(?:[eE][-+]?\d+)?\s*")
"""Matches a number with a decimal comma."""
_LOOK_BYTES = 65_536
"""Bytes below the header in which a decimal comma is looked for: some hundred rows, which a disk gives at once."""


class CsvError(ValueError):
    """A CSV cannot be used; the message names file, line, what was found and what was expected."""


class Line(NamedTuple):
    """A row of a table, and the number of its first line in the file, from 1."""

    number: int
    cells: list[str]


class Dialect(NamedTuple):
    """How the cells of a CSV are written.

    Attributes:
        separator: what stands between columns; "" = what the header has most often.
        decimal: the decimal sign of numbers, "." or ","; "" = a comma if the separator is another, and if numbers just
            below the header have one.
    """

    separator: str = ","
    decimal: str = "."


PLAIN = Dialect()
"""Commas between columns, and decimal points."""


class Header(NamedTuple):
    """The header of a file of readings.

    Attributes:
        names: the names of all columns, without spaces around them. No name is there twice.
        timed: whether the first column has times.
        text: the header as it is in the file.
        line, offset: where the line after the header begins: its number, and its bytes from the beginning of the file.
        dialect: how the cells are written; neither part of it is empty.
    """

    names: tuple[str, ...]
    timed: bool
    text: str
    line: int
    offset: int
    dialect: Dialect = PLAIN

    @property
    def sensors(self) -> tuple[str, ...]:
        """The names of all columns except that of times."""
        return self.names[1:] if self.timed else self.names


def passed_over(line: bytes) -> bool:
    """Return whether a line is blank or a comment, so that readers skip it."""
    return line.startswith(b"#") or not line.strip()


def read_table(path: Path) -> Iterator[Line]:
    """Return the rows of a table, its header first. Cells may have line breaks within quotes.

    Raises:
        CsvError: the file cannot be read, or is no CSV.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise CsvError(f"{path}: no such file") from None
    except OSError as error:
        raise CsvError(f"{path}: cannot be read: {error.strerror}") from None
    return table_rows(text, path)


def table_rows(text: bytes, path: Path) -> Iterator[Line]:
    """Yield the rows of a table, as `read_table` does.

    Args:
        path: where the table comes from, for messages.

    Raises:
        CsvError: the text is no CSV.
    """
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


def read_header(file: BinaryIO, path: Path, dialect: Dialect = PLAIN, time: str = "") -> Header:
    """Read the header of a file of readings that was just opened: perhaps a column of times, then one for each sensor.

    Args:
        dialect: how the cells are written, as far as it is known.
        time: the name of the column of times; "" = one of those that `is_time` knows.

    Raises:
        CsvError: the file has no header, or one that cannot be used.
    """
    return check_header(read_columns(file, path, dialect, time), path, time)


def read_columns(file: BinaryIO, path: Path, dialect: Dialect = PLAIN, time: str = "") -> Header:
    """Read the header of a file that was just opened, as `read_header` does, without a judgement of its names.

    Raises:
        CsvError: the file has no header, or one that is no CSV.
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
    offset = file.tell()
    separator = dialect.separator or _separator_of(raw)
    decimal = dialect.decimal
    if not decimal:
        decimal = "." if separator == "," else _decimal_of(file.read(_LOOK_BYTES), separator)
        file.seek(offset)
    cells = split_line(raw, where, separator)
    if len(cells) == 1 and b'"' not in raw:
        for other, called in _SEPARATORS.items():
            if other in cells[0]:
                expected = "commas (and decimal points)" if separator == "," else _SEPARATORS.get(separator, separator)
                raise CsvError(f"{where}: found columns separated by {called}, expected {expected}")
    names = tuple(name.strip() for name in cells)
    timed = names[0] == time if time else is_time(names[0])
    text = raw.decode("utf-8").rstrip("\r\n")
    return Header(names, timed, text, line + 1, offset, Dialect(separator, decimal))


def check_header(header: Header, path: Path, time: str = "") -> Header:
    """Return a header of sensors again; `time` is as for `read_header`.

    Raises:
        CsvError: a name is none of a sensor, or is there twice.
    """
    first = header.line - 1 - header.text.count("\n")
    where = f"{path}, line {first}"
    if time and time in header.names[1:]:
        place = header.names.index(time) + 1
        raise CsvError(f"{where}, column {place}: found {time!r}, expected the column of times to be the first")
    _check_names(header.names, timed=header.timed, where=where)
    return header


def _separator_of(raw: bytes) -> str:
    """Return the character that stands most often between the columns of a header."""
    bare = _QUOTED.sub("", raw.decode("utf-8", errors="replace"))
    return max(_SEPARATORS, key=bare.count)


def _decimal_of(text: bytes, separator: str) -> str:
    """Return the decimal sign of the first rows of a file whose columns commas do not separate."""
    cells = text.decode("utf-8", errors="replace").replace("\n", separator).split(separator)
    return "," if any(map(_DECIMAL_COMMA.fullmatch, cells)) else "."


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


def split_line(raw: bytes, where: str, separator: str = ",") -> list[str]:
    """Return the cells of a row.

    Raises:
        CsvError: the line is no row; the message begins with `where`.
    """
    text = _decoded(raw, where).rstrip("\r\n")
    if '"' not in text:
        return text.split(separator)
    try:
        return next(csv.reader([text], delimiter=separator, strict=True, skipinitialspace=True))
    except csv.Error as error:
        raise CsvError(f"{where}: {_bad(error)}, expected quotes that are closed in the same line") from None


def read_number(cell: str, where: str, name: str, decimal: str = ".") -> float:
    """Return the number in a cell.

    Raises:
        CsvError: the cell has no number; the message begins with `where` and names the column.
    """
    try:
        # float() accepts underscores between digits. Where commas are decimal signs, a point may separate thousands.
        if "_" in cell or (decimal == "," and "." in cell):
            raise ValueError  # noqa: TRY301 - the same message
        return float(cell if decimal == "." else cell.replace(",", "."))
    except ValueError:
        sign = "" if decimal == "." else " with a decimal comma"
        raise CsvError(
            f"{where}, column {name!r}: found {cell.strip()!r}, expected a number{sign} or nothing"
        ) from None


def read_time(cell: str, where: str, name: str = "time") -> int:
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
        raise CsvError(f"{where}, column {name!r}: found {text!r}, a time without a zone; {expected}") from None
    except TimeRangeError as error:
        raise CsvError(f"{where}, column {name!r}: found {text!r}: {error}") from None
    except ValueError:
        raise CsvError(f"{where}, column {name!r}: found {text!r}, {expected}") from None


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
