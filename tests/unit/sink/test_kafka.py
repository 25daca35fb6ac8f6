"""Rows in the forms of Kafka Connect and Avro, and the options of the producer."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
import httpx2
import pytest
from confluent_kafka.schema_registry import SchemaRegistryError
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tsunagi.query.values import Kind
from tsunagi.runtime.settings import Settings, SinkSettings
from tsunagi.sink.base import SinkAwayError, SinkError
from tsunagi.sink.kafka import KafkaSink, _avro_name, _avro_schema, _connect_json
from tsunagi.sink.rows import Schema, SinkColumn

AT = datetime(2024, 5, 6, 12, 0, 0, 123_999, tzinfo=UTC)
AT_MS = 1_714_996_800_123
KINDS = {
    "result_time": Kind.TIMESTAMP,
    "mean": Kind.DOUBLE,
    "n": Kind.BIGINT,
    "on": Kind.BOOLEAN,
    "what": Kind.TEXT,
    "since": Kind.TIMESTAMP,
}
SCHEMA = Schema("alarms", tuple(SinkColumn(*item) for item in KINDS.items()), ("result_time", "what"))
ROW = (AT, math.nan, -(2**63), True, "ü", None)
TIMESTAMP = {"type": "int64", "name": "org.apache.kafka.connect.data.Timestamp", "version": 1}


def make(**kafka: Any) -> KafkaSink:
    wanted = {"name": "out", "kind": "kafka", "kafka": {"topic": "plant"} | kafka}
    settings = Settings.model_validate({"kafka": {"servers": "own:9092", "options": {"linger.ms": 7}}})
    return KafkaSink(settings, SinkSettings.model_validate(wanted))


def test_a_row_as_kafka_connect_takes_it() -> None:
    assert json.loads(_connect_json("plant", SCHEMA, ROW, False)) == {
        "schema": {
            "type": "struct",
            "name": "alarms",
            "optional": False,
            "fields": [
                {"field": "result_time", "optional": True, **TIMESTAMP},
                {"field": "mean", "optional": True, "type": "double"},
                {"field": "n", "optional": True, "type": "int64"},
                {"field": "on", "optional": True, "type": "boolean"},
                {"field": "what", "optional": True, "type": "string"},
                {"field": "since", "optional": True, **TIMESTAMP},
            ],
        },
        "payload": {"result_time": AT_MS, "mean": None, "n": -(2**63), "on": True, "what": "ü", "since": None},
    }


def test_a_key_has_the_columns_of_the_key_none_of_which_may_be_missing() -> None:
    found = json.loads(_connect_json("plant", SCHEMA, ROW, True))
    assert found["payload"] == {"result_time": AT_MS, "what": "ü"}
    assert [(field["field"], field["optional"]) for field in found["schema"]["fields"]] == [
        ("result_time", False),
        ("what", False),
    ]


@pytest.mark.parametrize(
    ("name", "expected"), [("a-b.c", "a_b_c"), ("1st", "_1st"), ("Süd 2", "S_d_2"), ("_a1", "_a1")]
)
def test_names_as_avro_allows_them(name: str, expected: str) -> None:
    assert _avro_name(name) == expected
    fastavro.parse_schema(_avro_schema(Schema(name, (SinkColumn(name, Kind.TEXT),), (name,)), key=True))


def test_avro_keeps_microseconds_nulls_and_what_is_no_number_and_a_changed_column_has_a_schema_of_its_own() -> None:
    sink = make(format="avro", registry="mock://rows")
    context = SerializationContext("plant", MessageField.VALUE)
    written = sink._avro("plant", SCHEMA, ROW, False)
    read = AvroDeserializer(sink._registry)
    found: Any = read(written, context)
    assert math.isnan(found.pop("mean"))
    assert found == {"result_time": AT, "n": -(2**63), "on": True, "what": "ü", "since": None}
    assert read(sink._avro("plant", SCHEMA, ROW, True), context) == {"result_time": AT, "what": "ü"}
    columns = tuple(SinkColumn(name, Kind.TEXT if name == "n" else kind) for name, kind in KINDS.items())
    changed: Any = read(
        sink._avro("plant", Schema("alarms", columns, SCHEMA.key), (*ROW[:2], "x", *ROW[3:]), False), context
    )
    assert changed["n"] == "x"


@pytest.mark.parametrize(
    "error", [SchemaRegistryError(503, 50301, "gone"), httpx2.ConnectError("gone"), ConnectionResetError("gone")]
)
def test_a_registry_that_is_away_is_a_target_that_is_away(error: Exception) -> None:
    sink = make(format="avro", registry="http://host")

    def writer(values: object, context: object) -> bytes:
        raise error

    sink._writers["plant", SCHEMA, False] = writer
    with pytest.raises(SinkAwayError, match=r"registry http://host: .*gone"):
        sink._avro("plant", SCHEMA, ROW, False)


def test_options_of_the_registry_that_are_none_are_refused() -> None:
    sink = make(format="avro", registry="http://host", registry_options={"speed": 1})
    with pytest.raises(SinkError, match=r"\[sinks\.kafka\] registry_options: Unrecognized properties: speed"):
        sink._avro("plant", SCHEMA, ROW, False)


def test_options_that_are_none_are_refused() -> None:
    with pytest.raises(SinkError, match=r'\[sinks\.kafka\] options: No such configuration property: "speed"'):
        make(options={"speed": 1}).open()


def test_its_own_cluster_has_nothing_of_the_systems_options(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("words\n", encoding="utf-8")
    shared = make()._options()
    assert (shared["bootstrap.servers"], shared["linger.ms"]) == ("own:9092", 5)
    own = make(
        servers="other:9093", username="plant", password_file=str(tmp_path / "secret"), options={"linger.ms": 9}
    )._options()
    assert (own["bootstrap.servers"], own["linger.ms"]) == ("other:9093", 9)
    assert (own["security.protocol"], own["sasl.username"], own["sasl.password"]) == ("sasl_ssl", "plant", "words")
