"""Times as people and files write them."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class NoZoneError(ValueError):
    """A date and time without a zone: it names no moment."""


def read_time_us(text: str) -> int:
    """Return microseconds since the epoch of ISO 8601 with a zone, or of seconds since the epoch.

    Raises:
        NoZoneError: ISO 8601 without a zone.
        ValueError: neither.
    """
    try:
        seconds = float(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
    else:
        if not math.isfinite(seconds):
            raise ValueError(f"{text!r} is no moment")
        return round(seconds * 1e6)
    if moment.tzinfo is None:
        raise NoZoneError(f"{text!r} has no zone")
    return (moment - _EPOCH) // timedelta(microseconds=1)
