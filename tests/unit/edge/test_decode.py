"""What a live reading says, and the one reason why it cannot be used."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tsunagi.edge.decode import ONLY_COUNTED, Decoder, Reading, ReadingFault
from tsunagi.edge.inbox import Message
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import SourceSettings

TABLE = SensorTable((Sensor(0, "s0", "a"), Sensor(1, "s1", "b"), Sensor(2, "s2", "a")))
NOON_US = int(datetime(2024, 5, 6, 12, tzinfo=UTC).timestamp()) * 1_000_000
ARRIVED_US = NOON_US + 7


def decode(
    payload: str | bytes, sensor: str | None = None, *, key_first: bool = True, stored: bool = False, **settings: Any
) -> Reading | ReadingFault:
    decoder = Decoder(TABLE, TABLE.of_edge("a"), SourceSettings(**settings), key_first=key_first)
    if isinstance(payload, str):
        payload = payload.encode()
    return decoder.decode(Message(payload, "here", ARRIVED_US, sensor=sensor, stored=stored))


def test_json_names_sensor_time_and_value():
    found = decode('{"sensor": "s2", "time": "2024-05-06T14:00:00+02:00", "value": 3.5}')
    assert found == Reading(1, NOON_US, 3.5, False)


def test_keys_have_other_names_if_so_set():
    text = '{"id": "s0", "ts": "2024-05-06T12:00:00Z", "v": 3, "value": "no"}'
    assert decode(text, sensor_key="id", time_key="ts", value_key="v") == Reading(0, NOON_US, 3.0, False)


@pytest.mark.parametrize(
    ("unit", "text", "expected_us"),
    [
        ("s", str(NOON_US // 1_000_000), NOON_US),
        ("s", f"{NOON_US // 1_000_000}.25", NOON_US + 250_000),
        ("ms", str(NOON_US // 1000 + 3), NOON_US + 3000),
        ("us", str(NOON_US + 1), NOON_US + 1),
    ],
)
def test_numbers_are_times_in_the_unit_that_is_set(unit, text, expected_us):
    found = decode(f'{{"sensor": "s0", "time": {text}, "value": 1}}', time_unit=unit)
    assert found == Reading(0, expected_us, 1.0, False)


@pytest.mark.parametrize("text", ["3.5", " 3.5\n", "35e-1"])
def test_a_plain_number_has_the_time_of_its_arrival(text):
    assert decode(text, "s0") == Reading(0, ARRIVED_US, 3.5, True)


def test_a_plain_number_is_refused_if_so_set_or_if_it_was_retained():
    for fault in (decode("3.5", "s0", plain_time="refuse"), decode("3.5", "s0", stored=True)):
        assert isinstance(fault, ReadingFault)
        assert (fault.reason, fault.sensor) == ("no-time", "s0")


def test_an_mqtt_topic_stands_above_the_payload_and_a_kafka_key_below_it():
    text = '{"sensor": "s2", "time": "2024-05-06T12:00:00Z", "value": 1}'
    assert decode(text, "s0", key_first=True) == Reading(0, NOON_US, 1.0, False)
    assert decode(text, "s0", key_first=False) == Reading(1, NOON_US, 1.0, False)
    assert decode(text.replace("sensor", "other"), "s0", key_first=False) == Reading(0, NOON_US, 1.0, False)


@pytest.mark.parametrize(
    ("payload", "reason", "says"),
    [
        ("", "unreadable", "found ''"),
        ("hello", "unreadable", "found 'hello', expected a JSON object or a number"),
        ("1_000", "unreadable", "found '1_000'"),
        ("[1]", "unreadable", "found '[1]'"),
        ('{"sensor": "s0"', "unreadable", "not JSON"),
        ('{"a":' * 100_000, "unreadable", "not JSON"),
        (b"\xff\xfe", "unreadable", "found byte 0xff at 1"),
        ("3.5", "no-sensor", "no key 'sensor'"),
        ('{"time": 1, "value": 1}', "no-sensor", "no key 'sensor'"),
        ('{"sensor": "", "time": 1, "value": 1}', "no-sensor", "no key 'sensor'"),
        ('{"sensor": 5, "time": 1, "value": 1}', "no-sensor", "found 5, expected a sensor's name"),
        ('{"sensor": "s9", "time": 1, "value": 1}', "unknown-sensor", "found sensor 's9'"),
        ('{"sensor": "s1", "time": 1, "value": 1}', "foreign-sensor", "a sensor of edge 'b'"),
        ('{"sensor": "s0", "value": 1}', "no-time", "no key 'time'"),
        ('{"sensor": "s0", "time": null, "value": 1}', "no-time", "no key 'time'"),
        ('{"sensor": "s0", "time": "noon", "value": 1}', "bad-time", "found 'noon', expected ISO 8601 with a zone"),
        ('{"sensor": "s0", "time": "2024-05-06T12:00:00", "value": 1}', "bad-time", "with a zone"),
        ('{"sensor": "s0", "time": true, "value": 1}', "bad-time", "found True"),
        ('{"sensor": "s0", "time": [1], "value": 1}', "bad-time", "found [1]"),
        ('{"sensor": "s0", "time": NaN, "value": 1}', "bad-time", "found nan"),
        ('{"sensor": "s0", "time": 1e308, "value": 1}', "bad-time", "found 1e+308"),
        ('{"sensor": "s0", "time": 1' + "0" * 400 + ', "value": 1}', "bad-time", "found 1000"),
        ('{"sensor": "s0", "time": 1}', "not-a-number", "found nothing"),
        ('{"sensor": "s0", "time": 1, "value": null}', "not-a-number", "found None"),
        ('{"sensor": "s0", "time": 1, "value": NaN}', "not-a-number", "found nan"),
        ('{"sensor": "s0", "time": 1, "value": -Infinity}', "not-a-number", "found -inf"),
        ('{"sensor": "s0", "time": 1, "value": "3"}', "not-a-number", "found '3'"),
        ('{"sensor": "s0", "time": 1, "value": true}', "not-a-number", "found True"),
        ('{"sensor": "s0", "time": 1, "value": 1' + "0" * 400 + "}", "not-a-number", "found 1000"),
    ],
)
def test_what_cannot_be_used_has_one_reason(payload, reason, says):
    found = decode(payload)
    assert isinstance(found, ReadingFault)
    assert found.reason == reason
    assert says in found.detail
    assert len(found.detail) < 400


def test_readings_of_a_removed_sensor_are_no_loss():
    """Each edge that hears its device would write a letter for each reading, for ever."""
    table = SensorTable((Sensor(0, "s0", "a"), Sensor(1, "new", "", was="old", before="a")))
    decoder = Decoder(table, table.of_edge("a"), SourceSettings(), key_first=True)
    for name in ("new", "old"):
        found = decoder.decode(Message(b"3", "here", ARRIVED_US, sensor=name))
        assert isinstance(found, ReadingFault)
        assert (found.reason, found.sensor) == ("removed-sensor", name)
        assert found.reason in ONLY_COUNTED


def test_a_plain_nan_is_not_a_number():
    found = decode("nan", "s0")
    assert isinstance(found, ReadingFault)
    assert (found.reason, found.sensor) == ("not-a-number", "s0")


def test_what_came_with_a_fault_keeps_it():
    decoder = Decoder(TABLE, TABLE.of_edge("a"), SourceSettings(), key_first=True)
    message = Message(b"3", "here", 1, sensor="s0", fault=("too-long", "found 9 bytes, expected 8 at most"))
    assert decoder.decode(message) == ReadingFault("too-long", "s0", "found 9 bytes, expected 8 at most")
