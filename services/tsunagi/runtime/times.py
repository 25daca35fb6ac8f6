"""Times as people and files write them."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

LATEST_US = 10**17
"""Times lie less than this from the epoch, microseconds: from the year 1 on (`datetime`'s first) and before 5139."""
_EARLIEST_US = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


class NoZoneError(ValueError):
    """A date and time without a zone: it names no moment."""


class TimeRangeError(ValueError):
    """A number that is no moment of seconds since the epoch; the message says of what unit it looks."""


def hint(seconds: float) -> str:
    """Say what a number past the range of seconds since the epoch looks like."""
    size = abs(seconds)
    unit = "milliseconds" if size < 1e14 else "microseconds" if size < 1e17 else "nanoseconds"
    looks = f"looks like {unit}, " if 1e11 <= size < 1e20 else ""
    return f"{looks}expected seconds since 1970 or ISO 8601"


def in_range(time_us: float) -> bool:
    """Return whether a time, microseconds since the epoch, is one that every reader of ours can hold."""
    return _EARLIEST_US <= time_us < LATEST_US


def read_time_us(text: str) -> int:
    """Return microseconds since the epoch of ISO 8601 with a zone, or of seconds since the epoch.

    Raises:
        NoZoneError: ISO 8601 without a zone.
        TimeRangeError: a number that is too large or too small for seconds.
        ValueError: neither.
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
    time_us = (moment - _EPOCH) // timedelta(microseconds=1)
    if not in_range(time_us):
        raise TimeRangeError("expected a time between the years 1 and 5138")
    return time_us
