"""Edges on messages that are no JSON, from a real MQTT broker and a real Kafka topic."""

from __future__ import annotations

import io
import json
import struct
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import fastavro
import paho.mqtt.client as paho
import pytest

from tests.integration.edges import OWN, LiveWorld, until
from tests.integration.test_edge_kafka import Topic
from tests.integration.test_edge_mqtt import Mosquitto, Publisher, mosquitto, publisher
from tsunagi.runtime.columns import floats, sensors
from tsunagi.runtime.messages import sparkplug_b_pb2 as pb

__all__ = ["mosquitto", "publisher"]  # fixtures


def published(world: LiveWorld) -> dict[str, set[float]]:
    """Return the values of all windows, by sensor."""
    found: dict[str, set[float]] = {}
    for _, batch in world.batches():
        for sensor, value in zip(sensors(batch.sensor).tolist(), floats(batch.value).tolist(), strict=True):
            found.setdefault(f"s{sensor}", set()).add(value)
    return found


def test_sparkplug_from_an_mqtt_broker(
    make_live: Callable[..., LiveWorld], mosquitto: Mosquitto, publisher: Publisher
) -> None:
    mosquitto.start()
    until(publisher.client.is_connected)
    entry = {"each": "metrics", "values": ["value"], "sensor": "{name}", "time": "timestamp", "time_unit": "ms"}
    world = make_live(
        kind="mqtt",
        format="sparkplug",
        fields=json.dumps([entry]),
        mqtt__port=mosquitto.port,
        mqtt__topic="spBv1.0/plant/#",
    )
    process = world.start()
    until(lambda: "source connected" in world.said())

    def send(kind: str, *metrics: pb.Payload.Metric) -> None:
        payload = pb.Payload(timestamp=time.time_ns() // 1_000_000, metrics=metrics)
        publisher.client.publish(f"spBv1.0/plant/{kind}", payload.SerializeToString(), qos=1)

    def sent_until(holds: Callable[[], bool], *metrics: pb.Payload.Metric) -> None:
        """Send data again and again: on a busy machine a single message may come too late for its windows."""

        def once_more() -> bool:
            send("DDATA/gw/boiler", *metrics)
            return holds()

        until(once_more)

    asked: list[pb.Payload] = []

    def on_command(_client: object, _data: object, message: paho.MQTTMessage) -> None:
        asked.append(pb.Payload.FromString(bytes(message.payload)))
        give_birth()

    def give_birth() -> None:
        send("NBIRTH/gw", pb.Payload.Metric(name="bdSeq", datatype=pb.Int64, long_value=1))
        send(
            "DBIRTH/gw/boiler",
            pb.Payload.Metric(name="s0", alias=1, datatype=pb.Float, float_value=20.5),
            pb.Payload.Metric(name="s2", alias=2, datatype=pb.Int16, int_value=0xFFFF),
        )

    publisher.client.on_message = on_command
    publisher.client.subscribe("spBv1.0/plant/NCMD/gw", 1)
    send("DDATA/gw/boiler", pb.Payload.Metric(alias=1, float_value=1.0))
    until(lambda: len(asked) == 1)

    def born() -> bool:
        give_birth()
        return published(world) == {"s0": {20.5}, "s2": {-1.0}}

    until(born)
    sent_until(
        lambda: published(world) == {"s0": {20.5, 0.25}, "s2": {-1.0}}, pb.Payload.Metric(alias=1, float_value=0.25)
    )
    letters = [letter.reason for letter in world.letters() if letter.reason != "reading-late"]
    assert letters == ["no-birth"]
    process.terminate()
    assert process.wait(30) == 0
    process = world.start()  # it knows no birth, and asks again
    until(lambda: world.said().count("source connected") == 2)
    send("DDATA/gw/boiler", pb.Payload.Metric(alias=1, float_value=7.0))
    until(lambda: len(asked) == 2)
    sent_until(lambda: 0.75 in published(world)["s0"], pb.Payload.Metric(alias=1, float_value=0.75))
    for command in asked:
        assert [(item.name, item.boolean_value) for item in command.metrics] == [("Node Control/Rebirth", True)]
    process.terminate()
    assert process.wait(30) == 0


def test_line_protocol_from_a_kafka_topic(make_live: Callable[..., LiveWorld]) -> None:
    entry = {"values": ["fields.v"], "sensor": "{tags.sensor}", "time_unit": "ns"}
    world = make_live(kind="kafka", format="line-protocol", fields=json.dumps([entry]))
    topic = Topic(world)
    topic.make()
    world.environment["TSUNAGI_SOURCE__KAFKA__TOPIC"] = topic.name
    process = world.start()
    until(lambda: "reading the topic" in world.said())

    def arrived() -> bool:
        for number, sensor in enumerate(OWN):
            topic.raw(f"plant,sensor={sensor} v={number} {time.time_ns()}\nplant v=\n# end".encode())
        return published(world) == {"s0": {0.0}, "s2": {1.0}, "s4": {2.0}}

    until(arrived)
    assert "line 2: found 'plant v=', expected line protocol" in world.letters("unreadable")[0].detail
    assert {letter.reason for letter in world.letters()} == {"unreadable"}
    process.terminate()
    assert process.wait(30) == 0


SCHEMA = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "device", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "level", "type": ["null", "double"]},
    ],
}


class Registry(ThreadingHTTPServer):
    """A schema registry that knows one schema, and is away as long as `away` says."""

    def __init__(self) -> None:
        self.away = True
        self.asked = 0
        super().__init__(("127.0.0.1", 0), _Answer)
        threading.Thread(target=self.serve_forever).start()


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Registry)
        self.server.asked += 1
        known = self.path.startswith("/schemas/ids/1")
        body = {"schema": json.dumps(SCHEMA)} if known else {"error_code": 40403, "message": "Schema not found"}
        self.send_response(503 if self.server.away else 200 if known else 404)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def registry() -> Iterator[Registry]:
    server = Registry()
    yield server
    server.shutdown()
    server.server_close()


def test_avro_from_a_kafka_topic_waits_for_its_registry(
    make_live: Callable[..., LiveWorld], registry: Registry
) -> None:
    world = make_live(
        kind="kafka",
        format="avro",
        fields=json.dumps([{"values": ["level"], "sensor": "{device}", "time": "at"}]),
        kafka__registry=f"http://127.0.0.1:{registry.server_port}",
    )
    topic = Topic(world)
    topic.make()
    world.environment["TSUNAGI_SOURCE__KAFKA__TOPIC"] = topic.name
    process = world.start()
    until(lambda: "reading the topic" in world.said())

    def send(device: str, level: float | None, schema: int = 1) -> None:
        body = io.BytesIO(struct.pack(">bI", 0, schema))
        body.seek(5)
        record = {"device": device, "at": datetime.now(UTC), "level": level}
        fastavro.schemaless_writer(body, fastavro.parse_schema(SCHEMA), record)
        topic.raw(body.getvalue())

    topic.raw(b"\0\0\0\0\1\0")
    until(lambda: "HTTP status code 503" in world.said())
    assert not world.letters()
    registry.away = False
    until(lambda: len(world.letters("unreadable")) == 1)
    asked = registry.asked

    def arrived() -> bool:
        send("s0", 1.5)
        send("s2", -2.5)
        send("s4", None)
        return published(world) == {"s0": {1.5}, "s2": {-2.5}}

    until(arrived)
    assert {letter.reason for letter in world.letters()} == {"unreadable", "no-field"}
    assert registry.asked == asked  # once for each schema
    send("s0", 1.5, schema=2)
    until(lambda: len(world.letters("unreadable")) == 2)
    assert "Schema not found" in world.letters("unreadable")[1].detail
    process.terminate()
    assert process.wait(30) == 0
