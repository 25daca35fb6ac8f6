"""Reads the times of live messages and of tables: numbers since the epoch, and texts."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from tsunagi.runtime.times import in_range

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""How many of each unit a second has."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""Moment from which event times are counted."""
_US = 1_000_000
"""Microseconds in a second."""


class BadTimeError(ValueError):
    """A time cannot be read; the text says what was found and what was expected."""


class TimeForm:
    """The form of times.

    Args:
        unit: of numbers: s, ms, us or ns since the epoch.
        form: of texts, as in strptime; "" = ISO 8601.
        zone: of texts that name none; "" = they must name one.
        number_texts: whether a text that is a number counts as one.
    """

    def __init__(self, unit: str, form: str = "", zone: str = "", *, number_texts: bool = False) -> None:
        self._unit, self._form = unit, form
        self._zone = ZoneInfo(zone) if zone else None
        self._number_texts = number_texts and not form

    def read(self, found: object) -> int:
        """Return a time in microseconds since the epoch.

        Raises:
            BadTimeError: it cannot be read.
        """
        time_us = self._text_us(found) if isinstance(found, str) else self._number_us(found)
        if time_us is None or not in_range(time_us):
            raise BadTimeError(f"found {repr(found)[:80]}, expected {self._expected()}")
        return time_us

    def _expected(self) -> str:
        text = f"a time of the form {self._form!r}" if self._form else "ISO 8601"
        zone = "" if self._zone is not None else " with a zone"
        return f"{text}{zone}, or a number of {self._unit} since the epoch (time_unit = {self._unit!r})"

    def _number_us(self, found: object) -> int | None:
        if isinstance(found, bool) or not isinstance(found, int | float):
            return None
        per_second = _PER_SECOND[self._unit]
        if isinstance(found, int):  # whole numbers stay exact, however long they are
            return found * _US // per_second if per_second > _US else found * (_US // per_second)
        scaled = found / (per_second / _US)
        return round(scaled) if math.isfinite(scaled) else None

    def _text_us(self, text: str) -> int | None:
        text = text.strip()
        if self._number_texts:
            try:
                return self._number_us(int(text) if text.lstrip("+-").isdecimal() else float(text))
            except ValueError:
                pass
        try:
            moment = datetime.strptime(text, self._form) if self._form else datetime.fromisoformat(text)  # noqa: DTZ007
            if moment.tzinfo is None:
                if self._zone is None:
                    return None
                moment = self._placed(moment, self._zone)
            return (moment - _EPOCH) // timedelta(microseconds=1)
        except BadTimeError:
            raise
        except (ValueError, OverflowError):
            return None

    @staticmethod
    def _placed(moment: datetime, zone: ZoneInfo) -> datetime:
        """Return a local time with its zone.

        Raises:
            BadTimeError: clocks show it twice, or never.
        """
        first, second = (moment.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
        if first.utcoffset() == second.utcoffset():
            return first
        there = first.astimezone(UTC).astimezone(zone).replace(tzinfo=None) == moment
        often = "twice" if there else "never"
        raise BadTimeError(
            f"found {moment.isoformat()}, which clocks in {zone.key} show {often} (they are changed): expected a time "
            "with its offset"
        )
