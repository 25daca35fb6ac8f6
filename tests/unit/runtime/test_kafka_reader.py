"""The reader over clients that librdkafka has left in states from which they do not come back by themselves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, TopicPartition

from tsunagi.runtime import kafka_reader
from tsunagi.runtime.kafka_reader import DEAF_S, KafkaReader
from tsunagi.runtime.log import HEARTBEATS, PLAN, TUPLES, LogError, OffsetLostError, Position


class Message:
    def __init__(self, topic: str, partition: int, offset: int, error: KafkaError | None = None) -> None:
        self._fields = topic, partition, offset
        self._error = error

    def error(self) -> KafkaError | None:
        return self._error

    def topic(self) -> str:
        return self._fields[0]

    def partition(self) -> int:
        return self._fields[1]

    def offset(self) -> int:
        return self._fields[2]

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_LOG_APPEND_TIME, 1

    def key(self) -> None:
        return None

    def value(self) -> None:
        return None


class Broker:
    """What its clients see: `ends` by partition; a client that is made first is deaf."""

    def __init__(self, ends: dict[tuple[str, int], int], *, answers: bool = True) -> None:
        self.ends = ends
        self.answers = answers
        self.clients: list[Client] = []

    def client(self, *_: Any, **__: Any) -> Client:
        self.clients.append(Client(self, deaf=not self.clients))
        return self.clients[-1]


class Client:
    """A consumer."""

    def __init__(self, broker: Broker, *, deaf: bool) -> None:
        self.broker = broker
        self.deaf = deaf
        self.knows: set[str] = set()
        self.next: dict[tuple[str, int], int] = {}
        self.closed = False

    def assign(self, places: Iterable[TopicPartition]) -> None:
        self.next = {(place.topic, place.partition): place.offset for place in places}

    def consume(self, count: int, _: float) -> list[Message]:
        if self.deaf:
            return []
        found = []
        for (topic, number), offset in self.next.items():
            end = self.broker.ends[topic, number]
            found += [Message(topic, number, at) for at in range(offset, end)]
            self.next[topic, number] = end
        return found[:count]

    def get_watermark_offsets(self, place: TopicPartition, **_: Any) -> tuple[int, int]:
        if not self.broker.answers:
            raise KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN))
        if self.deaf and place.topic not in self.knows:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))
        return 0, self.broker.ends[place.topic, place.partition]

    def list_topics(self, topic: str, **_: Any) -> None:
        self.knows.add(topic)

    def close(self) -> None:
        self.closed = True


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(kafka_reader, "time", made)
    return made


def reader_of(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> KafkaReader:
    monkeypatch.setattr(kafka_reader, "Consumer", broker.client)
    return KafkaReader({}, "plant.")


def test_a_client_that_has_lost_sight_of_a_topic_asks_for_it(monkeypatch: pytest.MonkeyPatch, time: Time) -> None:
    reader = reader_of(Broker({("plant.tuples", 1): 7}), monkeypatch)
    assert reader.range(TUPLES, 1) == (0, 7)
    assert time.now < 101.0


def test_a_reader_that_hears_nothing_of_a_log_that_goes_on_begins_anew_where_it_was(
    monkeypatch: pytest.MonkeyPatch, time: Time
) -> None:
    broker = Broker({("plant.heartbeats", 0): 4, ("plant.plan", 0): 2})
    reader = reader_of(broker, monkeypatch)
    reader.assign([Position(HEARTBEATS, 0, 1), Position(PLAN, 0, 2)])
    assert reader.read(10, 0.0) == []
    time.now += DEAF_S + 0.1
    assert reader.read(10, 0.0) == []
    assert [client.closed for client in broker.clients] == [
        True,
        True,
        False,
    ]  # the deaf one; one to ask; its successor
    assert [(record.topic, record.offset) for record in reader.read(10, 0.0)] == [
        (HEARTBEATS, 1),
        (HEARTBEATS, 2),
        (HEARTBEATS, 3),
    ]
    broker.ends["plant.plan", 0] = 3
    assert [(record.topic, record.offset) for record in reader.read(10, 0.0)] == [(PLAN, 2)]


def test_what_was_appended_just_then_is_no_sign_of_deafness(monkeypatch: pytest.MonkeyPatch, time: Time) -> None:
    broker = Broker({("plant.plan", 0): 2})
    broker.client().deaf = False
    reader = reader_of(broker, monkeypatch)
    client = broker.clients[-1]
    reader.assign([Position(PLAN, 0, 2)])
    ask = client.get_watermark_offsets

    def appended_meanwhile(place: TopicPartition, **options: Any) -> tuple[int, int]:
        broker.ends["plant.plan", 0] = 3
        return ask(place, **options)

    client.get_watermark_offsets = appended_meanwhile  # type: ignore[method-assign]
    time.now += DEAF_S + 0.1
    assert [record.offset for record in reader.read(10, 0.0)] == [2]
    assert not client.closed


def test_a_log_that_rests_or_does_not_answer_is_waited_for(monkeypatch: pytest.MonkeyPatch, time: Time) -> None:
    broker = Broker({("plant.plan", 0): 2})
    reader = reader_of(broker, monkeypatch)
    reader.assign([Position(PLAN, 0, 2)])
    for _ in range(3):
        time.now += DEAF_S + 0.1
        assert reader.read(10, 0.0) == []
    broker.answers, broker.ends["plant.plan", 0] = False, 3
    for _ in range(3):
        time.now += DEAF_S + 0.1
        assert reader.read(10, 0.0) == []
    assert not broker.clients[0].closed
    assert all(client.closed for client in broker.clients[1:])


@pytest.mark.parametrize(
    ("code", "ends"),
    [
        (KafkaError._AUTO_OFFSET_RESET, OffsetLostError),
        (KafkaError.OFFSET_OUT_OF_RANGE, OffsetLostError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, LogError),
        (KafkaError._TRANSPORT, None),
    ],
)
def test_an_error_among_records_ends_the_reading_or_is_left_out(code: int, ends: type[LogError] | None) -> None:
    messages: list[Any] = [Message(TUPLES, 0, 4), Message(TUPLES, 0, 5, KafkaError(code)), Message(TUPLES, 0, 6)]
    if ends is None:
        assert kafka_reader._without_errors(messages) == [messages[0], messages[2]]
    else:
        with pytest.raises(ends, match="tuples/0"):
            kafka_reader._without_errors(messages)
    whole = messages[::2]
    assert kafka_reader._without_errors(whole) == whole
