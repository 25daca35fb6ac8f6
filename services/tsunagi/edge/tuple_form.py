"""Reads the values of tuples of several columns (CREATE STREAM) from CSV and JSON."""

from __future__ import annotations

import contextlib
import json
import math
import re
from pathlib import Path

from tsunagi.query.form import TupleForm
from tsunagi.query.values import Kind
from tsunagi.runtime.settings import Settings
from tsunagi.runtime.times import NoZoneError, TimeRangeError, read_time_us

_CREATES = re.compile(r"\bCREATE\s+STREAM\b", re.IGNORECASE)
"""Matches what a statement begins with that creates a stream."""
INT64 = -(1 << 63), (1 << 63) - 1
"""The least and the greatest BIGINT."""
_BOOLEANS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
"""What a BOOLEAN may be in a CSV, in small letters."""


class CellError(ValueError):
    """A value is not of its column's type. The message says what was found and what was expected."""


def form_of(settings: Settings) -> TupleForm | None:
    """Return the form that the statements of `[query] files` create; None = readings are numbers.

    Raises:
        QueryError: a statement cannot be understood.
    """
    if settings.query.mode != "tuples" or not settings.query.files:
        return None
    from tsunagi.query.definitions import read_definitions  # the parser: most edges do not need it
    from tsunagi.query.tuple_plans import tuple_form

    return tuple_form(read_definitions(settings.query.files))


def streams_of(settings: Settings) -> dict[str, TupleForm]:
    """Return the columns of the events that the statements of `[query] files` create, by stream, with lock-step.

    A file that is not on this machine creates none: with steps, most files are the Spark job's alone.

    Raises:
        QueryError: a statement of a file that creates a stream cannot be understood.
    """
    files = [path for path in settings.query.files if settings.query.mode == "steps" and _may_create(path)]
    if not files:
        return {}
    from tsunagi.query.definitions import read_definitions  # the parser: most edges do not need it
    from tsunagi.query.events import event_streams

    return {
        name: TupleForm(stream.key, {column: kind for column, kind in stream.own.items() if column != "time"})
        for name, stream in event_streams(read_definitions(files)).items()
    }


def _may_create(path: Path) -> bool:
    try:
        return _CREATES.search(path.read_text(encoding="utf-8")) is not None
    except (OSError, UnicodeDecodeError):
        return False


def read_text(text: str, kind: Kind) -> object:
    """Return the value of a CSV's cell; an empty cell is NULL, and so is what is no number.

    Raises:
        CellError: the cell is not of this type.
    """
    if kind is Kind.TEXT:
        return text or None
    text = text.strip()
    if not text:
        return None
    try:
        if kind is Kind.DOUBLE and "_" not in text:
            return _number(float(text))
        if kind is Kind.BIGINT and "_" not in text and INT64[0] <= int(text) <= INT64[1]:
            return int(text)
        if kind is Kind.BOOLEAN:
            return _BOOLEANS[text.lower()]
        if kind is Kind.TIMESTAMP:
            return read_time_us(text)
    except (ValueError, KeyError, NoZoneError, TimeRangeError):
        pass
    raise CellError(f"found {text[:80]!r}, expected {_expected(kind)}")


def read_json(found: object, kind: Kind) -> object:
    """Return the value of a JSON field; null is NULL, and so is what is no number.

    Raises:
        CellError: the value is not of this type.
    """
    if found is None:
        return None
    if kind is Kind.TEXT and isinstance(found, str):
        return found
    if kind is Kind.BOOLEAN and isinstance(found, bool):
        return found
    if kind is Kind.TIMESTAMP and isinstance(found, str):
        return read_text(found, kind)
    if kind.numeric and isinstance(found, int | float) and not isinstance(found, bool):
        with contextlib.suppress(OverflowError, ValueError):  # hundreds of digits, or no whole number
            if kind is Kind.DOUBLE:
                return _number(float(found))
            whole = int(found)
            if whole == found and INT64[0] <= whole <= INT64[1]:
                return whole
    raise CellError(f"found {json.dumps(found)[:80]}, expected {_expected(kind)}")


def _expected(kind: Kind) -> str:
    return "TIMESTAMP, as ISO 8601 with a zone" if kind is Kind.TIMESTAMP else kind.value


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
