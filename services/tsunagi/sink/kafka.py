"""Rows in a topic that other programs read: JSON with its schema, as Kafka Connect takes it, or Avro with a registry.

A record's key is the row's key. Late truths go to a topic of their own, since Kafka keeps no order between a row that
one instance writes and its truth, which another one writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tsunagi.query.values import Kind
from tsunagi.runtime.kafka_client import client_logger, client_options
from tsunagi.runtime.kafka_errors import said
from tsunagi.runtime.settings import Settings, SinkSettings
from tsunagi.sink.base import Refusal, Sink, SinkAwayError, SinkError, read_secret
from tsunagi.sink.messages import plain
from tsunagi.sink.rows import Schema, SinkBatch

CORRECTIONS = "-corrections"
"""What is put behind the topic's name for the topic of late truths."""
TAKEN_S = 30.0
"""Longest wait until the cluster has taken the records of a batch, in seconds."""
_CONNECT: Mapping[Kind, dict[str, Any]] = {
    Kind.DOUBLE: {"type": "double"},
    Kind.BIGINT: {"type": "int64"},
    Kind.BOOLEAN: {"type": "boolean"},
    Kind.TEXT: {"type": "string"},
    Kind.TIMESTAMP: {"type": "int64", "name": "org.apache.kafka.connect.data.Timestamp", "version": 1},
}
"""The type of a column in the schemas of Kafka Connect, whose times are milliseconds since 1970."""
_AVRO: Mapping[Kind, Any] = {
    Kind.DOUBLE: "double",
    Kind.BIGINT: "long",
    Kind.BOOLEAN: "boolean",
    Kind.TEXT: "string",
    Kind.TIMESTAMP: {"type": "long", "logicalType": "timestamp-micros"},
}
"""The type of a column in Avro."""
Encode = Callable[[Schema, Sequence[Any], tuple[str, ...], bool], bytes]
"""Returns some columns of a row as bytes: (schema, row, names of the columns, whether they are the key)."""


class KafkaSink(Sink):
    """Writes a record for each row.

    Raises:
        SinkError: the settings cannot be used.
    """

    def __init__(self, settings: Settings, wanted: SinkSettings) -> None:
        self._wanted = wanted.kafka
        self._setting = f"[[sinks]] {wanted.name}: [sinks.kafka]"
        self._settings = settings
        self._producer: Producer | None = None
        self._encode = _connect_json if self._wanted.format == "json" else self._avro
        self._writers: dict[tuple[str, tuple[str, ...], bool], Any] = {}
        self._registry: Any = None
        self._options()

    def open(self) -> None:
        try:
            self._producer = Producer(self._options(), logger=client_logger)
        except (KafkaException, ValueError, TypeError) as error:
            told = said(error) if isinstance(error, KafkaException) else str(error)
            raise SinkError(f"{self._setting} options: {told}") from None

    def close(self) -> None:
        if self._producer is not None:
            self._producer.purge()
            self._producer = None

    def write(self, batch: SinkBatch) -> Sequence[Refusal]:
        producer = self._producer
        if producer is None:
            raise SinkAwayError(f"{self._setting}: not open")
        refused, failed = list[Refusal](), list[KafkaError]()

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failed.append(error)

        for number, part in enumerate(batch.parts):
            topic = self._wanted.topic + (CORRECTIONS if part.correcting else "")
            for place, row in enumerate(part.rows):
                key = self._encode(part.schema, row, part.schema.key, True)  # noqa: FBT003 - see Encode
                value = self._encode(part.schema, row, part.schema.names, False)  # noqa: FBT003
                try:
                    self._produce(producer, topic, key, value, delivered)
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.MSG_SIZE_TOO_LARGE:
                        raise SinkAwayError(said(error)) from None
                    refused.append(Refusal(number, place, said(error)))
        left = producer.flush(TAKEN_S)
        if failed or left:
            words = said(failed[0]) if failed else f"{left} records were not taken within {TAKEN_S:g} s"
            raise SinkAwayError(f"topic {self._wanted.topic}: {words}")
        return refused

    def _produce(
        self, producer: Producer, topic: str, key: bytes, value: bytes, delivered: Callable[[Any, Message], None]
    ) -> None:
        while True:
            try:
                producer.produce(topic, value, key, on_delivery=delivered)
            except BufferError:
                producer.poll(0.1)
            else:
                producer.poll(0)
                return

    def _options(self) -> dict[str, Any]:
        wanted, shared = self._wanted, self._settings.kafka
        options = client_options(shared) | dict(shared.options)
        if wanted.servers:
            options = {"bootstrap.servers": wanted.servers}
            if wanted.username:
                password = read_secret(wanted.password_file, f"{self._setting} password_file")
                options |= {"sasl.username": wanted.username, "sasl.password": password}
                options |= {"security.protocol": "sasl_ssl", "sasl.mechanism": "SCRAM-SHA-512"}
        return options | {"enable.idempotence": True, "linger.ms": 5, "compression.type": "lz4"} | dict(wanted.options)

    def _avro(self, schema: Schema, row: Sequence[Any], names: tuple[str, ...], key: bool) -> bytes:  # noqa: FBT001
        from confluent_kafka.schema_registry import SchemaRegistryClient, SchemaRegistryError
        from confluent_kafka.schema_registry.avro import AvroSerializer
        from confluent_kafka.serialization import MessageField, SerializationContext

        field = MessageField.KEY if key else MessageField.VALUE
        try:
            if self._registry is None:
                self._registry = SchemaRegistryClient({"url": self._wanted.registry} | self._wanted.registry_options)
            writer = self._writers.get((schema.query, names, key))
            if writer is None:
                writer = AvroSerializer(self._registry, json.dumps(_avro_schema(schema, names, key=key)))
                self._writers[schema.query, names, key] = writer
            values = {name: row[schema.place(name)] for name in names}
            found: bytes = writer(values, SerializationContext(self._wanted.topic, field))
        except (SchemaRegistryError, OSError) as error:
            raise SinkAwayError(f"registry {self._wanted.registry}: {error}") from None
        return found


def _connect_json(schema: Schema, row: Sequence[Any], names: tuple[str, ...], key: bool) -> bytes:  # noqa: FBT001
    """Return columns of a row as Kafka Connect's JsonConverter takes them: an object of `schema` and `payload`."""
    fields = [
        {"field": column.name, "optional": not key, **_CONNECT[column.kind]}
        for column in schema.columns
        if column.name in names
    ]
    payload = {name: _connect_value(row[schema.place(name)]) for name in names}
    struct = {"type": "struct", "name": schema.query, "optional": False, "fields": fields}
    return json.dumps({"schema": struct, "payload": payload}, ensure_ascii=False).encode()


def _connect_value(value: object) -> object:
    return round(value.timestamp() * 1000) if isinstance(value, datetime) else plain(value)


def _avro_schema(schema: Schema, names: tuple[str, ...], *, key: bool) -> dict[str, Any]:
    """Return the schema of a record of some columns; each but those of a key may be null."""
    fields: list[dict[str, Any]] = []
    for column in schema.columns:
        if column.name in names:
            kind = _AVRO[column.kind]
            fields.append({"name": column.name, "type": kind} if key else {"name": column.name, "type": ["null", kind]})
    name = "".join(character if character.isalnum() else "_" for character in schema.query)
    return {"type": "record", "name": f"{name}_key" if key else name, "namespace": "tsunagi", "fields": fields}


__all__ = ["CORRECTIONS", "KafkaSink"]
