"""InfluxDB's line protocol: objects of lines, readings through [source] fields, and what cannot be read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tsunagi.edge.decode import Decoder, Reading, ReadingFault
from tsunagi.edge.fields import FieldsDecoder
from tsunagi.edge.inbox import Message
from tsunagi.edge.line_protocol import LineProtocol
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import SourceSettings

NOON_US = 1_714_996_800_000_000
NAMES = ("cpu.a.idle", "cpu.b.idle", "cpu.a.count")
TABLE = SensorTable(tuple(Sensor(number, name, "hall") for number, name in enumerate(NAMES)))
TELEGRAF = {
    "values": ["fields.*"],
    "sensor": "{measurement}.{tags.host}.{field}",
    "time": "time",
    "time_unit": "ns",
}


def bodies(text: str | bytes) -> list[Any]:
    payload = text if isinstance(text, bytes) else text.encode()
    return list(LineProtocol().bodies(Message(payload, "here", NOON_US)))


def readings(text: str, **entry: Any) -> list[Reading | ReadingFault]:
    source = SourceSettings.model_validate({"kind": "mqtt", "format": "line-protocol", "fields": [TELEGRAF | entry]})
    decoder = FieldsDecoder(Decoder(TABLE, TABLE.of_edge("hall"), source, key_first=True), source)
    return list(decoder.readings(Message(text.encode(), "here", NOON_US + 5)))


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ("m f=1.5,g=-2,h=1e3 7", {"f": 1.5, "g": -2.0, "h": 1000.0}),
        ("m f=-9223372036854775808i,g=9223372036854775807i 7", {"f": -(2**63), "g": 2**63 - 1}),
        ("m f=18446744073709551615u 7", {"f": 2**64 - 1}),
        ("m a=t,b=True,c=TRUE,d=f,e=False,g=FALSE 7", dict.fromkeys("abc", True) | dict.fromkeys("deg", False)),
        (r'm f="a \"b\" \\ c, d=1" 7', {"f": 'a "b" \\ c, d=1'}),
        ('m f="two\nlines",g=1 7', {"f": "two\nlines", "g": 1.0}),
        (r"m a\,b\=c\ d=1 7", {"a,b=c d": 1.0}),
    ],
)
def test_fields_have_their_types(line: str, fields: dict[str, object]) -> None:
    (body,) = bodies(line)
    assert body == {"measurement": "m", "tags": {}, "fields": fields, "time": 7}
    assert [type(item) for item in body["fields"].values()] == [type(fields[name]) for name in body["fields"]]


def test_names_and_tags_may_have_escaped_signs_and_letters_of_any_language() -> None:
    (body,) = bodies(r"Halle\ Süd\,1,raum\=nr=a\ b\,c,ort=Köln f=1 7")
    assert body["measurement"] == "Halle Süd,1"
    assert body["tags"] == {"raum=nr": "a b,c", "ort": "Köln"}


def test_a_message_has_several_lines_and_comments_and_line_breaks_between_quotes() -> None:
    found = bodies('# 5" of "rain\r\nm,t="x f=1 7\r\n\n  m g="a\nb" 8\n#\nm h=3 9')
    assert [(body["tags"], body["fields"], body["time"]) for body in found] == [
        ({"t": '"x'}, {"f": 1.0}, 7),
        ({}, {"g": "a\nb"}, 8),
        ({}, {"h": 3.0}, 9),
    ]


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("", "found no line, expected line protocol"),
        ("\n# nothing\n", "found no line, expected line protocol"),
        (
            "m f=1 7\nm f=NaN 7",
            "line 2: found 'm f=NaN 7', expected line protocol (Failed to parse type of",
        ),
        ('m f="a\nb" 7\n\nm 7', "line 4: found 'm 7', expected line protocol (Failed to parse key of field)"),
        ("m f=9223372036854775808i", "line 1: found"),
        ("m f=1 7 8", "line 1: found"),
        ("m f=1\0 7", "line 1: found"),
        (b"m f=1,g=\xff 7", "found byte 0xff at 9, expected UTF-8"),
    ],
)
def test_what_cannot_be_read_says_in_which_line(text: str | bytes, detail: str) -> None:
    fault = bodies(text)[-1]
    assert fault.reason == "unreadable"
    assert fault.detail.startswith(detail)


def test_each_line_is_read_by_fields_and_what_is_wrong_with_one_spoils_no_other() -> None:
    found = readings(
        f'cpu,host=a idle=98.5,count=3i,model="x" {NOON_US}000\ncpu,host=b idle= 1\ncpu,host=b idle=2 {NOON_US}999'
    )
    taken = sorted(item for item in found if isinstance(item, Reading))
    assert [(item.place, item.time_us, item.value) for item in taken] == [
        (0, NOON_US, 98.5),
        (1, NOON_US, 2.0),
        (2, NOON_US, 3.0),
    ]
    assert [item.reason for item in found if isinstance(item, ReadingFault)] == ["unreadable"]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_have_the_unit_that_the_setting_says(unit: str) -> None:
    time = {"s": NOON_US // 10**6, "ms": NOON_US // 1000, "us": NOON_US, "ns": NOON_US * 1000}[unit]
    (found,) = readings(f"cpu,host=a idle=1 {time}", time_unit=unit)
    assert isinstance(found, Reading)
    assert found.time_us == NOON_US


def test_a_line_without_a_time_takes_that_of_its_arrival_only_if_it_is_told_to() -> None:
    (fault,) = readings("cpu,host=a idle=1")
    assert fault == ReadingFault("no-time", "cpu.a.idle", "nothing at 'time' ([source] fields: time)")
    (found,) = readings("cpu,host=a idle=1", time="")
    assert found == Reading(0, NOON_US + 5, 1.0, arrival=True)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"kind": "csv", "fields": [TELEGRAF]}, "found kind = 'csv', expected 'mqtt' or 'lines' or 'kafka'"),
        ({"kind": "mqtt"}, r"found no \[\[source.fields\]\], expected where readings stand"),
    ],
)
def test_settings_that_do_not_fit_the_format_are_refused(source: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        SourceSettings.model_validate(source | {"format": "line-protocol"})


@given(st.text(alphabet='mf,= "\\\n1.eiut#é\0'))
def test_any_text_gives_objects_or_says_why_not(text: str) -> None:
    found = bodies(text)
    assert found
    assert all(isinstance(item, dict | ReadingFault) for item in found)
