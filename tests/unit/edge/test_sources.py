"""Which source the settings name, and what the feeds make of what their clients hand them; nothing connects."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
import structlog
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from tsunagi.edge.csv_open import CsvOpener
from tsunagi.edge.inbox import Inbox, Message
from tsunagi.edge.kafka_topic import KafkaFeed
from tsunagi.edge.mqtt import MqttFeed
from tsunagi.edge.source import LiveProgress, Offsets, Opener, SourceError
from tsunagi.edge.sources import LiveOpener, make_opener
from tsunagi.runtime.log import Record as LogRecord
from tsunagi.runtime.marks import LogMark, digest_of
from tsunagi.runtime.sensors import read_sensors
from tsunagi.runtime.settings import Settings

LOGGER = structlog.stdlib.get_logger("test")


def settings(path: Path, **source: Any) -> Settings:
    (path / "sensors.csv").write_text("sensor,edge\ns0,a\ns1,b\n")
    (path / "data.csv").write_text("s0,s1\n1,2\n")
    return Settings.model_validate(
        {"state": path / "run", "sensors": path / "sensors.csv", "source": {"path": path / "data.csv", **source}}
    )


def make(path: Path, **source: Any) -> Opener:
    found = settings(path, **source)
    table = read_sensors(found.sensors)
    return make_opener(found, "a", table, table.of_edge("a"), LOGGER)


def test_the_kind_names_the_source(tmp_path):
    found = {
        "csv": make(tmp_path),
        "mqtt": make(tmp_path, kind="mqtt"),
        "lines": make(tmp_path, kind="lines", lines={"listen": "127.0.0.1:0"}),
        "kafka/plant": make(tmp_path, kind="kafka", kafka={"topic": "plant", "servers": "127.0.0.1:1"}),
    }
    for name, opener in found.items():
        if name == "csv":
            assert isinstance(opener, CsvOpener)
            assert opener.digest
            assert opener.letters_per_s is not None
        else:
            assert isinstance(opener, LiveOpener)
            assert opener.name == name
            assert opener.letters_per_s is None
        opener.close()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"kind": "kafka"}, r"\[source.kafka\] topic: found '', expected the name"),
        ({"kind": "kafka", "kafka": {"topic": "t", "options": {"no.such": 1}}}, r"\[source.kafka\] options: .*no.such"),
        ({"kind": "mqtt", "mqtt": {"topic": "a/#/b"}}, r"\[source.mqtt\] topic: found"),
        ({"kind": "mqtt", "mqtt": {"ca_file": "/no/such.pem"}}, r"\[source.mqtt\] ca_file: /no/such.pem: No such file"),
        (
            {"kind": "mqtt", "mqtt": {"username": "u", "password_file": "/no/such"}},
            r"\[source.mqtt\] password_file: /no/such: cannot be read: No such file",
        ),
        ({"kind": "mqtt", "mqtt": {"password_file": "/dev/null"}}, "password_file: /dev/null: found an empty file"),
        ({"kind": "lines", "lines": {"listen": "nowhere"}}, "expected host:port such as"),
    ],
)
def test_settings_that_cannot_be_used_are_named(tmp_path, source, message):
    with pytest.raises(SourceError, match=message):
        make(tmp_path, **source)


def test_a_password_without_a_user_is_refused(tmp_path):
    (tmp_path / "secret").write_text("seven words\n")
    with pytest.raises(SourceError, match=r"\[source.mqtt\] username: empty") as caught:
        make(tmp_path, kind="mqtt", mqtt={"password_file": str(tmp_path / "secret")})
    assert "seven words" not in str(caught.value)


def test_a_port_that_is_taken_is_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(SourceError, match=f"listen: {address}: cannot listen there: .*in use"):
            make(tmp_path, kind="lines", lines={"listen": address})


# ---- MQTT


class Subscriptions:
    def __init__(self, feed: MqttFeed, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, int]] = []

        def subscribe(topic: str, qos: int) -> tuple[int, int]:
            self.asked.append((topic, qos))
            return 0, 1

        monkeypatch.setattr(feed._client, "subscribe", subscribe)


def mqtt(tmp_path: Path, **more: Any) -> tuple[MqttFeed, Inbox]:
    feed = MqttFeed(settings(tmp_path, kind="mqtt", **more).source, "a", LOGGER)
    feed._inbox = inbox = Inbox(3)
    return feed, inbox


def arrive(feed: MqttFeed, topic: bytes, payload: bytes, **more: Any) -> None:
    message = paho.MQTTMessage(topic=topic)
    message.payload = payload
    for name, value in {"qos": 1, **more}.items():
        setattr(message, name, value)
    feed._on_message(feed._client, None, message)


def taken(inbox: Inbox) -> list[Message]:
    return [item for item in inbox.take(10)[0] if isinstance(item, Message)]


def test_a_message_becomes_an_item_with_its_topics_sensor(tmp_path):
    feed, inbox = mqtt(tmp_path)
    arrive(feed, b"plant/a/s0", b"1.5")
    arrive(feed, b"plant/a/s0", b"1.5", dup=True)
    arrive(feed, b"plant/a/s0", b"1.5", retain=True)
    found = taken(inbox)
    assert [(item.sensor, item.payload, item.offset) for item in found] == [("s0", b"1.5", n) for n in range(3)]
    assert [(item.repeated, item.stored) for item in found] == [(False, False), (True, False), (True, True)]


def test_a_message_that_is_too_long_or_has_no_readable_topic_is_an_item_too(tmp_path):
    feed, inbox = mqtt(tmp_path, max_bytes=64)
    arrive(feed, b"plant/a/s0", b"x" * 100_000)
    arrive(feed, b"plant/a/\xff", b"1")
    long, odd = taken(inbox)
    assert long.fault == ("too-long", "found 100000 bytes, expected 64 at most")
    assert len(long.payload) == 65536
    assert odd.sensor is None


def test_only_readings_of_quality_0_are_dropped_when_the_queue_is_full(tmp_path):
    feed, inbox = mqtt(tmp_path)
    for _ in range(5):
        arrive(feed, b"plant/a/s0", b"1", qos=0)
    assert (len(inbox), inbox.dropped) == (3, 2)
    inbox.close()  # what waits for room is let go
    arrive(feed, b"plant/a/s0", b"1", qos=1)
    assert inbox.dropped == 2


def test_a_session_that_is_still_there_is_not_subscribed_to_again(tmp_path, monkeypatch):
    feed, _ = mqtt(tmp_path, mqtt={"topic": "x/{edge}/{sensor}", "qos": 2})
    subscriptions = Subscriptions(feed, monkeypatch)
    good, refused = ReasonCode(PacketTypes.CONNACK, "Success"), ReasonCode(PacketTypes.CONNACK, "Not authorized")
    granted = ReasonCode(PacketTypes.SUBACK, "Granted QoS 2")
    feed._on_connect(feed._client, None, paho.ConnectFlags(session_present=False), refused, None)
    assert "refused: Not authorized" in feed.trouble
    assert subscriptions.asked == []
    feed._on_connect(feed._client, None, paho.ConnectFlags(session_present=True), good, None)
    assert subscriptions.asked == [("x/a/+", 2)]  # an earlier incarnation's session: its pattern may have been another
    assert feed.trouble
    feed._on_subscribe(feed._client, None, 1, [granted], None)
    assert feed.trouble == ""
    feed._on_disconnect(
        feed._client, None, paho.DisconnectFlags(False), ReasonCode(PacketTypes.DISCONNECT, "Keep alive timeout"), None
    )
    assert "disconnected: Keep alive timeout" in feed.trouble
    feed._on_connect(feed._client, None, paho.ConnectFlags(session_present=True), good, None)
    assert feed.trouble == ""
    feed._on_connect(feed._client, None, paho.ConnectFlags(session_present=False), good, None)
    assert subscriptions.asked == [("x/a/+", 2)] * 2


def test_a_subscription_that_is_refused_is_told(tmp_path, monkeypatch):
    feed, _ = mqtt(tmp_path)
    feed._on_subscribe(feed._client, None, 1, [ReasonCode(PacketTypes.SUBACK, "Not authorized")], None)
    assert "refused to subscribe to 'plant/a/+'" in feed.trouble


# ---- Kafka


@pytest.fixture
def kafka(tmp_path):
    feed = KafkaFeed(settings(tmp_path, kind="kafka", kafka={"topic": "plant", "servers": "127.0.0.1:1"}), "a", LOGGER)
    yield feed
    feed.close()


def test_without_a_position_a_topic_is_read_from_its_end_and_new_partitions_whole(kafka):
    assert kafka._offset(0, 3, 10) == 10
    kafka._first = False
    assert kafka._offset(1, 3, 10) == 3


def test_with_a_position_a_topic_is_read_on_if_it_still_has_it(kafka):
    kafka._go_on(LiveProgress({0: Offsets(next=50, oldest=40)}, 1))
    assert kafka._offset(0, 0, 90) == 40
    assert kafka._offset(0, 45, 90) == 45  # retention has passed
    assert kafka._offset(0, 60, 90) == 60
    assert kafka._new_from == {0: 50}
    assert kafka._offset(0, 2, 30) == 2  # made anew: all of it is new
    assert kafka._new_from == {0: 0}


def judged(kafka: KafkaFeed, oldest: int, following: int, mark: LogMark, low: int, high: int) -> tuple[int, int]:
    """Where the partition is read from, and from where on records are new."""
    kafka._go_on(LiveProgress({0: Offsets(following, oldest, mark)}, 1))
    kafka._compare(0, low, high)
    return kafka._offset(0, low, high), kafka._new_from[0]


MARK = LogMark("topic", 77)


@pytest.mark.parametrize(
    ("topic_id", "before", "high", "expected", "said"),
    [
        ("topic", 77, 90, (40, 50), ""),  # the same log
        ("", 77, 90, (40, 50), ""),
        ("topic", 0, 90, (40, 50), ""),  # compaction took the record: nothing is known
        ("other", 77, 90, (3, 0), "made anew"),
        ("other", 0, 45, (3, 0), "made anew"),
        ("topic", 0, 45, (40, 45), "lost its end: it ends at 45"),
        ("topic", 0, 35, (35, 35), "lost its end: it ends at 35"),
        ("topic", 78, 90, (40, 40), "lost its end and grew again"),
        ("", 78, 90, (40, 40), "lost its end and grew again"),
        ("", 0, 45, (40, 50), ""),  # without ids ...
        ("", 0, 30, (3, 0), ""),  # ... what ends before the position was made anew
    ],
)
def test_a_topic_that_is_not_the_one_that_was_read_is_found(kafka, monkeypatch, topic_id, before, high, expected, said):
    kafka._topic_id = topic_id
    monkeypatch.setattr(
        kafka, "_digest_before", lambda partition, offset: before if (partition, offset) == (0, 50) else 0
    )
    assert judged(kafka, 40, 50, MARK, 3, high) == expected
    assert said in kafka._fault
    assert bool(said) == bool(kafka._fault)
    kafka._compare(0, 3, high)
    assert said in kafka._fault, "it stays"


def test_a_record_has_the_digest_that_the_log_would_tell(kafka):
    item = kafka._message(Record(b"1.5", b"s0"), Inbox(1))
    assert item.digest == digest_of(LogRecord("plant", 3, 7, 1_700_000_000_123_000, b"s0", b"1.5"))
    assert kafka._message(Record(None, None), Inbox(1)).digest != kafka._message(Record(b"", b""), Inbox(1)).digest


class Record:
    def __init__(self, value: bytes | None, key: bytes | None = None, offset: int = 7) -> None:
        self._value, self._key, self._offset = value, key, offset

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes | None:
        return self._value

    def key(self) -> bytes | None:
        return self._key

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_700_000_000_123


def test_a_record_becomes_an_item_with_its_keys_sensor(kafka):
    item = kafka._message(Record(b"1.5", b"s0"), Inbox(1))
    assert (item.sensor, item.payload, item.partition, item.offset) == ("s0", b"1.5", 3, 7)
    assert item.arrived_us == 1_700_000_000_123_000
    assert kafka._message(Record(None, b"\xff"), Inbox(1)).sensor is None
    assert kafka._message(Record(b"x" * 70_000), Inbox(1)).fault == (
        "too-long",
        "found 70000 bytes, expected 65536 at most",
    )
    kafka._new_from = {3: 8}
    assert [kafka._message(Record(b"1", offset=offset), Inbox(1)).again for offset in (7, 8)] == [True, False]
