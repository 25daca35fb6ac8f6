"""The functions of texts and times, and casts. A function of texts is called once for each text in the pool."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache

import numpy as np

from tsunagi.query.functions import exactly, function, made, register, unknown, valid_of
from tsunagi.query.values import Array, Column, Kind, constant, repooled, texts

_EPOCH_DAY_US = 86_400_000_000
"""A day, in microseconds."""


def _constant_text(found: Column) -> str | None:
    """Return the text of a constant column; None if it is NULL or no constant."""
    return found.pool[int(found.values)] if found.constant and found.valid is None else None


def _per_text(name: str, apply: Callable[[str], str]) -> None:
    @register(name, exactly(Kind.TEXT, Kind.TEXT), "a text")
    def _(arguments: Sequence[Column]) -> Column:
        return repooled(arguments[0], [apply(text) for text in arguments[0].pool])


def rowwise(arguments: Sequence[Column], compute: Callable[..., object]) -> list[object]:
    """Return the results of a function of several arguments, called once for each combination that occurs.

    A row with a NULL gets None.
    """
    rows = max((len(item) for item in arguments if not item.constant), default=1)
    full = [item.full(rows) for item in arguments]
    known: dict[tuple[object, ...], object] = {}
    found: list[object] = []
    for row in zip(*(item.to_list() for item in full), strict=True):
        if None in row:
            found.append(None)
            continue
        if row not in known:
            known[row] = compute(*row)
        found.append(known[row])
    return found


def _from_rows(arguments: Sequence[Column], found: list[object], kind: Kind) -> Column:
    """Return a column of results by row; if all arguments were constants, it is one."""
    if kind is Kind.TEXT:
        column = texts([None if item is None else str(item) for item in found])
    else:
        missing = np.array([item is None for item in found])
        values = np.array([0 if item is None else item for item in found], dtype=kind.dtype)
        column = Column(kind, values, ~missing if missing.any() else None)
    if all(item.constant for item in arguments):
        return replace(
            column, values=column.values.reshape(()), valid=None if column.valid is None else column.valid.reshape(())
        )
    return column


def _of_rows(name: str, kinds: tuple[Kind, ...], kind: Kind, expected: str, compute: Callable[..., object]) -> None:
    @register(name, exactly(kind, *kinds), expected)
    def _(arguments: Sequence[Column]) -> Column:
        first = arguments[0]
        if all(item.constant and item.valid is None for item in arguments[1:]) and kind is Kind.TEXT:
            others = [item.full(1).to_list()[0] for item in arguments[1:]]
            return repooled(first, [str(compute(text, *others)) for text in first.pool])
        return _from_rows(arguments, rowwise(arguments, compute), kind)


_per_text("UPPER", str.upper)
_per_text("LOWER", str.lower)
_per_text("TRIM", lambda text: text.strip(" "))


def _substring(text: str, start: int, length: int) -> str:
    """Return part of a text as SQL counts: from 1, and a start before the text takes from the length."""
    begin = start - 1 if start > 0 else (len(text) + start if start < 0 else -1)
    end = begin + max(length, 0)
    return text[max(begin, 0) : max(end, 0)]


_T = Kind.TEXT
"""Short for texts in the signatures below."""
_I = Kind.BIGINT
"""Short for whole numbers in the signatures below."""
for _name in ("SUBSTRING", "SUBSTR"):
    _of_rows(_name, (_T, _I, _I), _T, "a text, where it begins (from 1), and a length", _substring)
_of_rows(
    "LEFT", (_T, _I), _T, "a text and a length", lambda text, n: text[:n] if n >= 0 else text[: max(len(text) + n, 0)]
)
_of_rows(
    "RIGHT",
    (_T, _I),
    _T,
    "a text and a length",
    lambda text, n: text[-n:] if n > 0 else text[min(-n, len(text)) :] if n else "",
)
_of_rows("REPLACE", (_T, _T, _T), _T, "three texts", lambda text, old, new: text.replace(old, new) if old else text)


@register("LENGTH", exactly(Kind.BIGINT, Kind.TEXT), "a text")
def _length(arguments: Sequence[Column]) -> Column:
    (one,) = arguments
    lengths = np.array([len(text) for text in one.pool], dtype=np.int64)
    return made(Kind.BIGINT, lengths[one.values], arguments)


@register("CONCAT", lambda kinds: Kind.TEXT if kinds and set(kinds) == {Kind.TEXT} else None, "texts")
def _concat(arguments: Sequence[Column]) -> Column:
    """Join texts; as in Postgres, CONCAT takes a NULL for an empty text."""
    filled = [function("COALESCE").compute([item, constant(Kind.TEXT, "")]) for item in arguments]
    return _from_rows(filled, rowwise(filled, lambda *parts: "".join(parts)), Kind.TEXT)


@register("||", exactly(Kind.TEXT, Kind.TEXT, Kind.TEXT), "two texts")
def _joined(arguments: Sequence[Column]) -> Column:
    return _from_rows(arguments, rowwise(arguments, lambda one, other: one + other), Kind.TEXT)


def _matching(name: str, expected: str, compile_: Callable[[str], Callable[[str], bool | None]]) -> None:
    """Register a condition on a text and a pattern."""

    @register(name, exactly(Kind.BOOLEAN, Kind.TEXT, Kind.TEXT), expected)
    def _(arguments: Sequence[Column]) -> Column:
        one, pattern = arguments
        shape = _constant_text(pattern)
        if shape is None:
            found = rowwise(arguments, lambda text, other: compile_(other)(text))
            return _from_rows(arguments, found, Kind.BOOLEAN)
        matches = compile_(shape)
        held = np.array([matches(text) for text in one.pool], dtype=np.bool_)
        return made(Kind.BOOLEAN, held[one.values], arguments)


@lru_cache(maxsize=256)
def like_pattern(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """Return a LIKE pattern as a regular expression; % is any text, _ any character."""
    parts = {"%": ".*", "_": "."}
    return re.compile("".join(parts.get(char, re.escape(char)) for char in pattern), re.DOTALL | flags)


@lru_cache(maxsize=256)
def regular(pattern: str) -> re.Pattern[str] | None:
    """Return a regular expression; None = the text is none."""
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return None


def _searching(pattern: str) -> Callable[[str], bool | None]:
    found = regular(pattern)
    return lambda text: None if found is None else found.search(text) is not None


_matching("like", "a text and a pattern", lambda pattern: lambda text: bool(like_pattern(pattern).fullmatch(text)))
_matching(
    "ilike",
    "a text and a pattern",
    lambda pattern: lambda text: bool(like_pattern(pattern, re.IGNORECASE).fullmatch(text)),
)
_matching(
    "REGEXP_MATCHES",
    "a text and a regular expression",
    _searching,
)
_matching("STARTS_WITH", "two texts", lambda pattern: lambda text: text.startswith(pattern))
_matching("CONTAINS", "two texts", lambda pattern: lambda text: pattern in text)


@register(
    "REGEXP_EXTRACT",
    lambda kinds: Kind.TEXT if tuple(kinds) in ((_T, _T), (_T, _T, _I)) else None,
    "a text, a regular expression, and the number of a group",
)
def _extract(arguments: Sequence[Column]) -> Column:
    """Return what the pattern, or one group of it, has matched; an empty text if it does not match."""

    def first(text: str, pattern: str, group: int = 0) -> str | None:
        found = regular(pattern)
        if found is None or not 0 <= group <= found.groups:
            return None
        match = found.search(text)
        return (match.group(group) or "") if match else ""

    return _from_rows(arguments, rowwise(arguments, first), Kind.TEXT)


# ---- times


_UNITS = {
    "microsecond": 1,
    "millisecond": 1000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": _EPOCH_DAY_US,
}
"""Units of time of a fixed length, in microseconds."""
_CALENDAR = ("year", "month", "week")
"""Units of time whose lengths differ."""
TRUNCATED_UNITS = (*_UNITS, *_CALENDAR)
"""What DATE_TRUNC cuts a time to."""
TIME_UNITS = (*_UNITS, *_CALENDAR, "dow", "epoch")
"""What EXTRACT takes from a time."""


def _part_of(unit: str, times: Array) -> Array:
    days = np.floor_divide(times, _EPOCH_DAY_US)
    if unit == "dow":
        return np.asarray(np.mod(days + 4, 7))  # 1970 began on a Thursday; Sunday is 0
    if unit == "year":
        return np.asarray(times.astype("M8[us]").astype("M8[Y]").astype(np.int64) + 1970)
    if unit == "month":
        return np.mod(times.astype("M8[us]").astype("M8[M]").astype(np.int64), 12) + 1
    if unit == "day":
        moment = times.astype("M8[us]")
        return np.asarray((moment.astype("M8[D]") - moment.astype("M8[M]").astype("M8[D]")).astype(np.int64) + 1)
    if unit == "week":
        return np.array([datetime.fromtimestamp(at / 1e6, UTC).isocalendar().week for at in np.ravel(times)]).reshape(
            np.shape(times)
        )
    span = {"hour": _EPOCH_DAY_US, "minute": _UNITS["hour"], "second": _UNITS["minute"]}.get(unit, _UNITS["minute"])
    return np.asarray(np.mod(times, span) // _UNITS[unit])


@register("extract", exactly(Kind.BIGINT, Kind.TEXT, Kind.TIMESTAMP), "a unit and a time")
def _extract_part(arguments: Sequence[Column]) -> Column:
    unit = _constant_text(arguments[0]) or ""
    return made(Kind.BIGINT, _part_of(unit, arguments[1].values), arguments)


@register("EPOCH", exactly(Kind.DOUBLE, Kind.TIMESTAMP), "a time")
def _epoch(arguments: Sequence[Column]) -> Column:
    return made(Kind.DOUBLE, arguments[0].values / 1e6, arguments)


@register("DATE_TRUNC", exactly(Kind.TIMESTAMP, Kind.TEXT, Kind.TIMESTAMP), "a unit and a time")
def _truncated(arguments: Sequence[Column]) -> Column:
    unit, times = (_constant_text(arguments[0]) or "").lower(), arguments[1].values
    if unit in _UNITS:
        values = np.floor_divide(times, _UNITS[unit]) * _UNITS[unit]
    elif unit == "week":  # weeks begin on Monday; 1970 began on a Thursday
        values = (np.floor_divide(times // _EPOCH_DAY_US + 3, 7) * 7 - 3) * _EPOCH_DAY_US
    else:
        values = (
            times.astype("M8[us]").astype(f"M8[{'Y' if unit == 'year' else 'M'}]").astype("M8[us]").astype(np.int64)
        )
    return made(Kind.TIMESTAMP, values, arguments)


def _shift(name: str, sign: int) -> None:
    @register(name, exactly(Kind.TIMESTAMP, Kind.TIMESTAMP, Kind.INTERVAL), "a time and an interval")
    def _(arguments: Sequence[Column]) -> Column:
        return made(Kind.TIMESTAMP, arguments[0].values + sign * arguments[1].values, arguments)


_shift("later", 1)
_shift("earlier", -1)


# ---- casts


def _cast(kind: Kind, compute: Callable[[Column], Column]) -> None:
    register(f"as {kind.value}", lambda kinds: kind if len(kinds) == 1 else None, "a value")(
        lambda arguments: arguments[0] if arguments[0].kind is kind else compute(arguments[0])
    )


def _parsed(found: Column, kind: Kind, read: Callable[[str], float]) -> Column:
    """Return texts as numbers; NULL where a text is none."""
    values, here = [], []
    for text in found.pool:
        try:
            values.append(read(text))
            here.append(True)
        except (ValueError, OverflowError):
            values.append(0)
            here.append(False)
    array = np.array(values, dtype=kind.dtype)
    return made(kind, array[found.values], [found], np.array(here)[found.values])


def _as_double(found: Column) -> Column:
    if found.kind is Kind.TEXT:
        return _parsed(found, Kind.DOUBLE, float)
    return made(Kind.DOUBLE, found.values.astype(np.float64), [found], None, found.spread)


def _as_bigint(found: Column) -> Column:
    if found.kind is Kind.TEXT:
        return _parsed(found, Kind.BIGINT, int)
    with np.errstate(all="ignore"):
        values = np.rint(found.values.astype(np.float64)) if found.kind is Kind.DOUBLE else found.values
        fits = np.abs(values.astype(np.float64)) < 2.0**63
        spread = None if found.spread is None else unknown(values)
        return made(Kind.BIGINT, np.where(fits, values, 0).astype(np.int64), [found], fits, spread)


def _number_text(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _as_text(found: Column) -> Column:
    if found.kind is Kind.TIMESTAMP:
        write = lambda at: datetime.fromtimestamp(at / 1e6, UTC).isoformat(sep=" ")  # noqa: E731
    else:
        write = _number_text
    return _from_rows([found], rowwise([found.bare()], write), Kind.TEXT)


def _as_boolean(found: Column) -> Column:
    if found.kind is Kind.TEXT:
        held = np.array([text.lower() in ("true", "t", "1") for text in found.pool])
        known = np.array([text.lower() in ("true", "t", "1", "false", "f", "0") for text in found.pool])
        return made(Kind.BOOLEAN, held[found.values], [found], known[found.values])
    return made(Kind.BOOLEAN, found.values != 0, [found])


def _as_timestamp(found: Column) -> Column:
    if found.kind is Kind.TEXT:
        return _parsed(found, Kind.TIMESTAMP, read_time)
    return Column(Kind.TIMESTAMP, found.values.astype(np.int64), valid_of([found]))


def read_time(text: str) -> int:
    """Return an ISO 8601 time as microseconds since 1970; without a zone it is UTC.

    Raises:
        ValueError: the text is no time.
    """
    moment = datetime.fromisoformat(text.strip())
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


_cast(Kind.DOUBLE, _as_double)
_cast(Kind.BIGINT, _as_bigint)
_cast(Kind.TEXT, _as_text)
_cast(Kind.BOOLEAN, _as_boolean)
_cast(Kind.TIMESTAMP, _as_timestamp)
