import pytest

from services.runtime.times import NoZoneError, read_time_us


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
