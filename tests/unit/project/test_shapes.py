"""What `tsunagi init` proposes for messages is what an edge reads in them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsunagi.edge.inbox import Message
from tsunagi.edge.source import SourceError
from tsunagi.project.finding import FoundFleet, find_in_messages
from tsunagi.project.fleet import own_topic
from tsunagi.project.shapes import Sample, propose
from tsunagi.runtime.messages import sparkplug_b_pb2 as pb
from tsunagi.runtime.settings import SourceSettings
from tsunagi.runtime.settings.fields import FieldSettings

NOW_S = 1_700_000_000
Said = tuple[str, Any]
"""(topic, body) of a message"""


def entries(*said: Said) -> list[dict[str, Any]]:
    return propose(Sample(topic, body, NOW_S * 1_000_000) for topic, body in said)


def names(*said: Said) -> set[str]:
    """Return the sensors that are found."""
    messages = [
        Message(json.dumps(body).encode(), topic, NOW_S * 1_000_000, topic=topic, offset=number)
        for number, (topic, body) in enumerate(said)
    ]
    return set(find_in_messages({"kind": "mqtt", "mqtt": {"topic": "#"}}, messages).series)


def test_several_values_of_devices_in_halls() -> None:
    said = [
        (f"plant/{hall}/{device}", {"temperature": 20.5 + n, "ts": (NOW_S + n) * 1000, "fw": "1.2", "rpm": "3000"[:n]})
        for n in range(1, 4)
        for hall in ("a", "b")
        for device in ("boiler", "pump")
    ]
    (entry,) = entries(*said)
    assert entry == {
        "topic": "plant/{area}/{device}",
        "values": ["temperature", "rpm"],
        "sensor": "{area}.{device}.{field}",
        "time": "ts",
        "time_unit": "ms",
    }
    assert "a.pump.temperature" in names(*said)
    assert len(names(*said)) == 8


def test_each_shape_of_message_under_topics_alike_gets_a_table() -> None:
    said = [
        said
        for n in range(3)
        for said in (
            ("plant/a/press", {"temperature": 20.5 + n, "ts": (NOW_S + n) * 1000}),
            ("plant/b/press", {"metrics": [{"fields": {"temperature": 1.5 * n}, "tags": {"unit": "7"}}]}),
            ("plant/c/press", {"state": {"temperature": f"{n}"}, "last_seen": NOW_S + n}),
            ("plant/c/gate/light", "ON"),
        )
    ]
    assert names(*said) == {"a.temperature", "b.temperature", "c.temperature", "c.gate.light"}
    assert [entry["time"] for entry in entries(*said)] == ["ts", "", "last_seen", ""]
    assert entries(*said)[-1]["words"] == {"OFF": 0.0, "ON": 1.0}


def test_a_value_that_two_shapes_share_is_read_once() -> None:
    said = [("x/a", {"v": 1, "ts": NOW_S}), ("x/a", {"v": 2}), ("x/b", {"v": 3, "time": NOW_S})]
    assert len(entries(*said)) == 1
    assert names(*said) == {"a", "b"}


def test_numbers_of_machines_are_no_values_but_what_stands_alone_is() -> None:
    said = [(f"x/{n}", {"no": str(n), "v": n + at}) for n in range(3) for at in range(2)]
    assert names(*said) == {"0", "1", "2"}
    assert names(*[(f"x/{n}", {"level": str(n)}) for n in range(3) for _ in range(2)]) == {
        "0.level",
        "1.level",
        "2.level",
    }


def test_lists_whose_items_name_themselves() -> None:
    metrics = [{"name": "cpu", "tags": {"host": host}, "fields": {"idle": 3}, "timestamp": NOW_S} for host in "abc"]
    (entry,) = entries(("telegraf/x", {"metrics": metrics}))
    assert (entry["each"], entry["time"], entry["sensor"]) == ("metrics", "timestamp", "{tags.host}.{field}")
    assert names(("telegraf/x", {"metrics": metrics})) == {"a.idle", "b.idle", "c.idle"}
    outside = {"t": NOW_S, "data": [{"sensor": "s 1", "v": 1}, {"sensor": "s 2", "v": 2}]}
    (entry,) = entries(("hub", outside))
    assert (entry["each"], entry["time"]) == ("data", "t")
    assert names(("hub", outside)) == {"s 1", "s 2"}
    assert names(("hub", [{"id": "a", "value": 1}, {"id": "b", "value": 2}])) == {"a", "b"}


def test_plain_values_words_and_what_is_none() -> None:
    (entry,) = entries(("ha/door/state", "open"), ("ha/door/state", "closed"), ("ha/lamp/state", "unavailable"))
    assert entry == {
        "topic": "ha/{device}/state",
        "values": ["@"],
        "sensor": "{device}",
        "time": "",
        "words": {"closed": 0.0, "open": 1.0},
        "missing": ["unavailable"],
    }
    assert entries(("x/note", "hello"), ("x/note", "7 o'clock")) == []


def test_one_device_alone_is_called_by_its_topic() -> None:
    assert names(("zigbee2mqtt/door", {"battery": 97, "soil moisture": 3})) == {"door.battery", "door.soil moisture"}


def test_values_of_one_name_keep_more_of_their_paths() -> None:
    assert names(("x/d", {"in": {"t": 1}, "out": {"t": 2}})) == {"d.in.t", "d.out.t"}


@pytest.mark.parametrize("key", ["time", "Timestamp", "last_seen"])
@pytest.mark.parametrize("given", [NOW_S, NOW_S * 1000, str(NOW_S), "2023-11-14T22:13:20Z"])
def test_times_are_found_by_what_they_are(key: str, given: object) -> None:
    assert entries(("x/d", {key: given, "v": 1}))[0]["time"] == key


@pytest.mark.parametrize("given", [3, "later", "2023-11-14T22:13:20", NOW_S - 10**6])
def test_what_cannot_be_the_time_of_the_message_is_none(given: object) -> None:
    assert entries(("x/d", {"time": given, "v": 1}))[0]["time"] == ""


def test_nothing_that_is_a_number_is_an_error() -> None:
    with pytest.raises(SourceError, match="found 1 messages and no number in any of them"):
        names(("x", {"a": "b"}))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a/b", "a/c", "a", "x/y/z", ""]),
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
                lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
                max_leaves=8,
            ),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_what_is_proposed_can_be_set_whatever_comes(said: list[Said]) -> None:
    for entry in entries(*said):
        FieldSettings.model_validate(entry)


@pytest.mark.parametrize(
    ("pattern", "topics", "own"),
    [
        ("plant/#", {"plant/a/x": "a", "plant/b/y/z": "b"}, "plant/{edge}/#"),
        ("#", {"plant/a/x": "a", "plant/b/y": "b"}, "+/{edge}/#"),
        ("#", {"a/x": "a", "b/y": "b"}, "{edge}/#"),
        ("plant/+/+", {"plant/a/x": "a", "plant/b/y": "b"}, "plant/{edge}/+"),
        ("plant/+/x", {"plant/a/x": "a"}, "plant/{edge}/x"),
        ("plant/#", {"plant/Halle Süd/x": "halle-sud", "plant/b/y": "b"}, "plant/#"),
        ("plant/#", {"plant/a/x": "edge-1", "plant/b/y": "edge-2"}, "plant/#"),
        ("plant/a/+", {"plant/a/x": "a"}, "plant/a/+"),
        ("#", {}, "#"),
    ],
)
def test_an_edge_hears_its_own_messages_alone_where_topics_name_it(
    pattern: str, topics: dict[str, str], own: str
) -> None:
    assert own_topic(pattern, [(topic.split("/"), edge) for topic, edge in topics.items()]) == own


# ---- other formats


def found_in(*payloads: tuple[str, bytes]) -> FoundFleet:
    messages = [
        Message(payload, topic, NOW_S * 1_000_000, topic=topic, offset=number)
        for number, (topic, payload) in enumerate(payloads)
    ]
    return find_in_messages({"kind": "mqtt", "mqtt": {"topic": "#"}}, messages)


def test_line_protocol_is_recognised_and_each_measurement_has_its_tags() -> None:
    lines = [
        f"{line} {NOW_S}{number:09d}"
        for number in range(3)
        for host in "ab"
        for line in (
            f"cpu,host={host},cpu=cpu0,os=linux idle={number}",
            f"cpu,host={host},cpu=cpu1,os=linux idle=1i,busy=t",
            f"it's\\ disk,path=/ free={number}u",
            f'note,host={host} text="hello"',
        )
    ]
    found = found_in(("telegraf/a", "\n".join(lines).encode()), ("telegraf/b", b"21.5"))
    assert found.source["format"] == "line-protocol"
    assert found.source["fields"] == [
        {
            "each": "[@][?measurement=='cpu']",
            "values": ["fields.*"],
            "sensor": "{measurement}.{tags.cpu}.{tags.host}.{field}",
            "time": "time",
            "time_unit": "ns",
        },
        {
            "each": r"[@][?measurement=='it\'s disk']",
            "values": ["fields.*"],
            "sensor": "{measurement}.{field}",
            "time": "time",
            "time_unit": "ns",
        },
    ]
    assert set(found.series) == {
        *(f"cpu.{cpu}.{host}.idle" for cpu in ("cpu0", "cpu1") for host in "ab"),
        *(f"cpu.cpu1.{host}.busy" for host in "ab"),
        "it's disk.free",
    }
    assert found.unusable == {"unreadable": 1, "no-field": 6}
    SourceSettings.model_validate(found.source)


def test_lines_of_one_measurement_and_without_times() -> None:
    found = found_in(("", b"weather,city=Paris t=1.5\nweather,city=Rom t=2"))
    assert found.source["fields"] == [
        {"values": ["fields.*"], "sensor": "{measurement}.{tags.city}.{field}", "time": ""}
    ]
    assert set(found.series) == {"weather.Paris.t", "weather.Rom.t"}


def sparkplug(kind: str, *metrics: pb.Payload.Metric) -> tuple[str, bytes]:
    return f"spBv1.0/{kind}", pb.Payload(timestamp=NOW_S * 1000, metrics=metrics).SerializeToString()


def test_sparkplug_is_recognised_by_its_topics() -> None:
    level = pb.Payload.Metric(name="level", alias=1, datatype=pb.Int8, int_value=255)
    data = pb.Payload.Metric(alias=1, int_value=3)
    early = sparkplug("plant/DDATA/gw/tank", data)
    found = found_in(early, sparkplug("plant/DBIRTH/gw/tank", level), early, ("zigbee/x", b"1"))
    assert found.source["format"] == "sparkplug"
    assert found.source["fields"][0]["sensor"] == "{device}.{name}"
    assert {name: (item.least, item.greatest) for name, item in found.series.items()} == {"tank.level": (-1.0, 3.0)}
    assert found.unusable == {"no-birth": 1, "unreadable": 1}
    SourceSettings.model_validate(found.source)
    twice = [sparkplug(f"plant/DBIRTH/{node}/tank", level) for node in ("gw1", "gw2")]
    assert set(found_in(*twice).series) == {"gw1.tank.level", "gw2.tank.level"}
    groups = [*twice, sparkplug("yard/DBIRTH/gw1/tank", level)]
    assert set(found_in(*groups).series) == {"plant.gw1.tank.level", "plant.gw2.tank.level", "yard.gw1.tank.level"}
    with pytest.raises(SourceError, match="1 metrics had no birth yet"):
        found_in(early)


def test_what_may_be_avro_is_said_to_be() -> None:
    with pytest.raises(SourceError, match="is it Avro"):
        found_in(("plant", b"\0\0\0\0\1\xff\2"))
