"""Avro with a schema registry: records become objects; what cannot be read, and a registry that does not answer."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext
from pydantic import ValidationError

from tsunagi.edge.avro import Avro
from tsunagi.edge.decode import Decoder, Reading, ReadingFault
from tsunagi.edge.fields import FieldsDecoder
from tsunagi.edge.inbox import Message
from tsunagi.edge.payload_format import SourceAwayError
from tsunagi.edge.source import SourceError
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import SourceSettings

NOON = datetime(2024, 5, 6, 12, tzinfo=UTC)
TABLE = SensorTable((Sensor(0, "boiler.level", "hall"), Sensor(1, "boiler.price", "hall")))
SCHEMA = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "device", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "level", "type": ["null", "double"], "default": None},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "raw", "type": "bytes"},
        {"name": "more", "type": {"type": "array", "items": "long"}},
    ],
}
RECORD = {"device": "boiler", "at": NOON, "level": 1e308, "price": Decimal("12.50"), "raw": b"\1\2", "more": [-(2**63)]}
BODY = RECORD | {"at": NOON.isoformat(), "price": 12.5, "raw": "0102"}


class MockAvro(Avro):
    """Avro of a registry in memory, and a producer that writes for it."""

    def __init__(self) -> None:
        super().__init__(SourceSettings.model_validate({"kafka": {"registry": "mock://test"}}).kafka)
        client = self._deserialize._registry
        assert isinstance(client, SchemaRegistryClient)
        self.serialize = AvroSerializer(client, json.dumps(SCHEMA))

    def payload(self, record: dict[str, Any] = RECORD) -> bytes:
        data: bytes | None = self.serialize(record, SerializationContext("plant", MessageField.VALUE))
        assert data is not None
        return data

    def read(self, payload: bytes) -> Any:
        (found,) = self.bodies(Message(payload, "here", 5))
        return found


def test_a_record_becomes_an_object() -> None:
    avro = MockAvro()
    assert avro.read(avro.payload()) == BODY
    assert avro.read(avro.payload(RECORD | {"level": None})) == BODY | {"level": None}


def test_fields_find_readings_in_records() -> None:
    avro = MockAvro()
    entry = {"values": ["level", "price"], "sensor": "{device}.{field}", "time": "at"}
    source = SourceSettings.model_validate(
        {"kind": "kafka", "format": "avro", "fields": [entry], "kafka": {"registry": "mock://test"}}
    )
    decoder = FieldsDecoder(Decoder(TABLE, TABLE.of_edge("hall"), source, key_first=False), source, avro)
    noon_us = round(NOON.timestamp()) * 1_000_000
    assert decoder.readings(Message(avro.payload(), "here", 5)) == [
        Reading(0, noon_us, 1e308, arrival=False),
        Reading(1, noon_us, 12.5, arrival=False),
    ]


@pytest.mark.parametrize(
    ("cut", "detail"),
    [
        (lambda _: b"", "found 0 bytes that begin with ''"),
        (lambda payload: payload[:5], "Expecting data framing of length 6"),
        (lambda payload: payload[:-1], "EOFError"),
        (lambda payload: b"\7" + payload[1:], "Invalid magic byte"),
        (lambda _: b'{"a": 1}', "found 8 bytes that begin with '7b 22 61 22 3a 20 31 7d', expected Avro"),
        (lambda payload: payload[:1] + b"\0\0\0\7" + payload[5:], "the registry mock://test says: Schema Not Found"),
    ],
)
def test_what_cannot_be_read_says_why(cut: Any, detail: str) -> None:
    avro = MockAvro()
    good = avro.payload()
    for _ in range(2):  # the second time nobody is asked
        found = avro.read(cut(good))
        assert isinstance(found, ReadingFault)
        assert found.reason == "unreadable"
        assert detail in found.detail
    assert avro.read(good) == BODY


def test_a_registry_that_does_not_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    avro = MockAvro()
    good = avro.payload()

    def refuse(*arguments: object, **options: object) -> Schema:
        raise SchemaRegistryError(503, 50301, "no leader")

    with monkeypatch.context() as patch:
        patch.setattr(avro._deserialize._registry, "get_schema", refuse)
        assert avro.read(good[:5]).reason == "unreadable"  # it is too short to be asked for
        for _ in range(2):
            with pytest.raises(SourceAwayError, match="schema registry mock://test: no leader"):
                avro.fetch(good)
        assert avro.read(good).reason == "unreadable"
    avro.fetch(good)
    assert avro.read(good) == BODY


def test_nobody_there_is_a_registry_that_does_not_answer() -> None:
    source = SourceSettings.model_validate({"kafka": {"registry": "http://127.0.0.1:1"}})
    with pytest.raises(SourceAwayError, match=r"schema registry http://127.0.0.1:1: .*refused"):
        Avro(source.kafka).fetch(b"\0\0\0\0\1\2")


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"found no \[source.kafka\] registry, expected the URL"):
        SourceSettings.model_validate({"kind": "kafka", "format": "avro", "fields": [{}]})
    for kafka in ({"registry": "localhost"}, {"registry": "http://a", "registry_options": {"odd": 1}}):
        with pytest.raises(SourceError, match=r"\[source.kafka\] registry, registry_options: "):
            Avro(SourceSettings.model_validate({"kafka": kafka}).kafka)


def test_no_format_imports_the_library_of_another_and_an_absent_one_names_its_extra() -> None:
    program = """
import sys
sys.modules["httpx2"] = None
from tsunagi.edge.formats import make_format
from tsunagi.runtime.settings import SourceSettings
make_format(SourceSettings())
heavy = {"fastavro", "confluent_kafka.schema_registry", "line_protocol_parser", "tsunagi.edge.sparkplug"}
print(sorted(heavy & set(sys.modules)))
try:
    make_format(SourceSettings.model_validate(
        {"kind": "kafka", "format": "avro", "fields": [{}], "kafka": {"registry": "http://a"}}))
except Exception as error:
    print(error)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    heavy, error = ran.stdout.splitlines()
    assert heavy == "[]"
    assert error.endswith("found no module 'httpx2', expected the extra avro: pip install 'tsunagi-stream[avro]'")
