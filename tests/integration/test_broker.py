"""The broker of `tsunagi.broker` and the log on it: started, killed, restarted, and what it says when it cannot run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import structlog
from confluent_kafka.admin import NewTopic

from tsunagi.broker.broker import Broker
from tsunagi.broker.checks import BrokerError, free_port
from tsunagi.runtime.birth import boot_id
from tsunagi.runtime.kafka import KafkaLog, wait_for_topics
from tsunagi.runtime.kafka_reader import KafkaReader
from tsunagi.runtime.log import (
    CONTEXTS,
    HEARTBEATS,
    RECOVERED,
    TOPICS,
    TUPLES,
    LogError,
    OffsetLostError,
    Position,
    Record,
)
from tsunagi.runtime.settings import Kafka, Settings, Slots
from tsunagi.runtime.topics import topic_layout

PATIENCE_S = 60.0


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Broker]:
    """A broker that a test may disturb; not started."""
    broker = Broker(tmp_path / "kafka", free_port())
    try:
        yield broker
    finally:
        broker.kill()


def log_of(broker: Broker) -> KafkaLog:
    return KafkaLog(Kafka(servers=broker.servers), client_id="test")


def send(log: KafkaLog, values: range) -> list[int]:
    """Append numbers to `tuples`/0 and return the offsets they got, once all are acknowledged."""
    offsets: list[int] = []

    def delivered(error: LogError | None, offset: int) -> None:
        assert error is None
        offsets.append(offset)

    producer = log.producer()
    for value in values:
        producer.send(TUPLES, 0, b"edge", str(value).encode(), delivered)
    assert producer.flush(PATIENCE_S) == 0
    producer.close()
    return offsets


def read(reader: KafkaReader, count: int) -> list[Record]:
    """Read `count` records, or what has come when patience is over."""
    records: list[Record] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(records) < count and time.monotonic() < deadline:
        records += reader.read(500, 0.2)
    return records


def values(records: list[Record]) -> list[int]:
    return [int(record.value or b"-1") for record in records]


def read_back(log: KafkaLog, count: int) -> list[int]:
    """Read the first `count` numbers of `tuples`/0 with a reader of their own."""
    reader = log.reader()
    reader.assign([Position(TUPLES, 0, 0)])
    found = values(read(reader, count))
    reader.close()
    return found


# ---- the log on the shared broker


def test_topics_are_made_once_and_as_laid_out(kafka_settings: Kafka) -> None:
    settings = Settings(kafka=kafka_settings, slots=Slots(count=3))
    log = KafkaLog(kafka_settings)
    log.ensure_topics(settings)
    log.ensure_topics(settings)
    assert {topic: log.partitions(topic) for topic in TOPICS} == {
        topic: partitions for topic, (partitions, _) in topic_layout(settings).items()
    }
    for topic, (_, wanted) in topic_layout(settings).items():
        assert wanted.items() <= log.topic_config(topic).items()
    with pytest.raises(LogError, match="tuples: partitions: found 3, expected 4"):
        log.ensure_topics(Settings(kafka=kafka_settings, slots=Slots(count=4)))
    log.close()


def test_more_slots_than_the_least_are_made_by_whoever_knows_and_found_by_the_others(kafka_settings: Kafka) -> None:
    settings = Settings(kafka=kafka_settings, slots=Slots(count=2, most=8))
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
    with pytest.raises(LogError, match="tuples: partitions: found 5, expected 4"):
        log.ensure_topics(Settings(kafka=kafka_settings, slots=Slots(count=2, most=4)))
    log.close()


def test_missing_topics_are_named_when_they_shall_not_be_made(kafka_settings: Kafka) -> None:
    checking = kafka_settings.model_copy(update={"topics": "check"})
    log = KafkaLog(checking)
    with pytest.raises(LogError, match=rf"topic {kafka_settings.prefix}tuples: missing"):
        log.ensure_topics(Settings(kafka=checking))
    assert log.partitions(TUPLES) == 0
    log.close()


def test_every_key_that_is_not_as_documented_is_named_in_one_list(kafka_settings: Kafka) -> None:
    checking = kafka_settings.model_copy(update={"topics": "check", "replication": 2})
    log = KafkaLog(kafka_settings)
    settings = Settings(kafka=kafka_settings, slots=Slots(count=1))
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
        KafkaLog(checking).ensure_topics(Settings(kafka=checking, slots=Slots(count=1)))
    said = [line.strip() for line in str(caught.value).splitlines()[1:]]
    assert [line for line in said if "replication.factor" not in line] == [
        f"topic {kafka_settings.prefix}{item}"
        for item in (
            "tuples: partitions: found 2, expected 1",
            "tuples: cleanup.policy: found compact, expected delete",
            "tuples: retention.ms: found 1000, expected 604800000 or more",
            "tuples: max.message.bytes: found 1000, expected 1048576",
            "contexts: retention.bytes: found 5000000, expected -1 (no limit)",
            "heartbeats: message.timestamp.type: found CreateTime, expected LogAppendTime",
            "heartbeats: segment.ms: found 900000, expected 300000 or less",
        )
    ]
    assert f"topic {kafka_settings.prefix}plan: replication.factor: found 1, expected 2 or more" in said
    log.close()


def test_records_come_back_in_order_with_offsets_and_append_times(kafka_settings: Kafka) -> None:
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


def test_a_run_is_written_in_order_and_reported_once(kafka_settings: Kafka) -> None:
    log = KafkaLog(kafka_settings, client_id="test")
    log.ensure_topics(Settings(kafka=kafka_settings, slots=Slots(count=1)))
    producer = log.producer()
    reports: list[tuple[LogError | None, int]] = []
    for begin in (0, 100):
        pairs = [(b"edge", str(value).encode()) for value in range(begin, begin + 100)]
        assert producer.send_run(TUPLES, 0, pairs, lambda error, offset: reports.append((error, offset))) == 100
    assert producer.flush(PATIENCE_S) == 0
    assert reports == [(None, 99), (None, 199)]
    producer.close()
    assert read_back(log, 200) == list(range(200))


def test_large_record_is_taken_whole(kafka_settings: Kafka) -> None:
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


def test_partitions_are_added_and_removed_while_reading(kafka_settings: Kafka) -> None:
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


def test_reading_deleted_records_is_an_error_not_a_jump(kafka_settings: Kafka) -> None:
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


def test_reading_past_the_end_is_an_error_not_a_jump(kafka_settings: Kafka) -> None:
    log = KafkaLog(kafka_settings)
    log.ensure_topics(Settings(kafka=kafka_settings))
    send(log, range(10))
    reader = log.reader()
    reader.assign([Position(TUPLES, 0, 11)])
    with pytest.raises(OffsetLostError):
        read(reader, 1)
    reader.close()
    log.close()


# ---- a broker of one's own


def test_killed_broker_keeps_what_it_acknowledged_and_takes_what_waited(own: Broker) -> None:
    assert own.start()
    own.wait_ready()
    log = log_of(own)
    log.ensure_topics(Settings(kafka=Kafka(servers=own.servers)))
    send(log, range(500))
    waiting = log.producer()
    waiting.send(TUPLES, 0, None, b"500")
    assert waiting.flush(PATIENCE_S) == 0
    reader = log.reader()
    reader.assign([Position(TUPLES, 0, 0)])
    assert values(read(reader, 501)) == list(range(501))
    killed = own.pid
    own.kill()
    assert own.pid is None
    assert "has died (exit code -9)" in own.explain()

    for value in range(501, 600):
        waiting.send(TUPLES, 0, None, str(value).encode())
    short = log.producer(durable=False)
    fates: list[LogError | None] = []
    short.send(HEARTBEATS, 0, None, b"0", lambda error, _: fates.append(error))
    short.flush(PATIENCE_S)
    assert [type(fate) for fate in fates] == [LogError]
    assert waiting.flush(0.1) == 99

    assert own.start()
    own.wait_ready()
    assert own.pid not in {None, killed}
    assert waiting.flush(PATIENCE_S) == 0
    assert values(read(reader, 99)) == list(range(501, 600))
    assert reader.range(TUPLES, 0) == (0, 600)
    assert reader.range(HEARTBEATS, 0) == (0, 0)
    for client in (reader, waiting, short, log):
        client.close()


def test_of_a_run_that_does_not_fit_into_the_queue_the_first_are_taken(own: Broker) -> None:
    own.start()
    own.wait_ready()
    options = {"queue.buffering.max.messages": 10}
    log = KafkaLog(Kafka(servers=own.servers, options=options), client_id="test")
    log.ensure_topics(Settings(slots=Slots(count=1)))
    producer = log.producer()
    pairs = [(b"edge", str(value).encode()) for value in range(25)]
    reports: list[int] = []
    own.kill()
    assert producer.send_run(TUPLES, 0, pairs, lambda _, offset: reports.append(offset)) == 10
    own.start()
    own.wait_ready()
    left, deadline = pairs[10:], time.monotonic() + PATIENCE_S
    while left and time.monotonic() < deadline:
        left = left[producer.send_run(TUPLES, 0, left, lambda _, offset: reports.append(offset)) :]
        producer.poll(0.05)
    assert producer.flush(PATIENCE_S) == 0
    assert reports == [24]
    producer.close()
    assert read_back(log, 25) == list(range(25))


def test_where_one_record_is_refused_none_behind_it_is_written(own: Broker) -> None:
    own.start()
    own.wait_ready()
    log = log_of(own)
    log.ensure_topics(Settings(slots=Slots(count=1)))
    producer = log.producer()
    reports: list[LogError | None] = []
    pairs = [(b"edge", b"1"), (b"edge", bytes(6_000_000)), (b"edge", b"3")]  # the broker takes 5 MB, the client 8 MB
    producer.send_run(TUPLES, 0, pairs[:1], lambda error, _: reports.append(error))
    producer.flush(PATIENCE_S)
    producer.send_run(TUPLES, 0, pairs[1:2], lambda error, _: reports.append(error))
    with pytest.raises(LogError, match="too large"):
        producer.flush(PATIENCE_S)
    with pytest.raises(LogError):
        producer.send_run(TUPLES, 0, pairs[2:])
    producer.close()
    assert reports[0] is None
    assert all(reports[1:])
    assert log.reader().range(TUPLES, 0) == (0, 1)


def test_found_again_by_another_process_and_moved_to_another_port(own: Broker) -> None:
    own.start()
    own.wait_ready()
    other = Broker(own.directory, own.port)
    assert other.pid == own.pid
    assert not other.start()
    with pytest.raises(BrokerError, match=rf"runs already, on port {own.port}"):
        Broker(own.directory, free_port()).start()
    log = log_of(own)
    log.ensure_topics(Settings(kafka=Kafka(servers=own.servers)))
    send(log, range(5))
    log.close()
    other.stop()
    assert own.pid is None

    moved = Broker(own.directory, free_port())
    try:
        assert moved.start()
        moved.wait_ready()
        log = log_of(moved)
        reader = log.reader()
        reader.assign([Position(TUPLES, 0, 0)])
        assert values(read(reader, 5)) == list(range(5))
        reader.close()
        log.close()
    finally:
        moved.stop()


def test_command_line_starts_stops_and_outlives_the_starter(own: Broker) -> None:
    def run(command: str) -> subprocess.CompletedProcess[str]:
        arguments = [command, "--port", str(own.port), "--dir", str(own.directory)]
        return subprocess.run(
            [sys.executable, "-m", "tsunagi.broker.broker", *arguments], capture_output=True, text=True, check=False
        )

    started = run("start")
    assert started.returncode == 0, started.stderr
    pid = own.pid
    assert f"broker ready on {own.servers}, process {pid}" in started.stdout
    assert pid is not None
    assert os.getsid(pid) == pid
    refused = run("start")
    assert refused.returncode == 0
    assert own.pid == pid
    assert run("stop").returncode == 0
    assert own.pid is None
    assert not psutil.pid_exists(pid)
    assert run("stop").returncode == 0


def test_broker_that_dies_before_it_answers_says_why(own: Broker) -> None:
    own.start()
    pid = own.pid
    assert pid is not None
    deadline = time.monotonic() + PATIENCE_S
    log = own.directory / "broker.log"
    while not (log.exists() and log.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(BrokerError, match=r"(?s)has died \(exit code -9\).*last lines:"):
        own.wait_ready()


def test_damaged_log_is_refused_before_java_starts(own: Broker) -> None:
    own.start()
    own.wait_ready()
    own.stop()
    (own.directory / "data" / "meta.properties").write_bytes(b"\xff\xfe")
    with pytest.raises(BrokerError, match=r"data directory is damaged: .*meta\.properties cannot be read"):
        own.start()
    assert own.pid is None


def test_data_of_another_cluster_is_refused(own: Broker, broker: Broker) -> None:
    (own.directory / "data").mkdir(parents=True)
    shutil.copy(broker.directory / "data" / "meta.properties", own.directory / "data")
    (own.directory / "cluster-id").write_text("another\n", encoding="utf-8")
    with pytest.raises(BrokerError, match="of another cluster"):
        own.start()


def test_port_in_use_is_named(own: Broker) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", own.port))
        taken.listen(1)
        with pytest.raises(BrokerError, match=rf"port {own.port} on 127.0.0.1 cannot be used .*in use"):
            own.start()


def test_process_id_given_anew_is_neither_found_nor_signalled(own: Broker) -> None:
    with subprocess.Popen(["sleep", "60"]) as stranger:
        own.directory.mkdir()
        record = {
            "pid": stranger.pid,
            "born": f"{boot_id()}/0",
            "port": own.port,
            "controller_port": 1,
        }
        (own.directory / "broker.json").write_text(json.dumps(record), encoding="utf-8")
        assert own.pid is None
        own.kill()
        own.stop()
        assert stranger.poll() is None
        stranger.kill()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 260 MB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=260m", "tsunagi-test", str(place)], check=False)
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system is not allowed here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_broker_on_a_disk_that_fills_up_names_the_directory(small_disk: Path) -> None:
    broker = Broker(small_disk / "kafka", free_port())
    try:
        broker.start()
        broker.wait_ready()
        log = log_of(broker)
        log.ensure_topics(Settings(kafka=Kafka(servers=broker.servers)))
        free = shutil.disk_usage(small_disk).free
        (small_disk / "filler").write_bytes(bytes(free - 8_000_000))
        producer = log.producer()
        deadline = time.monotonic() + PATIENCE_S
        while broker.pid is not None and time.monotonic() < deadline:
            for _ in range(5):
                producer.send(TUPLES, 0, None, os.urandom(500_000))
            producer.flush(0.5)
        assert broker.pid is None
        assert f"the disk of {broker.directory} is full" in broker.explain()
        with pytest.raises(BrokerError, match=rf"the disk of {broker.directory} is full: \d+ MB free"):
            broker.start()
        (small_disk / "filler").unlink()
        broker.start()
        broker.wait_ready()
        producer.close()
        log.close()
    finally:
        broker.kill()
