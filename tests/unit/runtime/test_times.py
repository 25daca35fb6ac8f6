from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsunagi.runtime.times import NoZoneError, TimeRangeError, read_time_us


@pytest.mark.parametrize(
    ("text", "time_us"),
    [
        ("0", 0),
        ("1.5", 1_500_000),
        ("-1e3", -1_000_000_000),
        ("1970-01-01T00:00:01+00:00", 1_000_000),
        ("1970-01-01T01:00:00.000001+01:00", 1),
        ("1970-01-02 00:00Z", 86_400_000_000),
    ],
)
def test_both_ways_to_write_a_moment(text: str, time_us: int) -> None:
    assert read_time_us(text) == time_us


@pytest.mark.parametrize("text", ["", "noon", "nan", "inf", "1970-13-01T00:00Z"])
def test_what_is_no_moment(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_time_us(text)
    assert not isinstance(caught.value, NoZoneError)


def test_a_time_without_a_zone_is_named_as_that() -> None:
    with pytest.raises(NoZoneError):
        read_time_us("1970-01-01T00:00:01")


@pytest.mark.parametrize(
    ("text", "looks"),
    [
        ("1.7e12", "milliseconds"),
        ("1700000000000", "milliseconds"),
        ("1700000000000000", "microseconds"),
        ("1700000000000000000", "nanoseconds"),
        ("-1.7e12", "milliseconds"),
    ],
)
def test_another_unit_than_seconds_is_named(text: str, looks: str) -> None:
    with pytest.raises(TimeRangeError, match=f"looks like {looks}, expected seconds since 1970 or ISO 8601"):
        read_time_us(text)


@given(st.floats(allow_nan=True, allow_infinity=True) | st.datetimes(timezones=st.just(UTC)))
def test_what_is_read_can_be_held_everywhere(moment: float | datetime) -> None:
    text = repr(moment) if isinstance(moment, float) else moment.isoformat()
    try:
        time_us = read_time_us(text)
    except ValueError:
        return
    assert abs(time_us) < 2**63
    assert time_us == int(np.array([time_us], dtype=np.int64)[0])
    datetime.fromtimestamp(0, UTC) + timedelta(microseconds=time_us)
