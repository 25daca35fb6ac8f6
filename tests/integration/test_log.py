"""The log on the shared broker: topics that are made or compared, records that are written and read back."""

from __future__ import annotations

import random
import time

import pytest
import structlog
from confluent_kafka.admin import NewTopic

from tests.integration.brokers import PATIENCE_S, read, read_back, send, values
from tsunagi.runtime.kafka import KafkaLog, wait_for_topics
from tsunagi.runtime.log import (
    CONTEXTS,
    HEARTBEATS,
    RECOVERED,
    TOPICS,
    TUPLES,
    LogError,
    OffsetLostError,
    Position,
)
from tsunagi.runtime.settings import KafkaSettings, Settings, SlotsSettings
from tsunagi.runtime.topics import topic_layout


def test_topics_are_made_once_and_as_laid_out(kafka_settings: KafkaSettings) -> None:
    settings = Settings(kafka=kafka_settings, slots=SlotsSettings(count=3))
    log = KafkaLog(kafka_settings)
    log.ensure_topics(settings)
    log.ensure_topics(settings)
    assert {topic: log.partitions(topic) for topic in TOPICS} == {
        topic: partitions for topic, (partitions, _) in topic_layout(settings).items()
    }
    for topic, (_, wanted) in topic_layout(settings).items():
        assert wanted.items() <= log.topic_config(topic).items()
    with pytest.raises(LogError, match="tuples: partitions: found 3, expected 4"):
        log.ensure_topics(Settings(kafka=kafka_settings, slots=SlotsSettings(count=4)))
    log.close()


def test_more_slots_than_the_least_are_made_by_whoever_knows_and_found_by_the_others(
    kafka_settings: KafkaSettings,
) -> None:
    settings = Settings(kafka=kafka_settings, slots=SlotsSettings(count=2, most=8))
    log = KafkaLog(kafka_settings)
    logger = structlog.get_logger("test")
    rounds = iter([False, False, True])
    assert wait_for_topics(log, settings, lambda: next(rounds), logger) is None  # it waits, and makes none
    assert log.slots_made() == 0
    five = settings.slots.model_copy(update={"count": 5})
    made = wait_for_topics(
        log, settings, lambda: False, logger, sized=lambda given: given.model_copy(update={"slots": five})
    )
    assert made is not None
    found = wait_for_topics(log, settings, lambda: False, logger)
    assert found is not None
    assert made.slots.count == found.slots.count == 5
    assert [log.partitions(topic) for topic in (TUPLES, RECOVERED, CONTEXTS)] == [5, 5, 5]
    for fewer in (SlotsSettings(count=2), SlotsSettings(count=2, most=4)):  # slots may have been added since
        log.ensure_topics(settings.model_copy(update={"slots": fewer}))
        assert log.with_slots(settings.model_copy(update={"slots": fewer})).slots.count == 5
    log.close()


def test_slots_are_added_and_found_by_clients_that_know_the_topics_already(kafka_settings: KafkaSettings) -> None:
    settings = Settings(kafka=kafka_settings, slots=SlotsSettings(count=2))
    log = KafkaLog(kafka_settings)
    log.ensure_topics(settings)
    one_by_one, in_runs, reader = log.producer(), log.producer(), log.reader()

    def write(slot: int, value: bytes) -> None:
        one_by_one.send(TUPLES, slot, b"key", value)
        in_runs.send_run(RECOVERED, slot, [(b"key", value)])
        assert one_by_one.flush(PATIENCE_S) == in_runs.flush(PATIENCE_S) == 0

    def found(topic: str, slot: int) -> bytes | None:
        reader.add(Position(topic, slot, reader.range(topic, slot)[0]))
        records = read(reader, 1)
        reader.remove(topic, slot)
        return records[0].value

    write(1, b"old")
    assert found(TUPLES, 1) == found(RECOVERED, 1) == b"old"
    log.raise_slots(6)
    log.raise_slots(4)  # there is no way back
    assert [log.partitions(topic) for topic in (TUPLES, RECOVERED, CONTEXTS)] == [6, 6, 6]
    assert log.with_slots(settings).slots.count == 6
    log.ensure_topics(settings)
    write(5, b"new")
    assert found(TUPLES, 5) == found(RECOVERED, 5) == b"new"
    for client in (one_by_one, in_runs, reader, log):
        client.close()


def test_missing_topics_are_named_when_they_shall_not_be_made(kafka_settings: KafkaSettings) -> None:
    checking = kafka_settings.model_copy(update={"topics": "check"})
    log = KafkaLog(checking)
    with pytest.raises(LogError, match=rf"topic {kafka_settings.prefix}tuples: missing"):
        log.ensure_topics(Settings(kafka=checking))
    assert log.partitions(TUPLES) == 0
    log.close()


def test_every_key_that_is_not_as_documented_is_named_in_one_list(kafka_settings: KafkaSettings) -> None:
    checking = kafka_settings.model_copy(update={"topics": "check", "replication": 2})
    log = KafkaLog(kafka_settings)
    settings = Settings(kafka=kafka_settings, slots=SlotsSettings(count=1))
    odd = {
        TUPLES: (2, {"cleanup.policy": "compact", "max.message.bytes": "1000", "retention.ms": "1000"}),
        HEARTBEATS: (1, {"message.timestamp.type": "CreateTime", "segment.ms": "900000"}),
        CONTEXTS: (1, {"retention.bytes": "5000000"}),
    }
    for topic, (partitions, config) in topic_layout(settings).items():
        count, changed = odd.get(topic, (partitions, {}))
        made = NewTopic(kafka_settings.prefix + topic, count, 1, config=config | changed)
        log.admin().create_topics([made])[made.topic].result(timeout=PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while not all(log.partitions(topic) for topic in TOPICS):  # the broker tells of new topics a moment later
        assert time.monotonic() < deadline
    with pytest.raises(LogError) as caught:
        KafkaLog(checking).ensure_topics(Settings(kafka=checking, slots=SlotsSettings(count=1)))
    said = [line.strip() for line in str(caught.value).splitlines()[1:]]
    assert [line for line in said if "replication.factor" not in line] == [
        f"topic {kafka_settings.prefix}{item}"
        for item in (
            "tuples: cleanup.policy: found compact, expected delete",
            "tuples: retention.ms: found 1000, expected 604800000 or more",
            "tuples: max.message.bytes: found 1000, expected 1048576",
            "recovered: partitions: found 1, expected 2",
            "contexts: partitions: found 1, expected 2",
            "contexts: retention.bytes: found 5000000, expected -1 (no limit)",
            "heartbeats: message.timestamp.type: found CreateTime, expected LogAppendTime",
            "heartbeats: segment.ms: found 900000, expected 300000 or less",
        )
    ]
    assert f"topic {kafka_settings.prefix}plan: replication.factor: found 1, expected 2 or more" in said
    log.close()


def test_records_come_back_in_order_with_offsets_and_append_times(kafka_settings: KafkaSettings) -> None:
    log = KafkaLog(kafka_settings)
    log.ensure_topics(Settings(kafka=kafka_settings))
    before_us = time.time_ns() // 1000 - 1_000_000
    assert send(log, range(1000)) == list(range(1000))
    reader = log.reader()
    reader.assign([Position(TUPLES, 0, 100)])
    records = read(reader, 900)
    assert values(records) == list(range(100, 1000))
    assert [record.offset for record in records] == list(range(100, 1000))
    assert {(record.topic, record.partition, record.key) for record in records} == {(TUPLES, 0, b"edge")}
    assert all(before_us < record.appended_us < before_us + 120_000_000 for record in records)
    assert reader.range(TUPLES, 0) == (0, 1000)
    assert reader.range(TUPLES, 1) == (0, 0)
    reader.assign([Position(TUPLES, 0, -1)])
    send(log, range(1000, 1003))
    assert values(read(reader, 3)) == [1000, 1001, 1002]
    reader.close()
    log.close()


def test_a_run_is_written_in_order_and_reported_once(kafka_settings: KafkaSettings) -> None:
    log = KafkaLog(kafka_settings, client_id="test")
    log.ensure_topics(Settings(kafka=kafka_settings, slots=SlotsSettings(count=1)))
    producer = log.producer()
    reports: list[tuple[LogError | None, int]] = []
    for begin in (0, 100):
        pairs = [(b"edge", str(value).encode()) for value in range(begin, begin + 100)]
        assert producer.send_run(TUPLES, 0, pairs, lambda error, offset: reports.append((error, offset))) == 100
    assert producer.flush(PATIENCE_S) == 0
    assert reports == [(None, 99), (None, 199)]
    producer.close()
    assert read_back(log, 200) == list(range(200))


def test_large_record_is_taken_whole(kafka_settings: KafkaSettings) -> None:
    log = KafkaLog(kafka_settings)
    log.ensure_topics(Settings(kafka=kafka_settings))
    failures: list[LogError | None] = []
    producer = log.producer()
    producer.send(RECOVERED, 0, b"edge", b"x" * 7_000_000, lambda error, _: failures.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert failures == [None]
    reader = log.reader()
    reader.assign([Position(RECOVERED, 0, 0)])
    assert [len(record.value or b"") for record in read(reader, 1)] == [7_000_000]
    for client in (reader, producer, log):
        client.close()


def test_partitions_are_added_and_removed_while_reading(kafka_settings: KafkaSettings) -> None:
    log = KafkaLog(kafka_settings)
    log.ensure_topics(Settings(kafka=kafka_settings))
    producer = log.producer()
    reader = log.reader()
    reader.assign([Position(TUPLES, 0, 0)])
    producer.send(TUPLES, 0, None, b"0")
    producer.send(RECOVERED, 1, None, b"1")
    producer.flush(PATIENCE_S)
    assert values(read(reader, 1)) == [0]
    reader.add(Position(RECOVERED, 1, 0))
    assert [(record.topic, record.partition) for record in read(reader, 1)] == [(RECOVERED, 1)]
    reader.remove(TUPLES, 0)
    producer.send(TUPLES, 0, None, b"2")
    producer.send(RECOVERED, 1, None, b"3")
    producer.flush(PATIENCE_S)
    assert values(read(reader, 1)) == [3]
    reader.add(Position(TUPLES, 0, 1))
    assert values(read(reader, 1)) == [2]
    for client in (reader, producer, log):
        client.close()


def test_a_partition_that_is_let_go_of_and_taken_up_again_gives_each_record_once_and_in_order(
    kafka_settings: KafkaSettings,
) -> None:
    """A worker that is overloaded does so all the time (tsunagi.worker.overload). The client has fetched ahead."""
    log = KafkaLog(kafka_settings)
    log.ensure_topics(Settings(kafka=kafka_settings, slots=SlotsSettings(count=2)))
    count, draw = 6000, random.Random(7)
    producer = log.producer()
    for partition in (0, 1):
        left = [(b"key", str(number).encode()) for number in range(count)]
        while left:
            left = left[producer.send_run(TUPLES, partition, left) :]
            producer.poll(0.05)
    producer.flush(PATIENCE_S)
    producer.close()
    reader = log.reader()
    reader.assign([Position(TUPLES, 0, 0), Position(TUPLES, 1, 0)])
    seen: dict[int, list[int]] = {0: [], 1: []}
    held: dict[int, int] = {}
    changes, until = 0, time.monotonic() + PATIENCE_S
    while min(map(len, seen.values())) < count and time.monotonic() < until:
        for record in reader.read(200, 0.02):
            assert record.partition not in held
            seen[record.partition].append(record.offset)
        for partition in (0, 1):
            if partition in held and (draw.random() < 0.5 or len(held) == 2):
                reader.add(Position(TUPLES, partition, held.pop(partition)))
            elif partition not in held and draw.random() < 0.3:
                reader.remove(TUPLES, partition)
                held[partition] = len(seen[partition])
                changes += 1
    reader.close()
    log.close()
    assert seen == {0: list(range(count)), 1: list(range(count))}
    assert changes > 10


def test_reading_deleted_records_is_an_error_not_a_jump(kafka_settings: KafkaSettings) -> None:
    log = KafkaLog(kafka_settings)
    log.ensure_topics(Settings(kafka=kafka_settings))
    send(log, range(10))
    log.delete_records([Position(TUPLES, 0, 6)])
    reader = log.reader()
    assert reader.range(TUPLES, 0) == (6, 10)
    reader.assign([Position(TUPLES, 0, 2)])
    with pytest.raises(OffsetLostError, match="tuples/0"):
        read(reader, 1)
    reader.assign([Position(TUPLES, 0, 6)])
    assert values(read(reader, 4)) == [6, 7, 8, 9]
    reader.close()
    log.close()


def test_reading_past_the_end_is_an_error_not_a_jump(kafka_settings: KafkaSettings) -> None:
    log = KafkaLog(kafka_settings)
    log.ensure_topics(Settings(kafka=kafka_settings))
    send(log, range(10))
    reader = log.reader()
    reader.assign([Position(TUPLES, 0, 11)])
    with pytest.raises(OffsetLostError):
        read(reader, 1)
    reader.close()
    log.close()


def test_a_reader_that_nobody_waits_for_is_woken_seldom_however_many_records_come(
    kafka_settings: KafkaSettings,
) -> None:
    log = KafkaLog(kafka_settings)
    log.ensure_topics(Settings(kafka=kafka_settings, slots=SlotsSettings(count=1)))
    wait_s = 0.1
    reader = log.reader(wait_s=wait_s, least_bytes=65_536, measured=True)
    reader.assign([Position(HEARTBEATS, 0, 0)])
    producer = log.producer()
    began_s = time.monotonic()
    found = []
    for number in range(300):
        producer.send(HEARTBEATS, 0, b"node", str(number).encode())
        producer.flush(0.005)
        found += reader.read(300, 0.002)
    while len(found) < 300 and time.monotonic() < began_s + PATIENCE_S:
        found += reader.read(300, wait_s)
    counted_s = time.monotonic()
    while time.monotonic() < counted_s + 1.5:  # the client counts its requests once a second
        reader.read(1, wait_s)
    assert values(found) == list(range(300))
    few = 20  # to find the broker and the partition
    assert few / 4 < reader.traffic().requests < (time.monotonic() - began_s) / wait_s + few
    reader.close()
    producer.close()
    log.close()
