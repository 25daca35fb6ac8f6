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

from tests.integration.brokers import PATIENCE_S, log_of, read, read_back, send, values
from tsunagi.broker.broker import Broker
from tsunagi.broker.checks import BrokerError, free_port
from tsunagi.runtime.birth import boot_id
from tsunagi.runtime.kafka import KafkaLog
from tsunagi.runtime.log import (
    HEARTBEATS,
    TUPLES,
    LogError,
    Position,
)
from tsunagi.runtime.settings import KafkaSettings, Settings, SlotsSettings


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Broker]:
    """A broker that a test may disturb; not started."""
    broker = Broker(tmp_path / "kafka", free_port())
    try:
        yield broker
    finally:
        broker.kill()


def test_killed_broker_keeps_what_it_acknowledged_and_takes_what_waited(own: Broker) -> None:
    assert own.start()
    own.wait_ready()
    log = log_of(own)
    log.ensure_topics(Settings(kafka=KafkaSettings(servers=own.servers)))
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
    log = KafkaLog(KafkaSettings(servers=own.servers, options=options), client_id="test")
    log.ensure_topics(Settings(slots=SlotsSettings(count=1)))
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
    log.ensure_topics(Settings(slots=SlotsSettings(count=1)))
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
    log.ensure_topics(Settings(kafka=KafkaSettings(servers=own.servers)))
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
        log.ensure_topics(Settings(kafka=KafkaSettings(servers=broker.servers)))
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
