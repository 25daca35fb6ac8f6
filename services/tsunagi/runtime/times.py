"""Reads times as people and files write them."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""The moment from which times in microseconds are counted."""

LATEST_US = 10**17
"""All times are before this, in microseconds since 1970: it is in the year 5138. Larger numbers are in another unit."""
_EARLIEST_US = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
"""The earliest time, in microseconds since 1970: the beginning of the year 1, which is the first of `datetime`."""


_LENGTH = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
"""Matches a length of time."""
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
"""The units of a length of time, in seconds."""


class NoZoneError(ValueError):
    """A date and time have no zone, so they name no moment."""


class TimeRangeError(ValueError):
    """A number is too large or too small for seconds since 1970; the message says which unit it may have."""


def moment_of(time_us: int) -> datetime:
    """Return the moment of a number of microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=time_us)


def microseconds_of(moment: datetime) -> int:
    """Return the microseconds since 1970 of a moment, which has a zone."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def read_length_us(text: str) -> int | None:
    """Return the microseconds of a length of time such as 90s, 30m, 24h or 7d; None if the text is none."""
    found = _LENGTH.fullmatch(text.strip())
    return None if found is None else round(float(found[1]) * _UNITS_S[found[2]] * 1e6)


def hint(seconds: float) -> str:
    """Return, for an error, which unit a number may have that is out of the range of seconds since 1970."""
    size = abs(seconds)
    unit = "milliseconds" if size < 1e14 else "microseconds" if size < 1e17 else "nanoseconds"
    looks = f"looks like {unit}, " if 1e11 <= size < 1e20 else ""
    return f"{looks}expected seconds since 1970 or ISO 8601"


def in_range(time_us: float) -> bool:
    """Return whether a time, in microseconds since 1970, is one that all readers of Tsunagi can represent."""
    return _EARLIEST_US <= time_us < LATEST_US


def read_time_us(text: str) -> int:
    """Return the microseconds since 1970 of a text that is ISO 8601 with a zone, or seconds since 1970.

    Raises:
        NoZoneError: the text is ISO 8601 without a zone.
        TimeRangeError: the number is too large or too small for seconds since 1970.
        ValueError: the text is neither.
    """
    try:
        seconds = float(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
    else:
        if not math.isfinite(seconds):
            raise ValueError(f"{text!r} is no moment")
        if not in_range(seconds * 1e6):
            raise TimeRangeError(hint(seconds))
        return round(seconds * 1e6)
    if moment.tzinfo is None:
        raise NoZoneError(f"{text!r} has no zone")
    time_us = microseconds_of(moment)
    if not in_range(time_us):
        raise TimeRangeError("expected a time between the years 1 and 5138")
    return time_us
