"""Edges on a real MQTT broker, as processes."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.integration.edges import MARK, LiveWorld, further, line, until
from tsunagi.broker.checks import free_port
from tsunagi.runtime.columns import floats

MOSQUITTO = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


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


def all_arrived(world: LiveWorld, publisher: Publisher) -> None:
    """Wait until the edge has had all that was published: a message that it cannot use comes after the others."""
    publisher.raw(MARK, b"1")
    until(lambda: any(letter.reason == "unknown-sensor" for letter in world.letters()))


def test_an_edge_waits_for_its_mqtt_broker_and_outlives_its_death(
    make_live: Callable[..., LiveWorld], mosquitto: Mosquitto, publisher: Publisher
) -> None:
    world = make_live(kind="mqtt", mqtt__port=mosquitto.port, mqtt__reconnect_s=0.5)
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
    make_live: Callable[..., LiveWorld], mosquitto: Mosquitto, publisher: Publisher
) -> None:
    mosquitto.start()
    until(publisher.client.is_connected)
    until(publisher.raw("s4", b"1.5", retain=True).is_published)  # before the edge subscribes
    world = make_live(kind="mqtt", mqtt__port=mosquitto.port)
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
        return 7.25 in [value for _, batch in world.batches() for value in floats(batch.value).tolist()]

    until(arrived)
    process.terminate()
    assert process.wait(30) == 0


FIELDS = [
    {"topic": "plant/a/{device}", "values": ["data.celsius"], "sensor": "{device}", "time": "ts", "time_unit": "us"},
    {
        "topic": "telegraf/+",
        "each": "metrics",
        "values": ["fields.value"],
        "sensor": "{tags.device}",
        "time": "timestamp",
        "time_unit": "ns",
    },
    {"topic": "zigbee2mqtt/{name}", "values": ["level"], "sensor": "{name}", "time": "last_seen", "decimal": ","},
    {"topic": "hub/#", "sensor": "s{field}", "values": {"0": "s0", "2": "s2", "4": "s4"}, "time_unit": "us"},
    {"topic": "plant/a/nobody", "values": ["@"], "sensor": "nobody", "time": ""},
]


def test_devices_that_say_it_each_in_its_own_way(
    make_live: Callable[..., LiveWorld], mosquitto: Mosquitto, publisher: Publisher
) -> None:
    mosquitto.start()
    world = make_live(kind="mqtt", mqtt__port=mosquitto.port, mqtt__topic="#", fields=json.dumps(FIELDS))
    process = world.start()
    until(lambda: world.said().count("source connected") == 1)
    ways = itertools.cycle(range(4))

    def send(sensor: str, time_us: int, value: float) -> None:
        more = {"sensor": sensor, "time": time_us}  # read by the test alone
        moment = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=time_us)
        metric = {"name": "x", "tags": {"device": sensor}, "fields": {"value": value}, "timestamp": time_us * 1000}
        topic, message = (
            (f"plant/a/{sensor}", {"data": {"celsius": value}, "ts": str(time_us)}),
            ("telegraf/host", {"metrics": [metric]}),
            (f"zigbee2mqtt/{sensor}", {"level": f"{value:g}".replace(".", ","), "last_seen": moment.isoformat()}),
            ("hub/1/2", {sensor: value, "battery": "low"}),
        )[next(ways)]
        publisher.client.publish(topic, json.dumps(message | more), qos=1)

    world.keep_sending(send)
    until(further(world, 12))
    world.stop_sending()
    all_arrived(world, publisher)
    process.terminate()
    assert process.wait(30) == 0
    world.check(at_least_once=True)


def test_a_restarted_edge_finds_its_session_and_counts_what_came_meanwhile(
    make_live: Callable[..., LiveWorld], mosquitto: Mosquitto, publisher: Publisher
) -> None:
    mosquitto.start()
    world = make_live(kind="mqtt", mqtt__port=mosquitto.port)
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


def test_a_broker_with_tls_and_passwords(make_live: Callable[..., LiveWorld], tmp_path: Path) -> None:
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
        world = make_live(
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
