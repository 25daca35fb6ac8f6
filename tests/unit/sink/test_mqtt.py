"""Topics of rows, and what is sent again after a connection was lost."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any, cast

import paho.mqtt.client as paho
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paho.mqtt.enums import MQTTErrorCode

from tsunagi.query.values import Kind
from tsunagi.runtime.settings import SinkSettings
from tsunagi.sink import mqtt
from tsunagi.sink.base import SinkAwayError, SinkError
from tsunagi.sink.mqtt import MqttSink
from tsunagi.sink.rows import Schema, SinkBatch, SinkColumn, SinkRows

NOON = datetime(2024, 5, 6, 12, tzinfo=UTC)
SCHEMA = Schema("alarms", (SinkColumn("time", Kind.TIMESTAMP), SinkColumn("what", Kind.TEXT)), ("time", "what"))


def make(topic: str = "plant/{query}/{what}") -> MqttSink:
    wanted = {"name": "out", "kind": "mqtt", "query": "alarms", "mqtt": {"topic": topic}}
    return MqttSink(SinkSettings.model_validate(wanted))


@settings(max_examples=30)
@given(st.text(st.sampled_from("/+#$\0\n\x85\u2028\ufffe a") | st.characters(), max_size=8))
def test_a_value_is_one_level_that_every_broker_takes(text: str) -> None:
    sink = make("{what}/{query}")
    topic = sink._topic({"query": "alarms", "what": text})
    level, query = topic.split("/")
    assert query == "alarms"
    assert level
    assert level.isprintable()
    assert not set(level) & set("+#$")
    assert len(level) == max(1, len(text))
    topic.encode()


@pytest.mark.parametrize(
    ("value", "level"),
    [
        (None, "_"),
        ("", "_"),
        (math.nan, "_"),
        (-1.5, "-1.5"),
        (7, "7"),
        ("Halle Süd", "Halle Süd"),
        (NOON, "2024-05-06T12:00:00.000000_00:00"),
    ],
)
def test_levels_of_values(value: object, level: str) -> None:
    assert make()._topic({"query": "alarms", "what": value}) == f"plant/alarms/{level}"


@pytest.mark.parametrize("topic", ["", "plant/#", "+/{what}"])
def test_a_topic_with_wildcards_is_refused_at_the_start(topic: str) -> None:
    with pytest.raises(SinkError, match=r"\[sinks\.mqtt\] topic = .*: expected a topic without '\+' and '#'"):
        make(topic)


@pytest.mark.parametrize("topic", ["{where}", "{}", "{0}", "{what.size}", "{what[a]}", "{what:d}", "{what"])
def test_a_topic_with_what_no_row_has_is_refused_at_the_first_row(topic: str) -> None:
    with pytest.raises(SinkError, match=r"expected \{query\} or one of the columns query, what"):
        make(topic)._topic({"query": "alarms", "what": "hot"})


class Broker:
    """Stands for the client of a broker: it takes the rows that `takes` has, and the connection is lost at others."""

    def __init__(self, sink: MqttSink, takes: str) -> None:
        self.sent: list[str] = []
        self._takes = takes
        sink._client = cast("paho.Client", self)
        sink._words = ""
        self._sink = sink

    def publish(self, topic: str, payload: bytes, qos: int, retain: bool) -> paho.MQTTMessageInfo:
        word = json.loads(payload)["row"]["what"]
        self.sent.append(word)
        if word == "long":
            raise ValueError("Publish topic is too long.")
        info = paho.MQTTMessageInfo(len(self.sent))
        if word in self._takes:
            info._set_as_published()
        elif word == "lost":
            info.rc = MQTTErrorCode.MQTT_ERR_NO_CONN
        else:
            self._sink._words = "disconnected"
        return info


def batch(*words: str) -> SinkBatch:
    return SinkBatch((SinkRows(SCHEMA, [(NOON, word) for word in words]),))


def test_rows_that_were_taken_are_not_sent_again() -> None:
    sink = make()
    Broker(sink, "ac")
    with pytest.raises(SinkAwayError, match="disconnected"):
        sink.write(batch("a", "b", "c"))
    broker = Broker(sink, "abc")
    sink.write(batch("a", "b", "c"))
    assert broker.sent == ["b"]
    sink.write(batch("a"))  # a later batch
    assert broker.sent == ["b", "a"]


def test_a_row_that_no_topic_can_hold_is_refused() -> None:
    sink = make()
    Broker(sink, "ab")
    ((part, row, words),) = sink.write(batch("a", "long", "b"))
    assert (part, row) == (0, 1)
    assert words == "topic 'plant/alarms/long': Publish topic is too long."


@pytest.mark.parametrize("word", ["slow", "lost"])
def test_a_broker_that_takes_nothing_is_away(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setattr(mqtt, "TAKEN_S", 0.0)
    sink = make()
    broker: Any = Broker(sink, "a")
    broker._sink = broker  # the connection stays
    with pytest.raises(SinkAwayError, match="took no message within 0 s"):
        sink.write(batch("a", word))
