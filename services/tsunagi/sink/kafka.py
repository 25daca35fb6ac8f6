"""Rows in a topic that other programs read: JSON with its schema, as Kafka Connect takes it, or Avro with a registry.

A record's key is the row's key. Late truths go to a topic of their own, since Kafka keeps no order between a row that
one instance writes and its truth, which another one writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tsunagi.query.values import Kind
from tsunagi.runtime.kafka_client import client_logger, client_options
from tsunagi.runtime.settings import Settings, SinkSettings
from tsunagi.runtime.times import microseconds_of
from tsunagi.sink.base import Refusal, Sink, SinkAwayError, SinkError, sink_secret
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
_PRODUCER: dict[str, Any] = {
    "enable.idempotence": True,
    "linger.ms": 5,
    "compression.type": "lz4",
    "topic.metadata.propagation.max.ms": 5000,  # after this time a topic that is not there is said to be missing
}
"""Options of the producer, unless the settings have others."""
Encode = Callable[[str, Schema, Sequence[Any], bool], bytes]
"""Returns a row, or only its key, as bytes: (topic, schema, row, whether only its key)."""


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
        self._writers: dict[tuple[str, Schema, bool], Callable[..., Any]] = {}
        self._registry: Any = None
        self._options()

    def open(self) -> None:
        try:
            options = self._options()
        except SinkError as error:  # the file may be about to be written anew
            raise SinkAwayError(str(error)) from None
        try:
            self._producer = Producer(options, logger=client_logger)
        except (KafkaException, ValueError, TypeError) as error:
            told = _words(error.args[0]) if isinstance(error, KafkaException) else str(error)
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
                key = self._encode(topic, part.schema, row, True)  # noqa: FBT003 - see Encode
                value = self._encode(topic, part.schema, row, False)  # noqa: FBT003
                try:
                    self._produce(producer, topic, key, value, delivered)
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.MSG_SIZE_TOO_LARGE:
                        raise SinkAwayError(f"topic {topic}: {_words(error.args[0])}") from None
                    refused.append(Refusal(number, place, _words(error.args[0])))
        left = producer.flush(TAKEN_S)
        if failed or left:
            words = _words(failed[0]) if failed else f"{left} records were not taken within {TAKEN_S:g} s"
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
                password = sink_secret(wanted.password_file, f"{self._setting} password_file")
                options |= {"sasl.username": wanted.username, "sasl.password": password}
                options |= {"security.protocol": "sasl_ssl", "sasl.mechanism": "SCRAM-SHA-512"}
        return options | _PRODUCER | dict(wanted.options)

    def _avro(self, topic: str, schema: Schema, row: Sequence[Any], key: bool) -> bytes:  # noqa: FBT001
        import httpx2
        from confluent_kafka.schema_registry import SchemaRegistryError
        from confluent_kafka.serialization import MessageField, SerializationContext

        writer = self._writers.get((topic, schema, key))
        if writer is None:
            writer = self._writers[topic, schema, key] = self._writer(schema, key=key)
        columns = _columns(schema, key=key)
        values = {_avro_name(name): row[place] for place, name, _ in columns}
        try:
            found: bytes = writer(values, SerializationContext(topic, MessageField.KEY if key else MessageField.VALUE))
        except (SchemaRegistryError, httpx2.HTTPError, OSError) as error:
            raise SinkAwayError(f"registry {self._wanted.registry}: {str(error) or type(error).__name__}") from None
        return found

    def _writer(self, schema: Schema, *, key: bool) -> Callable[..., Any]:
        """Return what writes rows of a schema. It asks the registry when it writes its first one."""
        from confluent_kafka.schema_registry import SchemaRegistryClient
        from confluent_kafka.schema_registry.avro import AvroSerializer

        if self._registry is None:
            try:
                options = {"url": self._wanted.registry} | self._wanted.registry_options
                self._registry = SchemaRegistryClient.new_client(options)
            except (ValueError, TypeError) as error:
                raise SinkError(f"{self._setting} registry_options: {error}") from None
        made: Callable[..., Any] = AvroSerializer(self._registry, json.dumps(_avro_schema(schema, key=key)))
        return made


def _words(error: KafkaError) -> str:
    """Return what an error says. The advice of the system's own clients is about its own topics and settings."""
    return f"{error.str()} ({error.name()})"


def _columns(schema: Schema, *, key: bool) -> list[tuple[int, str, Kind]]:
    """Return (place, name, kind) of the columns of a schema, or only of those of its key."""
    return [(place, *column) for place, column in enumerate(schema.columns) if not key or column.name in schema.key]


def _connect_json(_: str, schema: Schema, row: Sequence[Any], key: bool) -> bytes:  # noqa: FBT001
    """Return a row as Kafka Connect's JsonConverter takes it: an object of `schema` and `payload`."""
    columns = _columns(schema, key=key)
    fields = [{"field": name, "optional": not key, **_CONNECT[kind]} for _, name, kind in columns]
    payload = {name: _connect_value(row[place]) for place, name, _ in columns}
    struct = {"type": "struct", "name": schema.query, "optional": False, "fields": fields}
    return json.dumps({"schema": struct, "payload": payload}, ensure_ascii=False).encode()


def _connect_value(value: object) -> object:
    return microseconds_of(value) // 1000 if isinstance(value, datetime) else plain(value)


def _avro_schema(schema: Schema, *, key: bool) -> dict[str, Any]:
    """Return the schema of a record of a row, or only of its key; each column but those of a key may be null."""
    fields = [
        {"name": _avro_name(name), "type": _AVRO[kind] if key else ["null", _AVRO[kind]]}
        for _, name, kind in _columns(schema, key=key)
    ]
    name = _avro_name(schema.query)
    return {"type": "record", "name": f"{name}_key" if key else name, "namespace": "tsunagi", "fields": fields}


def _avro_name(name: str) -> str:
    """Return a name as Avro allows it: ASCII letters, digits and `_`, and no digit first."""
    return re.sub(r"[^A-Za-z0-9_]|^(?=[0-9])", "_", name)


__all__ = ["CORRECTIONS", "KafkaSink"]
