"""Edges on live sources, as processes: a real Kafka topic, TCP clients, standard input, a real MQTT broker.

The tests know every reading they sent. Whatever the machine's speed, each one that falls into a published window is in
it, or stands in dead-letters as late: `World.check` adds that up.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from paho.mqtt.enums import CallbackAPIVersion

from tsunagi.broker.broker import Broker
from tsunagi.broker.checks import free_port
from tsunagi.runtime.columns import floats, pack_sensors, sensors
from tsunagi.runtime.kafka import KafkaLog
from tsunagi.runtime.kafka_client import client_options
from tsunagi.runtime.log import DEAD_LETTERS, PLAN, TUPLES, Record
from tsunagi.runtime.messages import VERSION, DeadLetter, LogRecord, Placement, Plan, TupleBatch
from tsunagi.runtime.sensors import place, read_sensors
from tsunagi.runtime.settings import Kafka, Settings
from tsunagi.system.topics import read_topic

MOSQUITTO = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
SLOTS = 2
INTERVAL_US = 100_000
WINDOW_US, SLIDE_US = 10 * INTERVAL_US, 2 * INTERVAL_US
OWN = ("s0", "s2", "s4")
MARK = "nobody"
"""No sensor: a message of its own, which comes to dead-letters."""
Send = Callable[[str, int, float], None]
"""(sensor, event time in microseconds, value)"""


class World:
    """Topics of its own on the shared broker, a sensors table, edges as processes, and what was sent to them."""

    def __init__(self, path: Path, kafka: Kafka, **source: object) -> None:
        self.path = path
        names = [f"s{number},{'ab'[number % 2]}" for number in range(6)]
        (path / "sensors.csv").write_text("\n".join(["sensor,edge", *names]) + "\n")
        self.settings = Settings.model_validate(
            {"state": path / "run", "sensors": path / "sensors.csv", "kafka": kafka, "slots": {"count": SLOTS}}
        )
        self.environment = {
            "TSUNAGI_STATE": str(path / "run"),
            "TSUNAGI_SENSORS": str(path / "sensors.csv"),
            "TSUNAGI_KAFKA__SERVERS": kafka.servers,
            "TSUNAGI_KAFKA__PREFIX": kafka.prefix,
            "TSUNAGI_SLOTS__COUNT": str(SLOTS),
            "TSUNAGI_STEPS__INTERVAL_S": str(INTERVAL_US / 1e6),
            "TSUNAGI_STEPS__AGGREGATE": "last",  # MQTT delivers at least once: a mean would not bear that
            "TSUNAGI_SOURCE__TIME_UNIT": "us",
            "TSUNAGI_SOURCE__DISORDER_S": "1.0",
            **{f"TSUNAGI_SOURCE__{name.upper()}": str(value) for name, value in source.items()},
        }
        self.log = KafkaLog(kafka, client_id="test")
        self.sent: dict[tuple[str, int], float] = {}
        self.processes: list[subprocess.Popen[bytes]] = []
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._prepare()

    def _prepare(self) -> None:
        self.log.ensure_topics(self.settings)
        table = read_sensors(self.path / "sensors.csv")
        placement = Placement(
            serial=1, slots=SLOTS, slot=pack_sensors(place(table, SLOTS)), table_sha256=table.digest()
        )
        producer = self.log.producer()
        producer.send(PLAN, 0, b"placement", Plan(version=VERSION, placement=placement).SerializeToString())
        assert producer.flush(30) == 0
        producer.close()

    def start(self, *, stdin: int | None = None) -> subprocess.Popen[bytes]:
        with (self.path / "a.log").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "tsunagi.cli", "edge", "run", "--edge", "a"],
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stderr=output,
            )
        self.processes.append(process)
        return process

    def said(self) -> str:
        file = self.path / "a.log"
        return file.read_text() if file.exists() else ""

    def keep_sending(self, send: Send) -> None:
        """Send a reading of each of the edge's sensors every 50 ms, from a thread, until `stop_sending`."""

        def run() -> None:
            while not self._stop.wait(0.05):
                now_us = time.time_ns() // 1000
                for sensor in OWN:
                    value = float(len(self.sent))
                    send(sensor, now_us, value)
                    self.sent[sensor, now_us] = value

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def stop_sending(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(150)
        self._threads.clear()
        self._stop.clear()

    def close(self) -> None:
        self.stop_sending()
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(10)
            if process.stdin is not None:
                process.stdin.close()
        self.log.close()

    def read(self, topic: str) -> list[Record]:
        return [record for records in read_topic(self.log, topic).values() for record in records]

    def batches(self) -> list[TupleBatch]:
        return [LogRecord.FromString(record.value or b"").batch for record in self.read(TUPLES)]

    def letters(self, reason: str | None = None) -> list[DeadLetter]:
        found = [DeadLetter.FromString(record.value or b"") for record in self.read(DEAD_LETTERS)]
        return [letter for letter in found if reason is None or letter.reason == reason]

    def full_steps(self) -> set[int]:
        """Steps with a value of each of the edge's sensors."""
        found: dict[int, int] = {}
        for batch in self.batches():
            found[batch.step] = found.get(batch.step, 0) + len(sensors(batch.sensor))
        return {step for step, count in found.items() if count == len(OWN)}

    def check(self, *, at_least_once: bool = False, outage_us: tuple[int, int] = (0, 0)) -> None:
        """What was sent is in its windows, or late in dead-letters; no step of the edge came twice.

        A reading that could not be sent in an outage is in those of its windows that were still open when it came: of
        windows in `outage_us` only this is asked, that nothing in them is invented.
        """
        letters = [letter for letter in self.letters() if f"/{MARK}'" not in letter.detail]
        assert {letter.reason for letter in letters} <= {"reading-late"}
        late = set()
        for letter in letters:
            body = json.loads(letter.value)
            late.add((body["sensor"], body["time"]))
        keys = [(batch.step, slot) for slot, batch in self.by_slot()]
        assert len(keys) == len(set(keys))
        checked = 0
        for batch in self.batches():
            columns = (sensors(batch.sensor).tolist(), floats(batch.value).tolist(), sensors(batch.count).tolist())
            found = {f"s{number}": (value, count) for number, value, count in zip(*columns, strict=True)}
            end_us = batch.step * SLIDE_US
            for sensor, (value, count) in found.items():
                inside = {
                    time_us: value
                    for (name, time_us), value in self.sent.items()
                    if name == sensor and end_us - WINDOW_US < time_us <= end_us and (name, time_us) not in late
                }
                if end_us > outage_us[0] and end_us - WINDOW_US < outage_us[1]:
                    assert value in inside.values()
                    continue
                assert value == inside[max(inside)]
                assert count >= len(inside) if at_least_once else count == len(inside)
                checked += 1
        assert checked > 0

    def by_slot(self) -> list[tuple[int, TupleBatch]]:
        return [(record.partition, LogRecord.FromString(record.value or b"").batch) for record in self.read(TUPLES)]


@pytest.fixture
def make(tmp_path: Path, kafka_settings: Kafka) -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def make(**source: object) -> World:
        worlds.append(World(tmp_path, kafka_settings, **source))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


def until(condition: Callable[[], object], timeout_s: float = 300.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def line(sensor: str, time_us: int, value: float) -> bytes:
    return json.dumps({"sensor": sensor, "time": time_us, "value": value}).encode()


def further(world: World, steps: int = 6) -> Callable[[], bool]:
    """True once so many more steps have a value of every sensor."""
    before = len(world.full_steps())
    return lambda: len(world.full_steps()) >= before + steps


# ---- Kafka


class Topic:
    """A topic of somebody else's, with two partitions."""

    def __init__(self, world: World) -> None:
        self.name = f"{world.settings.kafka.prefix}plant"
        self._world = world
        self._producer = Producer(client_options(world.settings.kafka))
        self._count = 0

    def make(self) -> None:
        for future in self._world.log.admin().create_topics([NewTopic(self.name, 2, 1)]).values():
            future.result(timeout=30)

    def send(self, sensor: str, time_us: int, value: float) -> None:
        self._count += 1
        self.raw(line(sensor, time_us, value), partition=self._count % 2)

    def raw(self, value: bytes, *, key: bytes | None = None, partition: int = 0) -> None:
        self._producer.produce(self.name, value=value, key=key, partition=partition)
        assert self._producer.flush(120) == 0


def test_an_edge_on_a_topic_waits_for_it_and_goes_on_where_it_was_killed(make: Callable[..., World]) -> None:
    world = make(kind="kafka", when_behind="send")
    topic = Topic(world)
    world.environment["TSUNAGI_SOURCE__KAFKA__TOPIC"] = topic.name
    killed = world.start()
    until(lambda: "no such topic" in world.said())
    until(lambda: len(world.batches()) > 2)  # it lives, and says so
    assert killed.poll() is None
    topic.make()
    until(lambda: "reading the topic" in world.said())
    world.keep_sending(topic.send)
    until(further(world))
    killed.send_signal(signal.SIGKILL)
    killed.wait(10)
    position = json.loads((world.path / "run" / "edges" / "a" / "position.json").read_text())
    time.sleep(1.0)  # readings go on
    again = world.start()
    until(further(world, 20))
    world.stop_sending()
    again.terminate()
    assert again.wait(30) == 0
    world.check()
    batches = world.batches()
    first, second = sorted({batch.incarnation for batch in batches})
    steps = sorted({batch.step for batch in batches if batch.incarnation == second})
    assert steps == list(range(position["step"] + 1, steps[-1] + 1))
    assert set(steps[:-10]) <= world.full_steps()
    assert max(batch.step for batch in batches if batch.incarnation == first) <= position["step"]


def test_an_edge_on_a_topic_outlives_the_death_of_its_cluster(tmp_path: Path) -> None:
    """Log and source are the same broker here, so that both come back at once, and the edge's spool drains."""
    (tmp_path / "broker").mkdir()
    broker = Broker(tmp_path / "broker", free_port())
    broker.start()
    world = None
    try:
        broker.wait_ready()
        world = World(tmp_path, Kafka(servers=broker.servers, prefix="outage."), kind="kafka")
        topic = Topic(world)
        topic.make()
        world.environment["TSUNAGI_SOURCE__KAFKA__TOPIC"] = topic.name
        process = world.start()
        until(lambda: "reading the topic" in world.said())
        world.keep_sending(topic.send)
        until(further(world))
        killed_us = time.time_ns() // 1000
        broker.kill()
        until(lambda: world.said().count("waiting for the source"))
        broker.start()
        broker.wait_ready()
        until(further(world, 10))
        back_us = time.time_ns() // 1000
        until(further(world, 10))
        world.stop_sending()
        assert process.poll() is None
        process.terminate()
        assert process.wait(30) == 0
        # The test's own producer may send twice.
        world.check(at_least_once=True, outage_us=(killed_us, back_us))
    finally:
        if world is not None:
            world.close()
        broker.stop()


def test_a_topic_that_is_deleted_and_made_anew_is_read_from_its_beginning(make: Callable[..., World]) -> None:
    world = make(kind="kafka")
    topic = Topic(world)
    topic.make()
    world.environment["TSUNAGI_SOURCE__KAFKA__TOPIC"] = topic.name
    process = world.start()
    until(lambda: "reading the topic" in world.said())
    world.keep_sending(topic.send)
    until(further(world))
    world.stop_sending()
    for future in world.log.admin().delete_topics([topic.name]).values():
        future.result(timeout=30)
    until(lambda: "no such topic" in world.said())
    topic.make()
    topic.raw(b"before anybody looked")
    until(lambda: "made anew" in world.said())
    until(lambda: len(world.letters("unreadable")) == 1)
    assert world.letters("unreadable")[0].offset == 0
    world.keep_sending(topic.send)
    until(further(world))
    world.stop_sending()
    process.terminate()
    assert process.wait(30) == 0


def test_what_a_topic_has_that_cannot_be_used_stands_in_dead_letters_by_reason(make: Callable[..., World]) -> None:
    world = make(kind="kafka")
    topic = Topic(world)
    topic.make()
    world.environment["TSUNAGI_SOURCE__KAFKA__TOPIC"] = topic.name
    process = world.start()
    until(lambda: "reading the topic" in world.said())
    now_us = time.time_ns() // 1000
    wrong = {
        b"not JSON": "unreadable",
        b"1.5": "no-sensor",
        b'{"sensor": "s0", "value": 1}': "no-time",
        b'{"sensor": "s0", "time": "noon", "value": 1}': "bad-time",
        line("s9", now_us, 1.0): "unknown-sensor",
        line("s1", now_us, 1.0): "foreign-sensor",
        line("s0", now_us, float("nan")): "not-a-number",
        line("s0", now_us - 3_600_000_000, 1.0): "reading-late",
        line("s0", now_us + 3_600_000_000, 1.0): "ahead",
        b"x" * 100_000: "too-long",
    }
    for payload in wrong:
        topic.raw(payload, key=b"s0" if payload == b"not JSON" else None)
    until(lambda: len(world.letters()) == len(wrong))
    letters = {letter.offset: letter for letter in world.letters()}
    for offset, (payload, reason) in enumerate(wrong.items()):
        letter = letters[offset]
        assert letter.reason == reason
        assert letter.value == payload[:65536]
        assert letter.key == f"a/kafka/{topic.name}/0/{offset}".encode()
        assert (letter.topic, letter.partition) == ("source", 0)
        assert topic.name in letter.detail

    def taken() -> bool:
        topic.raw(b"7.5", key=b"s2")  # again, since one that came before the first whole window is in none
        return 7.5 in [value for batch in world.batches() for value in floats(batch.value).tolist()]

    until(taken)
    process.terminate()
    assert process.wait(30) == 0


# ---- lines


class Client:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)

    def send(self, sensor: str, time_us: int, value: float) -> None:
        self.socket.sendall(line(sensor, time_us, value) + b"\n")

    def reset(self) -> None:
        """Go away in the middle of a line, and rudely."""
        self.socket.sendall(b'{"sensor": "s0", "ti')
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def test_many_tcp_clients_send_lines_and_go_as_they_like(make: Callable[..., World]) -> None:
    port = free_port()
    world = make(kind="lines", lines__listen=f"127.0.0.1:{port}", lines__max_clients=8, max_bytes=1000)
    process = world.start()
    until(lambda: "listening for lines" in world.said())
    clients = [Client(port) for _ in range(3)]
    turn = iter(range(1 << 30))
    world.keep_sending(lambda *reading: clients[next(turn) % len(clients)].send(*reading))  # noqa: PLW0108 - a turn each
    until(further(world))
    for _ in range(20):  # more than may be connected at a time
        Client(port).reset()
    until(further(world))
    world.stop_sending()
    for client in clients:
        client.socket.close()
    long = Client(port)
    long.socket.sendall(b"y" * 50_000 + b"\n")
    until(lambda: len(world.letters("too-long")) == 1)
    assert world.letters("too-long")[0].value == b"y" * 1001
    long.socket.close()
    assert process.poll() is None
    process.terminate()
    assert process.wait(30) == 0
    assert {letter.reason for letter in world.letters()} <= {"too-long", "unreadable", "reading-late"}


def test_standard_input_is_read_to_its_end_and_the_edge_ends_with_it(make: Callable[..., World]) -> None:
    world = make(kind="lines")
    process = world.start(stdin=subprocess.PIPE)
    until(lambda: "source connected" in world.said())
    pipe = process.stdin
    assert pipe is not None

    def send(sensor: str, time_us: int, value: float) -> None:
        pipe.write(line(sensor, time_us, value) + b"\n")
        pipe.flush()

    world.keep_sending(send)
    until(further(world))
    world.stop_sending()
    pipe.close()
    assert process.wait(60) == 0
    world.check()
    last_us = max(time_us for _, time_us in world.sent)
    assert max(batch.step for batch in world.batches()) >= -(-last_us // SLIDE_US)


# ---- MQTT


class Mosquitto:
    """Debian's MQTT broker as a process of the test's own."""

    def __init__(self, path: Path, *lines: str) -> None:
        if MOSQUITTO is None:
            pytest.fail("mosquitto is not installed: apt-get install --no-install-recommends mosquitto")
        self.port = free_port()
        self._path = path / "mosquitto"
        self._path.mkdir()
        # A broker that is killed has lost what it had not saved; so it saves after every change.
        config = [
            "user root",
            "persistence true",
            f"persistence_location {self._path}/",
            "autosave_interval 1",
            "autosave_on_changes true",
            "max_queued_messages 0",
            f"listener {self.port} 127.0.0.1",
            *(lines or ["allow_anonymous true"]),
        ]
        (self._path / "mosquitto.conf").write_text("\n".join(config) + "\n")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self._path / "log").open("ab") as output:
            self._process = subprocess.Popen(
                [str(MOSQUITTO), "-c", str(self._path / "mosquitto.conf")], stdout=output, stderr=output
            )

        def answers() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, (self._path / "log").read_text()
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        until(answers)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    broker = Mosquitto(tmp_path)
    yield broker
    broker.kill()


class Publisher:
    """Publishes as a gateway of sensors would: quality of service 1, reconnecting by itself."""

    def __init__(self, port: int) -> None:
        self.client = paho.Client(CallbackAPIVersion.VERSION2, client_id="sensors", clean_session=False)
        self.client.reconnect_delay_set(1, 1)
        self.client.connect_async("127.0.0.1", port)
        self.client.loop_start()

    def send(self, sensor: str, time_us: int, value: float) -> None:
        self.raw(sensor, line(sensor, time_us, value))

    def raw(self, sensor: str, payload: bytes, *, retain: bool = False) -> paho.MQTTMessageInfo:
        return self.client.publish(f"plant/a/{sensor}", payload, qos=1, retain=retain)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.fixture
def publisher(mosquitto: Mosquitto) -> Iterator[Publisher]:
    publisher = Publisher(mosquitto.port)
    yield publisher
    publisher.close()


def all_arrived(world: World, publisher: Publisher) -> None:
    """Wait until the edge has had all that was published: a message that it cannot use comes after the others."""
    publisher.raw(MARK, b"1")
    until(lambda: any(letter.reason == "unknown-sensor" for letter in world.letters()))


def test_an_edge_waits_for_its_mqtt_broker_and_outlives_its_death(
    make: Callable[..., World], mosquitto: Mosquitto, publisher: Publisher
) -> None:
    world = make(kind="mqtt", mqtt__port=mosquitto.port, mqtt__reconnect_s=0.5)
    process = world.start()
    until(lambda: "waiting for the source" in world.said())
    until(lambda: len(world.batches()) > 2)  # it lives, and says so
    mosquitto.start()
    until(lambda: world.said().count("source connected") == 1)
    world.keep_sending(publisher.send)
    until(further(world))
    mosquitto.kill()
    killed_us = time.time_ns() // 1000
    time.sleep(1.0)
    mosquitto.start()
    until(lambda: world.said().count("source connected") == 2)
    until(further(world))
    world.stop_sending()
    all_arrived(world, publisher)
    assert process.poll() is None
    process.terminate()
    assert process.wait(30) == 0
    # It acknowledges a reading before it saves it: what it took last has died with it.
    world.check(at_least_once=True, outage_us=(killed_us - 1_000_000, killed_us))


def test_plain_numbers_retained_readings_and_what_is_wrong(
    make: Callable[..., World], mosquitto: Mosquitto, publisher: Publisher
) -> None:
    mosquitto.start()
    until(publisher.client.is_connected)
    until(publisher.raw("s4", b"1.5", retain=True).is_published)  # before the edge subscribes
    world = make(kind="mqtt", mqtt__port=mosquitto.port)
    process = world.start()
    until(lambda: len(world.letters("no-time")) == 1)  # retained: nobody knows since when
    assert world.letters("no-time")[0].value == b"1.5"
    publisher.raw("s9", b"1")
    publisher.raw("s0", b"nan")
    publisher.raw("s0", b"\xff")
    until(lambda: len(world.letters()) == 4)
    assert {letter.reason for letter in world.letters()} == {"no-time", "unknown-sensor", "not-a-number", "unreadable"}
    assert len({letter.key for letter in world.letters()}) == 4
    assert all("topic 'plant/a/" in letter.detail for letter in world.letters())

    def arrived() -> bool:  # the very first may come before the first window that is whole
        publisher.raw("s2", b"7.25")
        return 7.25 in [value for batch in world.batches() for value in floats(batch.value).tolist()]

    until(arrived)
    process.terminate()
    assert process.wait(30) == 0


def test_a_restarted_edge_finds_its_session_and_counts_what_came_meanwhile(
    make: Callable[..., World], mosquitto: Mosquitto, publisher: Publisher
) -> None:
    mosquitto.start()
    world = make(kind="mqtt", mqtt__port=mosquitto.port)
    first = world.start()
    until(lambda: world.said().count("source connected") == 1)
    world.keep_sending(publisher.send)
    until(further(world))
    first.terminate()
    assert first.wait(30) == 0
    time.sleep(2.5)
    second = world.start()
    until(further(world))
    world.stop_sending()
    all_arrived(world, publisher)
    second.terminate()
    assert second.wait(30) == 0
    assert "rows not sent: their time was over" in world.said()
    world.check(at_least_once=True)


def test_a_broker_with_tls_and_passwords(make: Callable[..., World], tmp_path: Path) -> None:
    request = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "ca.pem")]
    subprocess.run(["openssl", *request.split(), *files], check=True, capture_output=True)
    subprocess.run(["mosquitto_passwd", "-c", "-b", str(tmp_path / "users"), "plant", "seven words"], check=True)
    (tmp_path / "secret").write_text("wrong\n")
    broker = Mosquitto(
        tmp_path,
        f"cafile {tmp_path}/ca.pem",
        f"certfile {tmp_path}/ca.pem",
        f"keyfile {tmp_path}/key.pem",
        "allow_anonymous false",
        f"password_file {tmp_path}/users",
    )
    broker.start()
    try:
        world = make(
            kind="mqtt",
            mqtt__port=broker.port,
            mqtt__username="plant",
            mqtt__password_file=tmp_path / "secret",
            mqtt__ca_file=tmp_path / "ca.pem",
        )
        refused = world.start()
        until(lambda: "refused: Not authorized" in world.said())
        refused.terminate()
        assert refused.wait(30) == 0
        (tmp_path / "secret").write_text("seven words\n")
        accepted = world.start()
        until(lambda: "source connected" in world.said())
        accepted.terminate()
        assert accepted.wait(30) == 0
        assert "seven words" not in world.said()
        assert "wrong" not in world.said()
    finally:
        broker.kill()
