"""Sinks as processes on real targets: InfluxDB, Mosquitto, an HTTP server, and topics with Connect's JSON or Avro."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka.admin import NewTopic
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.integration.influxdb import DATABASE, Influx
from tests.integration.receivers import Receiver, Registry, Subscriber
from tests.integration.sinks import BEGIN_STEP, PATIENCE_S, STEP_US, Ledger, SinkWorld, moment, query_block, wait_until
from tests.integration.test_edge_mqtt import Mosquitto
from tsunagi.runtime.settings import KafkaSettings, SinkSettings
from tsunagi.sink.base import SinkAwayError
from tsunagi.sink.kafka import CORRECTIONS
from tsunagi.sink.mqtt import MqttSink
from tsunagi.sink.rows import SinkBatch

MakeWorld = Callable[..., SinkWorld]


@pytest.fixture
def world(tmp_path: Path, kafka_settings: KafkaSettings) -> Iterator[MakeWorld]:
    worlds: list[SinkWorld] = []

    def make(**sink: Any) -> SinkWorld:
        worlds.append(SinkWorld(tmp_path / "world", kafka_settings, {"name": "out"} | sink))
        return worlds[-1]

    yield make
    for made in worlds:
        made.close()


def killed(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(10)


def alarms(system: SinkWorld, words: Sequence[str], level: float = 0.0) -> set[str]:
    """Append a step of the query `alarms`, with a row for each word; return the names of the rows."""
    step = system.step
    columns: list[tuple[str, str, Sequence[Any]]] = [
        ("what", "TEXT", words),
        ("level", "DOUBLE", [level + row for row in range(len(words))]),
        ("n", "BIGINT", [step] * len(words)),
    ]
    system.append(query_block("alarms", step, columns, run=1))
    system.step += 1
    return {f"alarms/{moment(step).isoformat()}/1//{row}" for row in range(len(words))}


# ---- InfluxDB


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Influx]:
    found = Influx(tmp_path_factory.mktemp("influxdb"))
    found.start()
    yield found
    found.close()


@pytest.fixture
def influx(server: Influx) -> Influx:
    server.ask(f"DROP DATABASE {DATABASE}")
    return server


def test_influxdb_has_each_reading_once_and_its_truth_beside_the_estimate_whatever_is_killed(
    world: MakeWorld, influx: Influx
) -> None:
    system = world(kind="influxdb", batch_rows=100, influxdb={"url": influx.url, "database": DATABASE})

    system.write(20)
    sink = system.start("out")
    for kill in range(4):
        words = f"nothing comes after {kill} kills: {system.said('sink-out')}"
        wait_until(lambda fewest=100 * kill: len(influx.readings()) > fewest, words)  # type: ignore[misc]  # a default
        system.write(15)
        if kill % 2:
            influx.kill()
            influx.start()
        else:
            killed(sink)
            sink = system.start("out")
    wait_until(lambda: influx.readings() == system.rows, f"not all points come: {system.said('sink-out')}")
    wait_until(lambda: not system.fault("sink-out"), "it is not ready though all is written")
    corrected = [point for point in influx.ask("SELECT * FROM readings") if point["truth"] is not None]
    assert len(corrected) > 20
    assert {point["quality"] for point in corrected} == {"bounded", "unbounded"}
    assert all(point["value"] != point["truth"] and point["bound"] > 0 for point in corrected)
    assert {(point["sensor_group"], point["unit"]) for point in corrected} == {(f"g{n}", "K") for n in range(4)}
    assert not system.letters()


def test_influxdb_gets_rows_again_from_a_time_on_once_its_sink_has_stopped(world: MakeWorld, influx: Influx) -> None:
    system = world(kind="influxdb", influxdb={"url": influx.url, "database": DATABASE})
    system.write(10)
    sink = system.start("out")
    wait_until(lambda: influx.readings() == system.rows, f"not all points come: {system.said('sink-out')}")
    influx.ask("DELETE FROM readings WHERE sensor = 's7'")
    command = [sys.executable, "-m", "tsunagi.cli", "sink", "rebuild", "--sink", "out", "--from", "2020-01-01"]
    killed(sink)
    said = subprocess.run(command, env=system.environment, capture_output=True, text=True, check=False, timeout=120)
    assert said.returncode == 0, said.stderr
    assert "sink out: an instance runs, or was killed just now" in said.stdout
    found = re.search(r"sink out: it goes back (\d+) records", said.stdout)
    assert found is not None, said.stdout
    assert int(found[1]) > 40  # a block of each group and step, and the truths
    assert len(influx.readings()) == len(system.rows) - 10
    system.start("out")
    wait_until(lambda: influx.readings() == system.rows, f"not all points come: {system.said('sink-out')}")


def test_influxdb_refuses_a_column_of_another_type_and_no_other_row(world: MakeWorld, influx: Influx) -> None:
    system = world(kind="influxdb", query="alarms", influxdb={"url": influx.url, "database": DATABASE})
    for _ in range(10):
        alarms(system, ["hot", "a\\b, c=d\n"])
    other: list[tuple[str, str, Sequence[Any]]] = [("level", "DOUBLE", [-1.0, -2.0]), ("n", "DOUBLE", [0.5, 1.5])]
    system.append(query_block("alarms", system.step, other, run=1))
    system.step += 1
    for _ in range(10):
        alarms(system, ["hot", "a\\b, c=d\n"])
    system.flush()
    system.start("out")
    wait_until(lambda: len(system.letters()) == 2, f"no letters: {system.said('sink-out')}")
    wait_until(lambda: len(influx.ask("SELECT * FROM alarms")) == 40, "rows are missing")
    points = influx.ask("SELECT * FROM alarms WHERE result_row = '1'")
    assert {(point["what"], point["level"], point["result_quality"]) for point in points} == {
        ("a\\b, c=d ", 1.0, "exact")
    }
    assert [point["n"] for point in points] == [point["result_step"] for point in points]
    letter = system.letters()[0]
    assert (letter.topic, letter.partition, letter.offset, letter.reason) == ("results", 0, 10, "refused")
    assert "field type conflict" in letter.detail
    assert "already exists as type integer" in letter.detail
    assert json.loads(letter.value)["level"] == -1.0


# ---- MQTT


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    broker = Mosquitto(tmp_path_factory.mktemp("mqtt"))
    broker.start()
    yield broker
    broker.kill()


def test_mqtt_subscribers_get_each_row_though_sink_and_broker_are_killed(
    world: MakeWorld, mosquitto: Mosquitto
) -> None:
    system = world(
        kind="mqtt", query="alarms", batch_rows=40, mqtt={"port": mosquitto.port, "topic": "plant/{query}/{what}/{n}"}
    )
    subscriber = Subscriber(mosquitto.port, "plant/#")
    try:
        odd = ["hot", "a/b+c#", "line\nbreak", "", "$SYS", "ü", "x" * 65_536]
        names = alarms(system, odd, level=0.5)
        for _ in range(20):
            names |= alarms(system, ["hot", "cold"])
        system.flush()
        sink = system.start("out")
        names -= {f"alarms/{moment(BEGIN_STEP).isoformat()}/1//6"}  # no topic is as long as that
        wait_until(lambda: subscriber.names() == names, f"rows are missing: {system.said('sink-out')}")
        assert len(subscriber.messages) == len(names)  # once each
        topics = ["hot", "a_b_c_", "line_break", "_", "_SYS", "ü"]
        assert [topic for topic, _ in subscriber.messages[:6]] == [f"plant/alarms/{it}/{BEGIN_STEP}" for it in topics]
        assert subscriber.messages[1][1]["row"] == {
            "result_time": "2023-11-14T22:13:20.000000+00:00",
            "result_quality": "exact",
            "result_step": BEGIN_STEP,
            "what": "a/b+c#",
            "level": 1.5,
            "n": BEGIN_STEP,
            "result_run": 1,
            "result_group": "",
            "result_row": 1,
        }
        assert ["Publish topic is too long" in letter.detail for letter in system.letters()] == [True]

        def more(steps: int) -> None:
            """Write more, and return while the sink is at it."""
            nonlocal names
            before = len(subscriber.messages)
            for _ in range(steps):
                names |= alarms(system, ["hot", "cold"])
            system.flush()
            wait_until(lambda: len(subscriber.messages) > before, "nothing comes")

        more(200)
        process = mosquitto._process
        assert process is not None
        process.terminate()  # in good order: it keeps what it has taken
        process.wait(PATIENCE_S)
        names |= alarms(system, ["hot"])
        system.flush()
        wait_until(lambda: "MQTT broker" in system.fault("sink-out"), "it does not say that its target is away")
        mosquitto.start()
        wait_until(lambda: subscriber.names() == names, f"rows are missing: {system.said('sink-out')}")
        wait_until(lambda: not system.fault("sink-out"), "it is not ready though all is written")
        more(200)
        killed(sink)
        names |= alarms(system, ["hot"])
        system.flush()
        system.start("out")
        wait_until(lambda: subscriber.names() == names, f"rows are missing: {system.said('sink-out')}")
        assert len({json.dumps(message) for message in subscriber.messages}) == len(names)  # repeats are the same
    finally:
        subscriber.close()


def test_mqtt_waits_for_the_right_password(tmp_path: Path) -> None:
    subprocess.run(["mosquitto_passwd", "-c", "-b", str(tmp_path / "users"), "plant", "seven words"], check=True)
    broker = Mosquitto(tmp_path, "allow_anonymous false", f"password_file {tmp_path}/users")
    broker.start()
    secret = tmp_path / "secret"
    secret.write_text("wrong\n", encoding="utf-8")
    settings = {"port": broker.port, "username": "plant", "password_file": str(secret)}
    sink = MqttSink(SinkSettings.model_validate({"name": "out", "kind": "mqtt", "query": "alarms", "mqtt": settings}))
    try:
        with pytest.raises(SinkAwayError, match="refused: Not authorized"):
            sink.open()
        sink.close()
        secret.write_text("seven words\n", encoding="utf-8")
        sink.open()
        assert not sink.write(SinkBatch(()))
    finally:
        sink.close()
        broker.kill()
    with pytest.raises(SinkAwayError, match=f"MQTT broker 127.0.0.1:{broker.port}: .*refused"):
        sink.open()


# ---- webhook


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.stop()


def test_a_webhook_has_each_row_once_though_it_is_busy_away_and_refuses_one(
    world: MakeWorld, receiver: Receiver, tmp_path: Path
) -> None:
    (tmp_path / "header").write_text("Authorization: Bearer seven words\n", encoding="utf-8")
    receiver.busy, receiver.pause_after = 2, 5  # then it is away amid a batch
    system = world(
        kind="webhook", query="alarms", webhook={"url": receiver.url, "header_file": str(tmp_path / "header")}
    )
    names = alarms(system, ["hot", "bad", "cold"])
    for _ in range(10):
        names |= alarms(system, ["hot", "cold"])
    names -= {f"alarms/{moment(BEGIN_STEP).isoformat()}/1//1"}
    system.flush()
    sink = system.start("out")
    wait_until(lambda: len(receiver.taken) >= len(names), f"rows are missing: {system.said('sink-out')}")
    wait_until(lambda: len(system.letters()) == 1, "the row that was refused is nowhere")
    (letter,) = system.letters()
    assert letter.detail == 'sink out: 400 Bad Request: {"error": "no such alarm"}'
    assert json.loads(letter.value)["what"] == "bad"
    receiver.stop()
    names |= alarms(system, ["ü"])
    system.flush()
    wait_until(lambda: "Connection refused" in system.fault("sink-out"), "it does not say that its target is away")
    receiver.start()
    wait_until(lambda: len(receiver.taken) >= len(names), f"rows are missing: {system.said('sink-out')}")
    wait_until(lambda: not system.fault("sink-out"), "it is not ready though all is written")
    sink.send_signal(signal.SIGTERM)
    assert sink.wait(30) == 0
    assert {taken.key for taken in receiver.taken} == names
    assert len(receiver.taken) == len(names)  # once each
    assert all(taken.key == taken.message["name"] for taken in receiver.taken)
    assert {taken.authorization for taken in receiver.taken} == {"Bearer seven words"}
    steps = [taken.message["row"]["result_step"] for taken in receiver.taken]
    assert steps == sorted(steps)
    assert "503 Service Unavailable" in system.said("sink-out")
    assert "HTTP Request" not in system.said("sink-out")  # a line for each row
    assert "seven words" not in system.said("sink-out")


# ---- Kafka


def make_topic(system: SinkWorld, *suffixes: str) -> str:
    """Make a topic of its own for the sink, and those with further ends of its name; return its name."""
    name = f"{system.settings.kafka.prefix}plant"
    admin = system.log.admin()
    for future in admin.create_topics([NewTopic(name + suffix, 2, 1) for suffix in ("", *suffixes)]).values():
        future.result(PATIENCE_S)
    for suffix in ("", *suffixes):
        wait_until(partial(_ready, system, name + suffix), f"{name}{suffix}: a partition has no leader")
    return name


def _ready(system: SinkWorld, topic: str) -> bool:
    try:
        return records(system, topic) is not None
    except KafkaException:  # a partition that is new has no leader for a moment
        return False


def records(system: SinkWorld, topic: str) -> list[Message]:
    """Return all records of a topic, as any other program reads them."""
    options = {"bootstrap.servers": system.settings.kafka.servers, "group.id": "other", "enable.auto.commit": False}
    consumer = Consumer(options | {"enable.partition.eof": False})
    found: list[Message] = []
    try:
        places = [TopicPartition(topic, partition, 0) for partition in range(2)]
        wanted = sum(consumer.get_watermark_offsets(place, timeout=PATIENCE_S)[1] for place in places)
        consumer.assign(places)

        def all_there() -> bool:
            for message in consumer.consume(1000, 0.1):
                assert message.error() is None
                found.append(message)
            return len(found) >= wanted

        wait_until(all_there, f"{topic}: {len(found)} records of {wanted}")
    finally:
        consumer.close()
    return found


TYPES: Mapping[str, type] = {"double": float, "int64": int, "string": str, "boolean": bool}
TIMESTAMP = "org.apache.kafka.connect.data.Timestamp"


def connected(text: bytes | None) -> dict[str, Any]:
    """Return what Kafka Connect's JsonConverter makes of a key or value, with times; anything else fails."""
    envelope = json.loads(text or b"")
    assert envelope.keys() == {"schema", "payload"}
    schema, payload = envelope["schema"], envelope["payload"]
    assert (schema["type"], schema["optional"]) == ("struct", False)
    assert [field["field"] for field in schema["fields"]] == list(payload)
    found = dict(payload)
    for field in schema["fields"]:
        name = field["field"]
        assert (found[name] is None and field["optional"]) or type(found[name]) is TYPES[field["type"]]
        if field.get("name"):
            assert (field["name"], field["version"], field["type"]) == (TIMESTAMP, 1, "int64")
            found[name] = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=found[name])
    return found


def test_a_topic_has_each_reading_as_kafka_connect_takes_it_and_another_one_the_truths(
    world: MakeWorld, kafka_settings: KafkaSettings
) -> None:
    options = {"topic.metadata.propagation.max.ms": 500}
    system = world(kind="kafka", batch_rows=100, kafka={"topic": f"{kafka_settings.prefix}plant", "options": options})
    sink = system.start("out")
    system.write(10)
    wait_until(lambda: "Unknown topic" in system.fault("sink-out"), f"no word of it: {system.fault('sink-out')}")
    topic = make_topic(system, CORRECTIONS)

    def rows(name: str) -> dict[tuple[datetime, str], dict[str, Any]]:
        found: dict[tuple[datetime, str], dict[str, Any]] = {}
        for message in records(system, name):
            key, row = connected(message.key()), connected(message.value())
            assert key == {"time": row["time"], "sensor": row["sensor"]}
            place = row["time"], row["sensor"]
            assert found.setdefault(place, row) == row  # a repeat is the same
        return found

    def standing() -> dict[tuple[datetime, str], Ledger]:
        found = rows(topic)
        for place, truth in rows(topic + CORRECTIONS).items():
            if place in found:
                found[place] |= {name: truth[name] for name in ("value", "sd", "bound", "quality")}
        columns = ("value", "bound", "quality", "q1", "step")
        return {place: Ledger(*(row[name] for name in columns)) for place, row in found.items()}

    wait_until(lambda: len(standing()) > 100, f"nothing comes: {system.said('sink-out')}")
    system.write(10)
    killed(sink)
    system.start("out")
    wait_until(lambda: standing() == system.rows, f"rows are missing: {system.said('sink-out')}")
    assert {row["quality"] for row in rows(topic + CORRECTIONS).values()} == {"corrected"}
    assert {row["q1"] for row in rows(topic + CORRECTIONS).values()} == {None}
    assert not system.letters()


@pytest.fixture
def registry() -> Iterator[Registry]:
    found = Registry()
    yield found
    found.stop()


def test_avro_with_a_registry(world: MakeWorld, kafka_settings: KafkaSettings, registry: Registry) -> None:
    system = world(
        kind="kafka",
        query="high-levels.1",
        kafka={
            "topic": f"{kafka_settings.prefix}plant",
            "format": "avro",
            "registry": registry.url,
            "registry_options": {"max.retries": 0},
        },
    )
    topic = make_topic(system)
    expected = []

    def append(n: tuple[str, Sequence[Any]]) -> None:
        time_us = system.step * STEP_US + 123_457
        columns: list[tuple[str, str, Sequence[Any]]] = [
            ("level, ü", "DOUBLE", [0.1, -2.5]),
            ("n", *n),
            ("on", "BOOLEAN", [True, False]),
            ("word", "TEXT", ["ü", ""]),
            ("since", "TIMESTAMP", [time_us + 1, -1]),
        ]
        block = query_block("high-levels.1", system.step, columns, run=7, group="g1")
        block.event_time_us = time_us
        system.append(block)
        at = moment(system.step) + timedelta(microseconds=123_457)
        for row in range(2):
            key = {"result_time": at, "result_run": 7, "result_group": "g1", "result_row": row}
            expected.append(
                {"result_quality": "exact", "result_step": system.step, "level___": columns[0][2][row]}
                | {name: values[row] for name, _, values in columns[1:4]}
                | {"since": datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=columns[4][2][row])}
                | key
            )
        system.step += 1

    registry.stop()
    for _ in range(20):
        append(("BIGINT", [1 << 62, -1]))
    append(("TEXT", ["many", "few"]))  # the query has changed: it is another schema
    system.flush()
    system.start("out")
    wait_until(lambda: "refused" in system.fault("sink-out"), f"no word of it: {system.fault('sink-out')}")
    registry.away = True
    registry.start()
    wait_until(lambda: "503" in system.fault("sink-out"), f"no word of it: {system.fault('sink-out')}")
    registry.away = False
    wait_until(lambda: len(records(system, topic)) >= len(expected), f"rows are missing: {system.said('sink-out')}")
    read = AvroDeserializer(SchemaRegistryClient({"url": registry.url}))
    found = []
    for message in records(system, topic):
        row = read(message.value(), SerializationContext(topic, MessageField.VALUE))
        key = read(message.key(), SerializationContext(topic, MessageField.KEY))
        assert isinstance(row, dict)
        assert key == {name: row[name] for name in ("result_time", "result_run", "result_group", "result_row")}
        found.append(row)
    found.sort(key=lambda row: (row["result_time"], row["result_row"]))
    assert found == expected
    assert {subject: len(ids) for subject, ids in registry.subjects.items()} == {f"{topic}-key": 1, f"{topic}-value": 2}
    assert not system.letters()
