"""Sparkplug B: names from birth certificates, datatypes, what has no reading, and what is not known yet."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsunagi.edge.decode import Decoder, Reading, ReadingFault
from tsunagi.edge.fields import FieldsDecoder
from tsunagi.edge.formats import make_format
from tsunagi.edge.inbox import Message
from tsunagi.edge.sparkplug import Sparkplug
from tsunagi.runtime.messages import sparkplug_b_pb2 as pb
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import SourceSettings

NOON_MS = 1_714_996_800_000
NAMES = ("boiler.temperature", "boiler.level", "gw.uptime")
TABLE = SensorTable(tuple(Sensor(number, name, "hall") for number, name in enumerate(NAMES)))
ENTRY = {"each": "metrics", "values": ["value"], "sensor": "{device}.{name}", "time": "timestamp", "time_unit": "ms"}
BIRTH = [
    {"name": "temperature", "alias": 1, "datatype": pb.Float, "float_value": 20.5},
    {"name": "level", "alias": 2, "datatype": pb.Int16, "int_value": 0xFFFF},
]


def payload(metrics: list[dict[str, Any]], timestamp: int | None = NOON_MS) -> bytes:
    return pb.Payload(
        timestamp=timestamp, metrics=[pb.Payload.Metric(**metric) for metric in metrics]
    ).SerializeToString()


class Host:
    """A decoder of an edge, to which a test sends messages."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.now_us = 5
        source = SourceSettings.model_validate({"kind": "mqtt", "format": "sparkplug", "fields": [ENTRY]})
        payloads = make_format(source)
        payloads.ask = self._publish
        self.decoder = FieldsDecoder(Decoder(TABLE, TABLE.of_edge("hall"), source, key_first=True), source, payloads)

    def _publish(self, topic: str, command: bytes) -> None:
        (metric,) = pb.Payload.FromString(command).metrics
        assert (metric.name, metric.datatype, metric.boolean_value) == ("Node Control/Rebirth", pb.Boolean, True)
        self.asked.append(topic)

    def send(self, levels: str, *metrics: dict[str, Any], timestamp: int | None = NOON_MS) -> list[tuple[str, object]]:
        """Return (sensor, value) of the readings and (reason, detail) of the rest."""
        group, kind, rest = levels.split(" ")
        body = payload(list(metrics), timestamp)
        found = self.decoder.readings(Message(body, "here", self.now_us, topic=f"spBv1.0/{group}/{kind}/{rest}"))
        for item in found:
            assert isinstance(item, ReadingFault) or item.time_us == NOON_MS * 1000
        return [(NAMES[i.place], i.value) if isinstance(i, Reading) else (i.reason, i.detail) for i in found]


def test_a_birth_gives_aliases_names_and_types_which_data_then_uses() -> None:
    host = Host()
    assert host.send("plant DBIRTH gw/boiler", *BIRTH) == [("boiler.temperature", 20.5), ("boiler.level", -1.0)]
    assert host.send("plant DDATA gw/boiler", {"alias": 2, "int_value": 0xFFFE}, {"alias": 1, "float_value": 21.0}) == [
        ("boiler.level", -2.0),
        ("boiler.temperature", 21.0),
    ]
    assert host.send("plant DDATA gw/boiler", {"name": "level", "int_value": 3}) == [("boiler.level", 3.0)]


def test_metrics_of_a_node_are_those_of_the_device_that_has_its_name() -> None:
    control = {"name": "Node Control/Rebirth", "datatype": pb.Boolean, "boolean_value": False}
    session = {"name": "bdSeq", "datatype": pb.Int64, "long_value": 3}
    uptime = {"name": "uptime", "alias": 9, "datatype": pb.UInt64, "long_value": 2**40}
    assert Host().send("plant NBIRTH gw", session, control, uptime) == [
        ("no-reading", "plant/gw: bdSeq"),
        ("no-reading", "plant/gw: Node Control/Rebirth"),
        ("gw.uptime", float(2**40)),
    ]


def test_data_before_a_birth_is_counted_and_says_what_is_missing() -> None:
    host = Host()
    ((reason, detail),) = host.send("plant DDATA gw/boiler", {"alias": 1, "float_value": 21.0})
    assert reason == "no-birth"
    assert detail == (
        "plant/gw/boiler: found the alias 1, expected one of a birth certificate that the edge has received"
    )
    ((reason, detail),) = host.send("plant DDATA gw/boiler", {"name": "level", "int_value": 0xFFFF})
    assert (reason, "without a datatype" in str(detail)) == ("no-birth", True)
    assert host.send("plant DDATA gw/boiler", {"name": "level", "datatype": pb.Int16, "int_value": 0xFFFF}) == [
        ("boiler.level", -1.0)
    ]
    ((reason, detail),) = host.send("plant DDATA gw/boiler", {"float_value": 1.0})
    assert (reason, "neither a name nor an alias" in str(detail)) == ("no-birth", True)
    host.send("plant DBIRTH gw/boiler", *BIRTH)
    for other in ("plant DDATA gw/pump", "plant DDATA gw2/boiler", "yard DDATA gw/boiler", "plant NDATA gw"):
        assert host.send(other, {"alias": 1, "float_value": 1.0})[0][0] == "no-birth"


def test_a_node_is_asked_for_its_births_once_a_minute_when_its_data_need_one() -> None:
    host = Host()
    unknown = {"alias": 1, "float_value": 1.0}
    host.send("plant DDATA gw/boiler", unknown, unknown)
    host.send("plant NDATA gw", unknown)
    host.send("plant DDATA gw2/boiler", unknown)
    assert host.asked == ["spBv1.0/plant/NCMD/gw", "spBv1.0/plant/NCMD/gw2"]
    host.now_us += 59_000_000
    host.send("plant NDATA gw", unknown)
    assert len(host.asked) == 2
    host.now_us += 1_000_000
    host.send("plant DDATA gw/boiler", unknown)
    assert host.asked[2:] == ["spBv1.0/plant/NCMD/gw"]
    host.now_us = 0  # the clock was set back
    host.send("plant DDATA gw/boiler", unknown)
    assert len(host.asked) == 4
    host.send("plant DBIRTH gw/boiler", *BIRTH)
    host.now_us += 60_000_000
    host.send("plant DDATA gw/boiler", unknown)
    assert len(host.asked) == 4


@pytest.mark.parametrize("death", ["plant DDEATH gw/boiler", "plant NDEATH gw", "plant NBIRTH gw"])
def test_a_death_and_a_new_session_make_aliases_void(death: str) -> None:
    host = Host()
    host.send("plant DBIRTH gw/boiler", *BIRTH)
    found = host.send(death)
    assert found[0][0] == ("no-field" if "NBIRTH" in death else "no-reading")
    assert host.send("plant DDATA gw/boiler", {"alias": 1, "float_value": 1.0})[0][0] == "no-birth"


def test_the_death_of_an_earlier_session_says_nothing_of_this_one() -> None:
    host = Host()
    host.send("plant NBIRTH gw", {"name": "bdSeq", "datatype": pb.Int64, "long_value": 4})
    host.send("plant DBIRTH gw/boiler", *BIRTH)
    host.send("plant NDEATH gw", {"name": "bdSeq", "datatype": pb.Int64, "long_value": 3})
    assert host.send("plant DDATA gw/boiler", {"alias": 1, "float_value": 1.0}) == [("boiler.temperature", 1.0)]
    host.send("plant NDEATH gw", {"name": "bdSeq", "datatype": pb.Int64, "long_value": 4})
    assert host.send("plant DDATA gw/boiler", {"alias": 1, "float_value": 1.0})[0][0] == "no-birth"


@pytest.mark.parametrize(
    ("datatype", "field", "wire", "value"),
    [
        (pb.Int8, "int_value", 0xFF, -1),
        (pb.Int8, "int_value", 0xFFFFFF80, -128),  # as Tahu's Java writes it
        (pb.Int8, "int_value", 0x7F, 127),
        (pb.Int16, "int_value", 0x8000, -32768),
        (pb.Int32, "int_value", 0x80000000, -(2**31)),
        (pb.Int32, "long_value", 2**64 - 5, -5),
        (pb.Int64, "long_value", 1 << 63, -(2**63)),
        (pb.Int64, "long_value", 2**63 - 1, 2**63 - 1),
        (pb.UInt8, "int_value", 255, 255),
        (pb.UInt32, "int_value", 2**32 - 1, 2**32 - 1),
        (pb.UInt64, "long_value", 2**64 - 1, 2**64 - 1),
        (pb.Double, "double_value", 1e308, 1e308),
        (pb.Boolean, "boolean_value", True, True),
        (pb.String, "string_value", "süß", "süß"),
        (pb.DateTime, "long_value", NOON_MS, NOON_MS),
        (pb.DataSet, "dataset_value", b"", {"datatype": "DataSet"}),
        (99, "bytes_value", b"x", {"datatype": 99}),
    ],
)
def test_values_are_read_by_their_datatype(datatype: int, field: str, wire: object, value: object) -> None:
    message = Message(
        payload([{"name": "m", "datatype": datatype, field: wire}]), "here", 5, topic="spBv1.0/g/DDATA/n/d"
    )
    assert list(Sparkplug().bodies(message)) == [
        {"group": "g", "node": "n", "device": "d", "timestamp": NOON_MS, "metrics": [{"name": "m", "value": value}]}
    ]


def test_null_is_counted_and_a_metric_may_have_a_time_of_its_own() -> None:
    host = Host()
    host.send("plant DBIRTH gw/boiler", *BIRTH)
    assert host.send("plant DDATA gw/boiler", {"alias": 1, "is_null": True}, {"alias": 2}) == [
        ("missing", "plant/gw/boiler: temperature: null"),
        ("missing", "plant/gw/boiler: level: null"),
    ]
    own = {"alias": 1, "timestamp": NOON_MS, "float_value": 1.0}
    assert host.send("plant DDATA gw/boiler", own, timestamp=NOON_MS - 60_000) == [("boiler.temperature", 1.0)]
    assert host.send("plant DDATA gw/boiler", {"alias": 1, "float_value": 1.0}, timestamp=None)[0][0] == "no-time"


@pytest.mark.parametrize(
    ("topic", "body", "reason", "detail"),
    [
        ("spBv1.0/STATE/scada", b"{}", "no-reading", "STATE"),
        ("spBv1.0/g/DCMD/n/d", b"", "no-reading", "DCMD"),
        ("plant/boiler", b"", "unreadable", "found the topic 'plant/boiler', expected spBv1.0/GROUP/TYPE/NODE/DEVICE"),
        ("spBv1.0/g/XDATA/n", b"", "unreadable", "found the topic 'spBv1.0/g/XDATA/n', expected spBv1.0/GROUP"),
        (
            "spBv1.0/g/NDATA/n",
            b'{"a": 1}',
            "unreadable",
            "found 8 bytes that begin with '7b 22 61 22 3a 20 31 7d', exp",
        ),
    ],
)
def test_what_is_no_data_says_so(topic: str, body: bytes, reason: str, detail: str) -> None:
    (found,) = Sparkplug().bodies(Message(body, "here", 5, topic=topic))
    assert isinstance(found, ReadingFault)
    assert found.reason == reason
    assert found.detail.startswith(detail)


@given(st.lists(st.tuples(st.sampled_from(["NBIRTH", "NDATA", "NDEATH", "DBIRTH", "DDATA"]), st.binary(max_size=40))))
def test_any_bytes_give_objects_or_say_why_not(messages: list[tuple[str, bytes]]) -> None:
    host = Sparkplug()
    for kind, body in messages:
        found = list(host.bodies(Message(body, "here", 5, topic=f"spBv1.0/g/{kind}/n")))
        assert found
        assert all(isinstance(item, dict | ReadingFault) for item in found)
