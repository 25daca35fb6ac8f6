"""`tsunagi init` beside a real MQTT broker: an edge on what it has written reads every sensor that was sent."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from paho.mqtt.enums import CallbackAPIVersion

from tests.integration.edges import until
from tests.integration.test_edge_mqtt import Mosquitto
from tsunagi.runtime.columns import pack_sensors, sensors
from tsunagi.runtime.kafka import KafkaLog
from tsunagi.runtime.log import DEAD_LETTERS, PLAN, TUPLES
from tsunagi.runtime.messages import VERSION, DeadLetter, LogRecord, Placement, Plan
from tsunagi.runtime.sensors import place, read_sensors
from tsunagi.runtime.settings import KafkaSettings, load
from tsunagi.system.topics import read_topic


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[Mosquitto]:
    """A broker and the devices of a plant, which say it each in their own way, five times a second."""
    broker = Mosquitto(tmp_path)
    broker.start()
    client = paho.Client(CallbackAPIVersion.VERSION2)
    client.connect("127.0.0.1", broker.port)
    client.loop_start()
    stop = threading.Event()

    def send() -> None:
        for number in itertools.count():
            if stop.wait(0.2):
                return
            now_s = time.time()
            for hall, device in itertools.product(("Halle Süd", "north"), ("boiler", "pump")):
                body = {"temperature": 20 + number % 7, "pressure": str(number / 4), "ts": round(now_s * 1000)}
                client.publish(f"plant/{hall}/{device}", json.dumps(body))
            metrics = [
                {"tags": {"host": host}, "fields": {"idle": 50 + number % 3}, "timestamp": now_s} for host in "ab"
            ]
            client.publish("telegraf/x", json.dumps({"metrics": metrics}))
            client.publish("zigbee2mqtt/door", json.dumps({"state": "ON" if number % 2 else "OFF", "last_seen": now_s}))
            client.publish("ha/tank/state", "unavailable" if number % 5 == 0 else "12.5")

    thread = threading.Thread(target=send)
    thread.start()
    yield broker
    stop.set()
    thread.join()
    client.disconnect()
    client.loop_stop()
    broker.kill()


def test_from_a_broker_to_edges_that_read_every_sensor(
    tmp_path: Path, plant: Mosquitto, kafka_settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my plant"
    tsunagi = [sys.executable, "-m", "tsunagi.cli"]
    options = ["--mqtt", f"127.0.0.1:{plant.port}", "--topic", "#", "--listen", "6"]
    made = subprocess.run([*tsunagi, "init", str(folder), *options], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    assert "12 sensors" in made.stdout
    assert "missing" in made.stdout
    monkeypatch.chdir(folder)
    for name, value in {"SERVERS": kafka_settings.servers, "PREFIX": kafka_settings.prefix}.items():
        monkeypatch.setenv(f"TSUNAGI_KAFKA__{name}", value)
    settings = load()
    table = read_sensors(settings.sensors)
    assert table.edges == ("ha", "halle-sud", "north", "telegraf", "zigbee2mqtt")
    log = KafkaLog(settings.kafka, client_id="test")
    log.ensure_topics(settings)
    slots = place(table, settings.slots.count)
    placed = Placement(serial=1, slots=settings.slots.count, slot=pack_sensors(slots), table_sha256=table.digest())
    producer = log.producer()
    producer.send(PLAN, 0, b"placement", Plan(version=VERSION, placement=placed).SerializeToString())
    assert producer.flush(30) == 0
    producer.close()
    edges = []
    try:
        for edge in table.edges:
            with (tmp_path / f"{edge}.log").open("ab") as output:
                command = [*tsunagi, "edge", "run", "--edge", edge]
                edges.append(subprocess.Popen(command, env=os.environ, stderr=output, stdin=subprocess.DEVNULL))

        def heard() -> set[int]:
            batches = [
                LogRecord.FromString(record.value or b"").batch
                for records in read_topic(log, TUPLES).values()
                for record in records
            ]
            return {sensor for batch in batches for sensor in sensors(batch.sensor).tolist()}

        until(lambda: heard() == set(range(len(table))))
        letters = [
            DeadLetter.FromString(record.value or b"")
            for records in read_topic(log, DEAD_LETTERS).values()
            for record in records
        ]
        assert {letter.reason for letter in letters} <= {"reading-late"}, letters[:3]
    finally:
        for process in edges:
            process.terminate()
        for process in edges:
            assert process.wait(30) == 0
        log.close()


def test_from_a_kafka_topic(tmp_path: Path, kafka_settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = f"{kafka_settings.prefix}plant.readings"
    admin = AdminClient({"bootstrap.servers": kafka_settings.servers})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(60)
    producer = Producer({"bootstrap.servers": kafka_settings.servers})
    stop = threading.Event()

    def send() -> None:
        for number in itertools.count():
            if stop.wait(0.2):
                return
            body = {"v": 20 + number % 7, "time": time.time()}
            producer.produce(topic, json.dumps([{"id": name, **body} for name in ("a", "b")]).encode())
            producer.poll(0)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        options = ["--kafka", kafka_settings.servers, "--topic", topic, "--listen", "8", "--edges", "2"]
        command = [sys.executable, "-m", "tsunagi.cli", "init", str(tmp_path / "plant"), *options]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        stop.set()
        thread.join()
        producer.flush(30)
    assert made.returncode == 0, made.stderr
    monkeypatch.chdir(tmp_path / "plant")
    settings = load()
    assert [(sensor.name, sensor.edge) for sensor in read_sensors(settings.sensors).sensors] == [
        ("a", "edge-1"),
        ("b", "edge-2"),
    ]
    assert (settings.source.kafka.topic, settings.kafka.servers) == (topic, kafka_settings.servers)
